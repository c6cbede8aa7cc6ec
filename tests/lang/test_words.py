"""The words build nodes; what is wrong with them is said where they are said."""

import pytest

import ramet
from ramet.runtime.errors import BadRequest, NotBuilt


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (ramet.gen("a"), "gen('a')"),
        (ramet.gen(), "gen()"),
        (ramet.gen("a", 8), "gen('a', max_tokens=8)"),
        (ramet.gen("a", 8, 2, 3, ["\n"]), "gen('a', max_tokens=8, min_tokens=2, n=3, stop=['\\n'])"),
        (ramet.gen_int("n"), "gen('n', dtype=int)"),
        (ramet.gen_string("n", 9), "gen('n', max_tokens=9, dtype=str)"),
        (ramet.select("c", ["x", "y"]), "select('c', ['x', 'y'])"),
        (ramet.gen("c", choices=["x", "y"]), "select('c', ['x', 'y'])"),
        (
            ramet.select("c", ["x"], choices_method=ramet.token_length_normalized),
            "select('c', ['x'], choices_method='token_length_normalized')",
        ),
        (ramet.user("hi " + ramet.gen("x") + "!"), "user('hi ' + gen('x') + '!')"),
        (ramet.assistant_begin(), "assistant_begin()"),
        (ramet.tool("done"), "tool('done')"),
        (ramet.role("critic", "no"), "critic('no')"),
    ],
    ids=str,
)
def test_prints_as_the_python_that_makes_it(node: object, text: str) -> None:
    assert repr(node) == text


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"max_tokens": -1}, "$.max_tokens"),
        ({"max_tokens": 1.5}, "$.max_tokens"),
        ({"max_tokens": True}, "$.max_tokens"),
        ({"temperature": float("nan")}, "$.temperature"),
        ({"temperature": -0.1}, "$.temperature"),
        ({"top_p": "much"}, "$.top_p"),
        ({"n": 0}, "$.n"),
        ({"timeout": 0}, "$.timeout"),
        ({"regex": "a", "json_schema": "{}"}, "$.json_schema"),
        ({"choices_method": "total"}, "$.choices_method"),
        ({"choices": ["a"], "top_k": 4}, "$.top_k"),
        ({"temprature": 1.0}, "$.temprature"),
    ],
    ids=str,
)
def test_gen_names_the_option_that_is_wrong(options: dict[str, object], at: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ramet.gen("x", **options)
    assert caught.value.at == at


@pytest.mark.parametrize("choices", [[], ["a", "a"], ["a", ""], ["a", 1], "ab", None], ids=repr)
def test_select_refuses_choices_that_are_none(choices: object) -> None:
    with pytest.raises(BadRequest):
        ramet.select("c", choices)


def test_select_takes_a_prefix_of_another_choice() -> None:
    assert ramet.select("c", ["Par", "Paris"]).choices == ("Par", "Paris")


def test_what_is_not_built_says_so() -> None:
    for make in (lambda: ramet.image("a.png"), lambda: ramet.video("a.mp4", 4), lambda: ramet.gen("x", stop_regex="a")):
        with pytest.raises(NotBuilt) as caught:
            make()
        assert isinstance(caught.value, NotImplementedError)


def test_the_sampler_takes_every_option_of_the_sampling_vocabulary() -> None:
    from ramet.lang.options import GEN_NAMES
    from ramet.runtime.types import GenerateSpec, Sampling

    assert set(Sampling.__struct_fields__) <= GEN_NAMES
    ours = {"timeout_s": "timeout", "prompt_logprobs": "return_logprob", "prompt_logprobs_start": "logprob_start_len"}
    internal = {"sampling", "grammar_drafts", "stream_interval"}
    for field in set(GenerateSpec.__struct_fields__) - internal:
        assert ours.get(field, field) in GEN_NAMES
