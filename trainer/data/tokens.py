"""Text to tokens and back.

A byte-level model needs no file: its tokens are the bytes of UTF-8.  Other models bring a `tokenizer.json`, which Hugging
Face's `tokenizers` reads.  Both have one end token, which closes a document and what the model writes in one turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import tokenizers

MAX_TOKENIZER_BYTES = 64 << 20
"""The largest `tokenizer.json` read; those of common models have up to 20 MiB."""


class Tokenizer(ABC):
    """What a model reads and writes.  end: the token that closes a turn; vocab: tokens are below this number."""

    end: int
    vocab: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without an end token.  Raises ValueError for a text that has none."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with U+FFFD where they make no text.  Raises ValueError for tokens that do not exist."""


class ByteTokenizer(Tokenizer):
    """Bytes of UTF-8.  The end token is the byte 0, which separates documents of the embedded corpus too."""

    end = 0
    vocab = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        if not all(0 <= token < self.vocab for token in tokens):
            raise ValueError("a token of a byte-level model is a number from 0 to 255")
        return bytes(tokens).decode(errors="replace")


class TokenizerFile(Tokenizer):
    """A `tokenizer.json` of Hugging Face.  end: the end token's text, such as `<|endoftext|>`.

    What looks like a special token in a text is text: nobody can end a turn by writing `<|endoftext|>` into a prompt.
    """

    def __init__(self, path: Path, end: str) -> None:
        """Raises ValueError with one sentence for a file that cannot be used."""
        self._tokenizer = _read(path)
        self._tokenizer.encode_special_tokens = True
        number = self._tokenizer.token_to_id(end)
        if number is None:
            raise ValueError(f"{path} has no token {end!r}; name its end token")
        self.end = number
        self.vocab = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        text.encode()  # a lone surrogate is a ValueError here, and a panic there
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        if not all(0 <= token < self.vocab for token in tokens):
            raise ValueError(f"a token of this model is a number from 0 to {self.vocab - 1}")
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


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
