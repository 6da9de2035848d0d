"""Embedded corpus, which is the source text of Python's standard library, read from the installation as bytes or tokens.

Documents are files in the order of their paths. Bytes are joined with a zero byte, which is removed from the files, and
tokens with an end token. A window may begin in one file and end in the next, and the separator shows this to the model. A
hash of a file's relative path decides whether the file is held out for evaluation, so peers with different Python versions
hold out nearly the same files. The texts of the files still differ slightly; `Corpus.digest` identifies the text that a peer
has.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.rows import Reading, Rows, Tokens
from trainer.data.tokens import Tokenizer, UnreadableText

U8 = npt.NDArray[np.uint8]

SEPARATOR = b"\0"
MAX_FILE_BYTES = 1 << 20
"""Largest file that is read; longer files are tables written by a program."""
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "ensurepip", "encodings"}
)
"""Folders without the library's own source: third-party packages, tests, bundled wheels, code tables."""


@dataclass(frozen=True)
class Corpus:
    """Tokens of the training and the held-out split.  digest: hexadecimal BLAKE2 of both."""

    train: Tokens
    held_out: Tokens
    digest: str


class TextReading(Reading):
    """Corpus in windows of `length` predicted tokens.  Raises ValueError if a split is shorter than a window."""

    def __init__(self, corpus: Corpus, length: int) -> None:
        self._corpus, self._length, self.digest = corpus, length, corpus.digest
        self.windows, self.held_out_windows = (window_count(each, length) for each in (corpus.train, corpus.held_out))
        if not self.windows or not self.held_out_windows:
            raise ValueError(
                f"the text has {len(corpus.train)} tokens to learn from and {len(corpus.held_out)} held out; each has to "
                f"have more than data.sequence_length ({length}); make that smaller, or the text longer"
            )

    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        """Return the rows as `Reading.rows` describes."""
        tokens = self._corpus.held_out if held_out else self._corpus.train
        return Rows(np.stack([window(tokens, index, self._length) for index in windows]))


def window_count(tokens: Tokens, length: int) -> int:
    """Return the number of windows of `length` predicted tokens that together predict every token but the first.

    The number is 0 if there are fewer tokens than in one window.
    """
    return max(0, -(-(len(tokens) - 1) // length)) if len(tokens) > length else 0


def window(tokens: Tokens, index: int, length: int) -> Tokens:
    """Return the `length` + 1 tokens of window `index`.

    The last window ends with the corpus and may overlap the window before it.
    """
    start = min(index * length, len(tokens) - length - 1)
    return tokens[start : start + length + 1]


def load(name: str, held_out_percent: int, tokenizer: Tokenizer | None = None) -> Corpus:
    """Return the corpus that a manifest names. Raises ValueError if this installation cannot provide it.

    tokenizer: None for bytes.
    """
    if name != "stdlib":
        raise ValueError(f"unknown corpus {name!r}: this version knows 'stdlib'")
    return read_folder(Path(sysconfig.get_paths()["stdlib"]), held_out_percent, tokenizer)


def read_folder(root: Path, held_out_percent: int, tokenizer: Tokenizer | None = None) -> Corpus:
    """Read all Python sources below `root`, without `SKIPPED_FOLDERS`, as bytes, or as tokens with an end token per file."""
    splits: dict[bool, list[bytes]] = {False: [], True: []}
    for path in sources(root):
        text = path.read_bytes().replace(SEPARATOR, b"")
        if text:
            splits[_is_held_out(path.relative_to(root), held_out_percent)].append(text)
    if not splits[False] or not splits[True]:
        raise ValueError(f"no corpus: {root} has too few Python sources; install Python with its library's sources")
    train, held_out = (_tokens(splits[held], tokenizer) for held in (False, True))
    digest = hashlib.blake2b(train.tobytes() + SEPARATOR * 2 + held_out.tobytes(), digest_size=16).hexdigest()
    return Corpus(train, held_out, digest)


def _tokens(texts: Sequence[bytes], tokenizer: Tokenizer | None) -> Tokens:
    if tokenizer is None:
        return np.frombuffer(SEPARATOR.join(texts), dtype=np.uint8)
    dtype = np.min_scalar_type(tokenizer.vocab - 1)
    documents: list[Tokens] = []
    for text in texts:
        try:
            tokens = tokenizer.encode(text.decode(errors="replace"))
        except UnreadableText as error:  # a document that holds an end token or a mark is left out
            flaw = error.flaw
        else:
            documents.append(np.array([*tokens, tokenizer.end], dtype))
    if not documents:
        raise ValueError(f"the run's tokenizer reads none of the corpus: a text {flaw}; take another tokenizer")
    return np.concatenate(documents)


def sources(root: Path) -> list[Path]:
    """Return all Python sources below `root`, without `SKIPPED_FOLDERS`, in the order of their paths."""
    found = []
    for path in root.rglob("*.py"):
        folders = path.relative_to(root).parts[:-1]
        if not SKIPPED_FOLDERS.intersection(folders) and path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _is_held_out(relative: Path, percent: int) -> bool:
    digest = hashlib.blake2b(relative.as_posix().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < percent
