"""A walk over a real grammar: masks along drafts, and tags that are told once and hold."""

from ramet.constrained.compile import compile
from ramet.constrained.spec import Literal_, Regex, Repeat, Sequence, Spec, Tagged, Text
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.execution.grammar import GrammarWalk, Tag, has_tags, is_allowed

END = 256
VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], special={"<end>": END}, end_ids=[END])
NUMBERS = Repeat(item=Tagged(name="n", item=Regex(pattern="[0-9]{1,3}")), minimum=1, separator=";")
CALL = Sequence(
    items=(
        Text(until=("CALL",)),
        Literal_(text="CALL"),
        Tagged(name="name", item=Regex(pattern="[a-z]+")),
        Literal_(text="("),
        Tagged(name="argument", item=Regex(pattern="[0-9]*")),
        Literal_(text=")"),
    )
)


def walk_on(spec: Spec) -> GrammarWalk:
    return GrammarWalk(compile(spec, VOCABULARY), VOCABULARY.size, has_tags=has_tags(spec))


def told(spec: Spec, text: str, *, ends: bool = True) -> list[list[Tag]]:
    """What each token made certain."""
    walk = walk_on(spec)
    found = []
    for token in [*text.encode(), *([END] if ends else [])]:
        walk.advance([token])
        found.append(walk.new_tags())
    return found


def test_tags_are_told_when_they_are_certain_and_once() -> None:
    assert told(NUMBERS, "12;7") == [
        [("n", "begin", 0)],
        [],  # 12 may still become 123
        [("n", "end", 2)],
        [("n", "begin", 3)],
        [("n", "end", 4)],  # by the end token
    ]


def test_an_end_is_told_with_the_byte_that_makes_it_certain() -> None:
    assert told(CALL, "so CALLadd(12)", ends=False) == [
        *([[]] * 7),  # free text and the trigger
        [("name", "begin", 7)],
        [],
        [],
        [("name", "end", 10)],
        [("argument", "begin", 11)],
        [],
        [("argument", "end", 13)],
    ]


def test_several_tokens_at_once_tell_the_same() -> None:
    walk = walk_on(NUMBERS)
    text = list(b"12;7")
    assert len(walk.masks(text)) == 5
    walk.advance([*text, END], 4)
    assert walk.new_tags() == [tag for step in told(NUMBERS, "12;7") for tag in step]
    assert walk.is_done


def test_a_grammar_without_tags_tells_nothing() -> None:
    assert not has_tags(Regex(pattern="a"))
    assert has_tags(CALL)
    assert told(Regex(pattern="[0-9]+"), "12") == [[], [], []]


def test_masks_end_at_the_first_draft_that_is_denied() -> None:
    masks = walk_on(NUMBERS).masks(list(b"1x2"))
    assert len(masks) == 2
    assert is_allowed(masks[1], ord(";"))
    assert is_allowed(masks[1], END)
    assert not is_allowed(masks[0], END)
    assert not is_allowed(masks[0], 10_000)


def test_a_denied_token_kills_the_walk() -> None:
    walk = walk_on(NUMBERS)
    walk.advance([ord("x")])
    assert walk.is_dead


def test_a_stop_token_of_the_request_is_text_until_the_grammar_is_satisfied() -> None:
    """`;` belongs to the grammar, `x` to nobody: both may end an output that may end."""
    walk = GrammarWalk(compile(NUMBERS, VOCABULARY), VOCABULARY.size, stop_ids=[ord(";"), ord("x"), ord("7")])
    assert not is_allowed(walk.masks([])[0], ord("x"))
    walk.advance(b"7")
    assert walk.unstopped() == [0]
    assert is_allowed(walk.masks([])[0], ord("x"))
    masks = walk.masks(b"1;7")
    assert [is_allowed(mask, ord("x")) for mask in masks] == [True, True, False, True]
    walk.advance(b"1;7;", 3)
    assert walk.unstopped() == [2]  # the first `;` could end the output, `7` behind it could not
