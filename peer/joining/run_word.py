"""Check of the word that names a run on the command line, before slow imports and before the terminal is taken.

The word is an invitation, a run file, a manifest, or the ID of a run of this data directory, or the beginning of that ID.
`peer.joining.run_source` opens what it names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from peer.errors import ExitCode, PeerError, told_as
from peer.paths import runs_dir
from protocol.run.invitation_text import body_in, looks_like_invitation
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES

MULTIADDR = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr|p2p)/")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
PEER_ID = re.compile(r"(12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{40,}")
LEAST_DIGITS = 8
"""Digits of a run ID that are needed where a word may also name a file."""
MOST_DIGITS = 2 * HASH_BYTES
MAX_SHOWN = 80


def check_word(word: str, data: Path) -> None:
    """Raise `PeerError` if the word cannot name a run; what it names is not opened."""
    if looks_like_invitation(word):
        with told_as(ExitCode.INPUT, Malformed):
            body_in(word)
        return
    if remedy := remedy_for(word):
        raise PeerError(remedy, ExitCode.INPUT)
    path = Path(word)
    if path.suffix == ".toml":
        try:
            path.stat()
        except OSError as error:
            raise PeerError(f"{path}: {error.strerror}; give the path of a run file", ExitCode.INPUT) from error
    elif not path.is_file():
        the_run(word, data)


def check_run_file(word: str) -> None:
    """Raise `PeerError` if the word does not name a run file, which is not opened."""
    if looks_like_invitation(word):
        raise PeerError("this is an invitation, not a run file; take part with `peer join INVITATION`", ExitCode.INPUT)
    if remedy := remedy_for(word):
        raise PeerError(remedy, ExitCode.INPUT)
    try:
        is_folder = Path(word).is_dir()
        Path(word).stat()
    except OSError as error:
        raise PeerError(f"{word[:MAX_SHOWN]}: {error.strerror}; give the path of a run file", ExitCode.INPUT) from error
    if is_folder:
        raise PeerError(
            f"{word} is a folder; give the path of a run file, such as {Path(word) / 'run.toml'}", ExitCode.INPUT
        )


def remedy_for(word: str) -> str:
    """Return what to do instead of giving `word`; "" if `word` may name a run."""
    shown = "".join(character for character in word if character.isprintable())[:120]
    if URL.match(word):
        return (
            f"{shown} is a web address, and nothing is fetched from the web; download it yourself and give the file, "
            "or give the invitation (mh1…) that stands there"
        )
    if MULTIADDR.match(word):
        return (
            f"{shown} is the address of a peer, which does not say which run; ask for an invitation, which its "
            "owner prints with `peer status --json` or `peer run invite`"
        )
    if HOST_AND_PORT.fullmatch(word):
        return (
            f"{shown} is an address, which does not say which run, nor who answers there; ask for an invitation, which "
            f"is printed there with `peer run invite --address {shown}`"
        )
    if PEER_ID.fullmatch(word):
        return f"{shown} is the ID of a peer, which does not say which run or where it is; ask for an invitation"
    return ""


def the_run(word: str, data: Path) -> str:
    """Return the ID of the only stored run whose ID begins with `word`.  Raises `PeerError`."""
    is_id = bool(word) and len(word) <= MOST_DIGITS and set(word) <= set("0123456789abcdef")
    if is_id and len(word) < LEAST_DIGITS:
        raise PeerError(
            f"{word} is not a file, and too short for a run ID; give at least the first {LEAST_DIGITS} digits of an ID that "
            "`peer runs` lists",
            ExitCode.INPUT,
        )
    stored = runs_dir(data).glob(f"{word}*/manifest") if is_id else ()
    found = sorted(path.parent.name for path in stored if len(path.parent.name) == MOST_DIGITS)
    if len(found) > 1:
        raise ambiguous(word, found)
    if not found:
        raise PeerError(
            f"{word[:MAX_SHOWN]} is {'a folder' if Path(word).is_dir() else 'not a file'}, not an invitation and not a run "
            "in the data directory; give an invitation, a run file or the ID of a run that `peer runs` lists",
            ExitCode.INPUT,
        )
    return found[0]


def chosen_folder(word: str | None, data: Path, holding: str = "manifest", *, or_folder: bool = False) -> Path:
    """Return the folder of the run whose ID begins with `word`; default: the running run, else the latest one.

    holding: file that a folder must contain to count.  or_folder: True if the word could also have named a folder, but does
    not.
    Raises `PeerError`.
    """
    from peer.control.client import running_status

    running = running_status(data) if word is None else None
    beginning = word or (running.run if running is not None else "")
    runs = [path.parent for path in runs_dir(data).glob(f"*/{holding}") if path.parent.name.startswith(beginning)]
    if not runs and word:
        which = f"neither a folder nor a run in {data}" if or_folder else f"not a run in {data}"
        raise PeerError(f"{word[:MAX_SHOWN]} is {which}; `peer runs` lists the runs", ExitCode.INPUT)
    if not runs:
        raise PeerError(f"there is no run in {data}; join one with `peer join`", ExitCode.INPUT)
    if word is not None and len(runs) > 1:
        raise ambiguous(word, [path.name for path in runs])
    return max(runs, key=lambda path: path.stat().st_mtime)


def ambiguous(beginning: str, runs: Sequence[str]) -> PeerError:
    """Return the refusal of a beginning that several runs share, with the number of digits that tells all of them apart."""
    digits = next(count for count in range(MOST_DIGITS + 1) if len({run[:count] for run in runs}) == len(runs))
    return PeerError(f"{len(runs)} runs begin with {beginning}; give {digits} digits of the run ID", ExitCode.INPUT)
