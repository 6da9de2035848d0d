"""Chats and preferences become rows with flags, as the reader of a run expects them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.corpora.build import build
from peer.corpora.conversations import Flagged, answers_of, filled, packed
from peer.corpora.folder import FinishedCorpus
from peer.corpora.inputs import BuildInput
from peer.corpora.options import BuildOptions, LeftOut
from peer.errors import PeerError
from protocol.corpora.manifest import BEGINS, COUNTS, CorpusKind
from tests.peer.corpora.makers import chat_tokens, write_rows

WIDTH = 65


def chat(number: int, answer: str = "") -> dict[str, Any]:
    messages = [("user", f"question {number}"), ("assistant", answer or f"answer {number}")]
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def built(tmp_path: Path, kind: CorpusKind, rows: list[Any], **options: Any) -> FinishedCorpus:
    tokens = replace(chat_tokens(tmp_path / "tokenizer.json"), kind=kind, row_tokens=WIDTH)
    path = write_rows(tmp_path / "rows.jsonl", rows)
    build([BuildInput("s", path)], BuildOptions(tokens, held_out_percent=0, workers=1, **options), tmp_path / "out")
    corpus = FinishedCorpus(tmp_path / "out")
    corpus.verify()
    return corpus


def rows_of(corpus: FinishedCorpus) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    found = []
    for block in corpus.blocks(corpus.manifest.sources[0].train):
        tokens, flags = corpus.tokens_and_flags(block)
        found += list(zip(tokens.reshape(-1, WIDTH), flags.reshape(-1, WIDTH), strict=True))
    return found


def test_chats_are_packed_whole_and_their_answers_count(tmp_path: Path) -> None:
    corpus = built(tmp_path, CorpusKind.CHAT, [chat(number) for number in range(40)])
    tokenizer = corpus.tokenizer()
    split = corpus.manifest.sources[0].train
    counted = sorted(tokenizer.decode(each.tokens[each.counts].tolist()) for each in corpus.documents(split))
    assert counted == sorted(f"answer {number}<|im_end|>" for number in range(40))
    assert split.documents == 40
    assert split.text_bytes == sum(len(f"answer {number}") for number in range(40))
    for tokens, flags in rows_of(corpus):
        assert flags[0] & BEGINS and not (flags[0] & COUNTS)
        assert tokens[0] == tokenizer.special("<|im_start|>")
        begins = np.flatnonzero(flags & BEGINS)
        last = tokens[begins[-1] :]
        assert flags[begins[-1] :].any()
        assert (flags[begins[-1] :] & COUNTS).any() or (last == corpus.manifest.end).all(), "a chat, or the filling"


def test_chat_longer_than_a_row_is_cut_and_one_without_an_answer_in_its_row_is_left_out(tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 99}, {"role": "assistant", "content": "y"}]}
    tokens = replace(chat_tokens(tmp_path / "tokenizer.json"), kind=CorpusKind.CHAT, row_tokens=WIDTH)
    path = write_rows(tmp_path / "rows.jsonl", [chat(1, "yes"), chat(2, "z" * 99), long])
    options = BuildOptions(tokens, held_out_percent=0, workers=1)
    result = build([BuildInput("s", path)], options, tmp_path / "out")
    assert result.tally.cut == 1 and result.tally.left_out == {LeftOut.NOTHING: 1}
    split = result.manifest.sources[0].train
    corpus = FinishedCorpus(tmp_path / "out")
    counted = sum(int(each.counts.sum()) for each in corpus.documents(split))
    assert split.text_bytes == counted - 1, "the end token of the whole chat has no text"


def test_bad_chat_and_preference_are_named_with_their_flaw(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"rows.jsonl, row 2: .*(appear twice|keep one of the two)"):
        built(tmp_path, CorpusKind.PREFERENCE, [PREFERENCES["texts"], dict(zip(ANSWERS, TWICE["other words"], strict=True))])
    bad = [{"messages": []}, {"messages": [{"role": "user", "content": "x"}]}, {"messages": [], "tools": [1]}]
    with pytest.raises(PeerError, match=r"3 of 4 rows are bad.*rows.jsonl, row 2: a chat is a record with a list"):
        built(tmp_path, CorpusKind.CHAT, [chat(1), *bad])


ANSWERS = ("prompt", "chosen", "rejected")
PROMPT = [{"role": "user", "content": "question"}]
GOOD, BAD = ({"role": "assistant", "content": content} for content in ("good", "bad"))
PREFERENCES: dict[str, dict[str, Any]] = {
    "texts": {"prompt": "question", "chosen": "good", "rejected": "bad"},
    "messages after a prompt": {"prompt": PROMPT, "chosen": [GOOD], "rejected": [BAD]},
    "whole conversations": {"chosen": [*PROMPT, GOOD], "rejected": [*PROMPT, BAD]},
    "texts of turns": {
        "chosen": "\n\nHuman: question\n\nAssistant: good",
        "rejected": "\n\nHuman: question\n\nAssistant: bad",
    },
    "a prompt of turns": {"prompt": "\n\nHuman: question\n\nAssistant:", "chosen": "good", "rejected": "bad"},
    "texts of turns after a plain prompt": {
        "prompt": "question",
        "chosen": "Human: Question\n\nAssistant: good",
        "rejected": "Human:  question\n\nAssistant: bad",
    },
}


@pytest.mark.parametrize("form", PREFERENCES)
def test_preference_of_every_form_is_the_same_pair_of_rows(form: str, tmp_path: Path) -> None:
    corpus = built(tmp_path, CorpusKind.PREFERENCE, [PREFERENCES[form]])
    tokenizer = corpus.tokenizer()
    rows = rows_of(corpus)
    counted = [tokenizer.decode(tokens[(flags & COUNTS) > 0].tolist()) for tokens, flags in rows]
    assert counted == ["good<|im_end|>", "bad<|im_end|>"]
    begun = "<|im_start|>user\nquestion<|im_end|>\n<|im_start|>assistant\n"
    for tokens, flags in rows:
        assert tokenizer.decode(tokens.tolist()).startswith(begun)
        assert np.flatnonzero(flags & BEGINS)[0] == 0
    split = corpus.manifest.sources[0].train
    assert (split.documents, split.tokens, split.text_bytes) == (1, 2 * WIDTH, 7)


NO_PREFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "one answer": ({"prompt": "q", "chosen": "a"}, "a preference is a record with prompt, chosen and rejected"),
    "no common prompt": ({"chosen": [GOOD], "rejected": [BAD]}, "do not begin with the same prompt; add the field prompt"),
    "equal answers": ({"prompt": "q", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
    "a prompt of turns in another form": (
        {"prompt": "Human: a question\nAssistant:", "chosen": "good", "rejected": "bad"},
        "put an empty line before each Human: and Assistant:",
    ),
    "an unknown field": ({"prompt": "q", "chosen": "a", "rejected": "b", "mood": 1}, "has the unknown field 'mood'"),
}


@pytest.mark.parametrize("case", NO_PREFERENCES)
def test_record_that_is_no_preference_is_refused(case: str) -> None:
    record, flaw = NO_PREFERENCES[case]
    with pytest.raises(ValueError, match=flaw):
        answers_of(record)


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


KIND = {"role": "system", "content": "Be kind."}
TALK = [*PROMPT, {"role": "assistant", "content": "which one?"}, user("the second")]
ONCE, KINDLY, TALKED = ("question",), ("Be kind.", "question"), ("question", "which one?", "the second")
REPEATED: dict[str, tuple[Any, list[Any], tuple[str, ...]]] = {
    "same": ("question", PROMPT, ONCE),
    "a list of parts": ("question", [user([{"type": "text", "text": "question"}])], ONCE),
    "other names of fields": ("question", [{"from": "human", "value": "question"}], ONCE),
    "another form of characters": ("qu\u00e9stion", [user("que\u0301stion")], ("qu\u00e9stion",)),
    "a system message before the answer's": ("question", [KIND, *PROMPT], KINDLY),
    "a system message alone": ([KIND], [KIND, *PROMPT], KINDLY),
    "several turns": (TALK, [*TALK[:2], user("the  second")], TALKED),
}
ALONE: dict[str, list[Any]] = {case: [] for case in REPEATED if REPEATED[case][2] == ONCE}
"""Cases in which an answer alone, beside one that repeats the prompt, makes the same conversation."""


@pytest.mark.parametrize("case", REPEATED)
def test_prompt_that_the_answers_repeat_stands_once(case: str) -> None:
    prompt, repeated, wanted = REPEATED[case]
    for record in (
        {"prompt": prompt, "chosen": [*repeated, GOOD], "rejected": [*repeated, BAD]},
        {"prompt": prompt, "chosen": [*repeated, GOOD], "rejected": [*ALONE.get(case, repeated), BAD]},
    ):
        chosen, rejected = answers_of(record)
        assert [message.content for message in chosen] == [*wanted, "good"]
        assert [message.content for message in rejected] == [*wanted, "bad"]
        assert [message.excluded for message in chosen] == [True] * len(wanted) + [False]


TWICE: dict[str, tuple[Any, Any, Any]] = {
    "other words": ("question", [user("Question!"), GOOD], [user("Question!"), BAD]),
    "without the first question": (TALK, [*TALK[1:], GOOD], [*TALK[1:], BAD]),
    "another system message": ([KIND, *PROMPT], [KIND | {"content": "Be short."}, *PROMPT, GOOD], [KIND, *PROMPT, BAD]),
    "a text of the whole conversation": ("Human: a question Assistant:", [*PROMPT, GOOD], [*PROMPT, BAD]),
    "texts that begin with it": ("a question?", "a question? good", "a question?\nbad"),
}


@pytest.mark.parametrize("case", TWICE)
def test_answers_that_would_ask_twice_are_refused(case: str) -> None:
    prompt, chosen, rejected = TWICE[case]
    with pytest.raises(ValueError, match="appear twice|keep one of the two"):
        answers_of({"prompt": prompt, "chosen": chosen, "rejected": rejected})


def test_turns_of_a_text_are_a_whole_conversation_and_a_colon_in_a_line_is_no_turn() -> None:
    begun = "\n\nHuman: one\n\nAssistant: Human: two\nAssistant: three\n\nHuman: more\n\nAssistant: "
    chosen, rejected = answers_of({"chosen": f"{begun}good", "rejected": f"{begun}bad\n\nlines "})
    said = ["one", "Human: two\nAssistant: three", "more"]
    assert [each.content for each in chosen] == [*said, "good"]
    assert [each.content for each in rejected] == [*said, "bad\n\nlines"]
    assert [each.excluded for each in chosen] == [True, True, True, False]
    plain = answers_of({"prompt": "q", "chosen": "Human: is a word", "rejected": "b"})
    assert plain[0][-1].content == "Human: is a word"


def in_turns(layout: str) -> dict[str, str]:
    return {"chosen": layout.format("good"), "rejected": layout.format("bad")}


OTHER_TURNS: dict[str, dict[str, str]] = {
    "one line end": in_turns("Human: a question\nAssistant: {}"),
    "one of the two texts": {
        **in_turns("Human: a question\n\nAssistant: {}"),
        "rejected": "Human: a question\nAssistant: b",
    },
    "text before the first turn": in_turns("A talk.\n\nHuman: a question\n\nAssistant: {}"),
}


@pytest.mark.parametrize("case", OTHER_TURNS)
def test_turns_in_another_form_are_told_and_are_no_answers_to_a_prompt(case: str) -> None:
    with pytest.raises(ValueError, match="put an empty line before each Human: and Assistant:"):
        answers_of(OTHER_TURNS[case])
    with pytest.raises(ValueError, match=r"put an empty line|appear twice|could appear twice"):
        answers_of({"prompt": "a question", **OTHER_TURNS[case]})
    with pytest.raises(ValueError, match=r"put an empty line|appear twice|could appear twice"):
        answers_of(
            {"prompt": "a question", **{name: [GOOD | {"content": text}] for name, text in OTHER_TURNS[case].items()}}
        )


def flagged(length: int, name: int) -> Flagged:
    return np.full(length, name, np.uint16), np.full(length, COUNTS, np.uint8)


@pytest.mark.slow
@given(st.lists(st.integers(1, 20), max_size=60))
def test_packing_loses_nothing_and_never_overflows(lengths: list[int]) -> None:
    chats = [flagged(length, name) for name, length in enumerate(lengths)]
    rows = list(packed(chats, 20))
    assert all(sum(len(tokens) for tokens, _ in row) <= 20 for row in rows)
    assert sorted(int(tokens[0]) for row in rows for tokens, _ in row) == list(range(len(lengths)))
    firsts = [int(row[0][0][0]) for row in rows]
    assert firsts == sorted(firsts), "the chat that waits longest begins the next row"
    for row in rows:
        tokens, flags = filled(row, 20, 999)
        assert len(tokens) == len(flags) == 20
        assert int((flags & COUNTS).sum()) == sum(len(some) for some, _ in row)
