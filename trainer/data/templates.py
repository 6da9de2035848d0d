"""Templates of conversations, which give the tokens that a model reads before, between and after the messages.

A template is one of the few below, not a program. Models come with templates in Jinja, but a peer must not run a stranger's
program. Each piece is turned into tokens separately, so the place where the assistant begins does not depend on the
tokenizer. No content can forge a turn, because a tokenizer never turns text into a mark or an end token
(`trainer.data.tokens`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.data.rows import Tokens
from trainer.data.tokenizer_json import HEADING_BEGIN, HEADING_END, MESSAGE_END, TEXT_BEGIN, TURN_BEGIN, TURN_END, Mark
from trainer.data.tokens import Tokenizer, UnreadableText

ROLES = ("system", "user", "assistant")
LEARNT = "assistant"


class Message(NamedTuple):
    """Message of a chat.  role: one of `ROLES`.  excluded: True if the model never learns the message, in any role."""

    role: str
    content: str
    excluded: bool = False


class Chat(NamedTuple):
    """Tokens of a whole chat.  mask: of the same length, true for tokens that count as targets."""

    tokens: list[int]
    mask: list[bool]


@dataclass(frozen=True)
class Template:
    """Pieces between the messages of a conversation; `{role}` stands for the role of the message.

    begin: before the whole conversation. heading: before each message. close: after a message of system or user. gap: after
    the assistant's end token. A template without marks works with any tokenizer.
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
"""Templates by name.  "raw": the bare messages in sequence. "plain": headings as text.  "chatml": Qwen's form."""


def chat_template(name: str, end: str) -> str:
    """Return a template in Jinja with which other programs write a conversation in the same form.

    end: name of the end token.  Names of tokens go into the program only as quoted strings.
    """
    form = TEMPLATES[name]
    begin, heading, close = (_quoted(pieces) for pieces in (form.begin, form.heading, form.close))
    opening, closing = _quoted(form.heading, LEARNT), _quoted((end, *form.gap))
    return (
        f"{{{{ {begin} }}}}{{% for message in messages %}}{{{{ {heading} + message['content'] }}}}"
        f"{{{{ {closing} if message['role'] == '{LEARNT}' else {close} }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {opening} }}}}{{% endif %}}"
    )


def _quoted(pieces: Sequence[str], role: str = "") -> str:
    """Return an expression in Jinja for the text of these pieces; without `role`, the role of the message is used."""
    text = "".join(pieces).replace("{role}", role or "{role}")
    return " + message['role'] + ".join(json.dumps(part, ensure_ascii=False) for part in text.split("{role}"))


class TemplatedTokenizer(Tokenizer):
    """Tokenizer with a template for conversations.  Raises ValueError for marks that the tokenizer does not have."""

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
        """Return the tokens as `Tokenizer.encode` describes."""
        return self._tokenizer.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens | UnreadableText]:
        """Return the tokens as `Tokenizer.encode_batch` describes."""
        return self._tokenizer.encode_batch(texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text as `Tokenizer.decode` describes."""
        return self._tokenizer.decode(tokens)

    def special(self, name: str) -> int:
        """Return the token as `Tokenizer.special` describes."""
        return self._tokenizer.special(name)

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a conversation that a user opens with `text`."""
        return self.opening([Message("user", text)])

    def reply(self, text: str) -> list[int]:
        """Return the tokens after the assistant's turn, with `text` as the user's message."""
        return self._gap + self._conversation([Message("user", text)]).tokens + self._headings[LEARNT]

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens that a model reads to answer these messages: all messages, and the assistant's heading."""
        return self._begin + self._conversation(messages).tokens + self._headings[LEARNT]

    def chat(self, messages: Sequence[Message]) -> Chat:
        """Return a conversation's tokens. The assistant's messages count, with their ends, so that the model learns to stop.

        Excluded messages and their ends do not count.  Raises ValueError with one sentence for content that may not be
        encoded, such as an end token.
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
