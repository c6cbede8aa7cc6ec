"""Hostile input is answered in time, in another process, and the service goes on."""

import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.constrained import service as service_module
from ramet.constrained.compile import compile
from ramet.constrained.service import CompileLimits, CompileService
from ramet.constrained.spec import Choice, JsonSchema, Lark, Regex, Spec
from ramet.runtime.errors import EngineFailed, GrammarRefused

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


@pytest.mark.parametrize(
    "spec", [JsonSchema(schema='{"enum": ["\ud800"]}'), Regex(pattern="a\ud800"), Choice(choices=("\udfff",))]
)
def test_half_a_surrogate_pair_is_no_text(service: CompileService, spec: Spec) -> None:
    for make in (service.compile, lambda each: compile(each, byte_vocabulary()), lambda each: service.submit(each)):
        with pytest.raises(GrammarRefused, match="Unicode"):
            make(spec)


def test_a_fault_of_the_compiler_is_a_value_of_its_request(
    service: CompileService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found in neither: what would happen if the worker, or what follows here, met an error that nobody thought of."""

    def break_down(*_: object) -> None:
        raise TypeError("nobody thought of this")

    with monkeypatch.context() as patch:
        patch.setattr(service_module, "front_end", break_down)
        job = pickle.dumps((b'{"type":"regex","pattern":"a"}', {}))
        failed = pickle.loads(service_module._answer(job, 5, 1 << 30)).error()
    with monkeypatch.context() as patch:
        patch.setattr(service_module, "back_end", break_down)
        with pytest.raises(EngineFailed) as caught:
            service.compile(Regex(pattern="fresh"))
    for error in (failed, caught.value):
        assert isinstance(error, EngineFailed) and error.at == "#" and "TypeError: nobody thought" in str(error)
    assert "break_down" in caplog.text, "the log has the traceback"
    assert service.compile(Regex(pattern="fresh")).initial().advance_bytes(b"fresh").accepting, "it is not remembered"


@pytest.mark.parametrize("schema", ['{"minLength": 100000}', '{"minItems": 1e22}', '{"maxProperties": 1e22}'])
def test_a_way_out_is_looked_for_for_a_moment_only(schema: str) -> None:
    """Found by random schemas: five seconds for a string that has to be long."""
    state = compile(JsonSchema(schema=schema), byte_vocabulary()).initial().advance_bytes(b'"')
    begun = time.monotonic()
    state.min_tokens_to_accept()
    assert time.monotonic() - begun < 2.0
