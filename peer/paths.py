"""Paths of a peer's files on this computer.

* data directory: identity, control socket, runs and their logs.  `--data-dir`, else PEER_DATA_DIR, else the user's data
  folder.  One running peer per data directory.
* runtime directory: shared by the peers of this computer (addresses, cores, the usual port), and empty after a restart of
  the computer.  PEER_RUNTIME_DIR, else XDG_RUNTIME_DIR, else a folder of this user in the temp folder.

This module decides only names and permissions; it neither reads nor writes contents.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import tempfile
from pathlib import Path

from peer.errors import ExitCode, PeerError

CORPORA, BLOCKS, FILES = "corpora", "blocks", "files"
"""Folders in a run's folder: links to the corpora that this computer has, blocks of the others, and the run's files."""
SCRATCH = "scratch"
"""Folder in a run's folder with the files that a peer uses in place of memory while it runs."""
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


OVERFLOW_UID = 65534
"""Apparent owner of all files from outside a container with its own users."""
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def data_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """Return the absolute path of the data directory, without creating it.  option: value of --data-dir.

    Raises `PeerError` if it is a file.
    """
    chosen = option or os.environ.get("PEER_DATA_DIR")
    if chosen:
        folder = Path(os.path.expanduser(chosen)).absolute()
        if folder.is_file():
            raise PeerError(f"{folder} is a file; name a folder with --data-dir", ExitCode.RESOURCES)
        return folder
    import platformdirs  # only when needed: `peer --help` must be quick

    return Path(platformdirs.user_data_dir("manyhands", appauthor=False)).absolute()


def make_private(folder: Path) -> Path:
    """Create `folder` if it is missing, for this user only; raises `PeerError`.

    An existing folder must belong to this user, and no other user may be able to write in it, because such a user could
    replace the settings, the identity or the control socket.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found, link = folder.stat(), folder.lstat()
    except OSError as error:
        raise PeerError(
            f"cannot create the folder {folder}: {error.strerror}; choose another one with --data-dir",
            ExitCode.RESOURCES,
        ) from error
    if link.st_uid not in (0, os.getuid()):
        found = link
    if (flaw := _flaw_of(folder, found)) is not None:
        raise PeerError(flaw, ExitCode.RESOURCES)
    return folder


def must_be_writable(folder: Path) -> Path:
    """Return the data directory if a file can be made in it; raises `PeerError`."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable.", suffix=".new"):
            return folder
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise PeerError(
            f"the data directory {folder} is read-only for this user ({error.strerror}); let this user write there, or "
            "choose another one with --data-dir",
            ExitCode.RESOURCES,
        ) from error


def _flaw_of(folder: Path, found: os.stat_result) -> str | None:
    """Return a sentence with the remedy if another user owns the folder, or can write in it or replace it."""
    is_root = os.getuid() == 0  # root may write everywhere, and owns others' folders in containers, with sudo and on volumes
    if found.st_uid != os.getuid() and not is_root:
        return f"the folder {folder} belongs to another user; choose one of your own with --data-dir"
    is_ours_alone = _is_private_group(found.st_gid) and not _has_access_list(folder)
    others = stat.S_IWOTH if is_ours_alone else WRITABLE_BY_OTHERS
    if found.st_mode & others:
        return f"other users can write in the folder {folder}; run: chmod go-w {folder}"
    if is_root:
        return None
    for parent in folder.absolute().resolve().parents:
        above = parent.stat()
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            return f"other users can replace the folder {folder}, because they can write in {parent}; run: chmod o-w "
            f"{parent}"
        if above.st_uid not in (0, os.getuid(), OVERFLOW_UID):
            return f"the folder {folder} lies in {parent}, which belongs to another user; choose another one with --data-dir"
    return None


def _is_private_group(gid: int) -> bool:
    """Return True for a group with this user alone: many systems make one for each user, and let it write in new folders."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    others = {each.pw_name for each in pwd.getpwall() if each.pw_gid == gid} | {*group.gr_mem}
    return gid == user.pw_gid and group.gr_name == user.pw_name and others <= {user.pw_name}


def _has_access_list(folder: Path) -> bool:
    """Return True if the folder has an access list (POSIX ACL), whose mask then appears as the group's permissions."""
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except (AttributeError, OSError):  # macOS has no such call, some file systems have no attributes
        return False


def owner_of(path: str) -> int:
    """Return the ID of the user that owns a folder."""
    return os.stat(path).st_uid


def runtime_dir() -> Path:
    """Return the runtime directory, created if it is missing; raises `PeerError` if another user owns it."""
    chosen = os.environ.get("PEER_RUNTIME_DIR")
    if chosen:
        return make_private(Path(os.path.expanduser(chosen)).absolute())
    session = os.environ.get("XDG_RUNTIME_DIR")
    if (
        session and os.access(session, os.W_OK) and owner_of(session) == os.getuid()
    ):  # otherwise the variable is left over from before `su`
        return make_private(Path(session) / "manyhands")
    folder = make_private(Path(tempfile.gettempdir()) / f"manyhands-{os.getuid()}")
    found = folder.lstat()  # every user can write in the temp folder: our folder must belong to us, and must not be a link
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PeerError(
            f"the folder {folder} is not private to this user; remove it or set PEER_RUNTIME_DIR", ExitCode.RESOURCES
        )
    return folder


def runs_dir(data: Path) -> Path:
    """Return the folder of all runs, which has a folder for each run."""
    return data / "runs"


def run_dir(data: Path, run: bytes) -> Path:
    """Return the folder of a run's records, results and checkpoints."""
    return runs_dir(data) / run.hex()


def manifest_file(data: Path, run: bytes) -> Path:
    """Return the path of a run's signed manifest."""
    return run_dir(data, run) / "manifest"
