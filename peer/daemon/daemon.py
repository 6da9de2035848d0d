"""A running peer: takes the parts, wires them together, and takes them apart again.

The order of a life: the control socket, the network, the manifest (fetched when an invitation brought only its hash),
the state in memory, the trainer, the node.  What each part decides is decided in it; here is decided what happens when
one cannot go on: a sentence, an exit code, and everything else closed cleanly.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import trio

from peer.cli import version
from peer.console.display import Style, show
from peer.console.output import Output
from peer.control.client import ControlError
from peer.control.event_log import EventLog, RotatingFile
from peer.control.requests import Controls
from peer.control.server import ControlServer
from peer.daemon.early_status import early_status
from peer.daemon.failure import problem_of
from peer.daemon.leave_triggers import leave_at_eof, leave_with_the_reader, obey_signals, open_signals
from peer.daemon.ports import chosen_port
from peer.discovery.address_book import AddressBook
from peer.discovery.contacts import Contacts
from peer.discovery.search import Search
from peer.errors import ExitCode, PeerError
from peer.joining.inviting import invite_command
from peer.joining.lobby import Lobby, fetch_manifest
from peer.joining.run_source import store_manifest
from peer.joining.standing import standing_problem
from peer.keyfile import next_incarnation
from peer.paths import run_dir
from peer.resources.check import check_resources
from peer.resources.core_share import chosen_threads, keep_share
from peer.trainer_process.process import TrainerProcess, TrainerSettings
from protocol.events import Left, Notice, PeerBanned, PhaseChanged, Started, TrainerStarted, TrainerStopped
from protocol.network.interface import Network
from protocol.network.libp2p import Libp2pNetwork, open_network
from protocol.network.libp2p.dialer import peer_of
from protocol.network.session import Session
from protocol.node.node import Node
from protocol.run.invitation import make_invitation
from protocol.run.manifest import Admission, SignedManifest
from protocol.run.settings import NodeSettings
from protocol.state.outer_state import OuterState
from protocol.state.replica import Replica
from protocol.state.store import Store
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Phase, Role, WhyIdle

MANIFEST_DEADLINE_S = 120.0
"""How long the peers of an invitation are tried before it is called unreachable."""
LAST_WORDS_S = 5.0
"""For the listeners of the event log to hear the end; only a slow one takes so long."""


@dataclass(frozen=True)
class RunChoice:
    """Which run, and what an invitation added.  `signed` is None while only its hash is known."""

    run: Hash
    organiser: PeerId
    signed: SignedManifest | None
    addresses: tuple[str, ...] = ()
    token: bytes | None = None


@dataclass(frozen=True)
class DaemonSettings:
    """What the person said on the command line.

    port: None for the usual one, or a free one when that is busy.  rounds: stop when so many are committed.
    local: meet only peers on this computer.  until_eof: leave when standard input ends.
    ignore_closed_output: go on when nobody reads standard output any more.
    up_limit, down_limit: bytes a second.
    """

    data_dir: Path
    name: str
    role: Role
    style: Style
    port: int | None = None
    threads: int = 0
    rounds: int | None = None
    local: bool = False
    until_eof: bool = False
    ignore_closed_output: bool = False
    up_limit: float | None = None
    down_limit: float | None = None


class Daemon:
    """One peer process."""

    nursery: trio.Nursery

    def __init__(self, settings: DaemonSettings, identity: Identity, choice: RunChoice) -> None:
        self._settings, self._identity, self._choice = settings, identity, choice
        self._folder = run_dir(settings.data_dir, choice.run)
        self._log = EventLog(RotatingFile(self._folder), first=self._started)
        encoding = "utf-8" if settings.style is Style.JSON else sys.stdout.encoding
        self._output = Output(sys.stdout.fileno(), encoding, lambda text: self.notice("warning", text))
        self._lobby = Lobby()
        self._network: Libp2pNetwork | None = None
        self._search: Search | None = None
        self._node: Node | None = None
        self._waiting = ""
        self._leaving = self._at_once = False
        self._problem: PeerError | None = None
        self._scope = trio.CancelScope()
        """Of what a second signal cuts short."""
        self._shown = trio.Event()
        self._started_at = trio.current_time()
        self.store: Store | None = None
        self.contacts: Contacts | None = None

    async def run(self) -> int:
        """Live until left, interrupted, or unable to go on; returns the exit code or raises PeerError."""
        server = ControlServer(self._settings.data_dir, self._log, Controls(self).commands(), self.status)
        with open_signals() as signals:
            try:
                await server.open()
            except ControlError as error:
                raise PeerError(str(error), ExitCode.RESOURCES) from error
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self._log.run)
                self.nursery.start_soon(server.run)
                self.nursery.start_soon(self._show)
                self.nursery.start_soon(obey_signals, self, signals)
                self.nursery.start_soon(leave_with_the_reader, self, self._output, self._settings.ignore_closed_output)
                if self._settings.until_eof:
                    self.nursery.start_soon(leave_at_eof, self)
                await self._live_guarded()
                code = self._say_how_it_ended()
                self._log.flush()
                with trio.move_on_after(LAST_WORDS_S) as self._scope:
                    await self._shown.wait()
                    await server.streams_ended()
                self.nursery.cancel_scope.cancel()
        told = self._settings.style is Style.JSON and self._shown.is_set() and not self._output.broken
        if self._problem is not None and not told:
            raise self._problem
        return code

    # -- what the person asks -----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say goodbye and stop; `run` returns."""
        self._leaving = True
        if self._node is not None:
            self._node.leave()
        else:
            self._scope.cancel()

    def leave_at_once(self) -> None:
        """Without waiting for anything, the goodbye included."""
        self._at_once = True
        self._scope.cancel()

    def stop(self, problem: PeerError) -> None:
        """Leave because something cannot go on."""
        if not self._leaving:
            self._problem = problem
            self.leave()

    def finish(self) -> None:
        """Stop when the running round is complete."""
        self._started_node().finish()
        self.notice("info", "stopping when this round is complete")

    def pause(self) -> None:
        self._started_node().pause()

    def resume(self) -> None:
        self._started_node().resume()

    def notice(self, level: str, text: str) -> None:
        self._log.emit(Notice(level, text))

    def status(self) -> dict[str, Any]:
        """Everything `peer status --json` shows."""
        known = self._node.status() if self._node is not None else self._early_status()
        if self._search is not None and self._search.summary and known["phase"] == Phase.STARTING.value:
            known["why_detail"] = f"no peer of the invitation answers yet: {self._search.summary}"
        return {**known, "pid": os.getpid(), "uptime_s": trio.current_time() - self._started_at,
                "addresses": self._addresses(),
                "invitation": self._invitation(), "invite_command": self._invite_command()}

    def _addresses(self) -> list[str]:
        return list(self._network.addresses()) if self._network is not None else []

    def _invitation(self) -> str:
        """What to paste elsewhere to join this run; "" for a run that admits by token, or by name."""
        signed = self._choice.signed
        if signed is None or signed.manifest.admission is not Admission.OPEN or self.contacts is None:
            return ""
        return make_invitation(self._choice.run, self._choice.organiser, self.contacts.known().for_invitation())

    def _invite_command(self) -> str:
        """How to make an invitation to a run that admits by token; "" for who is not its organiser."""
        signed = self._choice.signed
        if signed is None or signed.manifest.admission is not Admission.INVITE:
            return ""
        ours = signed.manifest.organiser == self._identity.peer_id
        return invite_command(signed.run, self._settings.data_dir) if ours else ""

    def _swarm(self) -> dict[PeerId, list[str]]:
        """The live peers of the run, and their addresses as they say."""
        swarm = self._node.status()["swarm"] if self._node is not None else []
        return {PeerId(known["peer"]): known["addresses"] for known in swarm if known["liveness"] == "alive"}

    def _started_node(self) -> Node:
        if self._node is None:
            raise ControlError("the peer is still fetching the run's manifest; ask again when it has begun")
        return self._node

    def _early_status(self) -> dict[str, Any]:
        signed, settings = self._choice.signed, self._settings
        return early_status(
            peer=self._identity.peer_id, name=settings.name, run=self._choice.run.hex(),
            run_name=signed.manifest.name if signed else "", role=settings.role.value, waiting_for=self._waiting,
            peers=len(self._network.connected()) if self._network is not None else 0)

    # -- the tasks around the node ------------------------------------------------------------------------------------

    async def _show(self) -> None:
        await show(self._log, self._settings.style, self.status, self._output)
        self._shown.set()

    def _started(self) -> Started:
        signed, settings = self._choice.signed, self._settings
        return Started(self._identity.peer_id, settings.name, self._choice.run.hex(), signed.manifest.name if signed else "",
                       version(), os.getpid(), self._addresses(), str(settings.data_dir))

    def _wait_for(self, what: str) -> None:
        if what != self._waiting:
            self._waiting = what
            self._log.emit(PhaseChanged(Phase.STARTING.value, WhyIdle.CONNECTING.value, what))

    def _say_how_it_ended(self) -> ExitCode:
        """With the last event of every life; the only one that tells the problem, if there was one."""
        node, problem = self._node, self._problem
        code = ExitCode.INTERRUPTED if self._at_once else ExitCode.OK
        heard_by = node.goodbye_heard_by if node is not None else None
        self._log.emit(Left(heard_by is not None, heard_by or 0, node.rounds if node is not None else None,
                            problem.exit_code if problem else code, problem.text if problem else ""))
        return problem.exit_code if problem else code

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _live_guarded(self) -> None:
        with self._scope:
            try:
                await self._live()
            except* Exception as group:
                self._problem = problem_of(group, self._settings.data_dir)

    async def _live(self) -> None:
        settings = self._settings
        self._waiting = "opening the network"
        await trio.to_thread.run_sync(import_module, "libp2p")  # takes seconds, in which `peer leave` wants its answer
        async with AsyncExitStack() as stack:
            host = "127.0.0.1" if settings.local else "0.0.0.0"  # noqa: S104 - strangers are to reach us
            port = stack.enter_context(chosen_port(settings.port, settings.local))
            network = await stack.enter_async_context(open_network(
                self._identity, self._choice.run, self._lobby, listen_host=host, listen_port=port,
                mdns=not settings.local, up_limit=settings.up_limit, down_limit=settings.down_limit,
                on_ban=lambda peer, why: self._log.emit(PeerBanned(peer, why)), on_strangers=self._log.emit))
            nursery = await stack.enter_async_context(trio.open_nursery())
            self._network = network
            network.remember(self._choice.addresses)
            self._waiting = ""
            self._log.begin()
            book = AddressBook(self._folder, self._choice.run, network, self._log.emit)
            nursery.start_soon(book.keep)
            self.contacts = Contacts(self._folder, network, self._swarm)
            nursery.start_soon(self.contacts.keep)
            self._search = Search(network, self._choice.addresses, self._log.emit, lambda: bool(self._swarm()))
            if self._choice.addresses:
                nursery.start_soon(self._search.run)
            signed = await self._manifest(network, self._search)
            await self._live_in(signed, network, nursery)
            nursery.cancel_scope.cancel()

    async def _manifest(self, network: Network, search: Search) -> SignedManifest:
        """The run's manifest, checked: that this software and this peer may take part, and that the run fits here."""
        signed = self._choice.signed
        if signed is None:
            with trio.move_on_after(MANIFEST_DEADLINE_S):
                signed = await fetch_manifest(network, self._choice.run, self._choice.organiser, self._wait_for)
        if signed is None:
            raise PeerError(search.failure(MANIFEST_DEADLINE_S), ExitCode.UNREACHABLE)
        manifest = signed.manifest
        problem = await trio.to_thread.run_sync(
            standing_problem, manifest, signed.run, self._identity.peer_id, self._choice.token, time.time(),
            self._settings.role, self._folder)
        if problem is not None:
            raise PeerError(problem, ExitCode.NOT_ADMITTED)
        self._choice = replace(self._choice, signed=signed)
        check_resources(manifest, self._settings.role, self._settings.data_dir)
        store_manifest(signed, self._settings.data_dir)
        return signed

    async def _live_in(self, signed: SignedManifest, network: Network, nursery: trio.Nursery) -> None:
        settings = self._settings
        self.store = await trio.to_thread.run_sync(Store, self._folder)
        state = OuterState(signed.manifest)
        trainer = self._make_trainer(signed, state) if settings.role is Role.TRAINER else None
        if trainer is not None:
            nursery.start_soon(self._keep_trainer, trainer)
            nursery.start_soon(keep_share, trainer, self._log.emit, chosen_threads(settings.threads))
        session = Session(self._identity, signed.run, network, self._log.emit)
        node = Node(session, Replica.open(signed, self.store, state), trainer, self._node_settings())
        self._node = node
        self._lobby.admit(node.reception)
        await node.run()

    def _node_settings(self) -> NodeSettings:
        settings = self._settings
        introduced = frozenset(peer for address in self._choice.addresses if (peer := peer_of(address)) is not None)
        return NodeSettings(
            name=settings.name, role=settings.role, version=version(),
            incarnation=next_incarnation(settings.data_dir, floor=int(time.time())),
            wait_for_contact=bool(self._choice.addresses), stop_after=settings.rounds, token=self._choice.token,
            introduced=introduced, wall_clock=time.time)

    def _make_trainer(self, signed: SignedManifest, state: OuterState) -> TrainerProcess:
        settings = TrainerSettings.for_run(signed.manifest, self._folder / "trainer.log")
        return TrainerProcess(
            settings, state.region,
            on_started=lambda pid: self._log.emit(TrainerStarted(pid)),
            on_stopped=lambda reason: self._log.emit(TrainerStopped(reason)))

    async def _keep_trainer(self, trainer: TrainerProcess) -> None:
        """Its end by itself means that it was given up: stop with the reason, instead of a peer that does nothing."""
        await trainer.run()
        log = self._folder / "trainer.log"
        self.stop(PeerError(f"the trainer failed again and again; see {log}", ExitCode.TRAINER))
