"""The reader of folders that come from others: regular files in the folder, up to a limit, and nothing else."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.outside_files import UnusableFile, named_file, open_outside, read_outside

LIMIT = 100
HASH = "0123456789abcdef" * 4


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder beside a secret, with a file, a hidden file and a folder inside."""
    (tmp_path / "secret").write_text("THE-SECRET")
    made = tmp_path / "folder"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "real.txt").write_text("real")
    (made / ".hidden").write_text("THE-SECRET")
    yield made
    (made / "file").unlink(missing_ok=True)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def _links(path: Path, name: str, target: str, second: str) -> None:
    """Make a link beside the path, and then the path a link through it."""
    (path.parent / name).symlink_to(target)
    path.symlink_to(second)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(path.parent)  # a socket's path has at most 108 bytes
        bound.bind(path.name)


OUT, IRREGULAR = "it is a link that leads out of the folder", "it is not a regular file"
ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (lambda path: path.symlink_to(path.parent.parent / "secret"), OUT),
    "link with a way back": (lambda path: path.symlink_to("inner/../../secret"), OUT),
    "link to a link": (lambda path: _links(path, "next", "../secret", "next"), OUT),
    "link through a linked folder": (lambda path: _links(path, "up", "..", "up/secret"), OUT),
    "link to a hidden file": (lambda path: path.symlink_to(".hidden"), OUT),
    "environment of the process": (lambda path: path.symlink_to("/proc/self/environ"), OUT),
    "device": (lambda path: path.symlink_to("/dev/zero"), OUT),
    "dangling link out": (lambda path: path.symlink_to("/nowhere/at/all"), OUT),
    "link to the folder": (lambda path: path.symlink_to("."), "it is a link to its folder"),
    "folder": (lambda path: path.symlink_to("inner"), IRREGULAR),
    "pipe": (lambda path: os.mkfifo(path), IRREGULAR),
    "link to itself": (lambda path: path.symlink_to(path.name), os.strerror(errno.ELOOP)),
    "sparse file": (_sparse, f"it has over {LIMIT} bytes"),
    "nothing": (lambda path: None, os.strerror(errno.ENOENT)),
    "socket": (_socket, os.strerror(errno.ENXIO)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_only_regular_files_in_the_folder_are_read(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    make, reason = ATTACKS[name]
    make(folder / "file")
    with pytest.raises(OSError) as refused:
        read_outside(folder / "file", LIMIT)
    assert (refused.value.strerror, refused.value.filename) == (reason, str(folder / "file"))


@pytest.mark.parametrize("target", ["inner/real.txt", "../folder/inner/real.txt"])
def test_links_inside_the_folder_are_followed(target: str, folder: Path) -> None:
    (folder / "file").symlink_to(target)
    assert read_outside(folder / "file", LIMIT) == b"real"


def test_a_file_in_a_linked_folder_is_outside_of_what_was_named(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "a.txt").write_text("THE-SECRET")
    (folder / "file").symlink_to("../other")
    with pytest.raises(UnusableFile, match=OUT):
        read_outside(folder / "file" / "a.txt", LIMIT, folder)


def test_a_person_may_name_a_link_to_a_file_or_folder(folder: Path) -> None:
    (folder.parent / "link").symlink_to("folder")
    (folder.parent / "data").symlink_to("folder/inner/real.txt")
    assert read_outside(folder.parent / "link" / "inner" / "real.txt", LIMIT, folder.parent / "link") == b"real"
    assert read_outside(named_file(folder.parent / "data"), LIMIT) == b"real"


@pytest.mark.parametrize("below", ["", "data"])
def test_snapshots_of_the_hubs_cache_lead_to_the_blobs_beside_them(below: str, tmp_path: Path) -> None:
    base = tmp_path / "models--o--n"
    snapshot, blobs = base / "snapshots" / "main", base / "blobs"
    (snapshot / below).mkdir(parents=True)
    blobs.mkdir()
    (blobs / HASH).write_text("blob")
    (snapshot / below / "config.json").symlink_to(os.path.relpath(blobs / HASH, snapshot / below))
    assert read_outside(snapshot / below / "config.json", LIMIT) == b"blob"
    assert read_outside(snapshot / below / "config.json", LIMIT, snapshot) == b"blob"


@pytest.mark.parametrize(
    "target", ["../../blobs/notes", f"../../blobs/{HASH}", f"../../other/{HASH}", f"../../blobs/inner/{HASH}", "../../refs"]
)
def test_other_links_of_the_cache_are_refused(target: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "main"
    for name in ("blobs/inner", "other", "snapshots/main"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in ("secret", "refs", "blobs/notes", f"other/{HASH}", f"blobs/inner/{HASH}"):
        (tmp_path / name).write_text("THE-SECRET")
    (tmp_path / "blobs" / HASH).symlink_to("../secret")
    (snapshot / "config.json").symlink_to(target)
    with pytest.raises(UnusableFile, match=OUT):
        read_outside(snapshot / "config.json", LIMIT)


@pytest.mark.parametrize("swapped", ["inner", "inner/real.txt"])
def test_a_link_put_in_place_after_the_check_is_not_followed(
    swapped: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker acts between the resolution of the path and the first opening."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "real.txt").write_text("THE-SECRET")
    opened, path, done = os.open, folder / swapped, list[str]()

    def swap_and_open(place: str | Path, *words: int, **more: int) -> int:
        if not done:
            done.append(swapped)
            path.rename(folder / "away")
            path.symlink_to(outside if swapped == "inner" else outside / "real.txt")
        return opened(place, *words, **more)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        open_outside(folder / "inner" / "real.txt", folder)
    assert done
