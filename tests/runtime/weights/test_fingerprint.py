"""A fingerprint tells models apart, and does not care where they lie."""

from pathlib import Path

from ramet.runtime.weights.fingerprint import fingerprint


def write(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_a_copy_has_the_same_and_other_weights_another(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB: sampled
    one = write(tmp_path / "a", "model.gguf", content)
    two = write(tmp_path / "b", "renamed.gguf", content)
    trained = write(tmp_path / "c", "model.gguf", bytes((byte + 1) % 256 for byte in content))
    assert fingerprint(one) == fingerprint(two) != fingerprint(trained)
    assert len(fingerprint(one)) == 32


def test_of_a_folder_every_part_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", "model.safetensors", b"weights")
    write(tmp_path / "a", "tokenizer.json", b"{}")
    before = fingerprint(tmp_path / "a")
    write(tmp_path / "a", "notes.txt", b"not a part of it")
    assert fingerprint(tmp_path / "a") == before
    write(tmp_path / "a", "tokenizer.json", b"{ }")
    assert fingerprint(tmp_path / "a") != before
