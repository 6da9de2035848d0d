"""A small file is there whole or not at all, and never in place of one that must stay."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.files import (
    MARK,
    LockHeld,
    RotatingFile,
    is_original,
    locked,
    mark_original,
    read_json,
    remove_left_overs,
    write_atomically,
)

# ------------------------------------------------------------------------------------------------------------------------
# A lock between processes is held by one, says by whom, and ends with its holder.


HOLDER = (
    "import pathlib, sys\nfrom peer.files import locked\n"
    "with locked(pathlib.Path(sys.argv[1])):\n    print(flush=True)\n    sys.stdin.read()"
)


def test_a_lock_is_held_until_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        for _ in range(2):  # who is refused leaves the holder's file as it is
            with pytest.raises(LockHeld) as refused, locked(path):
                pass
            assert refused.value.holder == holder.pid
        holder.kill()
    with locked(path):
        assert path.read_text() == f"{os.getpid()}\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"", b"?", b"1" * 100])
def test_a_holder_that_does_not_say_its_name_holds_all_the_same(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.lock"
    with locked(path):
        path.write_bytes(content)
        with pytest.raises(LockHeld) as refused, locked(path):
            pass
    assert refused.value.holder in (None, int(b"1" * 32))


def test_a_link_and_a_missing_folder_are_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    (tmp_path / "link.lock").symlink_to(tmp_path / "there")
    with pytest.raises(OSError), locked(tmp_path / "link.lock"):
        pass
    assert (tmp_path / "there").read_text() == "kept"
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), locked(tmp_path / "file" / "some.lock"):
        pass


# ------------------------------------------------------------------------------------------------------------------------
# A folder that was copied, or put back from a backup, is not the one that was marked.


def copied(folder: Path) -> Path:
    return shutil.copytree(folder, folder.with_name("copy"))


def altered(folder: Path) -> Path:
    (folder / MARK).write_text("?")
    return folder


def put_back_in_place(folder: Path) -> Path:
    """The mark of an earlier vote is written over the newest one, as `cp` does."""
    path = folder / MARK
    mark = json.loads(path.read_text())
    path.write_text(json.dumps({**mark, "changed": mark["changed"] - 3600}))
    return folder


def put_back_by_renaming(folder: Path) -> Path:
    """The mark of an earlier vote takes the place of the newest one, with its times, as `rsync` does."""
    path, earlier = folder / MARK, folder / "earlier"
    shutil.copy2(path, earlier)
    mark_original(folder)
    earlier.replace(path)
    return folder


@pytest.mark.parametrize("text", ["", "null", '{"inode": 1e999, "changed": 0}', "[" * 1024])
def test_a_damaged_mark_is_no_mark(tmp_path: Path, text: str) -> None:
    (tmp_path / "original").write_text(text)
    assert not is_original(tmp_path)


@pytest.mark.parametrize("change", [copied, altered, put_back_in_place, put_back_by_renaming])
def test_what_is_not_as_it_was_marked_is_no_original(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    assert is_original(folder), "nothing is known of a new one"
    mark_original(folder)
    assert is_original(folder)
    changed = change(folder)
    assert not is_original(changed)
    mark_original(changed)
    assert is_original(changed)


# ------------------------------------------------------------------------------------------------------------------------
# A log keeps its newest lines, whole and in order, and stays under its limit.


NAMES = ["some.log", "some.1.log", "some.2.log"]


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], NAMES])
def test_the_files_rotate_and_stay_under_their_limit(tmp_path: Path, names: list[str]) -> None:
    file = RotatingFile(tmp_path / "made", names, max_bytes=1000)
    for number in range(500):
        file.append(f"line {number}\n".encode())
    paths = [tmp_path / "made" / name for name in reversed(names)]
    assert sorted((tmp_path / "made").iterdir()) == sorted(paths)
    assert all(path.stat().st_size <= 1000 for path in paths)
    kept = [int(line.split()[1]) for path in paths for line in path.read_text().splitlines()]
    assert kept == list(range(kept[0], 500)) and len(kept) > 90 * (len(names) - 1)


# ------------------------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        write_atomically(path, content)
        assert path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_must_stay_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError("no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    write_atomically(tmp_path / "file", b"one", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"two", replace=False)
    assert (tmp_path / "file").read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("text", ["", "{", "\xff", "[" * 100_000, "9" * 5000, f'"{"x" * 2000}"'])
def test_a_damaged_file_has_no_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text, encoding="latin-1")
    assert read_json(path, 1000 if "x" in text else 1 << 20) is None
    path.write_text('{"a": 1}')
    assert read_json(path, 1000) == {"a": 1}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "some.json")
    assert read_json(tmp_path / "some.json", 1000) is None


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "file", b"one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_left_goes_and_what_another_one_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def look(descriptor: int) -> None:
        remove_left_overs(tmp_path)
        seen.append(os.listdir(tmp_path))

    (tmp_path / ".other.x.new").write_bytes(b"hal")
    (tmp_path / ".hidden").write_bytes(b"somebody's own")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", look)
        write_atomically(tmp_path / "file", b"one")
    being_written = [name for name in seen[0] if name.startswith(".file.") and name.endswith(".new")]
    assert sorted(seen[0]) == sorted([".hidden", *being_written]) and len(being_written) == 1
    assert sorted(os.listdir(tmp_path)) == [".hidden", "file"]


def test_a_file_taken_for_a_left_over_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Callable[..., tuple[int, str]] = tempfile.mkstemp
    made: list[str] = []

    def make_and_lose(*args: object, **names: object) -> tuple[int, str]:
        descriptor, path = make(*args, **names)
        made.append(path)
        if len(made) == 1:
            remove_left_overs(tmp_path)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", make_and_lose)
    write_atomically(tmp_path / "file", b"one")
    assert len(made) == 2 and os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"one"
