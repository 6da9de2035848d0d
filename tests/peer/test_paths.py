"""The data directory is its user's alone: a folder that others can write in is refused."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from peer.errors import PeerError
from peer.paths import make_private, runtime_dir


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o772, 0o770, 0o720, 0o702, 0o1777, 0o2775, 0o3777, 0o733])
def test_a_folder_that_others_can_write_in_is_refused_with_the_remedy(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_group(monkeypatch, "staff", [])
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PeerError, match=rf"other users can write in the folder {folder}; run: chmod go-w {folder}"):
        make_private(folder)
    folder.chmod(mode & 0o755)
    assert make_private(folder) == folder


def has_group(monkeypatch: pytest.MonkeyPatch, name: str, members: list[str]) -> None:
    """Let our user's group, and the one of new folders, have this name and these members besides the user."""
    user = pwd.struct_passwd(("me", "x", os.getuid(), os.getgid(), "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(pwd, "getpwall", lambda: [user])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))


@pytest.mark.parametrize(
    ("name", "members", "is_taken"),
    [("me", [], True), ("me", ["me"], True), ("me", ["you"], False), ("staff", ["me"], False)],
)
def test_a_folder_that_its_group_writes_in_is_taken_if_the_group_is_its_user_alone(
    tmp_path: Path, name: str, members: list[str], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_group(monkeypatch, name, members)
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, -1, os.getgid())
    folder.chmod(0o775)
    if is_taken:
        assert make_private(folder) == folder
    else:
        with pytest.raises(PeerError, match="other users can write in the folder"):
            make_private(folder)
    folder.chmod(0o777)
    with pytest.raises(PeerError, match="other users can write in the folder"):
        make_private(folder)


def test_a_group_that_is_another_users_own_or_an_access_list_is_not_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_group(monkeypatch, "me", [])
    tmp_path.chmod(0o775)
    os.chown(tmp_path, -1, os.getgid())
    assert make_private(tmp_path) == tmp_path
    monkeypatch.setattr(os, "listxattr", lambda path: ["system.posix_acl_access"], raising=False)
    with pytest.raises(PeerError, match="other users can write"):
        make_private(tmp_path)
    monkeypatch.setattr(os, "listxattr", lambda path: [], raising=False)
    you = pwd.struct_passwd(("you", "x", os.getuid() + 1, os.getgid(), "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [you])
    with pytest.raises(PeerError, match="other users can write"):
        make_private(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o711])
def test_a_folder_that_only_its_user_writes_in_is_taken_as_it_is(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == mode


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    assert make_private(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


ORDINARY = 54321


def as_an_ordinary_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder belong to somebody who is not root, and us be that one."""
    if os.getuid() == 0:
        os.chown(folder, ORDINARY, ORDINARY)
        monkeypatch.setattr(os, "getuid", lambda: ORDINARY)


def test_a_folder_in_one_where_everybody_writes_is_refused_unless_that_one_is_sticky(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    (shared / "data").mkdir(parents=True)
    as_an_ordinary_user(shared / "data", monkeypatch)
    shared.chmod(0o777)
    with pytest.raises(PeerError, match="other users can replace the folder"):
        make_private(shared / "data")
    shared.chmod(0o1777)
    make_private(shared / "data")


def test_a_link_counts_as_the_folder_that_it_leads_to(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    make_private(tmp_path / "link")
    real.chmod(0o777)
    with pytest.raises(PeerError, match="other users can write"):
        make_private(tmp_path / "link")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_private(tmp_path / "data")
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(PeerError, match="belongs to another user; choose one of your own with --data-dir"):
        make_private(folder)


def test_root_takes_folders_of_others_as_containers_and_volumes_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o755)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    if os.geteuid() == 0:
        os.chown(volume, ORDINARY, ORDINARY)
    assert make_private(volume) == volume
    tmp_path.chmod(0o777)
    assert make_private(volume / "data") == volume / "data"
    volume.chmod(0o777)
    with pytest.raises(PeerError, match="other users can write"):
        make_private(volume)


def test_the_session_folder_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tmp_path / "session"
    session.mkdir()
    monkeypatch.delenv("PEER_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    me = os.getuid()
    assert runtime_dir() == session / "manyhands"
    monkeypatch.setattr("peer.paths.owner_of", lambda path: me + 1)
    assert runtime_dir() == tmp_path / f"manyhands-{me}"
