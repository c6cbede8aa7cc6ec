"""Random schemas over few names, texts and numbers, so that their parts meet; and random values of the same stuff."""

import random
from collections.abc import Callable
from typing import Any

NAMES = ["a", "b", "c", "d"]
TEXTS = ["", "a", "b", "ab", "aab", "ba", "é", '"x"', "a\nb", "cccc", "12"]
NUMBERS = [0, 1, 2, 3, 5, -1, -2, 10, 0.5, 1.5, -0.5, 2.25, 7, 100]
PATTERNS = ["^a", "b$", "^a+$", "^[ab]*$", "a.", "^(ab|c)+$", "[0-9]", "^.{2}$"]
TYPES: list[Any] = [
    "null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"], ["object", "array"],
]  # fmt: skip


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, small."""
    kind = rng.random() * (0.6 if depth > 2 else 1)
    if kind < 0.2:
        return rng.choice([None, True, False])
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.6:
        return rng.choice(TEXTS)
    if kind < 0.8:
        return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    keys = rng.sample([*NAMES, "zz", "ab"], rng.randint(0, 3))
    return {key: random_value(rng, depth + 1) for key in keys}


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with one part changed."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], *([mutated(rng, value[index])] if rng.random() < 0.7 else []), *value[index + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        return rest if rng.random() < 0.3 else {**rest, key: mutated(rng, value[key])}
    return random_value(rng, 1)


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema of one to three keywords, nested."""
    if depth > 3:
        return rng.choice([True, {}, {"type": "integer"}, {"type": "string"}, {"const": random_value(rng, 2)}])
    schema: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        keyword = rng.choice(list(_MAKERS))
        schema[keyword] = _MAKERS[keyword](rng, depth)
    if "contains" in schema and rng.random() < 0.4:
        schema[rng.choice(["minContains", "maxContains"])] = rng.randint(0, 2)
    if "if" in schema:
        schema |= {branch: random_schema(rng, depth + 1) for branch in ("then", "else") if rng.random() < 0.7}
    return schema


def _bool_or_schema(rng: random.Random, depth: int) -> Any:
    return rng.choice([False, random_schema(rng, depth + 1)])


def _deeper(rng: random.Random, depth: int) -> Any:
    return random_schema(rng, depth + 1)


def _list(rng: random.Random, depth: int) -> Any:
    return [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]


def _map(names: list[str]) -> Callable[[random.Random, int], Any]:
    return lambda rng, depth: {n: random_schema(rng, depth + 1) for n in rng.sample(names, rng.randint(1, 2))}


def _amount(rng: random.Random, depth: int) -> Any:
    return rng.randint(0, 3)


_MAKERS: dict[str, Callable[[random.Random, int], Any]] = {
    "type": lambda rng, depth: rng.choice(TYPES),
    "enum": lambda rng, depth: [random_value(rng, 1) for _ in range(rng.randint(1, 4))],
    "const": lambda rng, depth: random_value(rng, 1),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum"), lambda rng, depth: rng.choice(NUMBERS)),
    "multipleOf": lambda rng, depth: rng.choice([1, 2, 3, 0.5, 0.25]),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _amount),
    "pattern": lambda rng, depth: rng.choice(PATTERNS),
    "properties": _map(NAMES),
    "patternProperties": _map(PATTERNS),
    "dependentSchemas": _map(NAMES),
    "required": lambda rng, depth: rng.sample(NAMES, rng.randint(1, 2)),
    "dependentRequired": lambda rng, depth: {rng.choice(NAMES): rng.sample(NAMES, rng.randint(1, 2))},
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), _bool_or_schema),
    **dict.fromkeys(("propertyNames", "items", "contains", "not", "if"), _deeper),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _list),
}


_JUNK: list[Any] = [
    None, True, -1, 1.5, 1e300, "", "#", "#/nowhere", "#foo", "http://x/y", "integer", "[", "(?=a)", [], [1],
    ["a", "a"], [{}], [None], {}, {"a": 1}, {"a": {}}, {"a": ["b"]}, {"[": {}}, {"$ref": "#"}, {"type": {}},
    ["integer", 5],
]  # fmt: skip
_KEYWORDS = ["$ref", "$id", "$anchor", "$defs", "$schema", "$dynamicRef", "format", "then", "dependencies"]


def damaged(rng: random.Random, schema: Any) -> Any:
    """The schema with one part replaced by something that does not belong there."""
    if isinstance(schema, dict) and schema and rng.random() < 0.8:
        keyword = rng.choice(list(schema))
        if rng.random() < 0.3:
            return {**schema, rng.choice([*_KEYWORDS, *_MAKERS]): rng.choice(_JUNK)}
        return {**schema, keyword: damaged(rng, schema[keyword])}
    if isinstance(schema, list) and schema:
        index = rng.randrange(len(schema))
        return [*schema[:index], damaged(rng, schema[index]), *schema[index + 1 :]]
    return rng.choice(_JUNK)
