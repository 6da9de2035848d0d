"""The process of a running peer: control socket, event log and console around its stays in a run.

Between two stays, a full disk or a used-up quota keeps the peer away.  The daemon decides how the process ends: it leaves
gracefully on the first request and at once on the second, and it ends with a sentence and an exit code if it cannot go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
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
from peer.daemon.away import Away, full_disk
from peer.daemon.participation import Participation
from peer.daemon.requests import Controls
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.discovery.contacts import Contacts
from peer.errors import ExitCode, PeerError, told_as
from peer.formatting import blocks_by_origin
from peer.page.writer import keep_page
from peer.paths import run_dir
from peer.resources.hardware import EnergyMeter, Hardware, HardwareMonitor
from peer.resources.room import DiskRoom
from peer.rests.keeper import Rest, in_a_thread
from peer.rests.reasons import MonthlyQuota, MonthTraffic, TimedPause, keep_pause, kept_pause
from peer.rests.sensors import Sensors
from peer.settings.file import check_change, read_value, write_setting
from peer.settings.preferences import SETTINGS, limits_in_force
from peer.tracking.child import keep_tracking
from protocol.disk import StoreFailed
from protocol.events.events import Left, Notice, PhaseChanged, Started
from protocol.events.status import PeerStatus, WhyIdle
from protocol.formatting import duration
from protocol.node.node import Node
from protocol.tasks.commands import TaskSetCommands
from protocol.transport.nat.reachability import AddressVerdict
from protocol.version import version
from protocol.wire.identity import Identity
from protocol.wire.presence import Phase

# ------------------------------------------------------------------------------------------------------------------------
# End of a peer that cannot go on: a sentence, an exit code, and a file with the details of unforeseen errors.


CRASH_LOG = "crash.log"


def problem_of(error: BaseException, folder: Path) -> PeerError:
    """Return the error to show for `error`, which may be a group; unforeseen ones are detailed in a file in `folder`."""
    singles = list(_singles(error))
    for single in sorted(singles, key=lambda single: not isinstance(single, PeerError)):
        if isinstance(single, StoreFailed):
            return PeerError(f"{single}; then start the peer again; nothing is lost", ExitCode.RESOURCES)
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


T = TypeVar("T")
READER_GONE = (
    "nobody reads standard output any more, so the peer left; to train on without a reader, redirect it to a file or give "
    "--ignore-closed-output"
)
LAST_WORDS_S = 5.0
"""Most seconds for the event log's listeners to receive the last events; only a slow listener needs all of them."""


class Daemon:
    """Process of one peer.  part: the present stay in the run, or the last one."""

    def __init__(self, settings: DaemonSettings, identity: Identity, choice: RunChoice) -> None:
        self._settings, self._identity = settings, identity
        self._folder = run_dir(settings.data_dir, choice.run)
        self._log = EventLog(log_file(self._folder), first=self._started)
        encoding = "utf-8" if settings.style is Style.JSON else sys.stdout.encoding
        self._output = Output(sys.stdout.fileno(), encoding, lambda text: self.notice("warning", text))
        self._pending_notice = ""
        """Notice to emit as soon as the log has begun."""
        self._at_once, self._leaving = False, False
        self._problem: PeerError | None = None
        hardware = Hardware(lambda: settings.live.now.gpus or "0")
        self._hardware = HardwareMonitor(EnergyMeter(settings.data_dir), in_a_thread(hardware.read), lambda: self.is_working)
        tip = lambda: node.tip if (node := self.node) else None  # noqa: E731
        self._history = HistoryKeeper(self._open_history, self._log, tip, self.status)
        self._scope = trio.CancelScope()
        """Cancel scope of all work that a second signal interrupts."""
        self._shown = trio.Event()
        self._started_at = trio.current_time()
        live = settings.live
        live.listeners.append(self._apply)
        self._room = DiskRoom(settings.data_dir, lambda: live.now.max_disk)
        self._traffic = MonthTraffic(settings.data_dir)
        self._quota = MonthlyQuota(self._traffic, in_a_thread(Sensors().now), lambda: live.now.monthly_quota)
        self._away = Away(self._quota, self._room, self._state)
        self._rest: Rest | None = None
        """Reason to stay away or to leave."""
        self._is_away = False
        self.paused: TimedPause | None = None
        """The user's own pause; `Controls` ends it."""
        self._moved = (0, 0)
        """Bytes sent and received in earlier stays."""
        self.part = Participation(settings, identity, choice, self._room, self._log.emit)

    async def run(self) -> int:
        """Run until the peer leaves, is interrupted or cannot go on; return the exit code or raise PeerError."""
        settings = self._settings
        self.paused = await trio.to_thread.run_sync(kept_pause, settings.data_dir, time.time())
        controls = Controls(self)
        if self.paused is not None:
            self._pending_notice = f"still paused {self.paused.end(time.time())}; `peer resume` ends the pause"
        server = ControlServer(settings.data_dir, self._log, controls.commands(), self.status)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as under `nohup`
        asks_to_leave = (signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP]))
        with trio.open_signal_receiver(*asks_to_leave) as signals:
            with told_as(ExitCode.RESOURCES, ControlError):
                await server.open()
            async with trio.open_nursery() as nursery:
                for task in (
                    self._log.run,
                    server.run,
                    controls.run,
                    self._show,
                    self._hardware.run,
                    self._history.run,
                ):
                    nursery.start_soon(task)
                nursery.start_soon(self._obey_signals, signals)
                nursery.start_soon(self._leave_with_the_reader)
                if (port := settings.live.now.metrics_port) is not None:
                    nursery.start_soon(serve_metrics, port, self.status)
                run, notice = self.part.choice.run, self.notice
                if (page := settings.live.now.page) is not None:
                    nursery.start_soon(keep_page, Path(page), self._history, self.status, notice)
                for target in settings.live.now.track or ():
                    nursery.start_soon(keep_tracking, target, settings.data_dir, run, partial(notice, "warning"))
                if settings.style is Style.SILENT:
                    nursery.start_soon(self._leave_with_the_view)
                if settings.leave.until_eof:
                    nursery.start_soon(self._leave_at_eof)
                with self._scope:
                    try:
                        await self.stay(self._begin)
                    except* Exception as group:
                        self._problem = problem_of(group, settings.data_dir)
                code = self._say_how_it_ended()
                self._log.flush()
                with trio.move_on_after(LAST_WORDS_S) as self._scope:
                    await self._shown.wait()
                    await server.streams_ended()
                nursery.cancel_scope.cancel()
        told = settings.style is Style.JSON and self._shown.is_set() and not self._output.broken
        if self._problem is not None and not told:
            raise self._problem
        return code

    # -- external requests to leave: a signal, the end of standard input, the loss of the output's reader ---------------

    async def _obey_signals(self, signals: AsyncIterator[int]) -> None:
        """Leave gracefully on the first signal, at once on each further one."""
        async for _ in signals:
            self.notice("info", "leaving; a second request to leave ends the peer at once")
            self.leave()
            break
        async for _ in signals:
            self._at_once = True
            self._scope.cancel()

    async def _leave_at_eof(self) -> None:
        """Leave when standard input ends, because the process that started us held the other end and has ended."""
        wait = partial(trio.to_thread.run_sync, wait_for_eof, sys.stdin.fileno())
        await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
        self.leave()

    async def _leave_with_the_view(self) -> None:
        """Leave when the interface closes its end of standard input; stay if the interface writes a word first."""
        wait = partial(trio.to_thread.run_sync, wait_for_a_word, sys.stdin.fileno())
        if await wait(abandon_on_cancel=True):  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
            self.notice("info", "detached from the terminal; `peer watch` shows this peer, `peer leave` stops it")
        else:
            self.notice("info", "the terminal is gone; leaving")
            self.leave()

    async def _leave_with_the_reader(self) -> None:
        """Leave when standard output loses its reader, unless told to go on: an unwatched peer would train for ever."""
        await self._output.until_gone()
        if self._settings.leave.ignore_closed_output:
            self.notice("warning", "nobody reads standard output any more; continuing anyway")
        elif not self._leaving:
            self._problem = PeerError(READER_GONE, ExitCode.OUTPUT)
            self.leave()

    # -- requests from the user ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say goodbye and stop; `run` returns."""
        self._leaving = True
        if self._is_away or not self.part.leave():
            self._scope.cancel()

    def finish(self) -> float:
        """Stop once the running round is complete or cannot be completed; return the longest time that this can take (s)."""
        within_s = self.running_node().finish()
        self.notice("info", f"stopping when this round is complete, in {duration(within_s)} at most")
        return within_s

    async def pause(self, pause: TimedPause) -> None:
        """Compute nothing until `resume`, also after a restart.  Raises ControlError if the pause cannot be stored."""
        await self._keep(pause)
        self.part.permit.suspend(WhyIdle.PAUSED, pause.detail(time.time()))

    async def resume(self) -> None:
        """Compute again after a pause.  Raises ControlError if the end of the pause cannot be stored."""
        await self._keep(None)
        self.part.permit.restore(WhyIdle.PAUSED)

    async def _keep(self, pause: TimedPause | None) -> None:
        try:
            await trio.to_thread.run_sync(keep_pause, self._settings.data_dir, pause)
        except OSError as error:
            raise ControlError(
                f"the pause cannot be kept in {self._settings.data_dir}: {error.strerror or error}"
            ) from error
        self.paused = pause

    def settings(self) -> dict[str, Any]:
        """Return the settings for `peer config --json`, with the month's traffic."""
        month = {"month": self._traffic.month, "bytes": self._traffic.bytes}
        return {"month": month, **self._settings.live.as_map()}

    async def change(self, name: str, text: str | None, keep: bool) -> str | None:
        """Change a setting.  text: new value; None for the default.

        keep: also write it to peer.toml, if there is such a file.
        Return the path of the written file, None if nothing was written.  If it raises PeerError or OSError, nothing has
        changed.
        """
        live = self._settings.live
        check_change(name)
        if text is not None:
            read_value(name, text, "")  # before the file is written
        if keep and live.path is not None:
            await trio.to_thread.run_sync(write_setting, live.path, name, text)
        live.change(name, text)
        shown = SETTINGS[name].shown(live.settings[name].value)
        self.notice("info", f"{name} is {shown or 'not set'} from now on")
        return str(live.path) if keep and live.path is not None else None

    def _apply(self) -> None:
        """Apply changed settings."""
        self._away.look_now()
        if not self._is_away:
            self.part.apply()

    async def history(self, view: Callable[[RunHistory], T]) -> T:
        """Return the result of `view` for the run's history, computed in a thread.

        Raises `ControlError` while the run is unknown.
        """
        found = await self._history.read(view)
        if found is None:
            raise ControlError("the peer is still fetching the run's manifest; there is no history yet")
        return found

    def notice(self, level: str, text: str) -> None:
        """Emit a sentence for the person.  level: info or warning."""
        self._log.emit(Notice(level, text))

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> PeerStatus:
        """Return the status that `peer status --json` shows; while away, the last one, marked as paused."""
        part, known, (up, down) = self.part, self.part.status(), self._moved
        if self._is_away and self._rest is not None:
            known = replace(
                known,
                phase=Phase.PAUSED.value,
                why_idle=self._rest.why.value,
                why_detail=self._rest.detail,
                peers=0,
                swarm=[],
                tokens_per_s=0.0,
                round_left_s=None,
                trainer_pid=None,
                up_bytes=up,
                down_bytes=down,
            )
        else:
            known = replace(known, up_bytes=up + known.up_bytes, down_bytes=down + known.down_bytes)
        reachable, reachability = (AddressVerdict.UNKNOWN.value, {}) if self._is_away else part.reachability()
        paused = f"paused {self.paused.end(time.time())}" if self.paused is not None else ""
        return PeerStatus.around(
            known,
            pid=os.getpid(),
            uptime_s=trio.current_time() - self._started_at,
            mono=time.monotonic(),
            addresses=[] if self._is_away else part.addresses(),
            invitation=part.invitation(),
            invite_command=part.invite_command(),
            reachable=reachable,
            reachability=reachability,
            run_definition=part.run_definition(),
            computer=self._hardware.status,
            contribution=self._history.contribution,
            next_rest=paused or part.next_rest,
            limits=limits_in_force(self._settings.live.now),
        )

    @property
    def node(self) -> Node | None:
        """Node of the present stay; None while the peer is not in the run."""
        return None if self._is_away else self.part.node

    @property
    def is_working(self) -> bool:
        """True while the peer may compute."""
        return not self._is_away and self.part.is_working

    @property
    def contacts(self) -> Contacts | None:
        """Addresses at which guests find this swarm, once the network is open."""
        return None if self._is_away else self.part.contacts

    @property
    def tasks(self) -> TaskSetCommands | None:
        """Commands about sets of tasks, once the node of a run with rollouts runs."""
        return self.node.tasks if self.node is not None else None

    def running_node(self) -> Node:
        """Return the node.  Raises ControlError while the peer is not in the run."""
        if self.node is not None:
            return self.node
        if self._is_away and self._rest is not None:
            raise ControlError(f"the peer is not in the run now: {self._rest.detail}")
        raise ControlError("the peer is still fetching the run's manifest; ask again when it has begun")

    # -- stays in the run; between two stays, a full disk or a used-up quota keeps the peer away --------------------------

    async def stay(self, opened: Callable[[], None]) -> None:
        """Take part until the peer has left for good; `opened` is called whenever the network listens.  Raises PeerError."""
        self._rest = await self._quota.rest()
        while True:
            if self._rest is None:
                await self._stay_once(opened)
            if self._rest is None or self._leaving:
                return
            await self._stay_away(self._rest)
            self._rest = None
            self.part = Participation(self._settings, self._identity, self.part.choice, self._room, self._log.emit)

    async def _stay_once(self, opened: Callable[[], None]) -> None:
        """Stay in the run until the peer has left for good, or until it must stay away; set the reason as `_rest`."""
        part, begun = self.part, trio.current_time()
        if self.paused is not None:
            part.permit.suspend(WhyIdle.PAUSED, self.paused.detail(time.time()))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._quota.watch, part.line_bytes, partial(self._spent, nursery.cancel_scope))
                await part.run(opened)
                nursery.cancel_scope.cancel()
        except Exception as error:
            self._rest = full_disk(error)
            if self._rest is None or self._leaving:
                raise
            self._away.stayed(trio.current_time() - begun)

    def _spent(self, stay: trio.CancelScope, rest: Rest) -> None:
        """Leave because the month's quota is used up."""
        self._rest = rest
        if not self.part.leave(at_once=True):
            stay.cancel()

    async def _stay_away(self, rest: Rest) -> None:
        known = self.part.status()
        self._moved = (self._moved[0] + known.up_bytes, self._moved[1] + known.down_bytes)
        self._is_away = True

        def tell(rest: Rest) -> None:
            self._rest = rest
            self._log.emit(PhaseChanged(Phase.PAUSED.value, rest.why.value, rest.detail))

        tell(rest)
        await self._away.until_over(rest, tell)
        self._is_away = False
        self._log.emit(PhaseChanged(Phase.STARTING.value, WhyIdle.STARTING.value, "joining anew"))

    def _open_history(self) -> RunHistory | None:
        signed = self.part.choice.signed
        return RunHistory(signed, self._folder, self._identity.peer_id) if signed is not None else None

    def _state(self) -> tuple[Path, int, int]:
        signed = self.part.choice.signed
        return self._folder, signed.manifest.stored_bytes if signed is not None else 0, self.part.more_bytes()

    # -- begin and end of the log -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin the log: the network listens now."""
        self._log.begin()
        if self._pending_notice:
            self.notice("warning", self._pending_notice)
            self._pending_notice = ""

    async def _show(self) -> None:
        await show(self._log, self._settings.style, self.status, self._output)
        self._shown.set()

    def _started(self) -> Started:
        part, settings = self.part, self._settings
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
        node, problem = self.part.node, self._problem
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
