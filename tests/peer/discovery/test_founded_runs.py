"""Two runs of one file: each founder hears of the other in one sentence, whatever else is announced."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import trio

from peer.cli import main
from peer.discovery import mdns
from peer.discovery.mdns import find_twins, founded, tell_of_twins
from peer.discovery.rendezvous import FOLDER, MAX_TOLD, Founded, FoundedTwice, Noticeboard, founded_in, founded_of, noticed
from peer.environment import ChildKind
from peer.errors import ExitCode
from protocol.events.events import Event, Notice
from protocol.run.manifest import RunManifest, SignedManifest, sign
from protocol.run.run_file import load_run_file
from protocol.wire.identity import Identity

ME, OTHER = Identity.from_seed(bytes(32)), Identity.from_seed(bytes([1]) * 32)
OURS = Founded("ab" * 32, ME.peer_id, "mine", "cd" * 32)
THEIRS = replace(OURS, run="ef" * 32, organiser=OTHER.peer_id)


def signed(identity: Identity, **fields: object) -> SignedManifest:
    manifest = RunManifest.model_validate(
        {"name": "mine", "organiser": identity.peer_id, "founders": "anyone", "total_rounds": 9, **fields}
    )
    return sign(identity, manifest)


def test_the_same_file_is_known_at_two_organisers(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "mine"\n[rounds]\nmin_members = 2\n')
    of_file = [founded(sign(each, load_run_file(path, each.peer_id))) for each in (ME, OTHER)]
    assert of_file[0].file == of_file[1].file and of_file[0].run != of_file[1].run
    mine, theirs, another = founded(signed(ME)), founded(signed(OTHER)), founded(signed(OTHER, seed=7))
    assert mine.file == theirs.file and mine.run != theirs.run
    assert another.file != mine.file and another.name == mine.name


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (THEIRS, "the same file (mine)"),
        (replace(THEIRS, name="renamed", file=OURS.file), "the same file (renamed)"),
        (replace(THEIRS, file="00" * 32), "the same name (mine)"),
        (replace(THEIRS, file="00" * 32, name="else"), ""),
        (OURS, ""),
        (replace(OURS, organiser=OTHER.peer_id), ""),
        (replace(THEIRS, name="\x1b[2J\u202emine"), "the same file ([2Jmine)"),
    ],
)
def test_what_looks_like_our_run_is_told_with_the_remedy(other: Founded, said: str) -> None:
    text = FoundedTwice(OURS).sentence(other)
    assert bool(text) == bool(said) and said in text and text.isprintable()
    assert not said or ("peer join INVITATION" in text and f"…{OTHER.peer_id[-6:]}" in text)


def test_each_is_told_once_and_few_of_a_flood() -> None:
    twice = FoundedTwice(OURS)
    told = [twice.sentence(replace(THEIRS, run=f"{number % 50:064x}")) for number in range(5000)]
    assert len([text for text in told if text]) == MAX_TOLD


ODD: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"[" * 5000,
    json.dumps({**asdict(THEIRS), "run": "x"}).encode(),
    json.dumps({**asdict(THEIRS), "file": 3}).encode(),
    json.dumps({**asdict(THEIRS), "name": ["a"]}).encode(),
    json.dumps({**asdict(THEIRS), "name": "n" * 65}).encode(),
    json.dumps({**asdict(THEIRS), "organiser": "12D3KooWx"}).encode(),
    json.dumps({"run": "ab" * 32}).encode(),
    json.dumps({**asdict(THEIRS), "more": "x" * 10_000}).encode(),
    b"\xff" * 100,
]


@pytest.mark.parametrize("raw", ODD, ids=range(len(ODD)))
def test_what_is_no_announcement_is_ignored(raw: bytes) -> None:
    assert founded_in(raw) is None


def test_text_fields_of_a_record_become_an_announcement() -> None:
    assert founded_of({key.encode(): value.encode() for key, value in asdict(THEIRS).items()}) == THEIRS
    assert founded_of({}) is None and founded_of({b"run": None, b"\xff": b"\xff"}) is None


def test_founders_of_one_computer_hear_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path))
    heard: dict[str, list[Event]] = {"me": [], "other": []}

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for name, ours in (("me", OURS), ("other", THEIRS)):
                nursery.start_soon(tell_of_twins, ours, None, heard[name].append, lambda: all(heard.values()))

    monkeypatch.setattr(mdns, "TWIN_LOOK_S", 0.01)
    trio.run(run)
    for events in heard.values():
        (event,) = events
        assert isinstance(event, Notice) and event.level == "warning" and "the same file" in event.text
    assert not (tmp_path / FOLDER).exists(), "withdrawn at the end"


def test_a_file_that_is_no_founders_is_no_notice(tmp_path: Path) -> None:
    assert noticed(tmp_path) == []
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "x").write_bytes(THEIRS.to_bytes())
    (folder / OTHER.peer_id).write_bytes(THEIRS.to_bytes())
    assert noticed(tmp_path) == [], "nobody holds it"
    board = Noticeboard(tmp_path, OTHER.peer_id)
    board.announce(THEIRS)
    assert noticed(tmp_path) == [THEIRS]
    board.withdraw()


@pytest.mark.parametrize(
    ("answer", "code"), [("n\n", ExitCode.INPUT), ("\n", ExitCode.INPUT), ("", ExitCode.INPUT), ("y\n", 77)]
)
def test_a_run_that_others_have_founded_is_asked_about_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, code: int
) -> None:
    import io

    from peer.commands import join

    def interface(child: ChildKind, *words: str) -> None:
        raise SystemExit(77)

    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(join, "_wants_interface", lambda args: True)
    monkeypatch.setattr(join, "become_interface", interface)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    path = tmp_path / "run.toml"
    path.write_text('name = "mine"\n')
    board = Noticeboard(tmp_path / "runtime", OTHER.peer_id)
    board.announce(THEIRS)
    try:
        ended = main(["join", str(path), "--local", "--data-dir", str(tmp_path / "data")])
    except SystemExit as left:
        ended = int(left.code or 0)
    finally:
        board.withdraw()
    said = capsys.readouterr().err
    assert ended == code and "has founded another run with the same name (mine)" in said
    assert "Found your own run anyway? [y/N]" in said


def test_nobody_is_asked_where_nobody_else_has_founded_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path))
    assert find_twins(OURS, True) == []
