"""About the wanted share is held out, of one book as of many documents, and no token of it is learned from."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from peer.cli import main
from peer.corpora.build import BuildResult, build
from peer.corpora.division import Division, divided, division, shortage
from peer.corpora.folder import FinishedCorpus
from peer.corpora.inputs import BuildInput, Document
from peer.corpora.options import BuildOptions, OptionWords, TokenFormat
from peer.corpora.parts import KeptDocument
from protocol.corpora.manifest import CorpusKind, CorpusManifest, CorpusSource, Split
from tests.peer.corpora.makers import chat_tokens, content_of, jsonl, texts_of


def prose(size: int, seed: int) -> str:
    drawn = random.Random(seed)
    return "".join(f"{drawn.getrandbits(64):x} and é" for _ in range(size // 20))


def built(texts: list[str], out: Path, percent: float = 5, options: BuildOptions | None = None) -> BuildResult:
    chosen = replace(options or BuildOptions(workers=1), held_out_percent=percent)
    return build([BuildInput("all", [Document(text=text) for text in texts])], chosen, out)


SIZES: dict[str, list[int]] = {
    "one book": [400_000],
    "six stories": [27_000] * 6,
    "one giant among small ones": [900_000, *[500] * 200],
    "two": [3000, 90_000],
    "many": [300] * 3000,
}


@pytest.mark.slow
@pytest.mark.parametrize("percent", [1, 5, 50])
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


def test_division_lies_between_documents_where_that_is_about_the_share() -> None:
    assert division(kept(50, 45, 8), 103, 5, is_text=True) == Division(2)
    assert division(kept(50, 46, 3), 99, 5, is_text=True) == Division(2)
    assert division(kept(50, 50), 100, 5, is_text=True) == Division(1, 45)
    assert division(kept(50, 50), 100, 5, is_text=False) == Division(1)
    assert division(kept(100), 100, 5, is_text=False) == Division(1)


def test_equal_documents_stay_on_one_side() -> None:
    assert division(kept(30, 30, 30, keys=[1, 2, 2]), 90, 5, is_text=True) == Division(1)
    assert division(kept(30, 30, 30, keys=[1, 1, 1]), 90, 5, is_text=True) == Division(3)


def test_share_of_the_hashes_stays_if_it_is_about_the_wanted_one() -> None:
    assert divided((950, 10), (50, 1), 5) == divided((910, 10), (90, 1), 5) == Division(10)
    assert divided((1000, 10), (0, 0), 0) == Division(10)
    assert divided((1000, 10), (0, 0), 5) is divided((800, 10), (200, 1), 5) is divided((0, 0), (9, 1), 99) is None


@pytest.mark.parametrize("count", [2, 5, 20])
def test_few_chats_are_held_out_whole(count: int, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(jsonl({"prompt": f"{number}?", "completion": "yes"} for number in range(count)))
    tokens = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=65)
    result = build([BuildInput("s", path)], BuildOptions(tokens, workers=1), tmp_path / "out")
    (source,) = result.manifest.sources
    assert (source.train.documents, source.held_out.documents) == (count - 1, 1) and not result.cut and not result.shortage


@pytest.mark.parametrize(
    ("size", "percent", "said"),
    [
        (400_000, 1, ""),
        (30_000, 1, "300 tokens are held out, .* a row of 512 tokens, .* give more data, or --held-out 4$"),
        (900, 1, "9 tokens are held out, .*; give more data$"),
        (300, 1, r"the source all has 29\d tokens to learn from, which do not fill a row of 512 .*; give more data$"),
        (300, 0, "the source all has 301 tokens to learn from"),
        (3000, 0, ""),
    ],
)
def test_build_says_that_a_corpus_is_too_small_with_a_remedy(size: int, percent: int, said: str, tmp_path: Path) -> None:
    result = built(["x" * size], tmp_path / "out", percent)
    assert re.search(said or "^$", result.shortage), result.shortage


@pytest.mark.parametrize("lengths", [[997] * 55, [20_000, *[900] * 30], [700] * 6])
@pytest.mark.parametrize("percent", [0.3, 1])
def test_remedy_for_texts_of_any_lengths_is_another_share_and_works(
    lengths: list[int], percent: float, tmp_path: Path
) -> None:
    texts = [prose(length, number) for number, length in enumerate(lengths)]
    said = built(texts, tmp_path / "out", percent).shortage
    if named := re.search(r"--held-out (\d+)$", said):
        assert int(named[1]) > percent
        assert not built(texts, tmp_path / "again", int(named[1])).shortage
    else:
        assert said.endswith("; give more data") or not said


def test_remedy_is_not_the_share_in_force_where_the_hashes_give_less() -> None:
    corpus = CorpusManifest.model_construct(
        kind=CorpusKind.TEXT,
        row_tokens=0,
        sources=[
            CorpusSource.model_construct(
                name="s", train=Split.model_construct(tokens=54_500), held_out=Split.model_construct(tokens=500)
            )
        ],
    )
    assert shortage(corpus, 1.0, OptionWords()).endswith("; give more data, or --held-out 2")


def test_summary_says_that_a_document_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text(prose(9000, 1))
    run(tmp_path, "out")
    said = capsys.readouterr().out
    assert "held out    the end of a document of book, because whole documents would not give about that share" in said
    assert "too small   " in said
    run(tmp_path, "other", "--json")
    (line,) = [json.loads(each) for each in capsys.readouterr().out.splitlines() if '"built"' in each]
    assert line["cut_for_held_out"] == ["book"] and line["shortage"]


def run(folder: Path, out: str, *words: str) -> None:
    assert main(["data", "build", str(folder / out), str(folder / "book.txt"), "--tokenizer", "bytes", *words]) == 0
