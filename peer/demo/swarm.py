"""A swarm on one computer: real peers in temporary directories, watched until they reach the demo's aim.

The peers are ordinary `peer join` processes with a run and an organiser of their own, so they meet no other peers; like all
peers, they share the computer's cores with other peers that train here.  This process only reads their event streams.  When
the aim counts every peer as arrived, the peers are told to leave.  Each peer also leaves when its standard input ends, so
no peer outlives this process, however the process ends.
"""

from __future__ import annotations

import itertools
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peer.console.streams import draws
from peer.control.client import ControlClient, ControlError, NotRunning, Stamped
from peer.demo.cast import Cheat, DemoMember, DemoPart, Training, only_trainers, with_rollouts
from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError
from peer.formatting import bar, fit
from peer.joining.run_source import start_of
from peer.paths import data_dir, run_dir
from peer.resources.check import check_together
from peer.settings.preferences import without_settings
from peer.weights.brought import Brought
from protocol.formatting import clean
from protocol.run.manifest import Admission, RunManifest, SignedManifest, demo_manifest, sign
from protocol.run.run_file import load_run_file
from protocol.run.sections import Unit
from protocol.wire.identity import Identity

if TYPE_CHECKING:
    from peer.demo.learning import Learning, StateExamination

# ------------------------------------------------------------------------------------------------------------------------
# A demo's play: its run, its cast, and its aim.


LEARNING_RUN = "learning.toml"
"""The built-in run with rollouts, a run file beside this module."""
LEAST_VERSIONS = 16
"""Versions over which the built-in run's reward rises by many standard errors (docs/results/demo.md)."""
LEAST_MINUTES = 3
"""Upper bound on the minutes for `LEAST_VERSIONS` of the built-in run on two idle cores."""


@dataclass(frozen=True)
class Play:
    """Play of a demo.  begins_with: the run file's weights, tokenizer or chats, if any.

    examine: returns the examination of the states in the demo's folder; None if the play has none.
    """

    signed: SignedManifest
    begins_with: Brought | None
    cast: tuple[DemoPart, ...]
    aim: Training | Learning
    examine: Callable[[Path], StateExamination] | None = None


def training_play(peers: int, rounds: int, run_file: Path | None) -> Play:
    """Return a play with the built-in recipe or a run file's; all trainers wait for each other before the first round."""
    organiser, start = Identity.generate(), _start(run_file)
    manifest = demo_manifest().manifest if run_file is None else load_run_file(run_file, organiser.peer_id, start)
    most = max(peers, manifest.rounds.max_members)
    rounds_section = manifest.rounds.model_copy(update={"min_members": peers, "max_members": most})
    signed = _private(organiser, manifest, {"rounds": rounds_section.model_dump()})
    cast = only_trainers(peers)
    goal = signed.manifest.goal  # the run ends earlier if all train on as many tokens as they may in each round
    least = goal.total if goal.unit is Unit.ROUNDS else -(-goal.total // (peers * signed.manifest.tokens_per_round))
    return Play(signed, start, cast, Training(cast, min(rounds, least), signed.manifest))


def learning_play(versions: int | None, cheat: Cheat | None, run_file: Path | None) -> Play:
    """Return a play with the built-in run with rollouts or a run file's.

    versions: None for the number of versions that the built-in run needs for its reward to rise.  Raises `PeerError`, also
    for fewer versions of the built-in run.
    """
    if run_file is None and versions is not None and versions < LEAST_VERSIONS:
        raise PeerError(
            f"--rounds {versions} may be too few for the reward to rise; give --rounds {LEAST_VERSIONS} or more, which "
            f"takes about {LEAST_MINUTES} minutes on two idle cores, or leave --rounds out",
            ExitCode.USAGE,
        )
    versions = versions or LEAST_VERSIONS
    organiser = Identity.generate()
    manifest, start = learning_run(organiser, run_file)
    if manifest.rl is None:
        raise PeerError(f"{run_file} has no section [rl], which --rl needs; add one, or leave --rl out", ExitCode.INPUT)
    from peer.demo.learning import Learning, StateExamination  # imports torch, which a demo of training does not need

    signed, cast = _private(organiser, manifest, {}), with_rollouts(cheat)
    aim = Learning(cast, versions, signed.manifest)
    return Play(
        signed,
        start,
        cast,
        aim,
        lambda folder: StateExamination(signed, run_dir(folder / cast[0].name, signed.run), aim),
    )


def learning_run(organiser: Identity, run_file: Path | None = None) -> tuple[RunManifest, Brought | None]:
    """Return the manifest of the built-in run with rollouts, or of a run file, and the data that comes with it."""
    with as_file(files(__package__) / LEARNING_RUN) as own:
        start = _start(run_file or own)
        return load_run_file(run_file or own, organiser.peer_id, start), start


def _start(run_file: Path | None) -> Brought | None:
    return start_of(run_file, data_dir()) if run_file is not None else None


def _private(organiser: Identity, manifest: RunManifest, changes: Mapping[str, Any]) -> SignedManifest:
    """Sign an open copy of the run as this organiser, whom no other peer knows; any present peer votes."""
    fields = {**manifest.model_dump(), "organiser": organiser.peer_id, "founders": "anyone", **changes}
    fields |= {"admission": Admission.OPEN, "allowlist": []}
    return sign(organiser, RunManifest.model_validate(fields))


# ------------------------------------------------------------------------------------------------------------------------
# Processes of a demo: ordinary `peer join` in folders of their own.  They end with the demo, however it ends.


LEAVE_DEADLINE_S = 15.0
LOG_TAIL_LINES = 8
LOG = "output.log"


def start_member(part: DemoPart, folder: Path, manifest: Path, stop_after: int | None) -> DemoMember:
    """Start the peer of a part in its existing `folder`."""
    command = [sys.executable, "-m", *part.program, "join", str(manifest)]
    command += ["--headless", "--log-format", "json", "--local", "--data-dir", str(folder), "--port", "0"]
    command += ["--name", part.name, "--role", part.role.value, "--until-eof", "--on-battery", "yes"]
    if stop_after is not None:
        command += ["--rounds", str(stop_after)]
    with (folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=without_settings(child_environment(ChildKind.MEMBER)),
            start_new_session=True,
        )  # this process passes Ctrl-C on
    return DemoMember(part, folder, process)


def failure(member: DemoMember, what: str) -> PeerError:
    """Return the error for a peer's failure, with the end of its log."""
    output = (member.folder / LOG).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    tail = "".join(f"\n    {line[:300]}" for line in output)
    return PeerError(f"{member.name} {what}; the end of its log:{tail}", ExitCode.FAILED)


# ------------------------------------------------------------------------------------------------------------------------


CONNECT_EVERY_S = 0.1
STATUS_EVERY_S = 1.0
TICK_S = 0.25
STALL_DEADLINE_S = 300.0
"""Seconds without a started trainer, a new furthest training step, a committed round or a part of an evaluation."""


class Demo:
    """Context that starts, watches and ends the peers of a play, and always cleans up.

    folder: holds all peers' files; removed at the end unless `keep`.  patience_s: the demo fails after this time without
    progress.
    """

    def __init__(self, play: Play, *, keep: bool, patience_s: float = STALL_DEADLINE_S) -> None:
        self.play, self._keep, self._patience_s = play, keep, patience_s
        self.folder = Path(tempfile.mkdtemp(prefix="manyhands-demo-"))
        self.members: list[DemoMember] = []
        self._happened: queue.SimpleQueue[tuple[DemoMember, Stamped | None]] = queue.SimpleQueue()
        self._closing = False
        self._started = time.monotonic()
        self._moved = self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient Ctrl-C must not stop the cleanup
        for member in self.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_DEADLINE_S
        for member in self.members:
            try:
                member.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            if member.stream is not None:
                member.stream.close()
            if member.process.stdin is not None:
                member.process.stdin.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def seconds(self) -> float:
        """Seconds since the demo was made."""
        return time.monotonic() - self._started

    def start(self) -> None:
        """Start the peers; raises PeerError if they do not fit into memory."""
        play = self.play
        check_together(play.signed.manifest, len(play.cast))
        manifest = self.folder / "run.manifest"
        manifest.write_bytes(play.signed.raw)
        for number, part in enumerate(play.cast):
            folder = self.folder / part.name
            folder.mkdir(mode=0o700)
            if number == 0 and play.begins_with is not None:
                play.begins_with.keep(play.signed, folder)  # the other peers fetch it from this one
            member = start_member(part, folder, manifest, play.aim.stop_after)
            self.members.append(member)
            threading.Thread(target=self._listen, args=(member,), name=member.name, daemon=True).start()

    def watch(self, on_tick: Callable[[], None]) -> None:
        """Watch until all peers have arrived; raises PeerError if one fails or all stop making progress."""
        status_at = 0.0
        while not all(self._has_arrived(member) for member in self.members):
            self._take_events()
            self._check()
            if time.monotonic() - status_at > STATUS_EVERY_S:
                for member in self.members:
                    with suppress(ControlError):  # not running yet, or gone: `_check` reports it
                        member.update(ControlClient(member.folder, timeout_s=2.0).status())
                status_at = time.monotonic()
            on_tick()

    def leave(self) -> None:
        """Ask all peers to leave, and wait until they have left; raises PeerError if one does not exit cleanly."""
        for member in self.members:
            with suppress(ControlError):  # judged by its exit code
                ControlClient(member.folder).request("leave")
        deadline = time.monotonic() + LEAVE_DEADLINE_S
        for member in self.members:
            try:
                code = member.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise failure(member, "did not stop when asked to") from error
            if code != 0:
                raise failure(member, f"ended with exit code {code}")

    # -- events -------------------------------------------------------------------------------------------------------

    def _listen(self, member: DemoMember) -> None:
        """Pass a peer's events on, and None at their end; runs in a thread for each peer."""
        client = ControlClient(member.folder)
        try:
            while member.stream is None and not self._closing and member.process.poll() is None:
                try:
                    member.stream = client.events()
                except NotRunning:
                    time.sleep(CONNECT_EVERY_S)
            if (stream := member.stream) is not None:
                member.peer = stream.status.peer
                for stamped in itertools.chain(stream.recent, stream):
                    self._happened.put((member, stamped))
        except ControlError:
            pass  # the peer is ending; `_check` reports it
        finally:
            self._happened.put((member, None))

    def _take_events(self) -> None:
        try:
            member, stamped = self._happened.get(timeout=TICK_S)
            while True:
                before = member.furthest
                if stamped is None:
                    member.silent = True
                else:
                    member.apply(stamped)
                    self.play.aim.apply(member, stamped.event)
                if member.furthest > before:
                    self._moved = time.monotonic()
                member, stamped = self._happened.get_nowait()
        except queue.Empty:
            return

    # -- looking ------------------------------------------------------------------------------------------------------

    def _has_arrived(self, member: DemoMember) -> bool:
        return self.play.aim.has_arrived(member.name)

    def _check(self) -> None:
        for member in self.members:
            code = member.process.poll()
            if code or (code == 0 and member.silent and not self._has_arrived(member)):
                raise failure(member, f"ended with exit code {code} before the demo was over")
        if time.monotonic() - self._moved > self._patience_s:
            slowest = min(self.members, key=lambda member: member.committed)
            raise failure(slowest, f"made no progress for {self._patience_s:.0f} s")


# ------------------------------------------------------------------------------------------------------------------------
# The demo on the terminal: a line with each peer's activity, redrawn; or only new sentences, if the terminal cannot redraw.


class Screen:
    """Display of a demo's progress on standard error, because standard output has the summary.  quiet: shows nothing."""

    def __init__(self, demo: Demo, *, quiet: bool) -> None:
        self._demo, self._quiet = demo, quiet
        self._redraws = draws(sys.stderr)
        self._unicode = can_draw(sys.stderr.encoding)
        self._drawn = 0
        self._told = 0

    def __enter__(self) -> Self:
        if not self._quiet:
            print(f"{self._demo.play.aim.title()}; Ctrl-C ends it and cleans up.", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._redraw()

    def draw(self) -> None:
        """Show the present progress."""
        if self._quiet:
            return
        if self._redraws:
            return self._redraw()
        news = self._demo.play.aim.news
        for line in news[self._told :]:
            print(line, file=sys.stderr, flush=True)
        self._told = len(news)

    def _redraw(self) -> None:
        demo, width, unicode = self._demo, shutil.get_terminal_size((80, 24)).columns - 1, self._unicode
        aim = demo.play.aim
        lines = [aim.headline(demo.seconds, unicode=unicode)]
        lines += [member_line(member, aim.remark(member.name), unicode=unicode) for member in demo.members]
        lines = [fit(line, width) for line in lines]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stderr.write(up + "".join(f"\r\x1b[K{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)


def can_draw(encoding: str | None) -> bool:
    """Return True if a stream of this encoding can show block characters."""
    return (encoding or "").lower().replace("-", "") == "utf8"


def member_line(member: DemoMember, remark: str, *, unicode: bool) -> str:
    """Return a peer's present activity and the remark on it."""
    status, shown = member.status, member.bar
    said = f"{remark}  " if remark else ""
    if shown is not None:
        drawn = bar(shown.done, shown.total, 12, unicode=unicode)
        return f"  {member.name}  {said}{shown.what} {drawn} {shown.done}/{shown.total}  {shown.detail}"
    if status is None:
        return f"  {member.name}  {said}starting"
    why = clean(status.why_detail or status.why_idle, 120)
    return f"  {member.name}  {said}{status.phase}" + (f": {why}" if why else "")
