"""Chats and preferences: records become tokens with flags, and chats are packed into rows.

A preference has a prompt and two answers.  Its record is `{"prompt": …, "chosen": …, "rejected": …}`, all texts, or lists of
messages; or `chosen` and `rejected` are whole conversations, whose common beginning is the prompt.  It may also be a text
of turns, each after an empty line and `Human:` or `Assistant:`, as in Anthropic's data; lines may end as on Windows.  Turns
that are written in another way are refused, because their questions would be learned.  A preference becomes two rows,
which begin with the same prompt.  The messages after the prompt count.  An answer that repeats the prompt, in whatever form,
is the whole conversation or is refused: no question appears twice in a row.

A row is filled up with end tokens.  The first of them has the flag `BEGINS`, so that it belongs to no chat, and none counts.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from peer.corpora.options import TokenFormat
from protocol.corpora.manifest import BEGINS, COUNTS, CorpusKind
from trainer.data.chat import listed_messages, messages_of
from trainer.data.rows import Tokens
from trainer.data.templates import LEARNT, Message, TemplatedTokenizer

WINDOW = 1024
"""Number of chats from which the next ones of a row are chosen."""
TURN, MIN_TURNS = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):"), 2
"""Beginning of a turn in a text of turns, and the least number of turns in such a text."""
LOOSE_TURN = re.compile(r"^[ \t#*]*(Human|Assistant)[ \t*]*:[*]*", re.MULTILINE | re.IGNORECASE)
"""Beginning of a line that people take for the beginning of a turn."""
ANOTHER_FORM = (
    "a text has turns of Human and Assistant that are not read: begin it with Human: and put an empty line before each "
    "Human: and Assistant:, or write lists of messages"
)
ABOUT_ANSWERS = ("chosen_", "rejected_", "score_", "chosen-", "rejected-", "score-")
"""Beginnings of the names of fields that judge an answer and do not change it."""


Flagged = tuple[Tokens, npt.NDArray[np.uint8]]
"""Tokens with a flag for each."""


class NothingToLearn(Exception):
    """Error for a chat none of whose tokens counts in its row; the text completes a sentence."""


class Payload(NamedTuple):
    """Document as bytes: all its tokens, then a flag for each.  is_cut: True if it was longer than a row."""

    data: bytes
    tokens: int
    text_bytes: int
    is_cut: bool


class ConversationEncoder:
    """Encoder of records into tokens with flags."""

    def __init__(self, tokenizer: TemplatedTokenizer, tokens: TokenFormat) -> None:
        self._tokenizer, self._row_tokens = tokenizer, tokens.row_tokens
        self._is_preference = tokens.kind is CorpusKind.PREFERENCE
        self._dtype = np.dtype(tokenizer.dtype).newbyteorder("<")

    def encode(self, record: Mapping[str, Any]) -> Payload:
        """Return the tokens of a record.  Raises ValueError with the flaw, and `NothingToLearn`."""
        if not self._is_preference:
            return self._payload([messages_of(record)])
        return self._payload(answers_of(record))

    def contents(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Yield the texts of a record's messages.  Raises ValueError with the flaw."""
        for messages in answers_of(record) if self._is_preference else [messages_of(record)]:
            for message in messages:
                yield message.content

    def _payload(self, conversations: Iterable[list[Message]]) -> Payload:
        rows, text_bytes, is_cut = list[Flagged](), 0, False
        for messages in conversations:
            chat = self._tokenizer.chat(messages)
            tokens = np.array(chat.tokens[: self._row_tokens], self._dtype)
            counts = np.array(chat.mask[: self._row_tokens], np.bool_)
            counts[:1] = False  # no token comes before a chat, so nothing predicts its first token
            if not counts.any():
                raise NothingToLearn("it has nothing to learn in its row")
            flags = counts.astype(np.uint8) * np.uint8(COUNTS)
            flags[0] |= BEGINS
            if len(chat.tokens) > self._row_tokens:
                is_cut = True
                text_bytes += len(self._tokenizer.decode(tokens[counts].tolist()).encode())
            else:
                text_bytes += sum(len(m.content.encode()) for m in messages if m.role == LEARNT and not m.excluded)
            row = tokens, flags
            rows.append(filled([row], self._row_tokens, self._tokenizer.end) if self._is_preference else row)
        data = b"".join([*(tokens.tobytes() for tokens, _ in rows), *(flags.tobytes() for _, flags in rows)])
        return Payload(data, sum(len(tokens) for tokens, _ in rows), text_bytes, is_cut)


def answers_of(record: Mapping[str, Any]) -> tuple[list[Message], list[Message]]:
    """Return the chosen and the rejected conversation of a preference; messages of the prompt are excluded from the loss.

    Raises ValueError with one sentence that names the field.
    """
    rest = {name: value for name, value in record.items() if not name.startswith(ABOUT_ANSWERS)}
    prompt, chosen, rejected = (rest.pop(name, None) for name in ("prompt", "chosen", "rejected"))
    if chosen is None or rejected is None:
        raise ValueError("a preference is a record with prompt, chosen and rejected, all texts or lists of messages")
    texts = [each for each in (prompt, chosen, rejected) if isinstance(each, str)]
    begun, chosen, rejected = _prompt(prompt), _turns(chosen), _turns(rejected)
    pair = [messages_of({**rest, "messages": _whole(begun, answer)}) for answer in (chosen, rejected)]
    differing = (place for place, (ours, theirs) in enumerate(zip(*pair, strict=False)) if ours != theirs)
    common = next(differing, min(map(len, pair)))
    if common == 0:
        if any(_turns(each) is each and len(_loose_turns(each)) >= MIN_TURNS for each in texts):
            raise ValueError(ANOTHER_FORM)
        raise ValueError("chosen and rejected do not begin with the same prompt; add the field prompt")
    if any(not any(message.role == LEARNT for message in each[common:]) for each in pair):
        raise ValueError("chosen and rejected are the same, or one of them has no answer of the assistant")
    replies = [next(message.content for message in each[common:] if message.role == LEARNT) for each in pair]
    if any(_is_loose(each) for each in [*(text for text in texts if _turns(text) is text), *replies]):
        raise ValueError(ANOTHER_FORM)
    asked = {_plain(each.content) for each in pair[0][:common] if each.role != LEARNT}
    repeats = any(question in asked for reply in replies for question in _loose_questions(reply))
    if repeats or all(_begins_with(reply, pair[0][common - 1].content) for reply in replies):
        raise ValueError("the answers repeat the text of the prompt, so that it would appear twice; remove it from them")
    ours, theirs = (
        [each._replace(excluded=each.excluded or place < common) for place, each in enumerate(whole)] for whole in pair
    )
    return ours, theirs


def _prompt(prompt: Any) -> list[Any]:
    if prompt is None:
        return []
    turns = _turns(prompt)
    if not isinstance(turns, list):
        return [{"role": "user", "content": prompt}]
    return turns[:-1] if turns is not prompt and not turns[-1]["content"] else list(turns)


def _turns(said: Any) -> Any:
    """Return the messages of a text of turns; return anything else unchanged."""
    text = _lines(said) if isinstance(said, str) else ""
    marks = [*TURN.finditer(text)]
    if len(marks) < MIN_TURNS or marks[0].start() or marks[0][1] != "Human":
        return said
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    roles = {"Human": "user", "Assistant": LEARNT}
    return [
        {"role": roles[mark[1]], "content": text[mark.end() : end].strip()} for mark, end in zip(marks, ends, strict=True)
    ]


def _lines(text: str) -> str:
    """Return a text with line feeds as the ends of its lines, on whichever system it was written."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _loose_turns(text: str) -> list[re.Match[str]]:
    """Return the places in a text that people take for the beginnings of turns."""
    return [*LOOSE_TURN.finditer(_lines(text).lstrip())]


def _is_loose(text: str) -> bool:
    """Return True for a text that begins with a turn and has several, in whatever form."""
    marks = _loose_turns(text)
    return len(marks) >= MIN_TURNS and marks[0].start() == 0


def _loose_questions(text: str) -> Iterator[str]:
    """Yield the words of Human in the turns of a text, in the form of `_plain`."""
    marks = _loose_turns(text)
    ends = [*(mark.start() for mark in marks), None][1:]
    for mark, end in zip(marks, ends, strict=True):
        if mark[1].lower() == "human":
            yield _plain(mark.string[mark.end() : end])


def _whole(prompt: list[Any], answer: Any) -> list[Any]:
    """Return the messages of a conversation, with the prompt once.  answer: a text, messages, or the whole conversation.

    A system prompt may stand before the prompt, before the answer, or before both.  Raises ValueError for an answer that
    goes on neither where the prompt ends nor from its beginning.
    """
    if not isinstance(answer, list):
        return [*prompt, {"role": LEARNT, "content": answer}]
    asked, said = listed_messages(prompt), listed_messages(answer)
    ours, theirs = _system_messages(asked), _system_messages(said)
    if prompt and _same(asked[ours:], said[theirs : theirs + len(asked) - ours]):
        if ours and theirs and not _same(asked[:ours], said[:theirs]):
            raise ValueError("an answer repeats the prompt with another system message; keep one of the two system messages")
        return [*(prompt[:ours] or answer[:theirs]), *prompt[ours:], *answer[theirs + len(asked) - ours :]]
    if asked and said and not _follows(asked, said):
        raise ValueError(
            "an answer repeats a question of its prompt, or does not begin with a reply to it, so a question could "
            "appear twice; if the answers are whole conversations, remove the field prompt; otherwise, begin each "
            "answer with the reply"
        )
    return [*prompt, *answer]


def _follows(asked: list[Message], said: list[Message]) -> bool:
    """Return True if an answer can go on where the prompt ends, and asks nothing that the prompt has asked."""
    begins_well = said[0].role == LEARNT or (said[0].role == "user" and asked[-1].role == LEARNT)
    questions = {_plain(each.content) for each in asked if each.role != LEARNT}
    return begins_well and not any(_plain(each.content) in questions for each in said if each.role != LEARNT)


def _system_messages(messages: list[Message]) -> int:
    """Return the number of system messages at the beginning."""
    return next((place for place, each in enumerate(messages) if each.role != "system"), len(messages))


def _same(some: list[Message], others: list[Message]) -> bool:
    """Return True if two conversations are equal, except for white space, capitals and the form of the characters."""
    return [(each.role, _plain(each.content)) for each in some] == [(each.role, _plain(each.content)) for each in others]


def _plain(content: str) -> str:
    return " ".join(unicodedata.normalize("NFC", content).casefold().split())


def _begins_with(reply: str, question: str) -> bool:
    """Return True if a reply is the question's text and more; a single word such as "Hello" proves nothing."""
    question, reply = _plain(question), _plain(reply)
    return " " in question and reply.startswith(f"{question} ")


# ------------------------------------------------------------------------------------------------------------------------
# Packing of chats into rows.


def filled(chats: list[Flagged], width: int, end: int) -> Flagged:
    """Return a row of `width` tokens with these chats, filled up with end tokens."""
    tokens = np.full(width, end, chats[0][0].dtype)
    flags = np.zeros(width, np.uint8)
    place = 0
    for some, their in chats:
        tokens[place : place + len(some)], flags[place : place + len(some)] = some, their
        place += len(some)
    if place < width:
        flags[place] = BEGINS
    return tokens, flags


def packed(chats: Iterable[Flagged], width: int) -> Iterator[list[Flagged]]:
    """Yield the chats of each row: the chat that waits longest, then repeatedly the longest chat in the window that fits.

    The window has the next `WINDOW` chats.  Every chat must fit into a row.
    """
    source = enumerate(chats)
    waiting: dict[int, Flagged] = {}
    lengths: list[tuple[int, int]] = []
    while True:
        while len(waiting) < WINDOW and (following := next(source, None)) is not None:
            number, chat = following
            waiting[number] = chat
            bisect.insort(lengths, (len(chat[0]), -number))
        if not waiting:
            return
        number = next(iter(waiting))
        row, room = [], width
        place = bisect.bisect_left(lengths, (len(waiting[number][0]), -number))
        while True:
            length, negative = lengths.pop(place)
            row.append(waiting.pop(-negative))
            room -= length
            place = bisect.bisect_right(lengths, (room, 1)) - 1
            if place < 0:
                break
        yield row
