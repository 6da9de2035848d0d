"""A swarm on one computer: real peers in temporary directories, watched until they have shown what they are to show.

The peers are ordinary `peer join` processes with a run and an organiser of their own, so they meet nobody else; like any
others, they share the cores of the computer with whoever trains here.  This process only reads their event streams.  It is
over when the play's aim says so of every peer; then they are told to leave.  Each peer leaves when its standard input ends,
so none outlives this process, however that ends.
"""

from __future__ import annotations

import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from peer.control.client import ControlClient, ControlError, NotRunning, Stamped
from peer.demo.member import Member
from peer.demo.plays import Play
from peer.demo.processes import end_all, failure, start_member, wait_for_all
from peer.resources.check import check_together

CONNECT_EVERY_S = 0.1
STATUS_EVERY_S = 1.0
TICK_S = 0.25
STALL_DEADLINE_S = 300.0
"""Without a trainer started, a training step that nobody had come to, a round committed or a part of an evaluation."""


class Demo:
    """Starts, watches and ends the peers of a play.  A context: whatever happens, nothing is left behind.

    folder: where everything lies; removed at the end unless `keep`.  patience_s: without any progress it has failed.
    """

    def __init__(self, play: Play, *, keep: bool, patience_s: float = STALL_DEADLINE_S) -> None:
        self.play, self._keep, self._patience_s = play, keep, patience_s
        self.folder = Path(tempfile.mkdtemp(prefix="manyhands-demo-"))
        self.members: list[Member] = []
        self._happened: queue.SimpleQueue[tuple[Member, Stamped | None]] = queue.SimpleQueue()
        self._closing = False
        self._started = time.monotonic()
        self._moved = self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient Ctrl-C must not stop the cleaning up
        end_all(self.members)
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
        play = self.play
        check_together(play.signed.manifest, len(play.cast))
        manifest = self.folder / "run.manifest"
        manifest.write_bytes(play.signed.raw)
        for number, part in enumerate(play.cast):
            folder = self.folder / part.name
            folder.mkdir(mode=0o700)
            if number == 0 and play.begins_with is not None:
                play.begins_with.keep(play.signed, folder)  # the others fetch it from this one
            member = start_member(part, folder, manifest, play.aim.stop_after)
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
        wait_for_all(self.members)

    # -- events -------------------------------------------------------------------------------------------------------

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
                    self.play.aim.apply(member, stamped.event)
                if member.furthest > before:
                    self._moved = time.monotonic()
                member, stamped = self._happened.get_nowait()
        except queue.Empty:
            return

    # -- looking ------------------------------------------------------------------------------------------------------

    def _ask_status(self) -> None:
        for member in self.members:
            try:
                member.progress.update(ControlClient(member.folder, timeout_s=2.0).status())
            except ControlError:
                continue  # not there yet, or gone: `_check` tells

    def _has_arrived(self, member: Member) -> bool:
        return self.play.aim.has_arrived(member.name)

    def _check(self) -> None:
        for member in self.members:
            code = member.process.poll()
            if code or (code == 0 and member.silent and not self._has_arrived(member)):
                raise failure(member, f"ended with exit code {code} before the demo was over")
        if time.monotonic() - self._moved > self._patience_s:
            slowest = min(self.members, key=lambda member: member.committed)
            raise failure(slowest, f"got no further for {self._patience_s:.0f} s")
