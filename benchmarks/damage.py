"""Damage to each kind of file of a data directory, and the reaction of a real peer at its next start.

A peer is stopped after some rounds.  For each kind of file and each damage, its data directory is restored, the files of the
kind are damaged, and the peer is started again: alone in its run, or beside another one.  It either commits another round,
or ends with a sentence.  `python -m benchmarks.damage [--beside] [--json] [KIND...]`
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from protocol.events import events as ev
from tests.e2e.swarm import TINY_MODEL, Peer, Swarm

RUN = f"{TINY_MODEL}\n[rounds]\ninner_steps = 10\ngrace_s = 3.0\neviction_s = 8.0\nstall_s = 4.0\n"
ROUNDS = 4
PATIENCE_S = 120.0
IN_RUN = "runs/*/"
KINDS: dict[str, tuple[str, ...]] = {
    "identity": ("identity.pem",),
    "incarnation": ("incarnation",),
    "name": ("name",),
    "traffic of the month": ("month.json",),
    "contacts": (IN_RUN + "contacts.json",),
    "addresses": (IN_RUN + "addresses.json",),
    "history": (IN_RUN + "history.json",),
    "log of events": (IN_RUN + "events.jsonl",),
    "log of the trainer": (IN_RUN + "trainer.log",),
    "mark of the original": (IN_RUN + "original",),
    "manifest of the run": (IN_RUN + "manifest",),
    "newest votes": (IN_RUN + "votes/*",),
    "first record": (IN_RUN + "records/00000000",),
    "newest record": (IN_RUN + f"records/{ROUNDS - 1:08}",),
    "all results": (IN_RUN + "results/*",),
    "file of the run": (IN_RUN + "files/*.blob",),
    "hashes of that file": (IN_RUN + "files/*.leaves",),
    "moments": (IN_RUN + "moments.safetensors",),
    "shards of a corpus": ("corpora/*/shards/*.shard",),
    "hashes of shards": ("corpora/*/shards/*.leaves",),
    "manifest of a corpus": ("corpora/*/corpus.msgpack",),
    "digest of a corpus": ("corpora/*/corpus.digest",),
}


def zero(path: Path) -> None:
    """Overwrite a file with zeros."""
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    """Keep the first half of a file."""
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    raw = bytearray(path.read_bytes())
    if raw:
        raw[len(raw) // 2] ^= 0x40
    path.write_bytes(raw)


def make_folder(path: Path) -> None:
    """Put a folder in the place of a file."""
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {"zeros": zero, "cut": cut, "flipped bit": flip, "folder": make_folder}


@dataclass(frozen=True)
class Outcome:
    """State of a peer after damage.

    goes_on: it committed another round.  ended: it left.  said: its sentences about the damage.
    """

    kind: str
    damage: str
    files: int
    goes_on: bool
    ended: bool
    said: str

    @property
    def is_good(self) -> bool:
        """True if the peer repaired the damage, or ended with one foreseen sentence, but not if it only waits."""
        return self.goes_on or (self.ended and bool(self.said) and "unexpected" not in self.said)


WORDS = ("damaged", "not used", "cannot be", "begin again", "set aside", "copied", "not kept", "is not here", "again")


class Patient:
    """A peer whose data directory is damaged again and again."""

    def __init__(self, swarm: Swarm, peer: Peer, others: Sequence[Peer] = ()) -> None:
        self._swarm, self._peer, self._others = swarm, peer, others
        self._kept = swarm.folder / "kept"
        self._options = ("--only-copy",)

    def keep(self) -> None:
        """Begin the run, and keep the data directory of some rounds later."""
        for each in (self._peer, *self._others):
            each.start()
        self._swarm.until(
            "the first rounds", lambda: self._peer.committed >= ROUNDS and self._peer.heard(ev.RoundCommitted), 300
        )
        self._peer.leave()
        shutil.copytree(self._peer.folder, self._kept, symlinks=True)

    def outcome(self, kind: str, damage: str) -> Outcome | None:
        """Return the peer's outcome after this damage; None if there is no such file."""
        shutil.rmtree(self._peer.folder)
        shutil.copytree(self._kept, self._peer.folder, symlinks=True)
        paths = [path for glob in KINDS[kind] for path in sorted(self._peer.folder.glob(glob))]
        if kind == "newest votes":
            paths = paths[-1:]
        paths = [path for path in paths if path.is_file() and not path.is_symlink()]
        for path in paths:
            DAMAGE[damage](path)
        if not paths:
            return None
        (self._peer.folder / "output.log").unlink(missing_ok=True)
        logs = {path: path.stat().st_size for path in self._peer.folder.glob(IN_RUN + "trainer.log") if path.is_file()}
        self._peer.start(*self._options)
        peer = self._peer
        with suppress(AssertionError):  # it waits, or ended with an unforeseen error: the log says which
            self._swarm.until(f"{damage} in {kind}", lambda: not peer.up or bool(peer.heard(ev.RoundCommitted)), PATIENCE_S)
        goes_on, ended = peer.up and bool(peer.heard(ev.RoundCommitted)), not peer.up
        said = "; ".join(dict.fromkeys(self._told(logs)))
        if peer.up:
            peer.kill()
        else:
            peer.wait()
        return Outcome(kind, damage, len(paths), goes_on, ended, said)

    def _told(self, logs: dict[Path, int]) -> Iterator[str]:
        for event in self._peer.events:
            if isinstance(event, ev.Notice) and event.level == "warning":
                yield event.text
            elif isinstance(event, ev.RolledBack):
                yield f"went back to round {event.to_round}"
            elif isinstance(event, ev.Left) and event.problem:
                yield event.problem
        if self._peer.up and not self._peer.heard(ev.RoundCommitted):
            yield f"{self._peer.status()['why_idle']}: {self._peer.status()['why_detail']}"
        if not self._peer.up:
            yield from (line for line in self._peer.log.splitlines()[-3:] if line.startswith("peer: "))
        for path in self._peer.folder.glob(IN_RUN + "trainer.log"):
            if path.is_file():
                new = path.read_bytes()[logs.get(path, 0) :].decode(errors="replace")
                yield from (f"trainer: {line}" for line in new.splitlines() if any(word in line for word in WORDS))


def outcomes(
    folder: Path, kinds: Sequence[str], damages: Sequence[str] = tuple(DAMAGE), *, beside: bool = False
) -> Iterator[Outcome]:
    """Damage each of these kinds in each of these ways; yield the peer's outcomes.

    beside: another peer has the run as well.
    """
    with Swarm(folder, RUN) as swarm:
        swarm.create_run("patient")
        peer = swarm.peer("patient")
        patient = Patient(swarm, peer, [swarm.peer("other")] if beside else [])
        patient.keep()
        for kind in kinds:
            for damage in damages:
                if (found := patient.outcome(kind, damage)) is not None:
                    yield found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds of files; all without any")
    parser.add_argument("--beside", action="store_true", help="another peer has the run as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each outcome")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for found in outcomes(Path(folder), args.kinds or list(KINDS), beside=args.beside):
            said = found.said.replace(folder, "…")
            if args.json:
                print(json.dumps({**asdict(found), "said": said, "is_good": found.is_good}), flush=True)
            else:
                end = "goes on" if found.goes_on else "ends" if found.ended else "waits"
                print(f"| {found.kind} | {found.damage} | {end} | {said[:300]} |", flush=True)


if __name__ == "__main__":
    main()
