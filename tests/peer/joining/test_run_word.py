"""Words that name a run, checked before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_word import LEAST_DIGITS, check_word, the_run
from protocol.run.invitation import make_invitation
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity

ONE = Identity.from_seed(bytes(32)).peer_id
GOOD = make_invitation(hash_bytes("manifest", b"run"), ONE, [f"/ip4/127.0.0.1/tcp/4001/p2p/{ONE}"])
RUNS = ("ab" * 32, "abababab" + "0" * 56, "cd" * 32)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for run in RUNS:
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        (folder / "manifest").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_named_by_its_first_eight_digits_and_more_are_asked_for_by_their_number(data: Path) -> None:
    assert the_run("cdcdcdcd", data) == the_run("cd" * 32, data) == RUNS[2]
    with pytest.raises(PeerError, match=f"too short for a run ID; give at least the first {LEAST_DIGITS} digits"):
        the_run("cdcdcdc", data)
    with pytest.raises(PeerError, match="2 runs begin with abababab; give 9 digits of the run ID"):
        the_run("abababab", data)
    assert the_run("abababab0", data) == RUNS[1]
    with pytest.raises(PeerError, match="not a run in the data directory"):
        the_run("00000000", data)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("folder", "folder is a folder; give the path of a run file, such as folder/run.toml"),
        ("x" * 5000, "File name too long; give the path of a run file"),
        (GOOD, "this is an invitation, not a run file; take part with `peer join INVITATION`"),
    ],
)
def test_a_run_is_created_from_a_file(data: Path, word: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "folder").mkdir()
    assert main(["run", "create", word]) == ExitCode.INPUT
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"a" * 400_000, b"hello\n", b"", b"\x00" * 9, bytes(range(256)) * 4])
def test_a_file_of_another_kind_is_not_called_a_message(
    data: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "b.txt").write_bytes(content)
    assert main(["run", "show", "b.txt"]) == ExitCode.INPUT
    assert capsys.readouterr().err.startswith("peer: b.txt is not a signed manifest; give a run file ending in .toml, ")


@pytest.mark.parametrize("words", ["status", "leave", "id", "runs", "doctor", "export x", "run show 00000000"])
def test_a_data_directory_that_is_a_file_is_told(data: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "file").touch()
    assert main([*words.split(), "--data-dir", str(data / "file")]) == ExitCode.RESOURCES
    assert f"{data / 'file'} is a file; name a folder with --data-dir" in capsys.readouterr().err


@pytest.mark.parametrize("breaks", [" ", "\n", "\r\n  ", "\\\n", "\u200b"])
def test_an_invitation_that_a_shell_or_a_mail_split_is_whole_again(data: Path, breaks: str) -> None:
    check_word(f"{GOOD[:40]}{breaks}{GOOD[40:]}", data)


@pytest.mark.parametrize("cut", [GOOD[:60], GOOD[:-1], GOOD[:50] + GOOD[51:], GOOD[:70] + "x" + GOOD[70:]])
def test_an_invitation_of_which_a_part_is_missing_is_refused_before_the_terminal_is_taken(
    data: Path, cut: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PeerError, match="incomplete or mistyped"):
        check_word(cut, data)
    monkeypatch.setattr("peer.commands.join._wants_interface", lambda args: pytest.fail("it would take the terminal"))
    assert main(["join", *cut.partition("g")]) == ExitCode.INPUT
    assert "from mh1 to the very end" in capsys.readouterr().err


def test_nothing_that_may_name_a_run_is_refused(data: Path) -> None:
    (data / "a run.toml").touch()
    (data / "manifest").touch()
    for word in ("a run.toml", "manifest", "./manifest", RUNS[0], GOOD, f"here it is: {GOOD}, until then"):
        check_word(word, data)
    for word in ("another.toml", "a folder/x.toml", "nothing", str(data)):
        with pytest.raises(PeerError):
            check_word(word, data)
