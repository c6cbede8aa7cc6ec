"""One schema document: where its subschemas lie, what they are called, and which of them say the same.

Knows the places where the keywords of drafts 4 to 2020-12 hold subschemas, and how `$id`, `$anchor` and `$ref` name
them; knows nothing of what a keyword means. The idea: every subschema gets a number by content, so two places that
say the same (annotations aside) are one schema, and whatever is computed about it is computed once. A *literal* is
such a number with a sign: +n "the value satisfies schema n", -n "it does not".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from ramet.constrained.json_schema.text import Json, escape, identity, refuse

SINGLE = frozenset(
    [
        "additionalProperties",
        "propertyNames",
        "items",
        "additionalItems",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
"""Keywords that hold one subschema (`items` may also hold a list)."""
LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
MAPS = frozenset(["properties", "patternProperties", "dependentSchemas", "dependencies"])
DEFINITIONS = ("$defs", "definitions")
ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "id",
        "$comment",
        "$vocabulary",
        "$anchor",
        "$dynamicAnchor",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "readOnly",
        "writeOnly",
        "deprecated",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$defs",
        "definitions",
    ]
)
"""Keywords of the specification that assert nothing."""
ASSERTIONS = (
    SINGLE
    | LISTS
    | MAPS
    | frozenset(
        [
            "type",
            "enum",
            "const",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "required",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "minItems",
            "maxItems",
            "uniqueItems",
            "minContains",
            "maxContains",
            "$ref",
            "$dynamicRef",
            "$recursiveRef",
        ]
    )
)
"""Keywords that Ramet has an opinion on; any other name is an annotation."""

Literal_: TypeAlias = int


@dataclass(frozen=True, slots=True)
class Schema:
    """One subschema, at the first place that says it."""

    number: int
    """> 0, by content."""
    value: "bool | dict[str, Json]"
    pointer: str
    base: str
    """URI of the resource it stands in, without fragment."""
    draft: int
    """4, 6, 7, 2019 or 2020."""


@dataclass(slots=True)
class _Resource:
    value: Json
    pointer: str
    draft: int


class Document:
    """The subschemas of one schema text."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._numbers: dict[object, int] = {}
        self._schemas: list[Schema] = []
        self._at: dict[str, int] = {}
        self._bases: dict[str, tuple[str, int]] = {}
        self._resources: dict[str, _Resource] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, set[str]] = {}
        self._recursive = False
        self.false = self._intern(False, "", "", 2020)
        self.true = self._intern(True, "", "", 2020)
        self._resources[""] = _Resource(root, "", 2020)
        self._find_names(root, "", "", 2020)
        self.root = self._number(root, "")

    def schema(self, literal: Literal_) -> Schema:
        """The schema of a literal, whatever its sign."""
        return self._schemas[abs(literal) - 1]

    def child(self, schema: Schema, *path: str | int) -> Literal_:
        """The positive literal of the subschema at `path` below `schema`."""
        pointer = schema.pointer + "".join(f"/{escape(str(step))}" for step in path)
        known = self._at.get(pointer)
        return known if known is not None else self._number(self._value(pointer), pointer)

    def made(self, value: "bool | dict[str, Json]", like: Schema) -> Literal_:
        """A schema that the text does not hold, as if it stood where `like` stands. It may hold no references."""
        pointer = f"{like.pointer}/<{len(self._schemas)}>"
        self._bases[pointer] = (like.base, like.draft)
        return self._number(value, pointer)

    def any_of(self, literals: tuple[Literal_, ...], like: Schema) -> Literal_:
        """A schema that the text does not hold: at least one of these positive literals."""
        return self._made_of("anyOf", literals, like)

    def _made_of(self, keyword: str, literals: tuple[Literal_, ...], like: Schema) -> Literal_:
        pointer = f"{like.pointer}/<{len(self._schemas)}>"
        for index, literal in enumerate(literals):
            self._at[f"{pointer}/{keyword}/{index}"] = literal
        number = self._intern_key(("{}", ((keyword, literals),)), {keyword: [True] * len(literals)}, pointer, like.base)
        self._at[pointer] = number
        return number

    def resolve(self, schema: Schema, ref: str, keyword: str = "$ref") -> Literal_:
        """The literal that a reference names. Raises GrammarRefused where it is remote or leads nowhere."""
        at = f"{schema.pointer}/{keyword}"
        target, fragment = urldefrag(schema.base + ref if ref.startswith("#") else urljoin(schema.base, ref))
        if ref.startswith("#"):
            target = schema.base
        resource = self._resources.get(target)
        if resource is None:
            refuse("a reference within the schema", ref, at, "Copy the remote schema into $defs.", code="remote_ref")
        pointer = self._pointer_of(target, resource, unquote(fragment))
        if pointer is None:
            refuse("a reference to something that exists", ref, at, code="unresolved_ref")
        known = self._at.get(pointer)
        if known is not None:
            return known
        value = self._value(pointer)
        if not isinstance(value, (bool, dict)):
            refuse("a reference to a schema", ref, at, code="unresolved_ref")
        return self._number(value, pointer)

    def is_static(self, ref: str) -> bool:
        """Whether a dynamic reference leads to the same place however it is reached."""
        fragment = urldefrag(ref).fragment
        if fragment in ("", "/"):
            return not self._recursive
        return fragment.startswith("/") or len(self._dynamic.get(fragment, ())) <= 1

    def _pointer_of(self, target: str, resource: _Resource, fragment: str) -> str | None:
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((target, fragment))
        pointer, value = resource.pointer, resource.value
        for token in fragment.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            step = _step(value, name)
            if step is None:
                return None
            value, pointer = step[0], f"{pointer}/{token}"
        return pointer

    def _value(self, pointer: str) -> Json:
        value = self._root
        for token in pointer.split("/")[1:]:
            step = _step(value, token.replace("~1", "/").replace("~0", "~"))
            assert step is not None, pointer
            value = step[0]
        return value

    # -- names -----------------------------------------------------------------------------------------------------

    def _find_names(self, value: Json, pointer: str, base: str, draft: int) -> None:
        """Walk all places that hold schemas; note resources, anchors and each place's base."""
        if not isinstance(value, dict):
            self._bases[pointer] = (base, draft)
            return
        draft = _draft_of(value.get("$schema"), draft)
        base = self._identify(value, pointer, base, draft)
        self._bases[pointer] = (base, draft)
        for path, item in _places(value):
            self._find_names(item, f"{pointer}/{path}", base, draft)

    def _identify(self, value: dict[str, Json], pointer: str, base: str, draft: int) -> str:
        own = value.get("id" if draft == 4 and "$id" not in value else "$id")
        if isinstance(own, str) and not ("$ref" in value and draft <= 7):
            target, fragment = urldefrag(urljoin(base, own))
            if fragment and not fragment.startswith("/"):  # the form of drafts 4 to 7
                self._anchors[(target or base, fragment)] = pointer
            if target and target != base:
                base = target
                self._resources.setdefault(base, _Resource(value, pointer, draft))
        if pointer == "":
            self._resources[base] = _Resource(value, "", draft)
            old = value.get("id")
            if isinstance(old, str) and "://" in old:  # draft 4's name for itself, in a schema that names no draft
                self._resources.setdefault(urldefrag(old).url, _Resource(value, "", draft))
        for name in ("$anchor", "$dynamicAnchor"):
            anchor = value.get(name)
            if isinstance(anchor, str) and draft > 7:
                self._anchors[(base, anchor)] = pointer
                if name == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, set()).add(base)
        self._recursive |= value.get("$recursiveAnchor") is True
        return base

    # -- numbers by content ----------------------------------------------------------------------------------------

    def _number(self, value: Json, pointer: str) -> int:
        base, draft = self._base_of(pointer)
        if isinstance(value, bool):
            number = self.true if value else self.false
        elif isinstance(value, dict):
            number = self._intern(value, pointer, base, _draft_of(value.get("$schema"), draft))
        else:
            refuse("a schema: an object or a boolean", value, pointer, code="invalid_schema")
        self._at[pointer] = number
        return number

    def _intern(self, value: "bool | dict[str, Json]", pointer: str, base: str, draft: int) -> int:
        if isinstance(value, bool):
            key: object = ("bool", value)
        elif "$ref" in value and draft <= 7:
            key = ("{}", (("$ref", (base, identity(value["$ref"]))),))
        else:
            key = ("{}", tuple(self._parts(value, pointer, base, draft)))
            key = ("bool", True) if key == ("{}", ()) else (*key, draft == 4)
        return self._intern_key(key, value, pointer, base, draft)

    def _intern_key(self, key: object, value: object, pointer: str, base: str, draft: int = 2020) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._schemas) + 1
            self._schemas.append(Schema(number, value, pointer, base, draft))  # type: ignore[arg-type]
        return number

    def _parts(self, value: dict[str, Json], pointer: str, base: str, draft: int) -> Iterator[tuple[str, object]]:
        for keyword, item in value.items():
            if keyword not in ASSERTIONS:
                continue
            if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                yield keyword, (base, identity(item))
            elif keyword in SINGLE and isinstance(item, (dict, bool)):
                yield keyword, self._number(item, f"{pointer}/{keyword}")
            elif keyword in LISTS and isinstance(item, list):
                yield keyword, tuple(self._number(each, f"{pointer}/{keyword}/{i}") for i, each in enumerate(item))
            elif keyword in MAPS and isinstance(item, dict):
                yield keyword, tuple((name, self._entry(each, f"{pointer}/{keyword}/{escape(name)}"))
                                     for name, each in item.items())  # fmt: skip
            else:
                yield keyword, _spelled(item)

    def _entry(self, value: Json, pointer: str) -> object:
        return identity(value) if isinstance(value, list) else self._number(value, pointer)

    def _base_of(self, pointer: str) -> tuple[str, int]:
        while pointer and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return self._bases.get(pointer, ("", 2020))


def _places(value: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """The subschemas directly in a schema object, by relative pointer."""
    for keyword, item in value.items():
        if keyword in DEFINITIONS or keyword in MAPS:
            if isinstance(item, dict):
                yield from ((f"{keyword}/{escape(name)}", each) for name, each in item.items())
        elif isinstance(item, list) and keyword in LISTS:
            yield from ((f"{keyword}/{index}", each) for index, each in enumerate(item))
        elif isinstance(item, dict) and keyword in SINGLE:
            yield keyword, item


def _step(value: Json, name: str) -> tuple[Json] | None:
    if isinstance(value, dict) and name in value:
        return (value[name],)
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return (value[int(name)],)
    return None


def _draft_of(identifier: object, default: int) -> int:
    if not isinstance(identifier, str):
        return default
    for mark, draft in (("draft-03", 4), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if mark in identifier:
            return draft
    return 2020


def _spelled(value: Json) -> object:
    """As `identity`, but 1 and 1.0 differ and so do orders of keys: an enum is written as it is spelled."""
    match value:
        case list():
            return ("array", tuple(_spelled(item) for item in value))
        case dict():
            return ("object", tuple((key, _spelled(item)) for key, item in value.items()))
        case _:
            return (type(value).__name__, str(value) if isinstance(value, Decimal) else value)
