"""Hostile input is answered in time, in another process, and the service goes on."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.constrained.service import CompileLimits, CompileService
from ramet.constrained.spec import Choice, JsonSchema, Lark, Regex, Spec
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import byte_vocabulary

LIMITS = CompileLimits(wall_s=2.0, cpu_s=2, memory_bytes=400 << 20)


@pytest.fixture(scope="module")
def service() -> Iterator[CompileService]:
    with CompileService(byte_vocabulary(), LIMITS) as made:
        made.compile(Choice(choices=("warm",)))  # the worker is up
        yield made


def test_compiles_what_is_ordinary(service: CompileService) -> None:
    state = service.submit(JsonSchema(schema='{"type":"integer"}')).result().initial()
    assert state.advance_bytes(b"-12").accepting
    assert service.compile(Lark(grammar='start: "a"+')).initial().advance_bytes(b"aa").accepting


def test_refusals_keep_pointer_and_code(service: CompileService) -> None:
    with pytest.raises(GrammarRefused) as caught:
        service.compile(JsonSchema(schema='{"type":"object","properties":{"a":{"pattern":"["}}}'))
    assert "/properties/a/pattern" in str(caught.value.at) and "'['" in str(caught.value)
    with pytest.raises(GrammarRefused) as caught:
        service.submit(Regex(pattern="foo**")).result()
    assert caught.value.code == "invalid_pattern" and caught.value.at == "$.regex"


def deep(levels: int) -> str:
    return '{"oneOf":[' * levels + '{"type":"string"}' + ',{"minLength":1}]}' * levels


HOSTILE: list[Spec] = [
    Regex(pattern="(a|b)*a(a|b){20}"),
    Regex(pattern="((a{1,1000}){1,1000}){1,1000}"),
    Regex(pattern="(x+x+)+y"),
    Regex(pattern="(.{1,60}a){30}[bc]"),
    JsonSchema(schema=deep(40)),
    JsonSchema(schema='{"type":"objec"}'),
    JsonSchema(schema='{"$ref":"#"}'),
    JsonSchema(schema='{"$ref":"#/nowhere"}'),
    JsonSchema(schema='{"type":"string","maxLength":100000}'),
    JsonSchema(schema='{{"enum":[{}]}}'.format(",".join(f'"value {i}"' for i in range(10_000)))),
    JsonSchema(schema='{"not":' * 300 + "{}" + "}" * 300),
    Choice(choices=("x" * (1 << 20),)),
    Lark(grammar="start: (a"),
    Lark(grammar="root ::= " + "(" * 500),
]


@pytest.mark.parametrize("spec", HOSTILE, ids=lambda spec: str(spec)[:40])
def test_hostile_input_is_answered_in_time(service: CompileService, spec: Spec) -> None:
    begun = time.monotonic()
    try:
        service.compile(spec).initial().allowed()
    except GrammarRefused as error:
        assert error.code and str(error)
    assert time.monotonic() - begun < LIMITS.wall_s + 2.5
    assert service.compile(Choice(choices=("still", "here"))).initial().advance_bytes(b"still").accepting


def test_wall_time_kills_the_worker() -> None:
    limits = CompileLimits(wall_s=0.05, cpu_s=5, memory_bytes=400 << 20)
    with CompileService(byte_vocabulary(), limits) as hurried:
        with pytest.raises(GrammarRefused, match="wall time"):
            hurried.compile(JsonSchema(schema='{{"enum":[{}]}}'.format(",".join(f'"w{i}"' for i in range(30_000)))))
        assert hurried.num_kills == 1


def test_memory_limit() -> None:
    with CompileService(byte_vocabulary(), CompileLimits(memory_bytes=1 << 20)) as poor:
        with pytest.raises(GrammarRefused, match="memory"):
            poor.compile(JsonSchema(schema='{{"enum":[{}]}}'.format(",".join(f'"m{i}"' for i in range(20_000)))))
        with pytest.raises(GrammarRefused):
            poor.compile(Regex(pattern="["))
