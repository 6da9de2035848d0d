"""Memory and time of a peer's passes over the outer state, in memory and in files: `python -m benchmarks.peer_memory`.

For each place of the state, one process with the modules of a real peer does a peer's work of one round, with the same
classes, on files of the full size: it names the state, commits to a contribution, averages the contributions of two members
into a result, checks the result and applies it, writes a checkpoint, loads it again, and serves it to others.  The trainer's
part is played by the same process, before each phase and outside of its time: it writes the first parameters and the
contribution.  The other member's contribution is our own.

The memory is the kernel's: the sum of RssAnon, RssFile and RssShmem, sampled every 2 ms, and VmHWM for the whole life.  The
system can take back the memory in `file` at any time, but the memory in `shmem` and `anon` only with swap.

--cold drops the system's cache of the files before each phase, as on a computer whose memory is needed for other things.
Prints a table; with --json, one object on the last line.  Fails if the digests differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import resident
from kernels.aggregate import aggregate
from peer.resources.computer import StatePlace, memory_need
from protocol.allreduce.assignment import contribution_leaves
from protocol.chain.outer_state import OuterState, SharedRegion
from protocol.chain.records import index_root
from protocol.chain.replica import Replica, ReplicaShelf
from protocol.chain.results import CheckpointName, ResultName
from protocol.chain.store import Store
from protocol.disk import ScratchFolder, let_go
from protocol.run.manifest import RunManifest, SignedManifest, sign
from protocol.run.run_file import parse_run_file
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import Identity
from protocol.wire.messages import ChunkEntry, Commit, Record, mask_of, member_of, pack
from protocol.wire.presence import Role
from tests.attacks.forgeries import certificate
from tests.protocol.peers import a_first_ready

ORGANISER = Identity.from_seed(bytes(32))
SAMPLE_S = 0.002
KINDS = ("RssAnon", "RssFile", "RssShmem")
QUICK, REAL = 150_000_000, 1_500_000_000


def run_of(parameters: int) -> SignedManifest:
    """Return a run whose model has the first number of layers with at least `parameters`."""
    shape = "dim = 1024\nheads = 16" if parameters < 500_000_000 else "dim = 2048\nheads = 16\nkv_heads = 8"
    for layers in range(1, 1000):
        head = f'name = "peer memory"\nfounders = "anyone"\n[model]\n{shape}\nlayers = {layers}\n'
        manifest: RunManifest = parse_run_file(head, ORGANISER.peer_id)
        if manifest.parameters >= parameters:
            return sign(ORGANISER, manifest)
    raise SystemExit(f"no model of {parameters} parameters is made here")


# ------------------------------------------------------------------------------------------------------------------------
# The measured process.  It tells the beginning and the end of each phase on its standard output.


class PeerUnderTest:
    """A peer's state, disk and contribution, with no network."""

    def __init__(self, parameters: int, place: StatePlace, folder: Path, *, cold: bool) -> None:
        import_module("libp2p")
        import_module("peer.daemon.participation")
        self.signed = run_of(parameters)
        self.folder, self.cold = folder, cold
        self.store = Store(folder / "run")
        scratch = ScratchFolder(self.store.disk, folder / "run" / "scratch") if place is StatePlace.DISK else None
        self.state = OuterState(self.signed.manifest, scratch)
        self.replica = Replica.open(self.signed, self.store, self.state)
        self.payload = self.replica.layouts.result.payload_bytes
        self.contribution = SharedRegion(self.payload, "contribution", scratch)
        self.digests: list[str] = []

    def work(self) -> None:
        """Do one round, phase by phase."""
        self._fill_theta()
        with self._phase("name the state"):
            before = self.state.digest()
        self._fill_contribution()
        with self._phase("commit to the contribution"):
            contribution_leaves(ORGANISER.peer_id, self.contribution.view, self.replica.layouts.contribution)
        with self._phase("average two members"):
            commit = self._commit(before)
        with self._phase("apply the result"):
            self._apply(commit)
        name = CheckpointName(1, self.replica.history.tip)
        with self._phase("write a checkpoint"):
            self.store.checkpoints.write(name, self.state.leaves(), self.state.view)
        with self._phase("load the checkpoint"):
            view = self.store.checkpoints.view(name)
            assert view is not None
            self.state.load(view, 1)
            assert self.state.digest().hex() == self.digests[-1]
        with self._phase("serve the checkpoint"):
            held = ReplicaShelf(self.replica).find(Hash(bytes.fromhex(self.digests[-1])))
            assert held is not None
            assert all(held.read(chunk) is not None for chunk in range(held.count))
        print(json.dumps({"digests": self.digests}), flush=True)

    def _phase(self, name: str) -> TimedPhase:
        if self.cold:
            for path in (path for path in self.folder.rglob("*") if path.is_file()):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return TimedPhase(name)

    def _fill_theta(self) -> None:
        random, theta = np.random.default_rng(7), self.state.theta
        for span in self.replica.layouts.contribution:
            part = theta[4 * span.start : 4 * (span.start + span.count)]
            np.frombuffer(part, np.float32)[:] = 0.02 * random.standard_normal(span.count, np.float32)
            let_go(part)

    def _fill_contribution(self) -> None:
        random = np.random.default_rng(8)
        layout = self.replica.layouts.contribution
        for span in layout:
            part = self.contribution.view[span.encoded]
            layout.format.encode(0.001 * random.standard_normal(span.count, np.float32), part)
            let_go(part)

    def _commit(self, before: Hash) -> Commit:
        """Average as `protocol.allreduce.runner` does, chunk by chunk, and put the record of the result on disk."""
        manifest, base, (codec, layout, averaged) = self.signed.manifest, self.replica.base, self.replica.layouts
        file, entries = self.store.results.make(self.payload), []
        for span, place in zip(layout, averaged, strict=True):
            own, mean = self.contribution.view[span.encoded], bytearray(place.size)
            aggregate(manifest.aggregation, codec, [own, own], [1000, 1000], span.count, mean)
            entries.append(ChunkEntry(hash=chunk_hash(mean), mask=mask_of([0, 1], 2)))
            file.view[place.encoded] = mean
            let_go(own)
            let_go(file.view[place.encoded])
        members = sorted((ORGANISER, Identity.from_seed(bytes([1]) * 32)), key=lambda each: each.peer_id)
        ready = a_first_ready(round=0, fragment=0, base=base.tip, serial=1, state_digest=before)
        record = Record(
            round=0,
            fragment=0,
            previous=base.tip,
            members=[member_of(each.peer_id, ready, pack(each, self.signed.run, ready).signature) for each in members],
            codec=manifest.codec,
            result_root=index_root(entries),
            state_digest=before,
        )
        file.commit(ResultName.of(record))
        commit = Commit(record=record, index=entries, certificate=certificate(self.signed.run, record, members))
        self.replica.history.append(commit)
        return commit

    def _apply(self, commit: Commit) -> None:
        """Check and apply a result, with the digests before and after, as `protocol.node.state` does."""
        result = self.replica.result(commit.record, commit.index)
        assert result is not None
        self.digests.append(self.state.digest().hex())
        step = self.signed.manifest.outer_step(0, [member.tokens for member in commit.record.members], result)
        self.state.apply(result, commit.record.fragment, step)
        self.digests.append(self.state.digest().hex())


class TimedPhase:
    """A phase that prints its beginning and its end."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        print(json.dumps({"begins": self._name}), flush=True)
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        print(json.dumps({"ends": self._name, "seconds": time.monotonic() - self._begun}), flush=True)


# ------------------------------------------------------------------------------------------------------------------------
# The measuring process.


@dataclass
class Found:
    """Figures of one process: the seconds of each phase, and the peak of each kind of memory in it, in bytes."""

    place: StatePlace
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    highest: int = 0

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        for phase, seconds in self.seconds.items():
            yield {"state": self.place.value, "phase": phase, "seconds": seconds, **self.peaks[phase]}


def measure(parameters: int, place: StatePlace, folder: Path, *, cold: bool) -> Found:
    """Measure in a process of its own."""
    found, over, phase = Found(place), threading.Event(), [""]
    command = [sys.executable, "-m", "benchmarks.peer_memory", "--work", place.value, "--parameters", str(parameters)]
    command += ["--folder", str(folder), *(["--cold"] if cold else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    look = _looker(process.pid, phase, found)

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            look()

    threading.Thread(target=sample, daemon=True).start()
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        found.highest = max(found.highest, resident(process.pid).get("VmHWM", 0))
        if "begins" in told:
            phase[0] = told["begins"]
        elif "ends" in told:
            found.seconds[told["ends"]] = told["seconds"]
            phase[0] = ""
        else:
            found.digests = told["digests"]
    over.set()
    if process.wait() or not found.digests:
        raise SystemExit(f"the process with its state in {place.value} failed")
    return found


def _looker(pid: int, phase: list[str], found: Found) -> Callable[[], None]:
    def look() -> None:
        name, now = phase[0], resident(pid)
        if not name or "RssAnon" not in now:
            return
        peak = found.peaks.setdefault(name, dict.fromkeys((*KINDS, "total"), 0))
        for kind in KINDS:
            peak[kind] = max(peak[kind], now[kind])
        peak["total"] = max(peak["total"], sum(now[kind] for kind in KINDS))

    return look


def show(found: Found, estimate: int) -> None:
    for row in found.rows:
        memory = " | ".join(f"{row[kind] / 1e6:.0f}" for kind in ("total", *KINDS))
        print(f"| {row['state']} | {row['phase']} | {row['seconds']:.2f} | {memory} |", flush=True)
    everything = sum(found.seconds.values())
    print(f"| {found.place.value} | all (VmHWM; estimate {estimate / 1e6:.0f}) | {everything:.2f} | ", end="")
    print(f"{found.highest / 1e6:.0f} | | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_memory", description=__doc__)
    parser.add_argument("--parameters", type=int, default=QUICK, help=f"of the model; {REAL} takes 30 GB of disk")
    parser.add_argument("--states", nargs="+", choices=[place.value for place in StatePlace], default=["ram", "disk"])
    parser.add_argument("--folder", type=Path, help="where the files lie; default: a temporary folder")
    parser.add_argument("--cold", action="store_true", help="drop the system's cache of the files before each phase")
    parser.add_argument("--work", choices=[place.value for place in StatePlace], help="do this one in this process")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.work:
        PeerUnderTest(arguments.parameters, StatePlace(arguments.work), arguments.folder, cold=arguments.cold).work()
        return
    manifest, found = run_of(arguments.parameters).manifest, []
    print(f"{manifest.parameters / 1e6:.1f} M parameters\n\n| state | phase | seconds | MB | anon | file | shmem |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for place in map(StatePlace, arguments.states):
        with tempfile.TemporaryDirectory(prefix="peer-memory-", dir=arguments.folder) as folder:
            found.append(measure(arguments.parameters, place, Path(folder), cold=arguments.cold))
        show(found[-1], memory_need(manifest, Role.TRAINER, place=place).peer)
    if len({tuple(each.digests) for each in found}) > 1:
        raise SystemExit("the digests differ")
    if arguments.json:
        rows = [row for each in found for row in each.rows]
        highest = {each.place.value: each.highest for each in found}
        told = {"parameters": manifest.parameters, "cold": arguments.cold, "highest": highest, "rows": rows}
        print(json.dumps({**told, "digest": found[0].digests[-1]}))


if __name__ == "__main__":
    main()
