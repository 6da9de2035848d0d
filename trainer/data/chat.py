"""Files of chats for supervised fine-tuning: one chat per line, or one JSON array.

A record is `{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}`, with the roles
system, user and assistant. Other common forms are also read: `conversations` with `from` and `value`, `prompt` and
`completion` as texts or as messages, Alpaca's `instruction`, `input` and `output`, other names for the roles, and content
that is split into text parts. `trainer.data.templates` turns a chat into tokens.

A record with an unknown field is refused, because the author may have used that field to say that a model must not learn a
message, or must see something. `COUNTS` and `IS_EXCLUDED` exclude messages from the loss, `METADATA` does not concern the
model, and `UNSUPPORTED` lists the fields that runs cannot express. Null or empty fields count as absent.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.data.nesting import check_depth
from trainer.data.rows import Mask, Reading, Rows, Tokens
from trainer.data.templates import LEARNT, ROLES, Chat, Message, TemplatedTokenizer

MAX_FILE_BYTES = 64 << 20
"""Largest file of chats; a trainer turns the whole file into tokens before it begins."""
MAX_MESSAGES = 1 << 12
MAX_CONTENT_CHARACTERS = 1 << 24
OTHER_ROLES = {"developer": "system", "human": "user", "gpt": "assistant", "model": "assistant"}

COUNTS = frozenset(
    "weight train training trainable train_on_turn loss compute_loss calculate_loss include_in_loss learn".split()
)
"""Fields whose value 0 or false excludes an assistant message from the loss; in a record, the whole chat."""
IS_EXCLUDED = frozenset("masked mask mask_loss ignore exclude excluded skip no_loss".split())
"""Fields whose value 1 or true excludes the message or the chat in the same way."""
UNSUPPORTED = {
    **dict.fromkeys("tool_calls function_call tool_call_id tools functions tool_choice".split(), "tools"),
    **dict.fromkeys("image images image_url video videos audio audios file files".split(), "images, audio and files"),
    **dict.fromkeys(
        "reasoning_content reasoning reasoning_details thinking thoughts chain_of_thought".split(),
        "thoughts apart from what is said",
    ),
    **dict.fromkeys("name".split(), "names of speakers"),
    **dict.fromkeys("prefix suffix continue_final_message".split(), "messages that are begun for the model"),
    **dict.fromkeys(
        "chat_template chat_template_kwargs template enable_thinking add_generation_prompt".split(), "templates of records"
    ),
    **dict.fromkeys("documents context contexts".split(), "documents beside the messages"),
    **dict.fromkeys(
        "train_detail training_detail loss_scale loss_weight weights loss_mask completion_mask assistant_masks".split(),
        "weights of parts of a message",
    ),
    **dict.fromkeys("chosen rejected preference kto_tag rank ranking".split(), "preferences"),
    **dict.fromkeys("refusal".split(), "refusals apart from what is said"),
    **dict.fromkeys("input_ids labels attention_mask token_ids".split(), "tokens that others made"),
}
"""Unsupported fields, with the name of the feature for the error."""
METADATA = frozenset(
    "id ids _id idx index uuid hash number row key sample_id prompt_id conversation_id chat_id message_id parent_id "
    "user_id session_id source sources source_id dataset dataset_name data_source origin subset split version "
    "revision category categories subcategory tag tags topic topics domain subject task task_type task_name type "
    "style genre keywords language lang languages locale license author authors annotator created created_at "
    "updated_at timestamp date time url link title score scores rating quality difficulty reward length num_tokens "
    "token_count tokens n_tokens turns num_turns n_turns turn generator model_name annotations metadata meta extra "
    "extra_info info notes note comment comments parallel_tool_calls model".split()
)
"""Fields that do not concern the model. A data set can put any other data into `metadata`."""
TEXTS = frozenset("prompt completion instruction output".split())
"""Fields that count as present even if their text is empty."""
FORMS = (
    "a chat is a record with a list of 1 to {most} messages, which is called messages or conversations, or with prompt and "
    "completion, or with instruction and output"
)


def chats_in(path: Path) -> Iterator[tuple[str, list[Message]]]:
    """Yield the place of each chat in a file ("line 3") and the chat's messages; skip empty lines.

    The file is JSON lines, or one JSON array of records.  Raises ValueError with one sentence that names file and place.
    """
    for place, text in _records(path):
        try:
            yield place, messages_of(parsed(text) if isinstance(text, bytes) else text)
        except ValueError as error:
            raise ValueError(f"{path.name}, {place}: {error}") from error


def messages_of(record: Any) -> list[Message]:
    """Return the messages of a record, at least one of them the assistant's.

    Raises ValueError with one sentence that names the field, for a record that is not a chat or that runs do not support.
    """
    if not isinstance(record, Mapping):
        raise ValueError(FORMS.format(most=MAX_MESSAGES))
    fields = _given(record, "the record")
    listed = _listed(fields)
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_MESSAGES:
        raise ValueError(FORMS.format(most=MAX_MESSAGES))
    excluded = _is_excluded(fields, "the record")
    _check_known(fields, "the record", METADATA)
    found = [_message(number, message) for number, message in enumerate(listed, 1)]
    if all(message.role != LEARNT for message in found):
        raise ValueError("a chat has no message of the assistant, so there is nothing to learn from it")
    return [message._replace(excluded=True) for message in found] if excluded else found


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each record's place, with the record's bytes, or with its parsed value if the file is an array."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB; take fewer chats")
        with path.open("rb") as file:
            start = file.read(64)
            file.seek(0)
            if start.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ValueError(f"{path.name} is UTF-16 text; save it as UTF-8")
            if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                yield from _array(path.name, file.read())
                return
            for number, line in enumerate(file, 1):
                if line.strip(b"\xef\xbb\xbf \t\r\n"):
                    yield f"line {number}", line
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _array(name: str, data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        records = parsed(data)
    except ValueError as error:
        raise ValueError(f"{name}, an array of chats as it begins with [: {error}") from error
    for number, record in enumerate(records, 1):
        yield f"record {number}", record


def parsed(data: bytes) -> Any:
    """Return the JSON value in `data`.  Raises ValueError with the flaw: "it is no JSON", a field twice, deep nesting."""
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is no JSON ({error.msg} at line {error.lineno}, column {error.colno}); each line is one chat, or the whole "
            "file is one JSON array of them"
            if data.count(b"\n") > 1
            else f"it is no JSON ({error.msg} at column {error.colno}); each line is one chat"
        ) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_depth(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {twice!r:.40} stands there twice")
    return found


def _given(record: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return the fields that are not null or empty.  Raises ValueError for fields that runs do not support."""
    fields = {
        name: value for name, value in record.items() if value is not None and (name in TEXTS or value not in ("", [], {}))
    }
    for name, value in fields.items():
        if name in UNSUPPORTED and value is not False:
            raise ValueError(
                f"{whose} has the field {name}, and runs do not support {UNSUPPORTED[name]}; leave the chat out, or remove "
                "the field if the chat makes sense without it"
            )
    return {name: value for name, value in fields.items() if name not in UNSUPPORTED}


def _listed(fields: dict[str, Any]) -> Any:
    """Remove the messages, under any of their names, from a record's fields, and return them after the system prompt."""
    found = [name for name in ("messages", "conversations", "completion", "output") if name in fields]
    if len(found) != 1:
        if found:
            raise ValueError(f"the record has {' and '.join(found)}, of which one alone can be the chat")
        return None
    form, listed = found[0], fields.pop(found[0])
    if form == "completion":
        listed = _asked_and_answered(fields.pop("prompt", None), listed)
    elif form == "output":
        listed = _alpaca(fields, listed)
    else:
        fields.pop("prompt", None)  # some data sets repeat the first question here
    system = fields.pop("system" if "system" in fields else "system_prompt", None)
    if system is not None and isinstance(listed, list):
        if any(isinstance(message, Mapping) and _role(message) == "system" for message in listed):
            raise ValueError("the record has a field with the system prompt and a message of the system as well; keep one")
        listed = [{"role": "system", "content": system}, *listed]
    return listed


def _asked_and_answered(asked: Any, answered: Any) -> Any:
    if asked is None:
        return None
    if isinstance(asked, list) and isinstance(answered, list):
        return [*asked, *answered]
    return [{"role": "user", "content": asked}, {"role": LEARNT, "content": answered}]


def _alpaca(fields: dict[str, Any], output: Any) -> Any:
    """Return Alpaca's messages: first `history`, pairs of question and answer, then `instruction` with `input` below it."""
    instruction, given, history = (fields.pop(name, None) for name in ("instruction", "input", "history"))
    fields.pop("text", None)  # the published data set repeats everything in this field
    if instruction is None:
        return None
    if not isinstance(instruction, str) or not isinstance(given, str | None):
        raise ValueError("the field instruction or input is no text")
    if not isinstance(history, list | None) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history or ()):
        raise ValueError("the field history is no list of pairs")
    turns = [*(history or ()), [f"{instruction}\n{given}" if given else instruction, output]]
    return [message for asked, answered in turns for message in _asked_and_answered(asked, answered)]


def _role(message: Mapping[str, Any]) -> Any:
    role = message.get("role", message.get("from"))
    return OTHER_ROLES.get(role, role) if isinstance(role, str) else role


def _message(number: int, message: Any) -> Message:
    whose = f"message {number} of a chat"
    if not isinstance(message, Mapping):
        raise ValueError(f"{whose} is no record with role and content")
    role = _role(message)
    if role not in ROLES:
        said = message.get("role", message.get("from"))
        raise ValueError(f"the role of {whose} is {said!r:.40}, and must be one of {', '.join(ROLES)}")
    fields = _given(message, whose)
    if len({"role", "from"} & set(fields)) > 1 or len({"content", "value"} & set(message)) > 1:
        raise ValueError(f"{whose} says its role or its content in two fields; keep role and content")
    excluded = _is_excluded(fields, whose, role)
    _check_known(fields, whose, METADATA | {"role", "from", "content", "value"})
    return Message(role, _content(message, whose), excluded)


def _content(message: Mapping[str, Any], whose: str) -> str:
    content = message.get("content", message.get("value"))
    if content is None:
        raise ValueError(f"the content of {whose} is {'null' if {'content', 'value'} & set(message) else 'missing'}")
    if isinstance(content, list) and content:
        if not all(_is_text(part) for part in content):
            raise ValueError(f'the content of {whose} has parts other than {{"type": "text", "text": …}}')
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or len(content) > MAX_CONTENT_CHARACTERS:
        raise ValueError(f"the content of {whose} is no text of {MAX_CONTENT_CHARACTERS} characters at most")
    if not content.isascii():
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the content of {whose} has half a character at place {error.start + 1} (\\u{ord(content[error.start]):x} "
                "without its other half); mend or remove it"
            ) from error
    return content


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and set(part) == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _is_excluded(fields: dict[str, Any], whose: str, role: str = LEARNT) -> bool:
    """Remove the fields that include or exclude a message. Return True if one of them excludes the message."""
    excluded = False
    for name in sorted((COUNTS | IS_EXCLUDED) & set(fields)):
        value = fields.pop(name)
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise ValueError(f"the field {name} of {whose} is {value!r:.40}, and must be 0 or 1, or false or true")
        counts = bool(value) == (name in COUNTS)
        if counts and role != LEARNT:
            raise ValueError(
                f"the field {name} of {whose} asks to learn what the {role} says, and runs learn what the assistant says; "
                "remove the field"
            )
        excluded |= not counts
    return excluded


def _check_known(fields: Mapping[str, Any], whose: str, known: frozenset[str]) -> None:
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(
            f"{whose} has the unknown field {unknown[0]!r:.60}, which may change what is learned; remove it, or move it "
            "into metadata, which is passed over"
        )


# ------------------------------------------------------------------------------------------------------------------------
# Rows of chats: chats are packed into rows, and the tokens that count in the loss are marked.
#
# A chat's tokens stay together in one row, and chats keep the order of the file. A chat longer than a row is cut at the end
# of the row. If packed, a row takes chats while they fit, and no chat attends to another; otherwise each chat has its own
# row. The rest of a row is padding, which does not count. A fixed share of the chats, chosen by their number, is held out,
# so that all peers hold out the same chats.


FILL = -1
"""Document id of the padding at the end of a row."""


class Row(NamedTuple):
    """Row of a split's chats: chats `first` to `last` - 1."""

    first: int
    last: int


@dataclass
class _Split:
    """Chats of a split in sequence, each cut to a row. ends: end of each chat, counted in tokens; the first entry is 0."""

    tokens: list[Tokens] = field(default_factory=list)
    mask: list[Mask] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Tokens, mask: Mask) -> None:
        self.tokens.append(tokens)
        self.mask.append(mask)
        self.ends.append(self.ends[-1] + len(tokens))


class ChatReading(Reading):
    """Chats of a file.

    cut: number of chats longer than a row. left_out: number of chats without a counted token in their row. Raises ValueError
    with one sentence if the file is not a file of chats, or has too few chats.
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
        """Return the rows as `Reading.rows` describes."""
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
                    False  # no token comes before a chat, so nothing predicts its first token
                )
        return Rows(tokens_bt, counts_bt[:, 1:], documents_bt[:, :-1])

    def described(self) -> str:
        """Describe, for a person, the number of chats, and of chats that are cut or left out."""
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
