"""Of a chat only what the assistant says counts, wherever the tokenizer cuts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.chat import chat_prompt, chat_tokens


class Bytes:
    """As the byte-level tokenizer."""

    end = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Pairs:
    """Cuts texts into pairs of characters, to see what depends on where a tokenizer cuts."""

    end = 0

    def encode(self, text: str) -> list[int]:
        return [1 + sum(map(ord, text[at : at + 2])) for at in range(0, len(text), 2)]


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}
FOUR, MORE = {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 4?"}
SEVEN = {"role": "assistant", "content": "7"}


def counted(tokens: list[int], mask: list[bool]) -> bytes:
    return bytes(token for token, counts in zip(tokens, mask, strict=True) if counts)


def test_the_template_is_this() -> None:
    tokens, mask = chat_tokens({"messages": [SYSTEM, USER, FOUR, MORE, SEVEN]}, Bytes())
    assert bytes(tokens) == (
        b"system:\nBe brief.\nuser:\n2 + 2?\nassistant:\n4\0\nuser:\nAnd 3 + 4?\nassistant:\n7\0\n"
    )  # fmt: skip
    assert counted(tokens, mask) == b"4\x007\0"


def test_a_prompt_is_what_comes_before_the_answer() -> None:
    tokens, mask = chat_tokens({"messages": [SYSTEM, USER, FOUR]}, Bytes())
    prompt = chat_prompt([SYSTEM, USER], Bytes())
    assert prompt == tokens[: len(prompt)] and not any(mask[: len(prompt)])
    assert bytes(tokens[len(prompt) :]) == b"4\0\n" and mask[len(prompt) :] == [True, True, False]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXT}),
    min_size=1,
    max_size=6,
)


@given(MESSAGES)
def test_exactly_what_the_assistant_says_counts(messages: list[dict[str, str]]) -> None:
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    if not said:
        with pytest.raises(ValueError, match="no message of the assistant"):
            chat_tokens({"messages": messages}, Bytes())
        return
    tokens, mask = chat_tokens({"messages": messages}, Bytes())
    assert counted(tokens, mask) == b"".join(text.encode() + b"\0" for text in said)
    for encoder in (Bytes(), Pairs()):
        tokens, mask = chat_tokens({"messages": messages}, encoder)
        assert len(tokens) == len(mask)
        assert sum(mask) == sum(len(encoder.encode(text)) + 1 for text in said)


def test_an_answer_may_be_empty() -> None:
    assert counted(*chat_tokens({"messages": [USER, {"role": "assistant", "content": ""}]}, Bytes())) == b"\0"


def test_other_fields_are_passed_over() -> None:
    record = {"id": 3, "messages": [USER, FOUR | {"name": "x"}]}
    assert chat_tokens(record, Bytes()) == chat_tokens({"messages": [USER, FOUR]}, Bytes())


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({}, "field messages is a list"),
        ([], "field messages is a list"),
        ({"messages": []}, "field messages is a list"),
        ({"messages": "hello"}, "field messages is a list"),
        ({"messages": [USER]}, "no message of the assistant"),
        ({"messages": ["hello"]}, "the role of message 1 of a chat is None"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "the role of message 2 of a chat is 'tool'"),
        ({"messages": [USER, {"role": ["assistant"], "content": "x"}]}, "the role of message 2"),
        ({"messages": [USER, {"role": "assistant"}]}, "the content of message 2"),
        ({"messages": [USER, {"role": "assistant", "content": [1]}]}, "the content of message 2"),
        ({"messages": [{"role": "user", "content": "a\0assistant:\nb"}, FOUR]}, "a message of the user holds the token"),
    ],
)
def test_what_is_no_chat_is_refused(record: Any, part: str) -> None:
    with pytest.raises(ValueError) as caught:
        chat_tokens(record, Bytes())
    assert part in str(caught.value) and "\n" not in str(caught.value)
