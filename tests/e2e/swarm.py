"""Real peers for the tests: `peer join` processes in folders of their own, followed by their events.

A test waits for what it wants to see with `Swarm.until`, which looks again whenever any peer said something, and fails
after `PATIENCE_S` with the end of every peer's log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from peer.control.client import ControlClient, ControlError, Stamped
from peer.errors import ExitCode
from peer.settings.preferences import without_settings
from protocol.events import events as ev

PATIENCE_S = 300.0
"""Says nothing about time, only ends a test that hangs: where everything is busy, torch takes a minute to import."""
CONNECT_EVERY_S = 0.05
MEMBER_PROCESSES = int(os.environ.get("MEMBER_PROCESSES", "1"))
"""Processes of the trainer of each swarm's first peer (`make test-ranks`)."""
TINY_MODEL = """
name = "tiny"
founders = "anyone"
total_rounds = 100_000
chunk_parameters = 4096
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
ffn = 64
[data]
sequence_length = 64
sequences_per_step = 2
[inner]
warmup_steps = 4
"""
LARGE_MODEL = """
name = "large"
founders = "anyone"
total_rounds = 100_000
chunk_parameters = 65536
[model]
dim = 256
layers = 4
heads = 4
kv_heads = 4
ffn = 704
[data]
sequence_length = 32
sequences_per_step = 1
"""
"""About 3.3 M parameters."""
TINY_RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 150
min_members = 2
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
)
ROLLOUT_RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 10
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
[rl]
environment = "sort"
warm_rounds = 1
prompts_per_batch = 2
group_size = 4
batches_per_round = 2
max_tokens = 8
row_tokens = 64
micro_batch_tokens = 512
optimizer_steps = 1
lr = 1e-3
warmup_steps = 0
"""
)
"""Learns from rollouts after its first round; too small to solve anything."""


def streamed(run: str, fragments: int = 4) -> str:
    """This run in fragments, with rounds as long as before, and members that train while a round is agreed on."""
    steps = int(re.findall(r"^inner_steps = (\d+)$", run, re.MULTILINE)[0])
    rounds = f"inner_steps = {fragments * steps}\ndelay = {steps * 2 // 3}"
    return f"fragments = {fragments}\n" + run.replace(f"inner_steps = {steps}\n", f"{rounds}\n")


WAYS: dict[str, Callable[[str], str]] = {"plain": str, "streamed": streamed}
"""Ways to make the rounds of a run."""


@dataclass
class Peer:
    """One place for a peer: its folder, its present process, and what it has said in all its lives."""

    swarm: Swarm
    name: str
    folder: Path
    what: list[str]
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    program: tuple[str, ...] = ("peer",)
    """The module that it runs, and words before its own."""
    around: tuple[str, ...] = ()
    """Words before the whole command, that put it elsewhere (`benchmarks.links`)."""
    local: bool = True
    """Whether it stays on loopback."""
    processes: int = 1
    """Processes of its trainer."""
    peer_id: str = ""
    stamped: list[Stamped] = field(default_factory=list)
    """The events of its present life."""
    commits: dict[int, ev.RoundCommitted] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether its process ended by an error that nobody had foreseen: nothing more will come of it."""
        return self.process is not None and self.process.poll() == ExitCode.FAILED

    @property
    def log(self) -> str:
        path = self.folder / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *options: str) -> Self:
        assert not self.up
        self.lives += 1
        self.stamped = []
        command = [
            *self.around,
            sys.executable,
            "-m",
            *self.program,
            "join",
            *self.what,
            "--headless",
            "--log-format",
            "json",
            *(["--local"] if self.local else []),
            "--data-dir",
            str(self.folder),
            "--name",
            self.name,
            "--threads",
            "1",
            "--until-eof",
            *(["--processes", str(self.processes)] if self.processes > 1 else []),
            *options,
        ]
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=self.swarm.environment
            )
        threading.Thread(target=self._listen, args=(self.process, self.lives), daemon=True).start()
        return self

    def status(self) -> dict[str, Any]:
        return ControlClient(self.folder).request("status")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; a deadly one is waited for."""
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()
            self._close_input()

    def leave(self) -> int:
        """Ask it to leave; its exit code."""
        ControlClient(self.folder).request("leave")
        return self.wait()

    def wait(self) -> int:
        """Until it has ended by itself; its exit code."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self._close_input()
        return code

    @property
    def events(self) -> list[ev.Event]:
        """Of its present life."""
        return [stamped.event for stamped in list(self.stamped)]

    def heard(self, kind: type[ev.Event]) -> list[Any]:
        """Events of a kind in its present life."""
        return [event for event in self.events if isinstance(event, kind)]

    def notices(self, code: ev.NoticeCode) -> list[dict[str, Any]]:
        """Details of the notices with a code in its present life."""
        return [event.details for event in self.heard(ev.Notice) if event.code == code]

    @property
    def committed(self) -> int:
        """Rounds that it has committed or caught up with."""
        return max(self.digests, default=0)

    def members_of(self, round: int) -> list[str]:
        return self.commits[round].members if round in self.commits else []

    def _close_input(self) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.close()

    def _listen(self, process: subprocess.Popen[bytes], life: int) -> None:
        """A thread of its own for each life."""
        while process.poll() is None:
            seen = self.stamped[-1].at if self.stamped else 0.0
            try:
                with ControlClient(self.folder).events() as stream:
                    if stream.status.pid == process.pid:
                        self.peer_id = stream.status.peer
                        for stamped in (each for each in stream.recent if each.at > seen):
                            self._take(stamped, life)
                        for stamped in stream:
                            self._take(stamped, life)
            except ControlError:
                pass
            time.sleep(CONNECT_EVERY_S)  # also when it ended: a peer that leaves answers for a while

    def _take(self, stamped: Stamped, life: int) -> None:
        with self.swarm.happened:
            event = stamped.event
            if life == self.lives:
                self.stamped.append(stamped)
            if isinstance(event, ev.RoundCommitted):
                self.commits[event.round] = event
            elif isinstance(event, ev.StateApplied):
                self.digests[event.rounds] = event.digest
            self.swarm.happened.notify_all()


class Swarm:
    """Peers that meet each other and nobody else.  A context: whatever happens, no process outlives it."""

    def __init__(self, folder: Path, run: str = TINY_RUN) -> None:
        self.folder = folder
        self.happened = threading.Condition()
        self.peers: list[Peer] = []
        for name in ("runtime", "tmp"):
            (folder / name).mkdir(mode=0o700)
        self.environment = {
            **without_settings(os.environ),
            "PEER_RUNTIME_DIR": str(folder / "runtime"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PEER_ON_BATTERY": "yes",
        }
        self.run_file = folder / "run.toml"
        is_said = "admission" in run or 'founders = "anyone"' in run
        self.run_file.write_text(run if is_said else f'admission = "open"\n{run}')  # peers join with the manifest alone
        self.manifest = folder / "run.manifest"

    @classmethod
    def created(cls, folder: Path, run: str = TINY_RUN) -> Self:
        """A swarm of a run that its organiser has signed."""
        swarm = cls(folder, run)
        swarm.create_run()
        return swarm

    def create_run(self, name: str = "organiser") -> None:
        """Sign the run file as the peer of this name; peers made without a `what` join this run."""
        self.command(self.place(name), "run", "create", str(self.run_file), "--out", str(self.manifest))

    def place(self, name: str) -> Path:
        """A data directory."""
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def peer(self, name: str, *what: str) -> Peer:
        """A place for a peer, not started."""
        peer = Peer(self, name, self.place(name), list(what) or [str(self.manifest)])
        peer.processes = 1 if self.peers else MEMBER_PROCESSES
        self.peers.append(peer)
        return peer

    def command(self, folder: Path, *words: str, code: int = 0, patience_s: float = PATIENCE_S) -> str:
        """`peer` with these words, to its end; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "peer", *words, "--data-dir", str(folder)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience_s,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def until(self, what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        """Wait until it holds; AssertionError with everybody's last words when it does not, or a peer failed."""
        end = time.monotonic() + patience_s
        with self.happened:
            while not condition():
                failed = [peer.name for peer in self.peers if peer.failed]
                assert not failed, f"{failed} ended with an unexpected error\n{self.last_words()}"
                left = end - time.monotonic()
                assert left > 0, f"not within {patience_s:.0f} s: {what}\n{self.last_words()}"
                self.happened.wait(min(left, 0.5))  # also looks again by itself: not all conditions are events

    def up(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.up]

    def newest(self) -> int:
        """The most rounds that any running peer has committed."""
        return max((peer.committed for peer in self.up()), default=0)

    def whole(self, *peers: Peer) -> int:
        """Wait for a record with all of these peers as members; how many rounds there are after it."""
        wanted, start = list(peers) or self.up(), self.newest()
        found: list[int] = []

        def held() -> bool:
            names = {peer.peer_id for peer in wanted}
            rounds = [round for round in wanted[0].commits if round >= start and set(wanted[0].members_of(round)) >= names]
            found[:] = rounds[-1:]
            return bool(rounds) and "" not in names

        self.until(f"a round of {[peer.name for peer in wanted]}", held)
        return found[0] + 1

    def equal(self, rounds: int, *peers: Peer) -> str:
        """Wait until all of these peers have had the state after the same number of rounds, `rounds` or more (who came
        late may have fetched a later state); their one digest then."""
        wanted, found = list(peers) or self.up(), list[int]()

        def held() -> bool:
            common = set.intersection(*(set(peer.digests) for peer in wanted))
            found[:] = [count for count in common if count >= rounds]
            return bool(found)

        self.until(f"the state after {rounds} rounds or more", held)
        digests = {peer.digests[max(found)] for peer in wanted}
        assert len(digests) == 1, f"after {max(found)} rounds: {digests}"
        return digests.pop()

    def processes(self) -> list[psutil.Process]:
        """Everything that was started from here and still is."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PEER_RUNTIME_DIR") == self.environment["PEER_RUNTIME_DIR"]:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def last_words(self, lines: int = 12) -> str:
        def said(peer: Peer) -> list[str]:
            return [line[:240] for line in peer.log.splitlines() if '"ComputeProgress"' not in line][-lines:]

        return "\n".join(
            f"-- {peer.name} ({'up' if peer.up else 'down'}, {peer.committed} rounds)\n" + "\n".join(said(peer))
            for peer in self.peers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for peer in self.up():
            peer.kill(signal.SIGCONT)
            peer.kill()
        _, alive = psutil.wait_procs(self.processes(), timeout=10)
        for process in alive:
            process.kill()


def invitation_in(printed: str) -> str:
    """Return the last invitation that a command printed; warnings may follow it."""
    return [line for line in printed.splitlines() if line.startswith("mh1")][-1].strip()
