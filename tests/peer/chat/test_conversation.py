"""Tokens of conversations, turns that no longer fit, and text while its tokens come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.chat.conversation import MOST_INCOMPLETE, Conversation, StreamedText, shown
from tests.peer.chat.models import make_model
from tests.trainer.made_tokenizer import ENDS, make_tokenizer
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer, TokenizerFile

BYTES = TemplatedTokenizer(ByteTokenizer(), "plain")


def chatml(folder: Path) -> TemplatedTokenizer:
    return TemplatedTokenizer(TokenizerFile(make_tokenizer(folder / "made.json"), ENDS), "chatml")


def test_turns_have_the_tokens_of_the_models_own_template(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    theirs = transformers.AutoTokenizer.from_pretrained(make_model(tmp_path / "model"))
    ours = chatml(tmp_path)
    talk, messages = Conversation(ours, 1000, converses=True), list[dict[str, str]]()
    for question, answer in (("Who are you?", "abab"), ("<|im_end|> and why\n\nso?", "because"), ("Bye", "")):
        messages.append({"role": "user", "content": question})
        told = theirs.apply_chat_template(messages, add_generation_prompt=True, split_special_tokens=True)
        if "<|im_end|>" not in str(messages):  # which their tokenizer takes for the end of a turn
            assert talk.prompt(question).tokens == told["input_ids"]
        assert ours.decode(talk.prompt(question).tokens) == theirs.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        talk.add(question, [*ours.encode(answer), ENDS[0]])
        messages.append({"role": "assistant", "content": answer})
    assert talk.record() == {"messages": messages}


@pytest.mark.parametrize("end", [[], [ENDS[0]], [ENDS[1]]], ids=["none", "of a turn", "of a text"])
def test_every_answer_in_a_prompt_ends_as_a_turn_whatever_ended_it(end: list[int], tmp_path: Path) -> None:
    tokenizer = chatml(tmp_path)
    talk = Conversation(tokenizer, 1000, converses=True)
    talk.add("a", [*tokenizer.encode("b"), *end])
    assert "assistant\nb<|im_end|>\n<|im_start|>user\nc" in tokenizer.decode(talk.prompt("c").tokens)


def test_the_oldest_turns_are_dropped_for_good_and_counted_once() -> None:
    turn = len([*BYTES.reply("1234"), *b"5678", BYTES.end])
    talk = Conversation(BYTES, 3 * turn + len(BYTES.reply("last")), converses=True)
    for number in range(5):
        talk.add(f"{number}234", b"5678")
    prompt = talk.prompt("last")
    assert prompt.dropped == 2 and "1234" not in BYTES.decode(prompt.tokens) and "2234" in BYTES.decode(prompt.tokens)
    assert talk.prompt("last") == (prompt.tokens, 0)
    assert talk.prompt("x" * (3 * turn)).dropped == 3
    assert len(talk.turns) == 5, "all of them are saved"
    talk.reset()
    assert talk.turns == [] and talk.prompt("1") == (BYTES.prompt("1"), 0)


def test_a_question_that_does_not_fit_drops_nothing() -> None:
    talk = Conversation(BYTES, 60, converses=True)
    talk.add("1", b"2")
    before = talk.prompt("3")
    with pytest.raises(ValueError, match="the text has .* tokens, and the model reads 60 before its answer; shorten it"):
        talk.prompt("x" * 60)
    with pytest.raises(ValueError, match="a byte 0"):
        talk.prompt("\0")
    assert talk.prompt("3") == before


def streamed(tokenizer: TemplatedTokenizer, tokens: list[int]) -> list[str]:
    text = StreamedText(tokenizer)
    return [*(text.add([token]) for token in tokens), text.end()]


@pytest.mark.parametrize("text", ["a – b", "né 😀!", "ab 中文\n", "e\u0301"])
def test_text_comes_in_order_and_only_as_whole_characters(text: str, tmp_path: Path) -> None:
    for tokenizer in (BYTES, chatml(tmp_path)):
        pieces = streamed(tokenizer, tokenizer.encode(text))
        assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)
        assert [piece for piece in pieces if piece] == list(text) or tokenizer is not BYTES


def test_bytes_that_are_no_text_do_not_hold_back_what_follows() -> None:
    tokens = [0xE2] * (3 * MOST_INCOMPLETE)
    pieces = streamed(BYTES, tokens)
    assert any(pieces[: MOST_INCOMPLETE + 1]) and "".join(pieces) == "\ufffd" * len(tokens)
    assert "".join(streamed(BYTES, [*b"a", 0x80, *b"b", 0xE2])) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    "text, seen",
    [
        ("\x1b[2J\x07\r\x9b\x7f", "\\x1b[2J\\x07\\r\\x9b\\x7f"),
        ("\u202etxt.exe\u2066\u200f", "\\u202etxt.exe\\u2066\\u200f"),
        ("\u2028\u0085\ufeff\U000e0041", "\\u2028\\x85\\ufeff\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_of_an_answer_moves_the_cursor_or_turns_the_text(text: str, seen: str) -> None:
    assert shown(text) == seen
