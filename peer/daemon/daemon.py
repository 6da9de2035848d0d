"""The process of a running peer: control socket, event log and console around its participation in a run.

The daemon decides how the process ends.  It leaves gracefully on the first request and at once on the second, and it
ends with a sentence and an exit code if it cannot go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from peer.console.display import Output, Style, show
from peer.console.problems import known_problem
from peer.console.streams import wait_for_a_word, wait_for_eof
from peer.control.client import ControlError
from peer.control.event_log import EventLog, log_file
from peer.control.history import HistoryKeeper, RunHistory
from peer.control.metrics import serve_metrics
from peer.control.server import ControlServer
from peer.daemon.lives import Lives
from peer.daemon.requests import Controls
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.discovery.contacts import Contacts
from peer.errors import ExitCode, PeerError
from peer.formatting import blocks_by_origin
from peer.page.writer import keep_page
from peer.paths import run_dir
from peer.resources.hardware import EnergyMeter, Hardware, HardwareMonitor
from peer.rests.keeper import in_a_thread
from peer.rests.reasons import TimedPause, keep_pause, kept_pause
from peer.settings.file import as_map, read_change, write_setting
from peer.settings.preferences import SETTINGS, limits_in_force
from peer.tracking.child import keep_tracking
from protocol.disk import StoreFailed
from protocol.events.events import Left, Notice, Started
from protocol.events.status import PeerStatus
from protocol.formatting import duration
from protocol.node.node import Node
from protocol.tasks.commands import TaskSetCommands
from protocol.version import version
from protocol.wire.identity import Identity

# ------------------------------------------------------------------------------------------------------------------------
# End of a peer that cannot go on: a sentence, an exit code, and a file with the details of unforeseen errors.


CRASH_LOG = "crash.log"


def reader_gone() -> PeerError:
    """Return the error of a peer that leaves because its output has no reader."""
    return PeerError(
        "nobody reads standard output any more, so the peer left; to train on without a reader, redirect it to a file or "
        "give --ignore-closed-output",
        ExitCode.OUTPUT,
    )


def problem_of(error: BaseException, folder: Path) -> PeerError:
    """Return the error to show for `error`, which may be a group; unforeseen ones are detailed in a file in `folder`."""
    singles = list(_singles(error))
    for single in sorted(singles, key=lambda single: not isinstance(single, PeerError)):
        if isinstance(single, StoreFailed):
            return PeerError(f"{single}; nothing is lost: then start the peer again", ExitCode.RESOURCES)
        if (known := known_problem(single)) is not None:
            return known
    path = folder / CRASH_LOG
    try:
        path.write_text("".join(traceback.format_exception(error)), errors="replace")
        remedy = f"please report it, and attach {path}"
    except OSError as full:
        remedy = f"and {path} could not be written ({full.strerror}); run it again with --debug to see where"
    problem = PeerError(f"unexpected {type(singles[0]).__name__}: {singles[0]}; {remedy}")
    problem.__cause__ = error  # for --debug
    return problem


def _singles(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _singles(inner)
    else:
        yield error


# ------------------------------------------------------------------------------------------------------------------------
# External requests to leave: a signal, the end of standard input, the loss of the output's reader.


def open_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """Receive the signals that ask a peer to leave.  Under `nohup`, SIGHUP stays ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP]))


async def obey_signals(peer: Daemon, signals: AsyncIterator[int]) -> None:
    """Leave gracefully on the first signal, at once on each further one."""
    async for _ in signals:
        peer.notice("info", "leaving; once more leaves at once")
        peer.leave()
        break
    async for _ in signals:
        peer.leave_at_once()


async def leave_at_eof(peer: Daemon) -> None:
    """Leave when standard input ends, because the process that started us held the other end and has ended."""
    wait = partial(trio.to_thread.run_sync, wait_for_eof, sys.stdin.fileno())
    await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
    peer.leave()


async def leave_with_the_view(peer: Daemon) -> None:
    """Leave when the interface closes its end of standard input; stay if the interface writes a word first."""
    wait = partial(trio.to_thread.run_sync, wait_for_a_word, sys.stdin.fileno())
    if await wait(abandon_on_cancel=True):  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
        peer.notice("info", "detached from the terminal; `peer watch` shows this peer, `peer leave` stops it")
    else:
        peer.notice("info", "the terminal is gone; leaving")
        peer.leave()


async def leave_with_the_reader(peer: Daemon, output: Output, ignore: bool) -> None:
    """Leave when standard output loses its reader: an unwatched peer would train for ever.  ignore: stay anyway."""
    await output.until_gone()
    if ignore:
        peer.notice("warning", "nobody reads standard output any more; continuing anyway")
    else:
        peer.stop(reader_gone())


# ------------------------------------------------------------------------------------------------------------------------


T = TypeVar("T")
LAST_WORDS_S = 5.0
"""Most seconds for the event log's listeners to receive the last events; only a slow listener needs all of them."""


class Daemon:
    """Process of one peer."""

    def __init__(self, settings: DaemonSettings, identity: Identity, choice: RunChoice) -> None:
        self._settings, self._identity = settings, identity
        self._log = EventLog(log_file(run_dir(settings.data_dir, choice.run)), first=self._started)
        self._lives = Lives(settings, identity, choice, self._log.emit)
        encoding = "utf-8" if settings.style is Style.JSON else sys.stdout.encoding
        self._output = Output(sys.stdout.fileno(), encoding, lambda text: self.notice("warning", text))
        self._pending_notice = ""
        """Notice to emit as soon as the log has begun."""
        self._at_once = False
        self._problem: PeerError | None = None
        hardware = Hardware(lambda: settings.live.now.gpus or "0")
        meter = EnergyMeter(settings.data_dir)
        self._hardware = HardwareMonitor(meter, in_a_thread(hardware.read), lambda: self._lives.is_working)
        tip = lambda: node.tip if (node := self._lives.node) else None  # noqa: E731
        self._history = HistoryKeeper(self._open_history, self._log, tip, self.status)
        self._scope = trio.CancelScope()
        """Cancel scope of all work that a second signal interrupts."""
        self._shown = trio.Event()
        self._started_at = trio.current_time()

    async def run(self) -> int:
        """Run until the peer leaves, is interrupted or cannot go on; return the exit code or raise PeerError."""
        paused = await trio.to_thread.run_sync(kept_pause, self._settings.data_dir, time.time())
        controls = Controls(self, paused)
        if paused is not None:
            self._lives.pause(paused)
            self._pending_notice = f"still paused {paused.end(time.time())}; `peer resume` ends the pause"
        server = ControlServer(self._settings.data_dir, self._log, controls.commands(), self.status)
        with open_signals() as signals:
            try:
                await server.open()
            except ControlError as error:
                raise PeerError(str(error), ExitCode.RESOURCES) from error
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._log.run)
                nursery.start_soon(server.run)
                nursery.start_soon(controls.run)
                nursery.start_soon(self._show)
                nursery.start_soon(self._hardware.run)
                nursery.start_soon(self._history.run)
                nursery.start_soon(obey_signals, self, signals)
                nursery.start_soon(leave_with_the_reader, self, self._output, self._settings.leave.ignore_closed_output)
                if (port := self._settings.live.now.metrics_port) is not None:
                    nursery.start_soon(serve_metrics, port, self.status)
                if (page := self._settings.live.now.page) is not None:
                    nursery.start_soon(keep_page, Path(page), self._history, self.status, self.notice)
                for target in self._settings.live.now.track or ():
                    nursery.start_soon(self._keep_tracking, target)
                if self._settings.style is Style.SILENT:
                    nursery.start_soon(leave_with_the_view, self)
                if self._settings.leave.until_eof:
                    nursery.start_soon(leave_at_eof, self)
                await self._participate()
                code = self._say_how_it_ended()
                self._log.flush()
                with trio.move_on_after(LAST_WORDS_S) as self._scope:
                    await self._shown.wait()
                    await server.streams_ended()
                nursery.cancel_scope.cancel()
        told = self._settings.style is Style.JSON and self._shown.is_set() and not self._output.broken
        if self._problem is not None and not told:
            raise self._problem
        return code

    # -- requests from the user ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say goodbye and stop; `run` returns."""
        if not self._lives.leave():
            self._scope.cancel()

    def leave_at_once(self) -> None:
        """Stop without waiting for anything, not even the goodbye."""
        self._at_once = True
        self._scope.cancel()

    def stop(self, problem: PeerError) -> None:
        """Leave because of `problem`."""
        if not self._lives.leaving:
            self._problem = problem
            self.leave()

    def finish(self) -> float:
        """Stop once the running round is complete or cannot be completed; return the longest time that this can take (s)."""
        within_s = self.node().finish()
        self.notice("info", f"stopping when this round is complete, in {duration(within_s)} at most")
        return within_s

    async def pause(self, pause: TimedPause) -> None:
        """Compute nothing until `resume`, also after a restart.  Raises ControlError if the pause cannot be stored."""
        await self._keep(pause)
        self._lives.pause(pause)

    async def resume(self) -> None:
        """Compute again after a pause.  Raises ControlError if the end of the pause cannot be stored."""
        await self._keep(None)
        self._lives.resume()

    async def _keep(self, pause: TimedPause | None) -> None:
        try:
            await trio.to_thread.run_sync(keep_pause, self._settings.data_dir, pause)
        except OSError as error:
            raise ControlError(
                f"the pause cannot be kept in {self._settings.data_dir}: {error.strerror or error}"
            ) from error

    def settings(self) -> dict[str, Any]:
        """Return the settings for `peer config --json`, with the month's traffic."""
        traffic = self._lives.traffic
        month = {"month": traffic.month, "bytes": traffic.bytes}
        return {"month": month, **as_map(self._settings.live.gathered())}

    async def change(self, name: str, text: str | None, keep: bool) -> str | None:
        """Change a setting.  text: None for the default.  keep: also write it to peer.toml, if there is such a file.

        Return the path of the written file, None if nothing was written.  If it raises PeerError or OSError, nothing has
        changed.
        """
        live = self._settings.live
        read_change(name, text)
        if keep and live.path is not None:
            await trio.to_thread.run_sync(write_setting, live.path, name, text)
        live.change(name, text)
        shown = SETTINGS[name].shown(live.gathered().settings[name].value)
        self.notice("info", f"{name} is {shown or 'not set'} from now on")
        return str(live.path) if keep and live.path is not None else None

    async def history(self, view: Callable[[RunHistory], T]) -> T:
        """Return what `view` makes of the run's history, in a thread.  Raises `ControlError` while the run is unknown."""
        found = await self._history.read(view)
        if found is None:
            raise ControlError("the peer is still fetching the run's manifest; there is no history yet")
        return found

    def notice(self, level: str, text: str) -> None:
        """Emit a sentence for the person.  level: info or warning."""
        self._log.emit(Notice(level, text))

    def status(self) -> PeerStatus:
        """Return the status that `peer status --json` shows."""
        lives = self._lives
        reachable, reachability = lives.reachability()
        return PeerStatus.around(
            lives.status(),
            pid=os.getpid(),
            uptime_s=trio.current_time() - self._started_at,
            mono=time.monotonic(),
            addresses=lives.addresses(),
            invitation=lives.part.invitation(),
            invite_command=lives.part.invite_command(),
            reachable=reachable,
            reachability=reachability,
            run_definition=lives.part.run_definition(),
            computer=self._hardware.status,
            contribution=self._history.contribution,
            next_rest=lives.next_rest,
            limits=limits_in_force(self._settings.live.now),
        )

    @property
    def contacts(self) -> Contacts | None:
        """Addresses at which guests find this swarm, once the network is open."""
        return self._lives.part.contacts if not self._lives.away else None

    @property
    def tasks(self) -> TaskSetCommands | None:
        """Commands about sets of tasks, once the node of a run with rollouts runs."""
        node = self._lives.node
        return node.tasks if node is not None else None

    def node(self) -> Node:
        """Return the node.  Raises ControlError while the peer is not in the run."""
        node = self._lives.node
        if node is None and self._lives.away:
            raise ControlError(f"the peer is not in the run now: {self._lives.away}")
        if node is None:
            raise ControlError("the peer is still fetching the run's manifest; ask again when it has begun")
        return node

    # -- the life of the process --------------------------------------------------------------------------------------

    async def _participate(self) -> None:
        """Take part until the peer has left or cannot go on; the error becomes `_problem`."""
        with self._scope:
            try:
                await self._lives.run(self._begin)
            except* Exception as group:
                self._problem = problem_of(group, self._settings.data_dir)

    def _begin(self) -> None:
        """Begin the log: the network listens now."""
        self._log.begin()
        if self._pending_notice:
            self.notice("warning", self._pending_notice)
            self._pending_notice = ""

    def _open_history(self) -> RunHistory | None:
        choice = self._lives.part.choice
        folder = run_dir(self._settings.data_dir, choice.run)
        return RunHistory(choice.signed, folder, self._identity.peer_id) if choice.signed is not None else None

    async def _keep_tracking(self, target: str) -> None:
        run = self._lives.part.choice.run
        await keep_tracking(target, self._settings.data_dir, run, partial(self.notice, "warning"))

    async def _show(self) -> None:
        await show(self._log, self._settings.style, self.status, self._output)
        self._shown.set()

    def _started(self) -> Started:
        part, settings = self._lives.part, self._settings
        return Started(
            self._identity.peer_id,
            settings.name_of(self._identity.peer_id),
            part.choice.run.hex(),
            part.choice.run_name,
            version(),
            os.getpid(),
            part.addresses(),
            str(settings.data_dir),
            settings.live.now.team,
        )

    def _say_how_it_ended(self) -> ExitCode:
        """Emit the last event of this process, which alone contains its problem, if any; return the exit code."""
        node, problem = self._lives.part.node, self._problem
        code = ExitCode.INTERRUPTED if self._at_once else ExitCode.OK
        heard_by = node.goodbye_heard_by if node is not None else None
        if node is not None and (blocks := node.status().block_bytes):
            self.notice("info", f"blocks of the run's corpora: {blocks_by_origin(blocks)}")
        self._log.emit(
            Left(
                heard_by is not None,
                heard_by or 0,
                node.rounds if node is not None else None,
                problem.exit_code if problem else code,
                problem.text if problem else "",
            )
        )
        return problem.exit_code if problem else code
