"""A peer's part in one run: the network, the manifest, the state, the trainer and the node, opened in this order.

The manifest is fetched through the network if an invitation brought only its hash.  Each component decides for itself; this
module ends the participation if a component cannot go on: with a sentence, an exit code, and a clean end of all others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path

import trio

from peer.addresses import local_remark
from peer.control.remote import Door
from peer.corpora.builtin import provide_builtin
from peer.corpora.own_data import LOST, OwnData, own_data
from peer.daemon.settings import DaemonSettings, RunChoice, chosen_port
from peer.discovery.contacts import AddressBook, Contacts
from peer.discovery.mdns import Mdns
from peer.discovery.port_mapping import NatPmp, PortMapping
from peer.discovery.search import Search
from peer.discovery.upnp import Upnp
from peer.errors import ExitCode, PeerError
from peer.files import is_original, mark_original
from peer.joining.inviting import anchor_of, invite_command
from peer.joining.lobby import Lobby, fetch_manifest
from peer.joining.purpose import about_sentence, purpose_sentence, run_definition, unusual_data
from peer.joining.run_source import BUILT, store_manifest
from peer.joining.standing import compare_with_anchor, find_standing, keep_admission
from peer.keyfile import next_incarnation
from peer.paths import BLOCKS, CORPORA, FILES, SCRATCH, make_private, run_dir
from peer.resources.check import TrainerDivision, check_division, check_generator, check_memory, chosen_role, may_offload
from peer.resources.computer import StatePlace, raise_open_files, seconds_since_boot, shared_bytes
from peer.resources.core_share import chosen_threads, keep_share
from peer.resources.pace import keep_own_pace
from peer.resources.requirements import requirement_problem, slow_line, this_computer
from peer.resources.room import (
    MARGIN_BYTES,
    STATES_ON_DISK,
    STATES_TO_GO_ON,
    CappedDisk,
    DiskRoom,
    default_block_cache,
)
from peer.rests.keeper import RestJudge, RestKeeper, RestLimits, in_a_thread
from peer.rests.sensors import Sensors
from peer.settings.preferences import Preferences
from peer.settings.values import mapped_addresses
from peer.trainer_process.process import RolloutProcess, TrainerPlaces, TrainerProcess, TrainerRanks, TrainerSettings
from peer.weights.base_files import description_flaw, find_base, hub_cache, missing_bytes
from protocol.blobs.store import BlobStore
from protocol.chain.outer_state import OuterState
from protocol.chain.replica import Replica
from protocol.chain.store import Store
from protocol.corpora.manifest import SHARDS
from protocol.disk import Disk, ScratchFolder, StoreFull, clear_folder
from protocol.events.events import Event, Notice, PhaseChanged, RoundVoted
from protocol.events.status import NodeStatus, RunDefinition, WhyIdle
from protocol.formatting import many
from protocol.membership.activity import WorkPermit
from protocol.node.node import Node
from protocol.run.invitation import make_invitation
from protocol.run.manifest import Admission, RunManifest, SignedManifest
from protocol.run.sections import TOKENIZER
from protocol.run.settings import CorpusSettings, NodeSettings
from protocol.sync.fetchers import paths_of
from protocol.transport.dialer import peer_of
from protocol.transport.inbound_policy import InboundLimits
from protocol.transport.interface import Network, Session
from protocol.transport.nat.reachability import AddressVerdict
from protocol.transport.network import Libp2pNetwork, NetworkSettings, open_network
from protocol.version import version
from protocol.wire.envelope import freeze_gc
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Phase, Role
from trainer.config import OWN_CORPUS
from trainer.generate.choice import GeneratorName

MANIFEST_DEADLINE_S = 120.0
"""Seconds for trying the peers of an invitation before the run counts as unreachable."""
PREPARING_S = 1.0
COPIED = (
    "this data directory was copied, or put back from a backup: the peer trains, and votes only when two more rounds are "
    "committed; if no other copy of it runs and none is newer, join with --only-copy to vote at once"
)
FOUNDS = (
    "this peer founds the run: others join it with an invitation, because the run file alone would found another run "
    "(`peer status` shows the invitation, or how to make one)"
)


class Participation:
    """Participation in one run, in `run`; its events go to `emit`.

    choice: includes the manifest once it is known.  permit: suspend it to compute nothing, also before the node runs.
    network, contacts, store, node: None until each is open.  leaving: true once `leave` was called.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        identity: Identity,
        choice: RunChoice,
        room: DiskRoom,
        emit: Callable[[Event], None],
    ) -> None:
        self._settings, self._identity, self._room, self._emit = settings, identity, room, emit
        self._folder = run_dir(settings.data_dir, choice.run)
        self._lobby = Lobby()
        self._search: Search | None = None
        self._early = WhyIdle.STARTING, "opening the network"
        """Reason for computing nothing while there is no node."""
        self._marking = threading.Lock()
        self._trainer_problem: PeerError | None = None
        self._keeper: RestKeeper | None = None
        self._trainer: TrainerProcess | None = None
        self._own_data: OwnData | None = None
        """Data of this peer's own, in a run on the members' own data."""
        self._division: TrainerDivision | None = None
        self._offload_later = False
        self._keeps_moments = False
        """True if the disk has room for the trainer's moments and residual as well."""
        self._role = settings.role
        self._definition: RunDefinition | None = None
        self._scratch: ScratchFolder | None = None
        """Files in place of memory; None while the state lies in memory."""
        self.scratch_bytes = 0
        """Size of these files, 0 until it is known."""
        self.leaving = False
        self.permit = WorkPermit()
        self.choice = choice
        self.network: Libp2pNetwork | None = None
        self.contacts: Contacts | None = None
        self.store: Store | None = None
        self.node: Node | None = None

    async def run(self, opened: Callable[[], None]) -> None:
        """Take part until the node has left; call `opened` once the network listens.  Raises PeerError with the remedy."""
        settings = self._settings
        preferences = settings.live.now
        owners = [PeerId(owner) for owner in preferences.owner or ()]
        await trio.to_thread.run_sync(import_module, "libp2p")  # takes seconds, during which `peer leave` needs an answer
        async with AsyncExitStack() as stack:
            host = "127.0.0.1" if settings.local else "0.0.0.0"  # noqa: S104 - strangers must reach us
            port = stack.enter_context(chosen_port(preferences.port, settings.local))
            how = NetworkSettings(
                host,
                port,
                None if settings.local else Mdns().discover,
                preferences.max_up,
                preferences.max_down,
                InboundLimits.within(raise_open_files()),
                announce=mapped_addresses(os.environ, port) if preferences.announce is None else preferences.announce,
                serve_tls=Door(self._identity, owners, settings.data_dir).serve if owners else None,
                relay_rate=preferences.relay,
            )
            self.network = network = await stack.enter_async_context(
                open_network(self._identity, self.choice.run, self._lobby, how, emit=self._emit)
            )
            nursery = await stack.enter_async_context(trio.open_nursery())
            network.remember(self.choice.addresses)
            opened()
            remark = local_remark(self.choice.addresses)
            if remark and not settings.local:
                self._emit(Notice("info", remark))
            search = self._discover(network, nursery)
            signed = await self._manifest(network, search)
            await self._live(signed, network, nursery)
            nursery.cancel_scope.cancel()
        if self._trainer_problem is not None:
            raise self._trainer_problem

    def leave(self, *, at_once: bool = False) -> bool:
        """Let the node say goodbye; `run` then returns.  Return False if no node runs yet: the caller then cancels `run`.

        at_once: True to hand no data over before.
        """
        self.leaving = True
        if self.node is not None:
            self.node.leave(at_once=at_once)
        return self.node is not None

    # -- changes while it runs ----------------------------------------------------------------------------------------

    def apply(self) -> None:
        """Apply the present settings."""
        now = self._settings.live.now
        if self.network is not None:
            self.network.limit(now.max_up, now.max_down)
        if self._keeper is not None:
            self._keeper.change(_limits(now))
        if self._trainer is not None:
            self._trainer.limit_pace(now.max_power, now.max_load)
        if self.node is not None:
            self.node.serve_while_paused(now.serve_while_paused)

    def more_bytes(self) -> int:
        """Return the bytes of disk needed beside states: files in place of memory, missing files of the base.  Blocking."""
        base = self.choice.signed.manifest.base if self.choice.signed is not None else None
        if base is None or not (self._folder / FILES).is_dir():
            return self.scratch_bytes
        files = BlobStore(Disk(), self._folder / FILES)
        files.load()
        return self.scratch_bytes + missing_bytes(base, files)

    def line_bytes(self) -> int:
        """Return the bytes carried for this peer, both ways, since its network was opened."""
        return self.network.line_bytes() if self.network is not None else 0

    def _corpora(self) -> CorpusSettings:
        """Return the corpora on this computer: those that the person names, and those that were built for this run here."""
        now, linked = self._settings.live.now, self._folder / CORPORA
        links = sorted(linked.iterdir()) if linked.is_dir() else []
        folders = dict.fromkeys([*map(Path, now.corpus or ()), *(link.resolve() for link in links)])
        networks, signed = tuple(map(ip_network, now.mirror_networks or ())), self.choice.signed
        cache = default_block_cache(self._room, self._folder) if now.block_cache is None else now.block_cache
        if now.max_disk is not None:  # the space that the limit leaves beside the run's states
            states = (STATES_ON_DISK + STATES_TO_GO_ON) * signed.manifest.stored_bytes if signed is not None else 0
            cache = min(cache, max(0, now.max_disk - states - self.scratch_bytes - MARGIN_BYTES))
        return CorpusSettings(tuple(folders), self._folder / BLOCKS, cache, now.keep_blocks, networks)

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> NodeStatus:
        """Return the node's status; before the node runs, the reason for waiting."""
        known = self.node.status() if self.node is not None else self._early_status()
        if self._search is not None and self._search.summary and known.why_idle == WhyIdle.CONNECTING.value:
            return replace(known, why_detail=f"no peer of the invitation answers yet: {self._search.summary}")
        return known

    @property
    def is_working(self) -> bool:
        """True while it may compute: it has a trainer, and no reason to rest."""
        return self._trainer is not None and self.node is not None and self.permit.is_granted

    @property
    def next_rest(self) -> str:
        """Description of the rests that the settings plan; empty if there are none."""
        return self._keeper.planned if self._keeper is not None else ""

    def addresses(self) -> list[str]:
        """Return the addresses at which this peer listens."""
        return list(self.network.addresses()) if self.network is not None else []

    def reachability(self) -> tuple[str, dict[str, str]]:
        """Return the verdict on our reachability, and a verdict for each address."""
        if self.network is None:
            return AddressVerdict.UNKNOWN.value, {}
        found = self.network.reachability()
        announced = {address.rpartition("/p2p/")[0]: AddressVerdict.UNKNOWN.value for address in self.network.addresses()}
        return found.overall.value, announced | {address: verdict.value for address, verdict in found.verdicts.items()}

    def invitation(self) -> str:
        """Return the invitation to the run; empty unless the run admits every peer."""
        signed = self.choice.signed
        if signed is None or signed.manifest.admission is not Admission.OPEN or self.contacts is None:
            return ""
        addresses, anchor = self.contacts.known().for_invitation(), anchor_of(self.status())
        return make_invitation(self.choice.run, self.choice.organiser, addresses, anchor=anchor)

    def run_definition(self) -> RunDefinition | None:
        """Return the run's facts for people; None until its manifest is known."""
        if self._definition is None and self.choice.signed is not None:
            self._definition = run_definition(self.choice.signed.manifest)
        return self._definition

    def invite_command(self) -> str:
        """Return the command that makes an invitation with a token; empty unless we organise a run that admits by token."""
        signed = self.choice.signed
        if signed is None or signed.manifest.admission is not Admission.INVITE:
            return ""
        ours = signed.manifest.organiser == self._identity.peer_id
        return invite_command(signed.run, self._settings.data_dir) if ours else ""

    def _early_status(self) -> NodeStatus:
        settings, (why, sentence) = self._settings, self._early
        return NodeStatus(
            peer=self._identity.peer_id,
            name=settings.name_of(self._identity.peer_id),
            run=self.choice.run.hex(),
            run_name=self.choice.run_name,
            role=self._role.value if self._role is not None else "auto",
            phase=Phase.STARTING.value,
            why_idle=why.value,
            why_detail=sentence,
            peers=len(self.network.connected()) if self.network is not None else 0,
            version=version(),
            team=settings.live.now.team,
        )

    # -- before the node ----------------------------------------------------------------------------------------------

    def _discover(self, network: Libp2pNetwork, nursery: trio.Nursery) -> Search:
        """Look for the peers of the run in `nursery`."""
        book = AddressBook(self._folder, self.choice.run, network, self._emit)
        nursery.start_soon(book.keep)
        self.contacts = Contacts(self._folder, network, self._swarm)
        nursery.start_soon(self.contacts.keep)
        if self._settings.live.now.port_mapping and not self._settings.local and network.own.need_a_router():
            mapping = PortMapping(network.own.port, (Upnp(), NatPmp()), network.own.map, self._emit)
            nursery.start_soon(mapping.keep)
        self._search = Search(network, self.choice.addresses, self._emit, lambda: bool(self._swarm()))
        if self.choice.addresses:
            nursery.start_soon(self._search.run)
        return self._search

    def _swarm(self) -> dict[PeerId, list[str]]:
        """Return the live peers of the run, with the addresses that they claim."""
        swarm = self.node.status().swarm if self.node is not None else []
        return {PeerId(known.peer): known.addresses for known in swarm if known.liveness == "alive"}

    async def _manifest(self, network: Network, search: Search) -> SignedManifest:
        """Return the run's manifest, after checking that this software and peer may take part and that the run fits here."""
        signed = self.choice.signed
        if signed is None:
            self._wait_for("asking for the run's manifest")
            with trio.move_on_after(MANIFEST_DEADLINE_S):
                signed = await fetch_manifest(network, self.choice.run, self.choice.organiser, self._wait_for)
        if signed is None:
            raise PeerError(search.failure(MANIFEST_DEADLINE_S), ExitCode.UNREACHABLE)
        self._early = WhyIdle.STARTING, "opening the run on disk"
        manifest = signed.manifest
        self._emit(Notice("info", about_sentence(manifest)))
        self._emit(Notice("info", purpose_sentence(manifest)))
        if warning := unusual_data(manifest):
            self._emit(Notice("warning", warning))
        state = self._settings.live.now.state
        computer = await trio.to_thread.run_sync(this_computer, self._room, self._folder, self._settings.live.now)
        unmet = requirement_problem(manifest, Role.TRAINER, computer)
        role = await chosen_role(
            manifest, signed.run, self._identity.peer_id, self._emit, self._role, state, may_train=not unmet
        )
        if unmet and role is Role.TRAINER:
            raise PeerError(unmet, ExitCode.RESOURCES)
        if slow := slow_line(manifest, role, computer):
            self._emit(Notice("warning", slow))
        self._role = role
        standing = await trio.to_thread.run_sync(
            find_standing,
            manifest,
            signed.run,
            self._identity.peer_id,
            self.choice.admission,
            time.time(),
            role,
            self._folder,
        )
        if standing.problem is not None:
            raise PeerError(standing.problem, ExitCode.NOT_ADMITTED)
        self.choice = replace(self.choice, signed=signed, admission=standing.admission)
        self._own_data = own_data(manifest, role, self._settings.live.now.data, self._folder, self._room)
        now = self._settings.live.now
        division = self._division = check_division(manifest, role, now.gpus, now.processes, now.offload)
        place = check_memory(manifest, role, state, self._emit, division)
        self._offload_later = now.offload == "auto" and may_offload(manifest, role, division, place)
        self.scratch_bytes = shared_bytes(manifest, role) if place is StatePlace.DISK else 0
        clear_folder(Disk(), self._folder / SCRATCH)  # of a killed process: the check counts its room as free
        if role is Role.ROLLOUT:
            check_generator(GeneratorName(self._settings.live.now.generator))
        more = self.scratch_bytes + await self._look_for_base(manifest)
        problem = await trio.to_thread.run_sync(self._room.problem, self._folder, manifest.stored_bytes, more)
        if problem:
            raise StoreFull(problem)
        # moments are as large as the state, and two copies exist during a write
        kept = 2 * manifest.state_bytes + more
        problem = await trio.to_thread.run_sync(self._room.problem, self._folder, manifest.stored_bytes, kept)
        self._keeps_moments = not problem
        store_manifest(signed, self._settings.data_dir)
        keep_admission(standing.admission, self._folder)
        return signed

    async def _look_for_base(self, manifest: RunManifest) -> int:
        """Use the frozen model's files that are on this computer; return the bytes of those that have to be fetched."""
        if manifest.base is None:
            return 0
        files = BlobStore(Disk(), make_private(self._folder / FILES))
        if found := await trio.to_thread.run_sync(find_base, manifest.base, files):
            self._emit(Notice("info", f"{many(found, 'file')} of the model found in {hub_cache()}"))
        return missing_bytes(manifest.base, files)

    def _wait_for(self, what: str) -> None:
        if what != self._early[1]:
            self._early = WhyIdle.CONNECTING, what
            self._emit(PhaseChanged(Phase.STARTING.value, WhyIdle.CONNECTING.value, what))

    # -- the node -----------------------------------------------------------------------------------------------------

    async def _live(self, signed: SignedManifest, network: Network, nursery: trio.Nursery) -> None:
        store = self.store = await trio.to_thread.run_sync(Store, self._folder, CappedDisk(self._room))
        built = self._settings.data_dir / BUILT
        await trio.to_thread.run_sync(provide_builtin, signed.manifest, store.files, self._folder, built)
        folder = self._folder / SCRATCH
        self._scratch = ScratchFolder(store.disk, folder) if self.scratch_bytes else None
        state = await trio.to_thread.run_sync(OuterState, signed.manifest, self._scratch)
        try:
            await self._live_with(signed, store, state, network, nursery)
        finally:
            state.close()  # a later participation opens its own
            clear_folder(store.disk, folder)  # a trainer that never started leaves its file

    async def _live_with(
        self, signed: SignedManifest, store: Store, state: OuterState, network: Network, nursery: trio.Nursery
    ) -> None:
        settings = self._settings
        trainer = self._trainer = self._make_trainer(signed, store, state) if self._role is not Role.SEED else None
        if trainer is not None:
            nursery.start_soon(keep_share, trainer, self._emit, lambda: chosen_threads(settings.live.now.threads or 0))
        is_copy = not settings.only_copy and not await trio.to_thread.run_sync(is_original, self._folder)
        if is_copy:
            self._emit(Notice("warning", COPIED))
        else:
            await trio.to_thread.run_sync(self._mark_again)

        def emit(event: Event) -> None:
            self._emit(event)
            if isinstance(event, RoundVoted):
                nursery.start_soon(trio.to_thread.run_sync, self._mark_again)

        session, replica = Session(self._identity, signed.run, network, emit), Replica.open(signed, store, state)
        if damage := await trio.to_thread.run_sync(replica.history.damage):
            self._emit(Notice("warning", damage))
        compare_with_anchor(self.choice.anchor, replica.history, signed.run)
        node = Node(session, replica, trainer, self._node_settings(is_copy), permit=self.permit)
        self.node = node
        if signed.manifest.base is not None:
            nursery.start_soon(self._judge_base, signed.manifest, store, node)
        if trainer is not None:
            trainer.report_load(node.note_load)
            nursery.start_soon(self._keep_trainer, trainer, node)
            nursery.start_soon(keep_own_pace, settings.data_dir, node.status, signed.manifest)
            sensors = Sensors(asks_for_people=lambda: settings.live.now.unused_for is not None)
            self._keeper = RestKeeper(RestJudge(_limits(settings.live.now)), in_a_thread(sensors.read), self.permit)
            nursery.start_soon(self._keeper.run)
        if self._own_data is not None:
            self.permit.suspend(WhyIdle.PREPARING_DATA, self._own_data.progress)
        if signed.manifest.organiser == self._identity.peer_id and not replica.history.length:
            self._emit(Notice("info", FOUNDS))
        self._lobby.admit(node.router)
        freeze_gc()
        await node.run()

    def _mark_again(self) -> None:
        """Renew the mark, so that an earlier backup is recognised.  The store reports a failing disk."""
        with suppress(OSError), self._marking:
            mark_original(self._folder)

    def _node_settings(self, is_copy: bool) -> NodeSettings:
        settings, role = self._settings, self._role
        assert role is not None, "the manifest is known"
        introduced = frozenset(peer for address in self.choice.addresses if (peer := peer_of(address)) is not None)
        return NodeSettings(
            name=settings.name_of(self._identity.peer_id),
            role=role,
            version=version(),
            incarnation=next_incarnation(settings.data_dir, floor=int(time.time())),
            wait_for_contact=bool(self.choice.addresses),
            stop_after=settings.leave.rounds,
            until_end=settings.leave.until_end,
            admission=self.choice.admission,
            introduced=introduced,
            anchor=self.choice.anchor,
            is_copy=is_copy,
            wall_clock=time.time,
            boot_clock=seconds_since_boot,
            corpora=self._corpora(),
            serve_while_paused=settings.live.now.serve_while_paused,
            team=settings.live.now.team,
        )

    def _make_trainer(self, signed: SignedManifest, store: Store, state: OuterState) -> TrainerProcess:
        corpora, files = self._corpora(), paths_of(signed.manifest, store.files)
        places = TrainerPlaces(files, (*(folder / SHARDS for folder in corpora.folders), self._folder / BLOCKS))
        if self._own_data is not None:
            places = TrainerPlaces({**files, OWN_CORPUS: self._own_data.manifest_path}, (self._own_data.blocks,))
        now, division = self._settings.live.now, self._division
        assert division is not None, "the memory was checked"
        settings = TrainerSettings.for_run(
            signed.manifest,
            self._folder / "trainer.log",
            places,
            trains=self._role is Role.TRAINER,
            moments=self._folder if self._keeps_moments else None,
            generator=GeneratorName(now.generator),
            ranks=TrainerRanks(division.gpus, now.processes or 1, division.setup.offload, self._offload_later),
        )
        settings = replace(settings, scratch=self._scratch, compiles=now.compile)
        kind = TrainerProcess if signed.manifest.rl is None else RolloutProcess
        trainer = kind(settings, state.region, self._emit)
        trainer.limit_pace(now.max_power, now.max_load)
        return trainer

    async def _judge_base(self, manifest: RunManifest, store: Store, node: Node) -> None:
        """Leave if the small files of the frozen model show that no trainer could read it."""
        await node.files.until_small_here()
        if not self.leaving and (flaw := await trio.to_thread.run_sync(description_flaw, manifest, store.files)):
            self._give_up(PeerError(flaw, ExitCode.INPUT))

    async def _keep_trainer(self, trainer: TrainerProcess, node: Node) -> None:
        """Start the trainer once the run's files are here.

        If the trainer ends by itself, it was given up: the peer then leaves with the reason, because it could do nothing.
        """
        await node.files.until_here()
        if self._own_data is not None and not await self._prepare(self._own_data, trainer):
            return
        reason = await trainer.run()
        if not self.leaving:
            self._give_up(PeerError(f"{reason}; see {self._folder / 'trainer.log'}", ExitCode.TRAINER))

    def _give_up(self, problem: PeerError) -> None:
        """Leave with the reason why this peer cannot train."""
        self._trainer_problem = problem
        self.leave()

    async def _prepare(self, data: OwnData, trainer: TrainerProcess) -> bool:
        """Build the corpus of this peer's own data; leave and return False if it cannot be built."""
        assert self.store is not None and self.choice.signed is not None
        tokenizer = paths_of(self.choice.signed.manifest, self.store.files).get(TOKENIZER)

        def on_lost(shard: Hash, number: int) -> None:
            data.forget()
            self._give_up(PeerError(LOST.format(data=data.origin), ExitCode.RESOURCES))

        async def tell_progress() -> None:
            try:
                while True:
                    self.permit.suspend(WhyIdle.PREPARING_DATA, data.progress)
                    await trio.sleep(PREPARING_S)
            finally:
                data.stop()

        problem: PeerError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_progress)
            try:
                await trio.to_thread.run_sync(data.build, tokenizer)
            except PeerError as error:
                problem = error
            nursery.cancel_scope.cancel()
        if problem is not None:
            self._give_up(problem)
            return False
        trainer.report_missing(on_lost)
        self.permit.restore(WhyIdle.PREPARING_DATA)
        return True


def _limits(now: Preferences) -> RestLimits:
    return RestLimits(now.schedule, now.max_temperature, now.on_battery, now.yield_gpu, now.unused_for)
