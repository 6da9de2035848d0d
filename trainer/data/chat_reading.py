"""Chats in rows: puts chats together into rows, and marks the tokens that count.

A chat's tokens stay together in one row, in the order of the file; a chat longer than a row is cut at its end.  If packed, a
row takes chats while there is room, and none sees another; otherwise each chat has its own row.  The rest of a row is
filled, and does not count.  A fixed share of the chats is held out, by their number, so that all peers hold out the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainer.data.chat import chats_in
from trainer.data.rows import Mask, Reading, Rows, Tokens
from trainer.data.templates import Chat, TemplatedTokenizer

FILL = -1
"""Document id of the filling at the end of a row."""


class Row(NamedTuple):
    """Row of chats of a split, from `first` to before `last`."""

    first: int
    last: int


@dataclass
class _Split:
    """Chats of a split, one after the other, each cut to a row.  ends: of each chat, counted in tokens; begins with 0."""

    tokens: list[Tokens] = field(default_factory=list)
    mask: list[Mask] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Tokens, mask: Mask) -> None:
        self.tokens.append(tokens)
        self.mask.append(mask)
        self.ends.append(self.ends[-1] + len(tokens))


class ChatReading(Reading):
    """Chats of a file.  cut: number of chats longer than a row.  left_out: number of chats with no counted token in a row.

    Raises ValueError with one sentence for a file that is no file of chats, or has too few.
    """

    def __init__(
        self, path: Path, tokenizer: TemplatedTokenizer, length: int, held_out_percent: int, *, packed: bool = True
    ) -> None:
        self._length, self._fill = length, tokenizer.end
        self.cut = self.left_out = 0
        splits = {False: _Split(), True: _Split()}
        count, dtype = 0, np.min_scalar_type(tokenizer.vocab - 1)
        for place, messages in chats_in(path):
            try:
                chat = tokenizer.chat(messages)
            except ValueError as error:
                raise ValueError(f"{path.name}, {place}: {error}") from error
            if self._cut(chat):
                held_out = count * held_out_percent % 100 < held_out_percent
                splits[held_out].add(np.array(chat.tokens, dtype), np.array(chat.mask))
                count += 1
        if count < 2:
            raise ValueError(
                f"{path.name} has {count} chat{'s' * (count != 1)} to learn from in rows of {length} tokens; give two at "
                "least, as one is held out"
            )
        self._splits = {held: _joined(split) for held, split in splits.items()}
        self._rows = {
            held: _packed(split.ends, length + 1) if packed else _single(split.ends) for held, split in splits.items()
        }
        self.windows, self.held_out_windows = len(self._rows[False]), len(self._rows[True])
        self.digest = _digest(self._splits.values())

    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        rows, width = [self._rows[held_out][index] for index in windows], self._length + 1
        split = self._splits[held_out]
        tokens_bt = np.full((len(rows), width), self._fill, split.tokens.dtype)
        counts_bt = np.zeros((len(rows), width), np.bool_)
        documents_bt = np.full((len(rows), width), FILL, np.int32)
        for row, (first, last) in enumerate(rows):
            begin, end = split.ends[first], split.ends[last]
            tokens_bt[row, : end - begin] = split.tokens[begin:end]
            counts_bt[row, : end - begin] = split.mask[begin:end]
            for chat in range(first, last):
                documents_bt[row, split.ends[chat] - begin : split.ends[chat + 1] - begin] = chat - first
                counts_bt[row, split.ends[chat] - begin] = (
                    False  # nothing comes before a chat to predict its first token from
                )
        return Rows(tokens_bt, counts_bt[:, 1:], documents_bt[:, :-1])

    def described(self) -> str:
        """Describe for a person the number of chats, and the losses by cutting."""
        chats, held = (len(split.ends) - 1 for split in (self._splits[False], self._splits[True]))
        lost = f"; {self.cut} longer than a window are cut" if self.cut else ""
        lost += f"; {self.left_out} with nothing to learn are left out" if self.left_out else ""
        windows = f"{self.windows} window{'s' * (self.windows != 1)}"
        return f"{chats} chat{'s' * (chats != 1)} in {windows} to learn from, {held} held out{lost}"

    def _cut(self, chat: Chat) -> bool:
        """Cut a chat to a row; return True if any of its tokens still counts."""
        if len(chat.tokens) > self._length + 1:
            self.cut += 1
            del chat.tokens[self._length + 1 :], chat.mask[self._length + 1 :]
        counts = any(chat.mask[1:])
        self.left_out += not counts
        return counts


class _Joined(NamedTuple):
    tokens: Tokens
    mask: Mask
    ends: list[int]


def _joined(split: _Split) -> _Joined:
    return _Joined(np.concatenate(split.tokens), np.concatenate(split.mask), split.ends)


def _single(ends: Sequence[int]) -> list[Row]:
    return [Row(chat, chat + 1) for chat in range(len(ends) - 1)]


def _packed(ends: Sequence[int], width: int) -> list[Row]:
    """Put as many chats into each row as fit, in their order."""
    rows, first = [], 0
    for chat in range(1, len(ends)):
        if ends[chat] - ends[first] > width:
            rows.append(Row(first, chat - 1))
            first = chat - 1
    return [*rows, Row(first, len(ends) - 1)]


def _digest(splits: Iterable[_Joined]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split in splits:
        for array in (split.tokens, split.mask, np.array(split.ends)):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
