"""The embedded corpus: everything is read, nothing is in both splits."""

from pathlib import Path

import numpy as np
import pytest

from trainer.data import embedded


def _tree(root: Path, files: int = 60) -> list[bytes]:
    texts = []
    for number in range(files):
        folder = root / f"package{number % 3}"
        folder.mkdir(exist_ok=True)
        texts.append(f"value = {number}\n".encode())
        (folder / f"module{number}.py").write_bytes(texts[-1])
    return texts


def test_every_document_is_whole_and_in_exactly_one_split(tmp_path: Path) -> None:
    texts = _tree(tmp_path)
    read = embedded.read_folder(tmp_path, 20)
    train, held_out = read.train.tobytes().split(b"\0"), read.held_out.tobytes().split(b"\0")
    assert sorted(train + held_out) == sorted(texts)
    assert 2 <= len(held_out) <= 30


def test_skipped_folders_are_not_read(tmp_path: Path) -> None:
    _tree(tmp_path)
    before = embedded.read_folder(tmp_path, 20).digest
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("theirs = 1\n")
    assert embedded.read_folder(tmp_path, 20).digest == before


def test_new_file_does_not_move_others_between_splits(tmp_path: Path) -> None:
    _tree(tmp_path)
    before = set(embedded.read_folder(tmp_path, 20).held_out.tobytes().split(b"\0"))
    (tmp_path / "aaa.py").write_text("new = 1\n")
    after = set(embedded.read_folder(tmp_path, 20).held_out.tobytes().split(b"\0"))
    assert before <= after


def test_empty_installation_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="install Python"):
        embedded.read_folder(tmp_path, 5)


@pytest.mark.parametrize("size", [17, 32, 33, 34, 100])
def test_windows_predict_every_token_but_the_first(size: int) -> None:
    tokens = np.arange(size, dtype=np.uint8)
    count = embedded.window_count(tokens, 16)
    targets = {int(token) for index in range(count) for token in embedded.window(tokens, index, 16)[1:]}
    assert targets == set(range(1, size))
    assert all(len(embedded.window(tokens, index, 16)) == 17 for index in range(count))


def test_corpus_shorter_than_a_window_has_none() -> None:
    assert embedded.window_count(np.zeros(16, dtype=np.uint8), 16) == 0
