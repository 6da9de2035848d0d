"""`peer data` from the command line: what it builds, prints and refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from peer.cli import main
from peer.corpora.folder import DIGEST, MANIFEST, TOKENIZER, FinishedCorpus, leaves_path, shard_path
from peer.errors import ExitCode
from tests.peer.corpora.makers import END, mixed_folder, tokenizer_file, write_rows


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `documents`, and `model` with a tokenizer that names its end token."""
    folder = tmp_path_factory.mktemp("inputs")
    mixed_folder(folder / "documents")
    (folder / "model").mkdir()
    tokenizer_file(folder / "model" / TOKENIZER)
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder


@pytest.fixture(scope="module")
def corpus(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "out"
    words = ["web=" + str(inputs / "documents"), str(inputs / "documents" / "a.jsonl"), "--tokenizer", str(inputs / "model")]
    assert main(["data", "build", str(out), *words, "--workers", "1", "--held-out", "20"]) == ExitCode.OK
    return out


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["data", *words]) == ExitCode.OK
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["data", *words]) in (ExitCode.INPUT, ExitCode.USAGE)
    error = capsys.readouterr().err
    assert error.startswith("peer: ") and error.count("\n") == 1
    return error


def test_show_prints_tokens_shares_and_a_document(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", str(corpus))
    for part in ("kind        text", "SOURCE ", "web ", "held out", "web: document "):
        assert part in text
    facts = json.loads(said(capsys, "show", str(corpus), "--json"))
    assert facts["digest"] == FinishedCorpus(corpus).digest.hex()
    train = [each for each in facts["splits"] if each["split"] == "train"]
    assert sum(each["share"] for each in train) == pytest.approx(1)
    assert sum(each["documents"] for each in facts["splits"] if each["source"] == "web") == 60


def test_sample_prints_documents_of_each_source(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in said(capsys, "sample", str(corpus), "2", "--json").splitlines()]
    assert [line["source"] for line in lines] == ["web", "web", "a", "a"]
    assert all(line["text"].startswith("document ") for line in lines)
    assert "--- web\ndocument " in said(capsys, "sample", str(corpus), "--held-out")


def flipped(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def damaged(case: str, corpus: Path) -> None:
    root = FinishedCorpus(corpus).manifest.sources[0].train.shards[0]
    shard, leaves = shard_path(corpus, root), leaves_path(corpus, root)
    match case:
        case "a flipped token":
            flipped(shard, 0)
        case "a flipped hash":
            flipped(leaves)
        case "another tokenizer":
            flipped(corpus / TOKENIZER)
        case "a manifest with a flipped byte":
            flipped(corpus / MANIFEST, 1)
        case "a manifest with another count":
            raw = (corpus / MANIFEST).read_bytes()
            known = FinishedCorpus(corpus).manifest.sources[0].train
            count = msgpack.packb("text_bytes") + msgpack.packb(known.text_bytes)
            assert raw.count(count) == 1
            (corpus / MANIFEST).write_bytes(raw.replace(count, count[:-1] + bytes([count[-1] ^ 1])))
        case "no digest":
            (corpus / DIGEST).unlink()
        case "no manifest":
            (corpus / MANIFEST).unlink()


DAMAGE = {
    "a flipped token": "block 0 does not match its hash",
    "a flipped hash": "its hashes do not match the shard",
    "another tokenizer": "it is not the tokenizer of the corpus",
    "a manifest with a flipped byte": "corpus.msgpack is damaged",
    "a manifest with another count": "corpus.msgpack is damaged: its digest is not the one in corpus.digest",
    "no digest": "corpus.digest cannot be read (No such file or directory)",
    "no manifest": "is not a corpus: cannot read corpus.msgpack",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_and_named(case: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = [str(inputs / "documents"), "--tokenizer", str(inputs / "model"), "--workers", "1"]
    assert main(["data", "build", str(out), *words]) == ExitCode.OK
    damaged(case, out)
    assert DAMAGE[case] in refused(capsys, "verify", str(out))


def test_events_of_a_build_are_lines_of_json(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, path = tmp_path / "out", write_rows(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}, {}])
    words = [
        "build",
        str(out),
        f"s={path}",
        "--tokenizer",
        "bytes",
        "--workers",
        "1",
        "--bad",
        "50",
        "--held-out",
        "0",
        "--json",
    ]
    lines = [json.loads(line) for line in said(capsys, *words).splitlines()]
    assert {line["event"] for line in lines[:-1]} == {"progress"}
    assert {"documents", "tokens_per_s", "left_s"} <= set(lines[0])
    built = lines[-1]
    assert built["event"] == "built" and built["splits"][0]["documents"] == 2
    assert built["tally"]["left_out"] == {"field": 1}
    assert built["tally"]["bad"] == [[0, 3, "a.jsonl", "it has no field at all"]]


WRONG = {
    "--kind chat": "--sequence-length is required for --kind chat and preference",
    "--sequence-length 64": "--sequence-length is required for --kind chat and preference",
    "--template jinja": "there is no template jinja; use one of raw, plain, chatml, llama3",
    "--end <|end|>": "has no special token <|end|>, but <|im_end|>, <|im_start|>; name one of them",
}


@pytest.mark.parametrize("words", WRONG)
def test_options_that_contradict_are_refused(
    words: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["build", str(tmp_path / "out"), str(inputs / "documents"), "--tokenizer", str(inputs / "model")]
    assert WRONG[words] in refused(capsys, *build, *words.split())
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_interrupted_build_says_so_and_goes_on(tmp_path: Path) -> None:
    """SIGINT comes to the whole process group, as from a terminal."""
    rows = [{"text": f"{number} " + "some words of a document " * 100} for number in range(1200)]
    path, tokenizer = write_rows(tmp_path / "a.jsonl", rows), tokenizer_file(tmp_path / TOKENIZER)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "peer", "data", "build", str(out), str(path), "--tokenizer", str(tokenizer)]
    command += ["--end", "258", "--workers", "2", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background job ignores it
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["event"] == "progress"
        os.killpg(process.pid, signal.SIGINT)
        error = process.stderr.read().decode()
    assert process.returncode == ExitCode.INTERRUPTED
    assert error == f"\npeer: interrupted; give the same command again to go on, or remove {out}.partial\n"
    assert not out.exists() and (tmp_path / "out.partial").exists()
    assert main(command[3:-1]) == ExitCode.OK
    corpus = FinishedCorpus(out)
    corpus.verify()
    assert sum(split.documents for _, _, split in corpus.splits) == len(rows)
