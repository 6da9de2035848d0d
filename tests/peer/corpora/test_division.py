"""About the wanted share is held out, of one book as of many documents, and no token of it is learned from."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from peer.corpora.build import BuildResult, build
from peer.corpora.division import Division, division
from peer.corpora.folder import FinishedCorpus
from peer.corpora.inputs import BuildInput, Document
from peer.corpora.options import BuildOptions, TokenFormat
from peer.corpora.parts import KeptDocument
from protocol.corpora.manifest import CorpusKind
from tests.peer.corpora.makers import chat_tokens, content_of, jsonl, texts_of


def prose(size: int, seed: int) -> str:
    drawn = random.Random(seed)
    return "".join(f"{drawn.getrandbits(64):x} and é" for _ in range(size // 20))


def built(texts: list[str], out: Path, percent: float = 5, options: BuildOptions | None = None) -> BuildResult:
    chosen = replace(options or BuildOptions(workers=1), held_out_percent=percent)
    return build([BuildInput("all", [Document(text=text) for text in texts])], chosen, out)


SIZES: dict[str, list[int]] = {
    "one book": [400_000],
    "one giant among small ones": [900_000, *[500] * 200],
    "many": [300] * 3000,
}


@pytest.mark.slow
@pytest.mark.parametrize("percent", [1, 50])
@pytest.mark.parametrize("case", SIZES)
def test_about_the_wanted_share_is_held_out_and_nothing_is_lost_or_learned(case: str, percent: int, tmp_path: Path) -> None:
    texts = [prose(size, number) for number, size in enumerate(SIZES[case])]
    result = built(texts, tmp_path / "out", percent)
    (source,) = result.manifest.sources
    total = source.train.tokens + source.held_out.tokens
    assert percent / 200 <= source.held_out.tokens / total <= percent / 50
    found = texts_of(tmp_path / "out")
    train, held_out = found["all", "train"], found["all", "held out"]
    assert source.train.documents == len(train) and source.held_out.documents == len(held_out)
    together = [train[-1] + held_out[0]] if result.cut else []
    apart = [*(train[:-1] if result.cut else train), *(held_out[1:] if result.cut else held_out)]
    assert sorted([*together, *apart]) == sorted(texts)
    assert source.train.text_bytes + source.held_out.text_bytes == sum(len(text.encode()) for text in texts)
    assert json.loads(result.manifest.recipe).get("cut_for_held_out", []) == list(result.cut)
    assert bool(result.cut) == (case != "many") or percent == 50
    FinishedCorpus(tmp_path / "out").verify()


def test_end_of_a_book_with_a_tokenizer_is_held_out_and_is_the_same_in_every_build(tmp_path: Path) -> None:
    options = BuildOptions(tokens=chat_tokens(tmp_path / "tokenizer.json"), workers=1)
    book = prose(50_000, 1) + " the end"
    result = built([book], tmp_path / "out", 5, options)
    built([book], tmp_path / "again", 5, options)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "again")
    found = texts_of(tmp_path / "out")
    assert found["all", "train"][0] + found["all", "held out"][0] == book and result.cut == ("all",)


def kept(*sizes: int, keys: list[int] | None = None) -> list[KeptDocument]:
    return [KeptDocument(0, (keys or [*range(len(sizes))])[at], 0, 0, size, 0) for at, size in enumerate(sizes)]


def test_equal_documents_stay_on_one_side() -> None:
    assert division(kept(30, 30, 30, keys=[1, 2, 2]), 90, 5, is_text=True) == Division(1)
    assert division(kept(30, 30, 30, keys=[1, 1, 1]), 90, 5, is_text=True) == Division(3)


def test_few_chats_are_held_out_whole(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(jsonl({"prompt": f"{number}?", "completion": "yes"} for number in range(2)))
    tokens = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=65)
    result = build([BuildInput("s", path)], BuildOptions(tokens, workers=1), tmp_path / "out")
    (source,) = result.manifest.sources
    assert (source.train.documents, source.held_out.documents) == (1, 1) and not result.cut and not result.shortage


@pytest.mark.parametrize(
    ("size", "percent", "said"),
    [
        (400_000, 1, ""),
        (30_000, 1, "300 tokens are held out, .* a row of 512 tokens, .* give more data, or --held-out 4$"),
        (300, 1, r"the source all has 29\d tokens to learn from, which do not fill a row of 512 .*; give more data$"),
    ],
)
def test_build_says_that_a_corpus_is_too_small_with_a_remedy(size: int, percent: int, said: str, tmp_path: Path) -> None:
    result = built(["x" * size], tmp_path / "out", percent)
    assert re.search(said or "^$", result.shortage), result.shortage
