"""Output types of the outlines library -> specs: its terms, and whatever Python types it turns into terms.

Terms are known by their class's name and module, so outlines is imported only when a plain Python type has to be
turned into one. Nothing of outlines compiles or runs a pattern here.
"""

import importlib
from collections.abc import Callable
from typing import Any, get_args

from ramet.constrained import spec as specs
from ramet.runtime.errors import BadRequest, GrammarRefused, NotBuilt

_MODULE = "outlines.types"


def spec_of(output_type: Any) -> specs.Spec:
    """The spec of an output type: a spec itself, an outlines term, or a type such as `Literal["a", "b"]`, an Enum, a
    pydantic model, a dataclass, `list[int]`. Raises BadRequest for what is none of these."""
    if isinstance(output_type, get_args(specs.Spec)):
        spec: specs.Spec = output_type
        return spec
    return _of_term(output_type if _is_term(output_type) else _term_of_type(output_type))


def _is_term(value: Any) -> bool:
    return any(base.__module__.startswith(_MODULE) and base.__name__ == "Term" for base in type(value).__mro__)


def _term_of_type(output_type: Any) -> Any:
    try:
        return importlib.import_module(f"{_MODULE}.dsl").python_types_to_terms(output_type)
    except (TypeError, RecursionError, NotImplementedError) as error:
        raise BadRequest(
            expected="an outlines term or a type that outlines knows", got=output_type, at="$.type", hint=str(error)
        ) from None


def _of_term(term: Any) -> specs.Spec:
    match type(term).__name__:
        case "String":
            return specs.Literal_(text=term.value)
        case "Regex":
            return specs.Regex(pattern=term.pattern)
        case "CFG":
            return specs.Lark(grammar=term.definition)
        case "JsonSchema":
            return _json_schema(term)
        case "Choice":
            return specs.Choice(choices=tuple(str(item) for item in term.items))
        case "Alternatives":
            return specs.OneOf(items=tuple(map(_of_term, term.terms)))
        case "Sequence":
            return specs.Sequence(items=tuple(map(_of_term, term.terms)))
        case name:
            return _repetition(name, term)


def _repetition(name: str, term: Any) -> specs.Spec:
    bounds: dict[str, Callable[[], tuple[int, int | None]]] = {
        "KleeneStar": lambda: (0, None),
        "KleenePlus": lambda: (1, None),
        "Optional": lambda: (0, 1),
        "QuantifyExact": lambda: (term.count, term.count),
        "QuantifyMinimum": lambda: (term.min_count, None),
        "QuantifyMaximum": lambda: (0, term.max_count),
        "QuantifyBetween": lambda: (term.min_count, term.max_count),
    }
    if name not in bounds:
        raise NotBuilt(f"the outlines term {name}")
    minimum, maximum = bounds[name]()
    return specs.Repeat(item=_of_term(term.term), minimum=minimum, maximum=maximum)


def _json_schema(term: Any) -> specs.Spec:
    if term.whitespace_pattern not in (None, ""):
        raise GrammarRefused(
            expected='no whitespace_pattern, or ""',
            got=term.whitespace_pattern,
            at="$.type.whitespace_pattern",
            hint="Whitespace is compact, bounded or exact: see JsonSchema.whitespace.",
        )
    return specs.JsonSchema(schema=term.schema, whitespace="compact" if term.whitespace_pattern == "" else "bounded")
