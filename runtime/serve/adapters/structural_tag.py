"""`structural_tag`, the form in which SGLang's and vLLM's clients describe text with constrained parts -> segments.

Two forms exist: the older `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and
`{"format": {...}}` with a tree of typed nodes. Both become free text, literals and grammars in sequence (spec.py).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ramet.constrained.spec import JsonSchema, Lark, Literal_, OneOf, Regex, Repeat, Sequence, Spec, Text
from ramet.runtime.errors import BadRequest, NotBuilt

_MAX_DEPTH = 32
_NOTHING = Literal_(text="")


def structural_tag(value: Any, at: str) -> Spec:
    """at  path of `value` in the body, for errors"""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRequest(expected="a structural tag, as an object or its JSON text", got=value, at=at) from None
    if "format" in _object(value, at):
        return _node(value["format"], f"{at}.format", 0)
    structures = _list(value, "structures", at)
    tags = [_structure(item, f"{at}.structures[{i}]") for i, item in enumerate(structures)]
    begins = [item["begin"] for item in structures]
    return _triggered(_triggers(value, begins, at), tags, at_least_one=False, stop_after_first=False)


def _structure(item: Any, at: str) -> Spec:
    begin, end = _text(item, "begin", at), _text(item, "end", at)
    schema = _object(item, at).get("schema", {})
    return _in_order(_literal(begin), _schema(schema, f"{at}.schema"), _literal(end))


# The tree of nodes ----------------------------------------------------------------------------------------------------


def _node(value: Any, at: str, depth: int) -> Spec:
    kind = _object(value, at).get("type")
    if depth > _MAX_DEPTH:
        raise BadRequest(expected=f"at most {_MAX_DEPTH} levels", got=depth, at=at)
    make = _NODES.get(str(kind))
    if make is None:
        if kind in ("qwen_xml_parameter", "token", "any_tokens", "exclude_token"):
            raise NotBuilt(f"the structural tag node {kind!r}", hint=f"Use one of {', '.join(_NODES)}.")
        raise BadRequest(expected=f"a node of type {', '.join(_NODES)}", got=kind, at=f"{at}.type")
    return make(value, at, depth + 1)


def _sequence(value: Any, at: str, depth: int) -> Spec:
    """Free text inside a sequence goes to where the next element begins."""
    elements = _list(value, "elements", at)
    items: list[Spec] = []
    for i, element in enumerate(elements):
        place = f"{at}.elements[{i}]"
        if _object(element, place).get("type") == "any_text" and i + 1 < len(elements):
            items.append(Text(until=_beginnings(elements[i + 1], f"{at}.elements[{i + 1}]")))
        else:
            items.append(_node(element, place, depth))
    return _in_order(*items)


def _or(value: Any, at: str, depth: int) -> Spec:
    elements = _list(value, "elements", at)
    return _one_of([_node(element, f"{at}.elements[{i}]", depth) for i, element in enumerate(elements)])


def _tag(value: Any, at: str, depth: int) -> Spec:
    begin, ends = _text(value, "begin", at), _ends(value, at)
    content = _object(value.get("content", {"type": "any_text"}), f"{at}.content")
    inner = Text(until=ends) if content.get("type") == "any_text" else _node(content, f"{at}.content", depth)
    return _in_order(_literal(begin), inner, _one_of([_literal(end) for end in ends]))


def _triggered_tags(value: Any, at: str, depth: int) -> Spec:
    tags = _list(value, "tags", at)
    made = [_tag(tag, f"{at}.tags[{i}]", depth) for i, tag in enumerate(tags)]
    return _triggered(
        _triggers(value, [tag["begin"] for tag in tags], at),
        made,
        at_least_one=bool(value.get("at_least_one")),
        stop_after_first=bool(value.get("stop_after_first")),
    )


def _tags_with_separator(value: Any, at: str, depth: int) -> Spec:
    tags = _one_of([_tag(tag, f"{at}.tags[{i}]", depth) for i, tag in enumerate(_list(value, "tags", at))])
    minimum, maximum = int(bool(value.get("at_least_one"))), 1 if value.get("stop_after_first") else None
    return Repeat(item=tags, minimum=minimum, maximum=maximum, separator=_text(value, "separator", at))


_NODES: Mapping[str, Callable[[Any, str, int], Spec]] = {
    "const_string": lambda value, at, _: _literal(_text(value, "value", at)),
    "json_schema": lambda value, at, _: _schema(value.get("json_schema"), f"{at}.json_schema"),
    "regex": lambda value, at, _: Regex(pattern=_text(value, "pattern", at)),
    "grammar": lambda value, at, _: Lark(grammar=_text(value, "grammar", at)),
    "any_text": lambda value, at, _: Text(),
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}


# Parts ----------------------------------------------------------------------------------------------------------------


def _triggered(triggers: tuple[str, ...], tags: list[Spec], *, at_least_one: bool, stop_after_first: bool) -> Spec:
    """Free text; wherever a trigger appears, one of the tags."""
    free = Text(until=triggers)
    unit = _in_order(free, _one_of(tags))
    if stop_after_first:
        return unit if at_least_one else _one_of([unit, free])
    return _in_order(Repeat(item=unit, minimum=int(at_least_one)), free)


def _triggers(value: Any, begins: list[str], at: str) -> tuple[str, ...]:
    triggers = _list(value, "triggers", at)
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise BadRequest(expected="texts that are not empty", got=triggers, at=f"{at}.triggers")
    orphans = [begin for begin in begins if not begin.startswith(tuple(triggers))]
    if orphans:
        raise BadRequest(expected="a trigger that each tag's `begin` starts with", got=orphans[0], at=f"{at}.triggers")
    return tuple(triggers)


def _beginnings(element: Any, at: str) -> tuple[str, ...]:
    """The literal texts that an element can begin with."""
    found: tuple[str, ...] = ()
    match _object(element, at).get("type"):
        case "const_string":
            found = (_text(element, "value", at),)
        case "tag":
            found = (_text(element, "begin", at),)
        case "or":
            found = tuple(text for each in _list(element, "elements", at) for text in _beginnings(each, at))
        case "tags_with_separator" if element.get("at_least_one"):
            found = tuple(_text(tag, "begin", at) for tag in _list(element, "tags", at))
    if not found or not all(found):
        raise BadRequest(
            expected="an element that begins with a fixed text after any_text", got=element.get("type"), at=at
        )
    return found


def _ends(value: Any, at: str) -> tuple[str, ...]:
    ends = _object(value, at).get("end")
    found = tuple(ends) if isinstance(ends, list) else (ends,)
    if not found or not all(isinstance(end, str) and end for end in found):
        raise BadRequest(expected="the text that ends the tag", got=ends, at=f"{at}.end")
    return found


def _schema(value: Any, at: str) -> Spec:
    if not isinstance(value, dict | bool):
        raise BadRequest(expected="a JSON Schema", got=value, at=at)
    return JsonSchema(schema=json.dumps(value, ensure_ascii=False))


def _literal(text: str) -> Spec:
    return Literal_(text=text)


def _in_order(*items: Spec) -> Spec:
    told = tuple(item for item in items if item != _NOTHING)
    return told[0] if len(told) == 1 else Sequence(items=told)


def _one_of(items: list[Spec]) -> Spec:
    return items[0] if len(items) == 1 else OneOf(items=tuple(items))


def _object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(expected="an object", got=value, at=at)
    return value


def _list(value: Any, name: str, at: str) -> list[Any]:
    found = _object(value, at).get(name)
    if not isinstance(found, list) or not found:
        raise BadRequest(expected="a list that is not empty", got=found, at=f"{at}.{name}")
    return found


def _text(value: Any, name: str, at: str) -> str:
    found = _object(value, at).get(name)
    if not isinstance(found, str):
        raise BadRequest(expected="text", got=found, at=f"{at}.{name}")
    return found
