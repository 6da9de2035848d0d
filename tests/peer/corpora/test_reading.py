"""The trainer reads from a built corpus the documents that were built into it, in rows of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.mixture import MixturePhase, RowMixture
from peer.cli import main
from peer.corpora.folder import FinishedCorpus
from tests.peer.corpora.makers import tokenizer_file, write_rows
from trainer.data.corpus import (
    BlockFolders,
    CorpusFolder,
    CorpusReading,
    DocumentLayout,
    MixedSource,
    StoredCorpus,
)
from trainer.data.rows import Rows

LENGTH = 63
TEXTS = [{"text": f"the number {number} and what it is " * (1 + number % 7)} for number in range(80)]
CHATS = [
    {"messages": [{"role": "user", "content": f"{n} + {n}?"}, {"role": "assistant", "content": f"{2 * n}" * (1 + n % 5)}]}
    for n in range(80)
]
PAIRS = [{"prompt": f"{n} + {n}?", "chosen": f"it is {2 * n}", "rejected": "who knows"} for n in range(80)]


def built(folder: Path, kind: str, records: list[dict[str, Any]]) -> Path:
    source, out = write_rows(folder / "in.jsonl", records), folder / "corpus"
    rows = [] if kind == "text" else ["--sequence-length", str(LENGTH), "--template", "chatml"]
    words = ["--tokenizer", str(tokenizer_file(folder / "tokenizer.json")), "--end", "258", "--kind", kind, *rows]
    limits = ["--held-out", "30", "--workers", "1", "--block", "4096", "--json"]
    assert main(["data", "build", str(out), f"all={source}", *words, *limits]) == 0
    return out


def reading_of(folder: Path) -> CorpusReading:
    corpus = CorpusFolder(StoredCorpus.read(folder / "corpus.msgpack"), BlockFolders([folder / "shards"]))
    mixture = RowMixture([MixturePhase(0, (1,))])
    return CorpusReading([MixedSource("all", corpus, "all")], mixture, LENGTH, DocumentLayout.MASKED)


def documents_in(rows: Rows) -> list[tuple[list[int], list[bool]]]:
    """Tokens of each document that fits its row, and which of them count; without documents of which none counts."""
    assert rows.counts_bt is not None and rows.documents_bt is not None
    found = []
    for tokens, counts, documents in zip(rows.tokens_bt, rows.counts_bt, rows.documents_bt, strict=True):
        ids = np.append(documents, documents[-1])  # the last token is only predicted
        counted = np.append(False, counts)
        for id in dict.fromkeys(documents.tolist()):
            if counted[ids == id].any():
                found.append((tokens[ids == id].tolist(), counted[ids == id].tolist()))
    return found


def test_rows_of_text_are_all_documents_with_their_end_tokens(tmp_path: Path) -> None:
    folder = built(tmp_path, "text", TEXTS)
    corpus, reading = FinishedCorpus(folder), reading_of(folder)
    for held_out, split in ((False, corpus.manifest.sources[0].train), (True, corpus.manifest.sources[0].held_out)):
        stream = [token for each in corpus.documents(split) for token in [*each.tokens.tolist(), 258]]
        count = reading.held_out_windows if held_out else reading.windows
        rows = reading.rows(range(count), held_out=held_out).tokens_bt
        read = [*rows[:-1, :-1].reshape(-1).tolist()]
        assert read == stream[: len(read)] and rows[-1].tolist() == stream[-LENGTH - 1 :]
        assert len(stream) - len(read) <= LENGTH + 1, "no token is left out"


@pytest.mark.parametrize(("kind", "records"), [("chat", CHATS), ("preference", PAIRS)])
def test_rows_of_conversations_are_the_documents_and_what_counts_in_them(
    kind: str, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = built(tmp_path, kind, records)
    corpus, reading = FinishedCorpus(folder), reading_of(folder)
    for held_out, split in ((False, corpus.manifest.sources[0].train), (True, corpus.manifest.sources[0].held_out)):
        count = reading.held_out_windows if held_out else reading.windows
        wanted = [(each.tokens.tolist(), each.counts.tolist()) for each in corpus.documents(split)]
        found = documents_in(reading.rows(range(count), held_out=held_out))
        assert len(found) == len(wanted) > 10
        for (tokens, counts), (all_tokens, all_counts) in zip(found, wanted, strict=True):
            size = len(all_tokens)
            assert tokens[:size] == all_tokens and counts[:size] == all_counts
            assert len(tokens) - size <= 1 and not any(counts[size:]), "at most padding that is never read"
        if kind == "preference":
            assert len(found) == 2 * count
            assert all(one != other for one, other in zip(found[::2], found[1::2], strict=True))
