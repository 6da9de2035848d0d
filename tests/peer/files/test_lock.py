"""A lock between processes is held by one, says by whom, and ends with its holder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peer.files.lock import LockHeld, locked

HOLDER = (
    "import pathlib, sys\nfrom peer.files.lock import locked\n"
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
