"""Wrapper of Hugging Face's `tokenizers`, the only caller of the library.

The library is written in Rust and panics for some files and texts.  A panic arrives as a special `BaseException`, which
no `except Exception` catches; this module turns it into `LibraryError`, and lets all other `BaseException`s pass (an
interrupt, a cancelled task).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import tokenizers

T = TypeVar("T")


class LibraryError(ValueError):
    """Error for a file or a text that the library refuses; the text is the rest of a sentence."""


class LibraryTokenizer:
    """Tokenizer of the library.  Special tokens are never found in a text.  Every method raises `LibraryError`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, and nothing around them."""
        return _called(lambda: list(self._tokenizer.encode(text, add_special_tokens=False).ids))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens as their names."""
        return _called(lambda: str(self._tokenizer.decode(list(tokens), skip_special_tokens=False)))

    def number(self, name: str) -> int | None:
        """Return the number of the token of this name, or None."""
        return _called(lambda: self._tokenizer.token_to_id(name))

    def numbers(self) -> frozenset[int]:
        """Return the numbers of all tokens."""
        return _called(lambda: frozenset(self._tokenizer.get_vocab().values()))

    def added(self) -> Mapping[str, int]:
        """Return the numbers of the tokens added to the model's own, by name."""
        return _called(
            lambda: {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        )


def load(data: bytes) -> LibraryTokenizer:
    """Return the tokenizer that a file describes.  Raises `LibraryError`."""
    return LibraryTokenizer(_called(lambda: tokenizers.Tokenizer.from_buffer(data)))


def _called(call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:  # the library raises Exception itself for any fault
        raise LibraryError(f"the library cannot read it: {_first_line(error)}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise LibraryError(f"the library fails on it: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
