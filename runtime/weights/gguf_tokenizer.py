"""A tokenizer rebuilt from a GGUF file's vocabulary. Knows no tensors.

GGUF keeps a vocabulary, token kinds, and merges or scores; how text is cut before merging is only named
(`tokenizer.ggml.pre`). The patterns below are those of the families' published tokenizer.json files. A name that is not
here raises UnsupportedModel: a wrong pattern tokenises almost right, which nobody would notice.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from ramet.runtime.errors import UnsupportedModel, WeightsCorrupt
from ramet.runtime.tokenizer import Tokenizer, add_tokens_in_id_order

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Token kinds of the GGUF specification; 1 is normal, 5 unused."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_QWEN2 = rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)

_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)

_GPT2_LIKE = {"default", "gpt-2", "gpt2", "phi-2", "jina-en", "jina-es", "jina-de", "mpt", "olmo", "roberta-bpe"}
_SINGLE_DIGITS_THEN_GPT2 = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
_LLAMA3_LIKE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"}
_QWEN2_LIKE = {"qwen2", "deepseek-r1-qwen", "megrez"}
_SPLIT = {
    **dict.fromkeys(_LLAMA3_LIKE, _LLAMA3),
    **dict.fromkeys(_QWEN2_LIKE, _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
}
_WHOLE_WORDS_FIRST = _LLAMA3_LIKE | {"tekken"}
"""These take a word that is in the vocabulary as it is, without merging up to it."""


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build from `tokenizer.ggml.*`. Raises UnsupportedModel (kind, pattern) or WeightsCorrupt (lists don't fit)."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _list(metadata, "tokenizer.ggml.tokens")
    kinds = [*metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))]
    if len(kinds) != len(tokens):
        raise WeightsCorrupt(f"the GGUF file has {len(tokens)} tokens, but {len(kinds)} token types.")
    match kind:
        case "gpt2":
            raw = _byte_level(tokens, metadata)
        case "llama":
            raw = _sentencepiece(tokens, kinds, metadata)
        case _:
            raise UnsupportedModel(
                f"the GGUF file's tokenizer is {kind!r}; gpt2 and llama (SentencePiece BPE) are read."
            )
    added = {
        index: AddedToken(token, special=token_kind == _CONTROL, normalized=False)
        for index, (token, token_kind) in enumerate(zip(tokens, kinds, strict=True))
        if token_kind in (_CONTROL, _USER_DEFINED) and token and not _is_blanks(token)
    }
    add_tokens_in_id_order(raw, added)
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return Tokenizer(
        raw,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=[index for index in ids if index is not None],
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
    )


def _list(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise WeightsCorrupt(f"the GGUF file has no {key}; it can't be tokenised for.")
    return value


def _byte_level(tokens: Sequence[str], metadata: Mapping[str, Any]) -> RawTokenizer:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = _pairs(_list(metadata, "tokenizer.ggml.merges"), vocabulary)
    raw = RawTokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    raw.pre_tokenizer = _pre_tokenizer(
        pre, add_prefix_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    )
    raw.decoder = decoders.ByteLevel()
    if pre in _QWEN2_LIKE:
        raw.normalizer = normalizers.NFC()
    return raw


def _pairs(merges: Sequence[str], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Each merge as its two pieces. Checked, because the Rust side dies of one that leads out of the vocabulary."""
    pairs = []
    for merge in merges:
        left, _, right = str(merge).partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise WeightsCorrupt(f"the GGUF file's merge {merge!r} is not of pieces in its vocabulary.")
        pairs.append((left, right))
    return pairs


def _pre_tokenizer(pre: str, *, add_prefix_space: bool) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=pre not in _SPLIT)
    if pre in _GPT2_LIKE:
        return byte_level
    if pre in _SINGLE_DIGITS_THEN_GPT2:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in _SPLIT:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLIT[pre]), "isolated"), byte_level])
    known = ", ".join(sorted({*_GPT2_LIKE, *_SINGLE_DIGITS_THEN_GPT2, *_SPLIT}))
    raise UnsupportedModel(f"the GGUF file cuts text by the pattern {pre!r}, which is not known. Known: {known}.")


def _sentencepiece(tokens: Sequence[str], kinds: Sequence[int], metadata: Mapping[str, Any]) -> RawTokenizer:
    pieces = ["▁" * len(token) if _is_blanks(token) else token for token in tokens]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    mergeable = [kind not in (_CONTROL, _UNKNOWN, _BYTE) for kind in kinds]
    model = models.BPE(
        vocabulary,
        _merges(pieces, mergeable, _scores(metadata, len(tokens)), vocabulary),
        unk_token=next((piece for piece, kind in zip(pieces, kinds, strict=True) if kind == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=_BYTE in kinds,
    )
    raw = RawTokenizer(model)
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    marks = normalizers.Replace(" ", "▁")
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marks]) if adds_space else marks
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return raw


def _is_blanks(token: str) -> bool:
    """GGUF spells Gemma's pieces of several U+2581 as real spaces."""
    return len(token) > 1 and not token.strip(" ")


def _scores(metadata: Mapping[str, Any], num_tokens: int) -> Sequence[float]:
    """Higher is joined earlier. Gemma's stored scores are not in the order of its merges; its ids are."""
    if str(metadata.get("general.architecture")).startswith("gemma"):
        return range(0, -num_tokens, -1)
    scores = _list(metadata, "tokenizer.ggml.scores")
    if len(scores) != num_tokens:
        raise WeightsCorrupt(f"the GGUF file has {num_tokens} tokens, but {len(scores)} scores.")
    return scores


def _merges(
    pieces: Sequence[str], mergeable: Sequence[bool], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores best. As a merge list: every split of every piece into two
    pieces of the vocabulary, best result first; splits of one piece with the longer left part first."""
    merges: list[tuple[float, int, str, str]] = []
    for piece, may_merge, score in zip(pieces, mergeable, scores, strict=True):
        if may_merge:
            for cut in range(len(piece) - 1, 0, -1):
                left, right = piece[:cut], piece[cut:]
                if left in vocabulary and right in vocabulary:
                    merges.append((-score, -cut, left, right))
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for *_, left, right in merges]
