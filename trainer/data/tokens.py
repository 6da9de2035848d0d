"""Text to tokens and back.

A byte-level model needs no file: its tokens are the bytes of UTF-8.  Other models bring a `tokenizer.json`, which Hugging
Face's `tokenizers` reads.  An end token closes a document and what the model writes in one turn.

A model that learnt chats reads a conversation in the form of its template (`trainer.data.templates`), which is a tokenizer,
too: `prompt` and `reply` are what an environment says at the beginning and after a turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import tokenizers

MAX_TOKENIZER_BYTES = 64 << 20
"""The largest `tokenizer.json` read; those of common models have up to 20 MiB."""


NO_TEXT = "\ufffd"
"""Stands for what is no text."""


class Tokenizer(ABC):
    """What a model reads and writes.  vocab: tokens of a text are below this number.

    ends: the tokens that close a turn when a model writes them.
    """

    ends: tuple[int, ...]
    vocab: int

    @property
    def end(self) -> int:
        """The token that closes a turn in what is learnt from."""
        return self.ends[0]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without an end token.  Raises ValueError for a text that has none."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with U+FFFD where they make no text: a model may have more tokens than its tokenizer.

        Raises ValueError for a negative number.
        """

    @abstractmethod
    def special(self, name: str) -> int:
        """The token of this name, such as `<|im_start|>`, which no text contains.  Raises ValueError where there is none."""

    def prompt(self, text: str) -> list[int]:
        """What a model reads that is to answer a text."""
        return self.encode(text)

    def reply(self, text: str) -> list[int]:
        """What a model reads after the end of its turn when a text answers it."""
        return self.encode(text)


class ByteTokenizer(Tokenizer):
    """Bytes of UTF-8.  The end token is the byte 0, which separates documents of the embedded corpus too."""

    ends = (0,)
    vocab = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return _decoded(tokens, lambda token: token < self.vocab, lambda some: bytes(some).decode(errors="replace"))

    def special(self, name: str) -> int:
        raise ValueError(f"a byte-level model has no token {name!r}; give the run a tokenizer that has")


class TokenizerFile(Tokenizer):
    """A `tokenizer.json` of Hugging Face.  ends: numbers of the end tokens, the one of chats first.

    What looks like a special token in a text is text: nobody can end a turn by writing `<|endoftext|>` into a prompt.
    """

    def __init__(self, path: Path, ends: Sequence[int]) -> None:
        """Raises ValueError with one sentence for a file that cannot be used."""
        self._tokenizer, self._path = _read(path), path
        self._tokenizer.encode_special_tokens = True
        self._known = frozenset(self._tokenizer.get_vocab().values())
        unknown = [end for end in ends if end not in self._known]
        if unknown or not ends:
            raise ValueError(f"{path} has no token {unknown[0] if unknown else 'that ends a turn'}; name its end tokens")
        self.ends = tuple(ends)
        self.vocab = max(self._known) + 1

    def encode(self, text: str) -> list[int]:
        text.encode()  # a lone surrogate is a ValueError here, and a panic there
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return _decoded(
            tokens,
            lambda token: token in self._known,
            lambda some: str(self._tokenizer.decode(some, skip_special_tokens=False)),
        )

    def special(self, name: str) -> int:
        number = self._tokenizer.token_to_id(name)
        if number is None:
            raise ValueError(f"{self._path} has no token {name!r}, which the run's template needs; take another template")
        return int(number)


def special_in(path: Path) -> dict[str, int]:
    """The special tokens of a `tokenizer.json` and their numbers.  Raises ValueError for a file that is none."""
    added = _read(path).get_added_tokens_decoder()
    return {token.content: number for number, token in added.items()}


def _decoded(tokens: Sequence[int], known: Callable[[int], bool], decode: Callable[[list[int]], str]) -> str:
    """The text of the known tokens, each stretch by itself, with U+FFFD for each of the others."""
    if any(token < 0 for token in tokens):
        raise ValueError("a token is a number from 0")
    parts: list[str] = []
    for is_known, group in groupby(tokens, known):
        some = list(group)
        parts.append(decode(some) if is_known else NO_TEXT * len(some))
    return "".join(parts)


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ValueError(f"{path} is larger than {MAX_TOKENIZER_BYTES >> 20} MiB, so it is no tokenizer.json")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises Exception itself for any fault of the file
        raise ValueError(f"{path} is no tokenizer.json: {error}") from error
