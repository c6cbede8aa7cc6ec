"""A page's name stands for all tokens down to its end, the model and the namespace."""

from ramet.runtime.kv.page_keys import extend_keys, root_key


def keys(tokens: list[int], num_pages: int, identity: str = "m", namespace: str = "") -> list[bytes]:
    found: list[bytes] = []
    extend_keys(found, root_key(identity, namespace), tokens, 4, num_pages)
    return found


def test_names_grow_with_the_tokens_and_are_the_same_in_one_go_or_two() -> None:
    tokens = list(range(40))
    root, grown = root_key("m", ""), []
    for num_pages in (0, 3, 3, 10):
        extend_keys(grown, root, tokens, 4, num_pages)
        assert grown == keys(tokens, num_pages)
    extend_keys(grown, root, tokens, 4, 2)
    assert grown == keys(tokens, 2) and len(set(keys(tokens, 10))) == 10


def test_whatever_differs_before_or_in_a_page_names_it_anew() -> None:
    tokens = list(range(12))
    plain = keys(tokens, 3)
    changed = keys([*tokens[:5], 99, *tokens[6:]], 3)
    assert changed[0] == plain[0] and changed[1] != plain[1] and changed[2] != plain[2]
    for other in (keys(tokens, 3, identity="n"), keys(tokens, 3, namespace="salt")):
        assert not set(other) & set(plain)
    assert root_key("a", "b c") != root_key("a b", "c")
