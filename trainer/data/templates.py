"""The forms in which models read conversations: what stands before, between and after what is said.

A template is one of the few below and no program: those that come with models are written in Jinja, which a peer must not
run for a stranger.  Each piece is made into tokens by itself, so where the assistant begins does not depend on the
tokenizer, and no content forges a turn: a tokenizer makes no text into a mark or an end token (`trainer.data.tokens`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.data.marks import HEADING_BEGIN, HEADING_END, MESSAGE_END, TEXT_BEGIN, TURN_BEGIN, TURN_END, Mark
from trainer.data.tokens import Tokenizer, UnreadableText

ROLES = ("system", "user", "assistant")
LEARNT = "assistant"


class Message(NamedTuple):
    """Of one of the `ROLES`.  excluded: read by the model, and not learned, although it may be the assistant's."""

    role: str
    content: str
    excluded: bool = False


class Chat(NamedTuple):
    """tokens: of the whole chat.  mask: as many; true for tokens that count as targets."""

    tokens: list[int]
    mask: list[bool]


@dataclass(frozen=True)
class Template:
    """Pieces of a conversation; `{role}` stands for who says it.

    begin: before all.  heading: before a message.  close: after one of others.  gap: after the assistant's end token.  A
    template without marks can have a tokenizer of any kind.
    """

    begin: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    gap: tuple[str, ...] = ()


TEMPLATES = {
    "raw": Template(),
    "plain": Template(heading=("{role}:\n",), close=("\n",), gap=("\n",)),
    "chatml": Template(
        heading=(TURN_BEGIN, "{role}\n"), close=(TURN_END, "\n"), gap=("\n",)
    ),
    "llama3": Template(
        begin=(TEXT_BEGIN,),
        heading=(HEADING_BEGIN, "{role}", HEADING_END, "\n\n"),
        close=(MESSAGE_END,),
    ),
}  # fmt: skip
"""By name.  "raw": what is said, one after the other.  "plain": headings of text.  "chatml": of Qwen.  "llama3"."""


class TemplatedTokenizer(Tokenizer):
    """Another tokenizer, and a template for conversations.  Raises ValueError for marks that it does not have."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        self.ends, self.vocab = tokenizer.ends, tokenizer.vocab
        form = TEMPLATES[template]
        self._begin, self._close, self._gap = (self._pieces(each) for each in (form.begin, form.close, form.gap))
        self._headings = {role: self._pieces(form.heading, role) for role in ROLES}

    def _pieces(self, pieces: Sequence[str], role: str = "") -> list[int]:
        tokens: list[int] = []
        for piece in pieces:
            if isinstance(piece, Mark):
                tokens.append(self._tokenizer.special(piece))
            else:
                tokens += self._tokenizer.encode(piece.replace("{role}", role))
        return tokens

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def special(self, name: str) -> int:
        return self._tokenizer.special(name)

    def prompt(self, text: str) -> list[int]:
        return self.opening([Message("user", text)])

    def reply(self, text: str) -> list[int]:
        return self._gap + self._conversation([Message("user", text)]).tokens + self._headings[LEARNT]

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """What a model reads that is to answer these messages: all of them, and the assistant's heading."""
        return self._begin + self._conversation(messages).tokens + self._headings[LEARNT]

    def chat(self, messages: Sequence[Message]) -> Chat:
        """The tokens of a conversation; what the assistant says and the end after it count, so that it learns to stop.

        Excluded messages and their ends do not count.  Raises ValueError with one sentence for a content that no text
        may be, such as an end token.
        """
        tokens, mask = self._conversation(messages)
        return Chat(self._begin + tokens, [False] * len(self._begin) + mask)

    def _conversation(self, messages: Sequence[Message]) -> Chat:
        tokens: list[int] = []
        mask: list[bool] = []
        for role, content, excluded in messages:
            try:
                said = self.encode(content)
            except UnreadableText as error:
                raise ValueError(f"a message of the {role} {error.flaw}") from error
            learnt = role == LEARNT and not excluded
            after = [self.end, *self._gap] if role == LEARNT else self._close
            tokens += self._headings[role] + said + after
            mask += [False] * len(self._headings[role]) + [learnt] * len(said)
            mask += [learnt and place == 0 for place in range(len(after))]
        return Chat(tokens, mask)
