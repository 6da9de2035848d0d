"""Conversation with a model: its turns, the tokens that the model reads of them, and the turns that it no longer reads.

Pure: no model and no terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.data.templates import LEARNT, TemplatedTokenizer
from trainer.data.tokens import NO_TEXT


@dataclass(frozen=True)
class ChatTurn:
    """Question and answer.  tokens: tokens of the answer, without an end token."""

    question: str
    answer: str
    tokens: tuple[int, ...]


class Prompt(NamedTuple):
    """Tokens that a model reads.  dropped: number of turns in the last prompt that this one leaves out."""

    tokens: list[int]
    dropped: int


class Conversation:
    """Turns with a model that reads at most `room` tokens before an answer.

    turns: all turns since the last reset.  converses: False for a model that completes each text alone.
    """

    def __init__(self, tokenizer: TemplatedTokenizer, room: int, *, converses: bool) -> None:
        self.turns: list[ChatTurn] = []
        self.converses = converses
        self._tokenizer, self._room = tokenizer, room
        self._first = 0

    def prompt(self, question: str) -> Prompt:
        """Return the tokens of the turns and of a question, without the oldest turns if there are too many.

        Raises ValueError with one sentence for a question that is too long, or that the model's tokenizer cannot encode.
        """
        if not question:
            raise ValueError("there is nothing to answer; give a text")
        if not self.converses:
            return Prompt(self._fitting(self._tokenizer.encode(question)), 0)
        alone = self._fitting(self._tokenizer.prompt(question))
        later = self._tokenizer.reply(question)
        before = self._first
        while (turns := self.turns[self._first :]) and (tokens := [*self._told(turns), *later]):
            if len(tokens) <= self._room:
                return Prompt(tokens, self._first - before)
            self._first += 1
        return Prompt(alone, self._first - before)

    def add(self, question: str, tokens: Sequence[int]) -> None:
        """Add a turn.  tokens: tokens of the answer."""
        said = tuple(token for token in tokens if token not in self._tokenizer.ends)
        self.turns.append(ChatTurn(question, self._tokenizer.decode(said), said))

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()
        self._first = 0

    def record(self) -> dict[str, list[dict[str, str]]]:
        """Return the turns as a chat that runs can learn from (`trainer.data.chat`)."""
        said = [(("user", turn.question), (LEARNT, turn.answer)) for turn in self.turns]
        return {"messages": [{"role": role, "content": content} for pair in said for role, content in pair]}

    def _told(self, turns: Sequence[ChatTurn]) -> list[int]:
        """Return the tokens of turns at the beginning of a conversation."""
        tokens: list[int] = []
        for number, turn in enumerate(turns):
            encode = self._tokenizer.reply if number else self._tokenizer.prompt
            tokens += [*encode(turn.question), *turn.tokens, self._tokenizer.end]
        return tokens

    def _fitting(self, tokens: list[int]) -> list[int]:
        if len(tokens) > self._room:
            raise ValueError(
                f"the text has {len(tokens)} tokens, and the model reads {self._room} before its answer; shorten it"
            )
        return tokens


# ------------------------------------------------------------------------------------------------------------------------
# Text of an answer while its tokens come, and the part of it that a terminal may see.
#
# A character may take several tokens, and until the last of them has come, the library decodes the others as U+FFFD.  So
# text ends before its trailing U+FFFD characters, unless these are too many for one character.


MOST_INCOMPLETE = 16
"""Number of tokens without a complete character after which they are shown as U+FFFD."""


class StreamedText:
    """Text of tokens that come one after the other."""

    def __init__(self, tokenizer: TemplatedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = self._shown = 0
        """Numbers of tokens before the decoded ones, and of tokens whose text was returned."""

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that is complete with these tokens."""
        self._tokens += tokens
        return self._taken(whole=len(self._tokens) - self._shown > MOST_INCOMPLETE)

    def end(self) -> str:
        """Return the rest of the text."""
        return self._taken(whole=True)

    def _taken(self, *, whole: bool) -> str:
        """Return new text.  The previous tokens are decoded together with the new ones, to keep a space at its beginning."""
        before = self._tokenizer.decode(self._tokens[self._context : self._shown])
        text = self._tokenizer.decode(self._tokens[self._context :])
        if not whole and text.endswith(NO_TEXT):
            return ""
        self._context, self._shown = self._shown, len(self._tokens)
        return text[len(before) :]


def shown(text: str) -> str:
    """Return text of a model for a terminal: line feeds and tabs stay, other spaces are plain, controls become escapes."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else " " if unicodedata.category(each) == "Zs" else ascii(each)[1:-1]
        for each in text
    )
