"""A swarm on one computer: real peers in temporary directories, watched until they have trained together.

The peers are ordinary `peer join` processes with a run and an organiser of their own, so they meet nobody else; like any
others, they share the cores of the computer with whoever trains here.  This process only reads their event streams.  The
run waits for all of them before its first round.  It is over when every peer has applied `rounds` rounds and measured the
held-out loss after them; then they are told to leave.  Each peer leaves when its standard input ends, so none outlives
this process, however that ends.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peer.control.client import ControlClient, ControlError, EventStream, NotRunning, Stamped
from peer.demo.progress import Progress
from peer.errors import ExitCode, PeerError
from peer.installation import child_environment
from peer.joining.run_source import start_of
from peer.resources.check import check_together
from peer.settings.preferences import without_settings
from protocol import events as ev
from protocol.run.manifest import RunManifest, SignedManifest, demo_manifest, sign
from protocol.run.run_file import Start, load_run_file
from protocol.wire.identity import Identity

CONNECT_EVERY_S = 0.1
STATUS_EVERY_S = 1.0
LEAVE_DEADLINE_S = 15.0
TICK_S = 0.25
STALL_DEADLINE_S = 300.0
"""Without a trainer started, a training step that nobody had come to, a round committed or a part of an evaluation."""
LOG_TAIL_LINES = 8


@dataclass
class Member:
    """One peer of the demo, as its events tell.  silent: its stream of events has ended."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    progress: Progress = field(default_factory=Progress)
    digests: dict[int, str] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    up_bytes: dict[int, int] = field(default_factory=dict)
    committed: int = 0
    furthest: tuple[int, ...] = ()
    """Rounds committed, steps of the running one, parts of an evaluation: grows as long as it gets on."""
    peer: str = ""
    stream: EventStream | None = None
    silent: bool = False

    @property
    def name(self) -> str:
        """What the peer is called, and its folder."""
        return f"peer-{self.number}"

    def apply(self, stamped: Stamped) -> None:
        """Take note of an event of this peer."""
        self.progress.apply(stamped)
        match stamped.event:
            case ev.StateApplied(rounds, digest):
                self.digests[rounds] = digest
            case ev.EvalLoss(rounds, loss, _):
                self.evals[rounds] = loss
            case ev.ExchangeFinished(round, _, up_bytes, _):
                self.up_bytes[round] = self.up_bytes.get(round, 0) + up_bytes
            case ev.RoundCommitted(round):
                self.committed = max(self.committed, round + 1)
                self._come_to(self.committed, 0, 0)
            case ev.TrainerStarted():
                self._come_to(0, 0, 0)
            case ev.ComputeProgress(round, steps):
                self._come_to(round, steps, 0)
            case ev.EvalProgress(rounds, done):
                self._come_to(rounds, self.furthest[1] if self.furthest[:1] == (rounds,) else 0, done)

    def _come_to(self, *place: int) -> None:
        self.furthest = max(self.furthest, place)


@dataclass(frozen=True)
class Summary:
    """What the demo showed.  wire_bytes_per_param_round: bytes that one member sent, per parameter and round."""

    peers: int
    rounds: int
    seconds: float
    eval_loss_start: float | None
    eval_loss_end: float | None
    state_digests: dict[str, str]
    wire_bytes_per_param_round: float | None

    @property
    def equal(self) -> bool:
        """Whether all peers came to the same state."""
        return len(set(self.state_digests.values())) == 1


def demo_run(run_file: Path | None, peers: int, start: Start | None) -> SignedManifest:
    """The run of a demo: the built-in one's recipe or a run file's, of a new organiser, that waits for all peers.

    start: what the run file begins with.
    """
    organiser = Identity.generate()
    base = demo_manifest().manifest if run_file is None else load_run_file(run_file, organiser.peer_id, start)
    rounds = base.rounds.model_copy(update={"min_members": peers, "max_members": max(peers, base.rounds.max_members)})
    fields = {**base.model_dump(), "organiser": organiser.peer_id, "founders": "anyone", "rounds": rounds.model_dump()}
    return sign(organiser, RunManifest.model_validate(fields))


class Demo:
    """Starts, watches and ends the peers.  A context: whatever happens, nothing is left behind.

    folder: where everything lies; removed at the end unless `keep`.  patience_s: without any progress it has failed.
    """

    def __init__(
        self, peers: int, rounds: int, run_file: Path | None, *, keep: bool, patience_s: float = STALL_DEADLINE_S
    ) -> None:
        self.peers, self.rounds, self._keep, self._patience_s = peers, rounds, keep, patience_s
        self.folder = Path(tempfile.mkdtemp(prefix="manyhands-demo-"))
        self.members: list[Member] = []
        self._happened: queue.SimpleQueue[tuple[Member, Stamped | None]] = queue.SimpleQueue()
        self._closing = False
        self._started = time.monotonic()
        self._moved = self._started
        try:
            self._begins_with = start_of(run_file) if run_file is not None else None
            self.signed = demo_run(run_file, peers, self._begins_with)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient Ctrl-C must not stop the cleaning up
        _end_all(self.members)
        for member in self.members:
            if member.stream is not None:
                member.stream.close()
            if member.process.stdin is not None:
                member.process.stdin.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def seconds(self) -> float:
        """Since the demo was made."""
        return time.monotonic() - self._started

    def start(self) -> None:
        """Start the peers; raises PeerError when they do not fit into memory."""
        check_together(self.signed.manifest, self.peers)
        manifest = self.folder / "run.manifest"
        manifest.write_bytes(self.signed.raw)
        for number in range(1, self.peers + 1):
            member = self._spawn(number, manifest)
            self.members.append(member)
            threading.Thread(target=self._listen, args=(member,), name=member.name, daemon=True).start()

    def watch(self, on_tick: Callable[[], None]) -> None:
        """Until all have come to the end; raises PeerError when one of them fails or nothing moves."""
        status_at = 0.0
        while not all(self._has_arrived(member) for member in self.members):
            self._take_events()
            self._check()
            if time.monotonic() - status_at > STATUS_EVERY_S:
                self._ask_status()
                status_at = time.monotonic()
            on_tick()

    def leave(self) -> None:
        """Ask all peers to leave, and wait until they have; raises PeerError when one does not end well."""
        for member in self.members:
            try:
                ControlClient(member.folder).request("leave")
            except ControlError:
                continue  # judged by its exit code
        deadline = time.monotonic() + LEAVE_DEADLINE_S
        for member in self.members:
            try:
                code = member.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise self._failure(member, "did not stop when asked to") from error
            if code != 0:
                raise self._failure(member, f"ended with exit code {code}")

    def summary(self) -> Summary:
        """What came out, after `watch`."""
        sent = [sum(member.up_bytes.get(round, 0) for round in range(self.rounds)) for member in self.members]
        work = self.peers * self.rounds * self.signed.manifest.parameters
        starts = [member.evals[0] for member in self.members if 0 in member.evals]
        ends = [member.evals[self.rounds] for member in self.members if self.rounds in member.evals]
        return Summary(
            peers=self.peers,
            rounds=self.rounds,
            seconds=self.seconds,
            eval_loss_start=starts[0] if starts else None,
            eval_loss_end=ends[0] if ends else None,
            state_digests={member.peer: member.digests.get(self.rounds, "") for member in self.members},
            wire_bytes_per_param_round=sum(sent) / work if sum(sent) else None,
        )

    # -- one peer -----------------------------------------------------------------------------------------------------

    def _spawn(self, number: int, manifest: Path) -> Member:
        folder = self.folder / f"peer-{number}"
        folder.mkdir(mode=0o700)
        if number == 1 and self._begins_with is not None:
            self._begins_with.keep(self.signed, folder)  # the others fetch it from this one
        command = [
            sys.executable,
            "-m",
            "peer",
            "join",
            str(manifest),
            "--headless",
            "--log-format",
            "json",
            "--local",
            "--data-dir",
            str(folder),
            "--name",
            f"peer-{number}",
            "--port",
            "0",
            "--rounds",
            str(self.rounds),
            "--until-eof",
            "--on-battery",
            "yes",
        ]
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=without_settings(child_environment(os.environ)),
                start_new_session=True,
            )  # Ctrl-C is ours to pass on
        return Member(number, folder, process)

    def _listen(self, member: Member) -> None:
        """A thread a peer: hand its events on, and None at their end."""
        try:
            self._hand_on(member)
        finally:
            self._happened.put((member, None))

    def _hand_on(self, member: Member) -> None:
        client = ControlClient(member.folder)
        while not self._closing and member.process.poll() is None:
            try:
                member.stream = client.events()
            except NotRunning:
                time.sleep(CONNECT_EVERY_S)
                continue
            except ControlError:
                return  # it is ending; `_check` tells
            member.peer = member.stream.status.peer
            for stamped in member.stream.recent:
                self._happened.put((member, stamped))
            for stamped in member.stream:
                self._happened.put((member, stamped))
            return

    def _take_events(self) -> None:
        try:
            member, stamped = self._happened.get(timeout=TICK_S)
            while True:
                before = member.furthest
                if stamped is None:
                    member.silent = True
                else:
                    member.apply(stamped)
                if member.furthest > before:
                    self._moved = time.monotonic()
                member, stamped = self._happened.get_nowait()
        except queue.Empty:
            return

    def _ask_status(self) -> None:
        for member in self.members:
            try:
                member.progress.update(ControlClient(member.folder, timeout_s=2.0).status())
            except ControlError:
                continue  # not there yet, or gone: `_check` tells

    def _has_arrived(self, member: Member) -> bool:
        return self.rounds in member.digests and self.rounds in member.evals

    def _check(self) -> None:
        for member in self.members:
            code = member.process.poll()
            if code or (code == 0 and member.silent and not self._has_arrived(member)):
                raise self._failure(member, f"ended with exit code {code} before its last round")
        if time.monotonic() - self._moved > self._patience_s:
            slowest = min(self.members, key=lambda member: member.committed)
            raise self._failure(slowest, f"got no further for {self._patience_s:.0f} s")

    def _failure(self, member: Member, what: str) -> PeerError:
        output = (member.folder / "output.log").read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "".join(f"\n    {line[:300]}" for line in output)
        return PeerError(f"{member.name} {what}; the end of its log:{tail}", ExitCode.FAILED)


def _end_all(members: Sequence[Member]) -> None:
    """End every process that still runs, reap them all."""
    for member in members:
        if member.process.poll() is None:
            member.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + LEAVE_DEADLINE_S
    for member in members:
        try:
            member.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()


def summary_fields(summary: Summary) -> dict[str, Any]:
    """The object of `peer demo --json`."""
    return {
        "peers": summary.peers,
        "rounds": summary.rounds,
        "seconds": round(summary.seconds, 1),
        "eval_loss_start": summary.eval_loss_start,
        "eval_loss_end": summary.eval_loss_end,
        "state_digests": summary.state_digests,
        "wire_bytes_per_param_round": summary.wire_bytes_per_param_round,
    }
