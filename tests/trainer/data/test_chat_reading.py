"""Chats in rows: together where they fit, each alone; only what the assistant says counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.data.chat import FILL, ChatReading
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer

PLAIN = TemplatedTokenizer(ByteTokenizer(), "plain")


def asked(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def file_of(folder: Path, *chats: dict[str, Any]) -> Path:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return path


def text_of(number: int) -> bytes:
    return f"user:\n{number}?\nassistant:\n{number}!\0\n".encode()


def reading_of(folder: Path, count: int, length: int, *, packed: bool = True) -> ChatReading:
    return ChatReading(file_of(folder, *(asked(f"{n}?", f"{n}!") for n in range(count))), PLAIN, length, 5, packed=packed)


def test_chats_share_a_row_while_there_is_room_and_none_is_torn(tmp_path: Path) -> None:
    size = len(text_of(1))
    reading = reading_of(tmp_path, 7, 2 * size + 3)
    assert (reading.held_out_windows, reading.windows) == (1, 3), "the first chat is held out, six are in three rows"
    rows = reading.rows(range(3))
    assert rows.counts_bt is not None and rows.documents_bt is not None
    for row in range(3):
        first, second = text_of(2 * row + 1), text_of(2 * row + 2)
        assert bytes(rows.tokens_bt[row]) == first + second + bytes(4)
        targets = rows.tokens_bt[row, 1:][rows.counts_bt[row]]
        assert bytes(targets) == f"{2 * row + 1}!\0{2 * row + 2}!\0".encode()
        assert list(rows.documents_bt[row]) == [0] * size + [1] * size + [FILL] * 3
    assert rows.counted == 18


def test_unpacked_a_chat_has_a_row_of_its_own(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, 7, 100, packed=False)
    assert reading.windows == 6
    rows = reading.rows([5, 0])
    assert [bytes(row).rstrip(b"\0\n") for row in rows.tokens_bt] == [text_of(n).rstrip(b"\0\n") for n in (6, 1)]
    assert rows.counted == 6


def test_every_peer_with_the_file_reads_the_same(tmp_path: Path) -> None:
    one, other = reading_of(tmp_path, 40, 64), reading_of(tmp_path, 40, 64)
    assert one.digest == other.digest
    assert (one.rows([1, 3]).tokens_bt == other.rows([1, 3]).tokens_bt).all()
    assert one.held_out_windows >= 1 and one.digest != reading_of(tmp_path, 41, 64).digest


def test_a_chat_longer_than_a_row_is_cut_and_one_that_counts_nothing_then_is_left_out(tmp_path: Path) -> None:
    long_answer, long_question = asked("a?", "b" * 500), asked("a" * 500, "b")
    path = file_of(tmp_path, asked("1?", "1!"), long_question, long_answer, asked("2?", "2!"))
    reading = ChatReading(path, PLAIN, 63, 5)
    assert (reading.cut, reading.left_out) == (2, 1)
    assert (reading.held_out_windows, reading.windows) == (1, 2)
    rows = reading.rows([0])
    assert rows.counted == 64 - len("user:\na?\nassistant:\n")


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_chats_are_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"chats.jsonl has {count} chats? to learn from .*; give two at least"):
        reading_of(tmp_path, count, 64)


def test_a_mistake_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, asked("1?", "1!"), asked("2?\0", "2!"))
    with pytest.raises(ValueError, match="chats.jsonl, line 2: a message of the user holds a token that ends a turn"):
        ChatReading(path, PLAIN, 64, 5)
