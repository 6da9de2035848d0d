"""Tokenizers, which turn text into tokens and back.

A byte-level model needs no file: its tokens are the bytes of UTF-8. Other models come with a `tokenizer.json`, which Hugging
Face's `tokenizers` reads after `trainer.data.tokenizer_json` has checked it. An end token closes a document, and each turn
of the model. Text never becomes an end token or a template's mark: the text is encoded in another way, or refused.

A model that has learned chats reads a conversation in the form of its template (`trainer.data.templates`), which is also a
tokenizer: `prompt` and `reply` encode an environment's text at the beginning of a conversation and after a turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernels.outside_files import read_outside
from trainer.data.rows import Tokens
from trainer.data.tokenizer_json import MARKS, LibraryError, LibraryTokenizer, TokenizerRefused, load, read_in_child
from trainer.git_lfs import POINTER_FLAW, is_pointer

MAX_TOKENIZER_BYTES = 64 << 20
"""Largest `tokenizer.json` that is read; the files of common models have up to 20 MiB."""


UNUSABLE = "is not a tokenizer.json that a run can use"
SPARE_TOKENS = 16
"""Number of tokens that an encoding may have beyond the number of bytes of its text, for prefixes that a tokenizer adds to
words."""
BYTE_END = "contains a token that ends a turn (a byte 0)"
NO_TEXT = "\ufffd"
"""Replacement for tokens without a text."""


class UnreadableText(ValueError):
    """Error for a text that the run's model may not read.  flaw: a phrase to follow "a text" or "a message of the user"."""

    def __init__(self, flaw: str) -> None:
        super().__init__(f"a text {flaw}")
        self.flaw = flaw


class Tokenizer(ABC):
    """Tokenizer of a model.

    vocab: exclusive upper bound on the tokens of a text. ends: the tokens that close a turn when a model writes them.
    """

    ends: tuple[int, ...]
    vocab: int

    @property
    def end(self) -> int:
        """End token that closes a turn in training data."""
        return self.ends[0]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without any end token or mark.

        Raises `UnreadableText` if such an encoding does not exist.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens | UnreadableText]:
        """Return the result of `encode` for each text: tokens in the smallest dtype, or the error that `encode` raises."""
        results: list[Tokens | UnreadableText] = []
        for text in texts:
            try:
                results.append(np.array(self.encode(text), self.dtype))
            except UnreadableText as error:
                results.append(error)
        return results

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Smallest unsigned type that holds every token."""
        return np.min_scalar_type(self.vocab - 1)

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with U+FFFD for unknown tokens; a model may have more tokens than its tokenizer.

        Raises ValueError for a negative number.
        """

    @abstractmethod
    def special(self, name: str) -> int:
        """Return the token of this name, such as `<|im_start|>`, which no text contains.  Raises ValueError if unknown."""

    def prompt(self, text: str) -> list[int]:
        """Return the tokens that a model reads to answer a text."""
        return self.encode(text)

    def reply(self, text: str) -> list[int]:
        """Return the tokens that a model reads after its turn if `text` is the reply."""
        return self.encode(text)


class ByteTokenizer(Tokenizer):
    """Tokenizer whose tokens are bytes of UTF-8.

    The end token is byte 0.
    """

    ends = (0,)
    vocab = 256

    def encode(self, text: str) -> list[int]:
        """Return the tokens as `Tokenizer.encode` describes."""
        tokens = list(_utf8(text))
        if self.end in tokens:
            raise UnreadableText(BYTE_END)
        return tokens

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens | UnreadableText]:
        """Return the tokens as `Tokenizer.encode_batch` describes."""
        results: list[Tokens | UnreadableText] = []
        for text in texts:
            try:
                data = _utf8(text)
                results.append(np.frombuffer(data, self.dtype) if 0 not in data else UnreadableText(BYTE_END))
            except UnreadableText as error:
                results.append(error)
        return results

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text as `Tokenizer.decode` describes."""
        return _decoded(tokens, lambda token: token < self.vocab, lambda some: bytes(some).decode(errors="replace"))

    def special(self, name: str) -> int:
        """Raise ValueError, because bytes have no special tokens."""
        raise ValueError(f"a byte-level model has no token {name!r}; give the run a tokenizer that has")


class TokenizerFile(Tokenizer):
    """Tokenizer from a `tokenizer.json` of Hugging Face. ends: numbers of the end tokens; the end token of chats is first.

    Names of marks and end tokens in a text are plain text: `<|endoftext|>` in a prompt does not end a turn. If the model's
    own vocabulary still turns a text into such a token, the text is refused.
    """

    def __init__(self, path: Path, ends: Sequence[int], *, is_checked: bool = False) -> None:
        """Read the file. Raises ValueError with one sentence if the file cannot be used.

        is_checked: True for a file that holds the result of `checked_file` with these end tokens.
        """
        self._tokenizer, self._path = _loaded(path, path.read_bytes() if is_checked else checked_file(path, ends)), path
        self._known = self._tokenizer.numbers()
        unknown = [end for end in ends if end not in self._known]
        if unknown or not ends:
            raise ValueError(f"{path} has no token {unknown[0] if unknown else 'that ends a turn'}; name its end tokens")
        self.ends = tuple(ends)
        self.vocab = max(self._known) + 1
        self._marks = {number: mark for mark in MARKS if (number := self._tokenizer.number(mark)) is not None}
        self._forbidden = np.zeros(self.vocab, np.bool_)
        self._forbidden[[*self.ends, *self._marks]] = True

    def encode(self, text: str) -> list[int]:
        """Return the tokens as `Tokenizer.encode` describes."""
        size = len(_utf8(text))  # refuses a lone surrogate, on which the library would panic
        try:
            tokens = self._tokenizer.encode(text)
        except LibraryError as error:
            raise UnreadableText(f"has no tokens: {error}") from error
        if len(tokens) > size + SPARE_TOKENS:
            raise UnreadableText(f"of {size} bytes has more tokens ({len(tokens)}) than bytes")
        if not set(self.ends).isdisjoint(tokens):
            raise UnreadableText("contains a token that ends a turn")
        if forged := self._marks.keys() & set(tokens):
            raise UnreadableText(f"contains the mark {self._marks[min(forged)]}")
        return tokens

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens | UnreadableText]:
        """Return the tokens as `Tokenizer.encode_batch` describes.  A batch with a doubtful text is encoded one by one."""
        try:
            sizes = [len(_utf8(text)) for text in texts]
            encoded = self._tokenizer.encode_batch(texts)
        except (UnreadableText, LibraryError):
            return super().encode_batch(texts)
        results: list[Tokens | UnreadableText] = []
        for text, size, listed in zip(texts, sizes, encoded, strict=True):
            tokens = np.array(listed, self.dtype)
            if len(tokens) > size + SPARE_TOKENS or self._forbidden[tokens].any():
                results += super().encode_batch([text])
            else:
                results.append(tokens)
        return results

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text as `Tokenizer.decode` describes."""
        return _decoded(tokens, lambda token: token in self._known, self._tokenizer.decode)

    def special(self, name: str) -> int:
        """Return the token as `Tokenizer.special` describes."""
        number = self._tokenizer.number(name)
        if number is None:
            raise ValueError(f"{self._path} has no token {name!r}, which the run's template needs; use another template")
        return int(number)


class TokenNames(NamedTuple):
    """Numbers of a tokenizer's tokens by their names.

    special: the added tokens.  all: the added tokens and the model's own.
    """

    special: Mapping[str, int]
    all: Mapping[str, int]


def names_in(path: Path) -> TokenNames:
    """Return the names of the tokens of a `tokenizer.json`.  Raises ValueError for a file that cannot be used."""
    tokenizer = _loaded(path, checked_file(path))
    return TokenNames(tokenizer.added(), tokenizer.vocabulary())


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableText("contains half of a surrogate pair, which is not a character") from error


def _decoded(tokens: Sequence[int], known: Callable[[int], bool], decode: Callable[[list[int]], str]) -> str:
    """Decode each sequence of known tokens separately, with U+FFFD in place of each unknown token."""
    if any(token < 0 for token in tokens):
        raise ValueError(f"{min(tokens)} is not a token ID; token IDs start at 0")
    parts: list[str] = []
    for is_known, group in groupby(tokens, known):
        some = list(group)
        parts.append(decode(some) if is_known else NO_TEXT * len(some))
    return "".join(parts)


def checked_file(path: Path, reserved: Sequence[int] = ()) -> bytes:
    """Return the checked content of a `tokenizer.json`.  Raises ValueError with one sentence if it cannot be used.

    reserved: numbers of tokens that no text may become, besides the marks.
    """
    try:
        data = read_outside(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give a tokenizer.json") from error
    if is_pointer(data):
        raise ValueError(f"{path} {POINTER_FLAW}")
    try:
        return _checked(data, frozenset(reserved))
    except TokenizerRefused as error:
        raise ValueError(f"{path} {UNUSABLE}: {error}") from error


@lru_cache(maxsize=4)
def _checked(data: bytes, reserved: frozenset[int]) -> bytes:
    """Check a file; cache the result, because a command may check the same file ten times."""
    return read_in_child(data, reserved)


def _loaded(path: Path, data: bytes) -> LibraryTokenizer:
    try:
        return load(data)
    except LibraryError as error:
        raise ValueError(f"{path} {UNUSABLE}: {error}") from error
