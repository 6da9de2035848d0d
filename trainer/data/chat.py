"""Chats as they are written down, one a line (supervised fine-tuning).

A record is `{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}`, with the roles
system, user and assistant.  Other usual ways to write the same are read too: `conversations` with `from` and `value`,
`prompt` and `completion` as texts or as messages, other names of the roles, and a content in parts of text.  How a chat
becomes tokens is `trainer.data.templates`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.data.nesting import check_depth
from trainer.data.templates import LEARNT, ROLES, Message

MAX_FILE_BYTES = 64 << 20
"""Every trainer makes all of it into tokens before it begins."""
MAX_MESSAGES = 1 << 12
MAX_CONTENT_CHARACTERS = 1 << 24
OTHER_ROLES = {"developer": "system", "human": "user", "gpt": "assistant", "model": "assistant"}


def chats_in(path: Path) -> Iterator[tuple[int, list[Message]]]:
    """The line's number and the messages of each chat in a file of JSON lines; empty lines are passed over.

    Raises ValueError with one sentence that names file and line.
    """
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            yield number, messages_of(_parsed(line))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error


def messages_of(record: Any) -> list[Message]:
    """The messages of a record, of which one at least is the assistant's.

    Raises ValueError with one sentence for what is no chat; further fields of a record or message are passed over.
    """
    messages = _listed(record)
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise ValueError(
            f"a chat is a record with a list of 1 to {MAX_MESSAGES} messages, which is called messages or conversations, "
            "or with prompt and completion"
        )
    found = [_message(number, message) for number, message in enumerate(messages, 1)]
    if all(message.role != LEARNT for message in found):
        raise ValueError("a chat has no message of the assistant, so there is nothing to learn from it")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB; take fewer chats")
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _parsed(line: bytes) -> Any:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} at column {error.colno}); each line is one chat") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_depth(value)
    return value


def _listed(record: Any) -> Any:
    """The messages of a record, however it calls them."""
    if not isinstance(record, Mapping):
        return None
    if "prompt" in record and "completion" in record and "messages" not in record:
        asked, answered = record["prompt"], record["completion"]
        if isinstance(asked, list) and isinstance(answered, list):
            return [*asked, *answered]
        return [{"role": "user", "content": asked}, {"role": LEARNT, "content": answered}]
    return record.get("messages", record.get("conversations"))


def _message(number: int, message: Any) -> Message:
    fields = message if isinstance(message, Mapping) else {}
    role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
    known = OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    if known not in ROLES:
        raise ValueError(f"the role of message {number} of a chat is {role!r:.40}, and must be one of {', '.join(ROLES)}")
    if fields.get("tool_calls") or fields.get("function_call"):
        raise ValueError(f"message {number} of a chat calls a tool, which no template here has; leave the chat out")
    if isinstance(content, list) and content and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or len(content) > MAX_CONTENT_CHARACTERS:
        raise ValueError(
            f"the content of message {number} of a chat is no text of {MAX_CONTENT_CHARACTERS} characters at most"
        )
    return Message(known, content)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
