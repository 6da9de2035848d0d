"""Sources of a run: a run file, a signed manifest, an invitation, or the data directory of this peer.

This module decides which run a word on the command line names, and keeps signed manifests on disk.  `protocol.run.manifest`
and `protocol.run.invitation` define their contents.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.addresses import multiaddr_of
from peer.control.client import running_status
from peer.corpora.inputs import HUB
from peer.corpora.run_data import names_corpora
from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from peer.joining.run_word import check_word, chosen_folder, the_run
from peer.keyfile import load_or_create_identity
from peer.paths import make_private, manifest_file
from peer.settings.values import USUAL_PORT
from peer.weights.brought import Brought, Tell, brought_by, sketched, tell_of_mismatches
from protocol.run.invitation import Invitation, read_invitation
from protocol.run.invitation_text import looks_like_invitation
from protocol.run.manifest import MAX_MANIFEST_BYTES, RunManifest, SignedManifest, open_manifest, sign
from protocol.run.run_file import RunFileError, load_run_file, sections_of, sketch_run_file
from protocol.transport.addresses import announced_addresses
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from trainer.environments.registry import check_named, files_of

# ------------------------------------------------------------------------------------------------------------------------
# Check that the environment of a run with rollouts exists and can read the run's files.


def environment_problem(manifest: RunManifest) -> str | None:
    """Return a sentence if no peer could open the run's environment; None if it can be opened, or there is none."""
    rl = manifest.rl
    if rl is None:
        return None
    try:
        check_named(rl.environment, rl.problems)
    except ValueError as error:
        return f"[rl] environment: {error}"
    unknown = {path for path, _ in files_of(rl.environment)} ^ {file.path for file in rl.files}
    if unknown:
        told = ", ".join(sorted(unknown))
        return (
            f"[rl] files differ from the files that the environment reads ({told}); remove files from [rl], because they "
            "follow from the environment"
        )
    return None


# ------------------------------------------------------------------------------------------------------------------------


DEFAULT_PORT = USUAL_PORT
"""TCP port on which a peer listens by default."""
MAX_OWN_ADDRESSES = 8
BUILT = "corpora"
"""Folder in the data directory for corpora that were built for run files."""


def create_run(path: Path, data: Path, tell: Tell = lambda what, about: None) -> SignedManifest:
    """Sign the run file as its organiser, and store the manifest and the run file's data in the data directory.

    tell: called with remarks on the run's chats, tasks and model.
    """
    signed, start = checked_run(path, data, tell)
    store_manifest(signed, data)
    if start is not None:
        start.keep(signed, data)
    return signed


def checked_run(path: Path, data: Path, tell: Tell = lambda what, about: None) -> tuple[SignedManifest, Brought | None]:
    """Return the run of a run file, signed as ours and not stored, and the run file's data, after all checks.

    What can be checked without corpora is checked before they are built.  tell: as for `create_run`.
    """
    identity = load_or_create_identity(data)
    start = brought_by(path, data / BUILT, lambda sketch: _load(path, identity.peer_id, sketch))
    signed = sign(identity, _load(path, identity.peer_id, start))
    if start is not None:
        start.check(signed.manifest, tell)
    tell_of_mismatches(signed.manifest, tell)
    return signed, start


def _load(path: Path, organiser: PeerId, start: Brought | None) -> RunManifest:
    """Return the run of a run file.  Raises `RunFileError`, also if no peer could open its environment."""
    manifest = load_run_file(path, organiser, start)
    problem = environment_problem(manifest)
    if problem is not None:
        raise RunFileError(f"{path.name}: {problem}")
    return manifest


def unbuilt(word: str, data: Path) -> RunManifest | None:
    """Return the run of a run file whose corpora are built from data sets of Hugging Face, without them; else None.

    Building a large corpus takes hours, and a command that only shows a run's needs must not wait for it.
    """
    path = Path(word)
    if path.suffix != ".toml" or not path.is_file():
        return None
    sections = sections_of(path)
    data_section = sections.get("data", {})
    named = [data_section, *data_section.get("sources", [])] if names_corpora(data_section) else []
    is_far = any(str(each.get("from", "")).startswith(HUB) for each in named if isinstance(each, dict))
    if not is_far:
        return None
    organiser, tokenizer = load_or_create_identity(data).peer_id, sections.get("tokenizer", {}).get("from")
    if isinstance(tokenizer, str) and not (path.parent / os.path.expanduser(tokenizer)).exists():
        return sketch_run_file(path, organiser)  # what the run needs can be told without it
    return _load(path, organiser, sketched(path))


def start_of(path: Path, data: Path) -> Brought | None:
    """Return the data that comes with a run file, if any (`peer.weights.brought`).  Raises `PeerError` or `RunFileError`.

    data: data directory, in which corpora are built.
    """
    return brought_by(path, data / BUILT)


def store_manifest(signed: SignedManifest, data: Path) -> None:
    """Store a manifest; storing the same one again changes nothing."""
    path = manifest_file(data, signed.run)
    make_private(path.parent)
    write_atomically(path, signed.raw)


def stored_manifest(run: Hash, data: Path) -> SignedManifest | None:
    """Return the manifest of a run that this data directory knows; raises `PeerError` if the file is damaged."""
    path = manifest_file(data, run)
    if not path.exists():
        return None
    signed = read_manifest(path)
    if signed.run != run:
        raise PeerError(f"{path} is the manifest of another run; remove it", ExitCode.INPUT)
    return signed


def read_manifest(path: Path) -> SignedManifest:
    """Return the signed manifest in a file; raises `PeerError`."""
    with path.open("rb") as file:
        raw = file.read(MAX_MANIFEST_BYTES + 1)
    try:
        return open_manifest(raw)
    except Malformed as error:
        reason = f" ({error})" if _is_message(raw) else ""
        raise PeerError(
            f"{path} is not a signed manifest{reason}; give a run file ending in .toml, a manifest written by "
            "`peer run create RUN.toml --out FILE`, or an invitation",
            ExitCode.INPUT,
        ) from error


def _is_message(raw: bytes) -> bool:
    """Return True if bytes have the form of a message, so that a reason for their refusal helps."""
    try:
        return isinstance(canonical.decode(raw, max_bytes=MAX_MANIFEST_BYTES), dict | list)
    except Malformed:
        return False


def find_run(word: str, data: Path, *, founding: bool = False) -> SignedManifest | Invitation:
    """Return the run named by `word`.  Raises `PeerError`, `Malformed` or `RunFileError`.

    word: an invitation, a run file (signed as ours, not stored), a manifest, or a stored run's ID, which may be shortened to
    its first 8 or more digits.  founding: the run is about to be joined, so the run file's data is kept in the data
    directory.
    """
    check_word(word, data)
    if looks_like_invitation(word):
        return read_invitation(word)
    path = Path(word)
    if path.suffix == ".toml":
        signed, start = checked_run(path, data)
        if founding and start is not None:
            start.keep(signed, data)
        return signed
    if path.is_file():
        return read_manifest(path)
    return read_manifest(manifest_file(data, bytes.fromhex(the_run(word, data))))


def chosen_run(word: str | None, data: Path, *, or_folder: bool = False) -> SignedManifest:
    """Return the stored run whose ID begins with `word`; default: the running or the latest run.  Raises `PeerError`.

    or_folder: True if the word could also have named a folder, but does not.
    """
    return read_manifest(chosen_folder(word, data, or_folder=or_folder) / "manifest")


def dialable(addresses: Sequence[str], peer: PeerId, port: int) -> list[str]:
    """Return the addresses for an invitation: the given ones with our peer ID at their ends, else this computer's own.

    addresses: multiaddrs, or HOST[:PORT]; `port` is the default.  Raises PeerError.
    """
    try:
        chosen = [multiaddr_of(address, port) for address in addresses] or own_addresses(port)
    except ValueError as error:
        raise PeerError(f"--address: {error}", ExitCode.INPUT) from error
    return [address if "/p2p/" in address else f"{address}/p2p/{peer}" for address in chosen]


def own_addresses(port: int) -> list[str]:
    """Return the multiaddrs at which a peer here listens (IPv4), best first; loopback if there is no other."""
    found = [address for address in announced_addresses() if ":" not in address]
    return [f"/ip4/{address}/tcp/{port}" for address in found[:MAX_OWN_ADDRESSES]] or [f"/ip4/127.0.0.1/tcp/{port}"]


def named_run(word: str, data: Path) -> SignedManifest:
    """Return the run that `word` names as `find_run` does; of an invitation, the stored manifest.  Raises `PeerError`."""
    found = find_run(word, data)
    signed = stored_manifest(Hash(found.run), data) if isinstance(found, Invitation) else found
    if signed is None:
        raise PeerError(
            "an invitation does not contain the run's manifest; give the run ID or a manifest file", ExitCode.INPUT
        )
    return signed


def organised_runs(data: Path, organiser: PeerId) -> list[SignedManifest]:
    """Return the runs that this data directory knows and `organiser` signed; damaged manifests are skipped."""
    found = []
    for path in sorted(data.glob("runs/*/manifest")):
        with suppress(PeerError):
            signed = read_manifest(path)
            if signed.manifest.organiser == organiser:
                found.append(signed)
    return found


# ------------------------------------------------------------------------------------------------------------------------
# Runs whose manifests this data directory keeps, with facts for a person.


@dataclass(frozen=True)
class KnownRun:
    """A stored run.

    rounds: number of records on disk.  disk_bytes: size of all the run's files.  last: time of the latest change, in unix
    seconds.  problem: reason why the manifest cannot be read; empty if it can be read.
    """

    run: str
    name: str
    rounds: int
    disk_bytes: int
    last: float
    running: bool
    problem: str = ""


def known_runs(data: Path) -> list[KnownRun]:
    """Return the stored runs: the running one first, then by the time of the last change.  Blocking; changes nothing."""
    status, found = running_status(data), []
    for manifest in data.glob("runs/*/manifest"):
        folder, name, problem = manifest.parent, "", ""
        try:
            name = read_manifest(manifest).manifest.name
        except (PeerError, OSError) as error:
            problem = str(error)
        size, last = 0, 0.0
        for path in folder.rglob("*"):
            with suppress(OSError):  # a running peer has just removed it
                if path.is_file():
                    stat = path.stat()
                    size, last = size + stat.st_size, max(last, stat.st_mtime)
        rounds = sum(path.name.isdigit() for path in (folder / "records").rglob("*"))
        running = status is not None and folder.name == status.run
        found.append(KnownRun(folder.name, name, rounds, size, last, running, problem))
    return sorted(found, key=lambda each: (each.running, each.last), reverse=True)
