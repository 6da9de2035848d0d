"""Tokenizers: text to tokens and back.

A byte-level model needs no file: its tokens are the bytes of UTF-8.  Other models bring a `tokenizer.json`, which Hugging
Face's `tokenizers` reads after `trainer.data.tokenizer_json` has checked it.  An end token closes a document, and each turn
of the model.  No text becomes an end token or a template's mark: it is encoded otherwise, or refused.

A model that learnt chats reads a conversation in the form of its template (`trainer.data.templates`), which is also a
tokenizer: `prompt` and `reply` encode an environment's text at the beginning and after a turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from trainer.data.tokenizer_json import MARKS, LibraryError, LibraryTokenizer, TokenizerRefused, load, read_in_child
from trainer.git_lfs import POINTER_FLAW, is_pointer

MAX_TOKENIZER_BYTES = 64 << 20
"""The largest `tokenizer.json` that is read; common models have up to 20 MiB."""


SPARE_TOKENS = 16
"""Tokens that an encoding may have beyond the bytes of its text, for prefixes that a tokenizer adds to words."""
NO_TEXT = "\ufffd"
"""Replacement for tokens that make no text."""


class UnreadableText(ValueError):
    """Error for a text that the run's model may not read.  flaw: a phrase to follow "a text" or "a message of the user"."""

    def __init__(self, flaw: str) -> None:
        super().__init__(f"a text {flaw}")
        self.flaw = flaw


class Tokenizer(ABC):
    """Tokenizer of a model.  vocab: upper bound on the tokens of a text, exclusive.

    ends: the tokens that close a turn when a model writes them.
    """

    ends: tuple[int, ...]
    vocab: int

    @property
    def end(self) -> int:
        """The token that closes a turn in training data."""
        return self.ends[0]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, none of them an end token or a mark.  Raises `UnreadableText` if it has none such."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with U+FFFD for unknown ones: a model may have more tokens than its tokenizer.

        Raises ValueError for a negative number.
        """

    @abstractmethod
    def special(self, name: str) -> int:
        """Return the token of this name, such as `<|im_start|>`, which no text contains.  Raises ValueError if unknown."""

    def prompt(self, text: str) -> list[int]:
        """Return the tokens that a model reads to answer a text."""
        return self.encode(text)

    def reply(self, text: str) -> list[int]:
        """Return the tokens that a model reads after its turn when a text replies to it."""
        return self.encode(text)


class ByteTokenizer(Tokenizer):
    """Tokenizer into bytes of UTF-8.  The end token is the byte 0, which also separates documents of the embedded corpus."""

    ends = (0,)
    vocab = 256

    def encode(self, text: str) -> list[int]:
        """As `Tokenizer.encode`."""
        tokens = list(_utf8(text))
        if self.end in tokens:
            raise UnreadableText("holds a token that ends a turn (a byte 0)")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """As `Tokenizer.decode`."""
        return _decoded(tokens, lambda token: token < self.vocab, lambda some: bytes(some).decode(errors="replace"))

    def special(self, name: str) -> int:
        """As `Tokenizer.special`."""
        raise ValueError(f"a byte-level model has no token {name!r}; give the run a tokenizer that has")


class TokenizerFile(Tokenizer):
    """Tokenizer from a `tokenizer.json` of Hugging Face.  ends: numbers of the end tokens, the end token of chats first.

    Names of marks and end tokens in a text are plain text: `<|endoftext|>` in a prompt ends no turn.  A text that the
    model's own vocabulary still turns into such a token is refused.
    """

    def __init__(self, path: Path, ends: Sequence[int]) -> None:
        """Read the file; raises ValueError with one sentence if it cannot be used."""
        self._tokenizer, self._path = _read(path, frozenset(ends)), path
        self._known = self._tokenizer.numbers()
        unknown = [end for end in ends if end not in self._known]
        if unknown or not ends:
            raise ValueError(f"{path} has no token {unknown[0] if unknown else 'that ends a turn'}; name its end tokens")
        self.ends = tuple(ends)
        self.vocab = max(self._known) + 1
        self._marks = {number: mark for mark in MARKS if (number := self._tokenizer.number(mark)) is not None}

    def encode(self, text: str) -> list[int]:
        """As `Tokenizer.encode`."""
        size = len(_utf8(text))  # refuses a lone surrogate, at which the library would panic
        try:
            tokens = self._tokenizer.encode(text)
        except LibraryError as error:
            raise UnreadableText(f"has no tokens: {error}") from error
        if len(tokens) > size + SPARE_TOKENS:
            raise UnreadableText(f"of {size} bytes has {len(tokens)} tokens, more than it has bytes")
        if not set(self.ends).isdisjoint(tokens):
            raise UnreadableText("holds a token that ends a turn")
        if forged := self._marks.keys() & set(tokens):
            raise UnreadableText(f"holds the mark {self._marks[min(forged)]}")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """As `Tokenizer.decode`."""
        return _decoded(tokens, lambda token: token in self._known, self._tokenizer.decode)

    def special(self, name: str) -> int:
        """As `Tokenizer.special`."""
        number = self._tokenizer.number(name)
        if number is None:
            raise ValueError(f"{self._path} has no token {name!r}, which the run's template needs; take another template")
        return int(number)


def special_in(path: Path) -> Mapping[str, int]:
    """Return the added tokens of a `tokenizer.json` and their numbers.  Raises ValueError for a file that cannot be used."""
    return _read(path, frozenset()).added()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableText("holds half of a surrogate pair, which is no character") from error


def _decoded(tokens: Sequence[int], known: Callable[[int], bool], decode: Callable[[list[int]], str]) -> str:
    """Decode each run of known tokens by itself, and put U+FFFD for each unknown token."""
    if any(token < 0 for token in tokens):
        raise ValueError("a token is a number from 0")
    parts: list[str] = []
    for is_known, group in groupby(tokens, known):
        some = list(group)
        parts.append(decode(some) if is_known else NO_TEXT * len(some))
    return "".join(parts)


def _read(path: Path, reserved: frozenset[int]) -> LibraryTokenizer:
    """Return the tokenizer in a file.  reserved: numbers of tokens that no text may become, besides the marks."""
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ValueError(f"{path} is larger than {MAX_TOKENIZER_BYTES >> 20} MiB, so it is no tokenizer.json")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if is_pointer(data):
        raise ValueError(f"{path} {POINTER_FLAW}")
    try:
        return load(read_in_child(data, reserved))
    except (TokenizerRefused, LibraryError) as error:
        raise ValueError(f"{path} is no tokenizer.json that a run can use: {error}") from error
