"""How JSON is written, for every schema of a spec at once: what a request, a `gen` or a server may set. Values only."""

from typing import Literal

import msgspec

from ramet.constrained.spec import JsonObject, JsonSchema, OneOf, Repeat, Sequence, Spec, Tagged


class JsonOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each None leaves what a schema has; see `spec.JsonSchema` for what they mean."""

    any_order: bool | None = None
    whitespace: Literal["compact", "bounded", "exact"] | None = None
    unsupported: Literal["error", "declare"] | None = None

    def over(self, defaults: "JsonOptions") -> "JsonOptions":
        """These, and the others where these say nothing."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(defaults, **given)

    def applied(self, spec: Spec) -> Spec:
        """The spec with these options in all of its schemas."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return _with(spec, given) if given else spec


def _with(spec: Spec, given: dict[str, object]) -> Spec:
    match spec:
        case JsonSchema():
            return msgspec.structs.replace(spec, **given)
        case JsonObject():  # it has neither names to order nor keywords to declare
            return msgspec.structs.replace(spec, whitespace=given.get("whitespace", spec.whitespace))
        case Sequence() | OneOf():
            return msgspec.structs.replace(spec, items=tuple(_with(item, given) for item in spec.items))
        case Repeat() | Tagged():
            return msgspec.structs.replace(spec, item=_with(spec.item, given))
        case _:
            return spec
