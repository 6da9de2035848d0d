"""Chats as tokens to learn from, of which only the assistant's count (supervised fine-tuning).

A record is `{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}`, with the roles
system, user and assistant.  The template, with E for the tokenizer's end token:

    system:\\n<content>\\n       user:\\n<content>\\n       assistant:\\n<content>E\\n

one after the other.  What the assistant says and the end after it count, so that it learns to stop; headings, line feeds and
what others say do not.  Each piece is made into tokens by itself, so where the assistant begins does not depend on the
tokenizer, and neither can a content forge a turn's end: one that holds the end token is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

ROLES = ("system", "user", "assistant")
LEARNT = "assistant"
MAX_MESSAGES = 1 << 12
MAX_CONTENT_CHARACTERS = 1 << 24


class Encoder(Protocol):
    """What is asked of a tokenizer.  end: the token that closes a turn."""

    @property
    def end(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


class Chat(NamedTuple):
    """tokens: of the whole chat.  mask: as many; true for tokens that count as targets."""

    tokens: list[int]
    mask: list[bool]


def chat_tokens(record: Mapping[str, Any], encoder: Encoder) -> Chat:
    """The tokens of a record, and which count.  Raises ValueError with one sentence for what is no chat."""
    messages = _messages(record)
    tokens, mask = _conversation(messages, encoder)
    if not any(mask):
        raise ValueError("a chat has no message of the assistant, so there is nothing to learn from it")
    return Chat(tokens, mask)


def chat_prompt(messages: Sequence[Mapping[str, str]], encoder: Encoder) -> list[int]:
    """What a model reads that is to answer `messages`: all of them, and the assistant's heading."""
    checked = _messages({"messages": list(messages)})
    return _conversation(checked, encoder).tokens + encoder.encode(f"{LEARNT}:\n")


def _conversation(messages: Sequence[tuple[str, str]], encoder: Encoder) -> Chat:
    tokens: list[int] = []
    mask: list[bool] = []
    for role, content in messages:
        said = encoder.encode(content)
        if encoder.end in said:
            raise ValueError(f"a message of the {role} holds the token that ends a turn")
        pieces = [(encoder.encode(f"{role}:\n"), False)]
        pieces += [(said, True), ([encoder.end], True)] if role == LEARNT else [(said, False)]
        pieces.append((encoder.encode("\n"), False))
        for piece, counts in pieces:
            tokens += piece
            mask += [counts] * len(piece)
    return Chat(tokens, mask)


def _messages(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Role and content of each message; other fields of a record or message are passed over."""
    messages = record.get("messages") if isinstance(record, Mapping) else None
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise ValueError(f"a chat is a record whose field messages is a list of 1 to {MAX_MESSAGES} of them")
    found = []
    for number, message in enumerate(messages, 1):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in ROLES:
            raise ValueError(
                f"the role of message {number} of a chat is {role!r:.40}, and must be one of {', '.join(ROLES)}"
            )
        if not isinstance(content, str) or len(content) > MAX_CONTENT_CHARACTERS:
            raise ValueError(
                f"the content of message {number} of a chat is no text of {MAX_CONTENT_CHARACTERS} characters at most"
            )
        found.append((role, content))
    return found
