"""What a run file brings along: chats and tokenizers are named in the manifest, checked and kept, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import create_run, find_run
from peer.paths import run_dir
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.run.manifest import SignedManifest
from protocol.run.run_file import RunFileError, dump, parse_run_file
from protocol.run.sections import FILE_CHUNK_BYTES
from protocol.wire.identity import PeerId
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from trainer.data.tokens import checked_file
from trainer.environments.task_file import digest_of

CHAT = '{"prompt": "2 + 2?", "completion": "4"}\n'
TALK = "".join(f'{{"prompt": "{n} + 2?", "completion": "{n + 2}"}}\n' for n in range(40))
RUN = f"""
name = "talk"
[model]
vocab = {VOCAB}
dim = 16
layers = 1
[data]
format = "chat"
from = "talk.jsonl"
sequence_length = 32
held_out_percent = 10
[tokenizer]
from = "tokens"
"""


def a_place(folder: Path, *, chats: str = TALK, run: str = RUN) -> Path:
    (folder / "talk.jsonl").write_text(chats)
    (folder / "tokens").mkdir()
    make_tokenizer(folder / "tokens" / "tokenizer.json")
    (folder / "tokens" / "generation_config.json").write_text(json.dumps({"eos_token_id": list(reversed(ENDS))}))
    path = folder / "run.toml"
    path.write_text(run)
    return path


def test_the_manifest_names_the_files_and_the_organiser_has_them(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    signed = create_run(a_place(tmp_path), tmp_path / "data", lambda *remark: told.append(remark))
    manifest = signed.manifest
    assert manifest.tokenizer is not None and [*manifest.files] == ["tokenizer.json", "corpora/0"]
    assert (manifest.tokenizer.template, manifest.tokenizer.ends) == ("chatml", list(ENDS)), "the end of a turn goes first"
    files = BlobStore(Disk(), run_dir(tmp_path / "data", signed.run) / "files")
    files.load()
    assert all(files.is_right(file.name, file.size, FILE_CHUNK_BYTES) for file in manifest.files.values())
    (link,) = (run_dir(tmp_path / "data", signed.run) / "corpora").iterdir()
    assert files.path(manifest.data.corpora[0].name).read_bytes() == (link / "corpus.msgpack").read_bytes()
    ((what, about),) = told
    assert what == "chats" and about.startswith("37 chats in ") and ", 3 held out; read: 1 file" in about


def test_a_damaged_file_counts_as_absent(tmp_path: Path) -> None:
    signed = create_run(a_place(tmp_path), tmp_path / "data")
    files = BlobStore(Disk(), run_dir(tmp_path / "data", signed.run) / "files")
    files.load()
    (file,) = signed.manifest.data.corpora
    path = files.path(file.name)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert not files.is_right(file.name, file.size, FILE_CHUNK_BYTES) and not files.has(file.name)
    again = find_run(str(tmp_path / "run.toml"), tmp_path / "data", founding=True)
    assert isinstance(again, SignedManifest) and again.run == signed.run
    files.load()
    assert files.is_right(file.name, file.size, FILE_CHUNK_BYTES), "the organiser puts it back"


def test_a_manifest_written_out_is_the_same_run(tmp_path: Path) -> None:
    signed = create_run(a_place(tmp_path), tmp_path / "data")
    manifest = signed.manifest
    assert parse_run_file(dump(manifest), PeerId(manifest.organiser)) == manifest


@pytest.mark.parametrize(
    ("run", "chats", "part"),
    [
        (RUN, CHAT + "{}\n", "talk.jsonl, row 2: a chat is a record with a list"),
        (RUN, CHAT, "nothing that is held out fills a row of data.sequence_length (32)"),
        (RUN.replace('from = "talk.jsonl"', "").replace("held_out_percent = 10", ""), CHAT, "no chats are named; add from"),
        (RUN.replace("vocab = 260", "vocab = 258"), TALK, "a token that ends a turn has the number 259"),
        (RUN + 'template = "llama3"\n', TALK, "has no token '<|begin_of_text|>'"),
        (
            RUN.replace('from = "tokens"', 'template = "raw"'),
            TALK,
            '[tokenizer] names no file; add from = "tokenizer.json"',
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence(run: str, chats: str, part: str, tmp_path: Path) -> None:
    path = a_place(tmp_path, chats=chats, run=run)
    with pytest.raises((PeerError, RunFileError)) as caught:
        create_run(path, tmp_path / "data")
    assert part in str(caught.value)


def test_a_peer_that_fetched_the_tokenizer_exports_it(tmp_path: Path) -> None:
    signed = create_run(a_place(tmp_path), tmp_path / "data")
    assert not (run_dir(tmp_path / "data", signed.run) / "tokenizer").exists(), "as at a peer that is not the organiser's"
    assert main(["export", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]) == ExitCode.OK
    made = checked_file(tmp_path / "tokens" / "tokenizer.json", ENDS)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == made
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [*ENDS]


@pytest.mark.parametrize("environment", ["add", "jsonl"])
def test_an_end_token_that_the_prompts_hold_is_told_when_the_run_is_created(environment: str, tmp_path: Path) -> None:
    line = {"problem_id": "a", "task_type": "exact_answer", "prompt": "3+4=", "verification_info": {"ground_truth": "7"}}
    data = json.dumps(line).encode() + b"\n"
    (tmp_path / "tasks.jsonl").write_bytes(data)
    named = {"add": "add", "jsonl": f'jsonl(path=\\"tasks.jsonl\\", digest=\\"{digest_of(data)}\\")'}
    rl = f'environment = "{named[environment]}"\nproblems = 1\nprompts_per_batch = 1\nmax_tokens = 16\nrow_tokens = 64\n'

    def created(end: int) -> SignedManifest:
        model = f'name = "sums"\n[model]\nvocab = {VOCAB}\ndim = 16\nlayers = 1\n'
        (tmp_path / "run.toml").write_text(f'{model}[rl]\n{rl}[tokenizer]\nfrom = "tokens"\nends = [{end}]\n')
        return create_run(tmp_path / "run.toml", tmp_path / "data")

    a_place(tmp_path)
    assert created(ENDS[0])
    plus = sorted(ByteLevel.alphabet()).index("+")
    with pytest.raises(PeerError, match=r"the prompt of .* cannot be read by the run's model: .* ends a turn"):
        created(plus)


def test_a_corpus_to_search_is_a_file_of_the_run(tmp_path: Path) -> None:
    environment = 'tools(jsonl(path="tasks.jsonl"), use=["search"], corpus="docs.jsonl")'
    rl = f"[rl]\nenvironment = '{environment}'\nprompts_per_batch = 1\nmax_tokens = 64\nrow_tokens = 1024\n"
    (tmp_path / "run.toml").write_text(f'name = "rivers"\n[model]\ndim = 16\nlayers = 1\n{rl}')
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "What flows in Africa?", "answer": "Nile"}\n')
    (tmp_path / "docs.jsonl").write_text('{"title": "Nile", "text": "a river in Africa"}\n')
    manifest = create_run(tmp_path / "run.toml", tmp_path / "data").manifest
    assert manifest.rl is not None and manifest.rl.problems == 1
    assert [file.path for file in manifest.rl.files] == ["docs.jsonl", "tasks.jsonl"]
    (tmp_path / "docs.jsonl").write_text('{"title": "Nile"}\n')
    with pytest.raises(PeerError, match=r"docs.jsonl: line 1: a document has a text"):
        create_run(tmp_path / "run.toml", tmp_path / "data")
