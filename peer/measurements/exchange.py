"""Averaging speed of this computer: a few peers in this process, over real sockets on loopback, encrypted and checked."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import trio

from kernels.aggregate import Rule
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from peer.errors import PeerError
from protocol.allreduce.assignment import assign_owners, contribution_leaves
from protocol.allreduce.buffers import OwnParts
from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.runner import ExchangeAsk, ExchangeRunner, push_plan
from protocol.events.events import Event
from protocol.transport.interface import Acceptance, Landing, Network, NetworkError, Refused, Session
from protocol.transport.network import Libp2pNetwork, NetworkSettings, open_network
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Member, Plan

# ------------------------------------------------------------------------------------------------------------------------
# A peer that only averages: it takes part in exchanges, without training, votes or records.


RUN = Hash(b"\x05" * 32)
TOKENS = 1000
STALL_S = 10.0


@dataclass(frozen=True)
class Introduction:
    """Facts that other peers know about a peer.

    root: root hash of the peer's contribution.  bytes_per_s: rate of the peer's line; 0 if unknown.
    """

    peer: PeerId
    root: Hash
    bytes_per_s: float = 0.0


class ExchangePeer:
    """Peer that implements `protocol.transport.interface.Handlers` for the running exchange.  Its contribution is random."""

    def __init__(self, parameters: int, chunk: int, rule: Rule = "mean", codec: str = "int4") -> None:
        self.rule: Rule = rule
        self.identity = Identity.generate()
        self.layouts = chunk_layouts(LADDER[codec], parameters, chunk)
        layout = self.layouts.contribution
        self.contribution = memoryview(mmap.mmap(-1, layout.payload_bytes))
        self.result = memoryview(mmap.mmap(-1, self.layouts.result.payload_bytes))
        values = np.random.default_rng(self.identity.public_key[0]).standard_normal(chunk, dtype=np.float32)
        for span in layout:
            layout.format.encode(values[: span.count], self.contribution[span.encoded])
        self.leaves = contribution_leaves(self.identity.peer_id, self.contribution, layout)
        self.exchange: ExchangeRunner | None = None
        self._begun = trio.Event()
        self._scope = trio.CancelScope()

    # -- handlers -----------------------------------------------------------------------------------------------------

    def has_member(self, peer: PeerId) -> bool:
        """Return False: the measurement has no members."""
        return False

    def has_allowance(self, peer: PeerId) -> bool:
        """Return False: the measurement has no members."""
        return False

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Ignore gossip: the measurement has none."""
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Accept a successor's request for a chunk of the exchange; refuse anything else."""
        ask = decode_body(ExchangeAsk, data, max_bytes=len(data))
        if self.exchange is None or ask.plan != self.exchange.machine.name:
            raise Refused("not our exchange")
        self.exchange.asked(peer, ask)
        return b""

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Accept a part or a result; wait if our exchange has not begun yet."""
        while self.exchange is None or self.exchange.machine.name != push_plan(header):
            await self._begun.wait()
        return await self.exchange.open_push(peer, header, size)

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Finish a push that `open_push` accepted."""
        if self.exchange is not None:
            self.exchange.finish_push(peer, header, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        """Do nothing."""

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Go on without the peer."""
        if self.exchange is not None:
            self.exchange.peer_dead(peer)

    # -- averaging ----------------------------------------------------------------------------------------------------

    def plan(self, members: Sequence[Introduction], round: int, measured: bool) -> Plan:
        """Return the plan, the same at every peer.

        measured: True for shares in proportion to bandwidth, False for equal ones.
        """
        ordered = sorted(members, key=lambda member: member.peer)
        bandwidths = [member.bytes_per_s for member in ordered] if measured else ()
        return Plan(
            round=round,
            fragment=0,
            base=ZERO_HASH,
            state_digest=ZERO_HASH,
            owners=assign_owners(ZERO_HASH, [member.peer for member in ordered], len(self.leaves), bandwidths),
            members=[
                Member(
                    peer=member.peer,
                    incarnation=1,
                    serial=1,
                    tokens=TOKENS,
                    steps=1,
                    loss=0.0,
                    norm=0.0,
                    root=member.root,
                    signature=bytes(64),
                )
                for member in ordered
            ],
        )

    async def average(self, network: Network, plan: Plan, nursery: trio.Nursery) -> None:
        """Run one exchange until our result is complete; until the next, keep sending other peers their missing chunks."""
        self._scope.cancel()
        self._scope = trio.CancelScope()
        self.exchange = ExchangeRunner(
            session=Session(self.identity, RUN, network, self.note),
            plan=plan,
            own=OwnParts(self.contribution, self.leaves, self.layouts),
            result=self.result,
            limits=ExchangeLimits(STALL_S),
            offload=trio.to_thread.run_sync,
            rule=self.rule,
        )
        self._begun.set()
        self._begun = trio.Event()
        nursery.start_soon(self._run, self.exchange, self._scope)
        await self.exchange.done.wait()

    def note(self, event: Event) -> None:
        """Ignore the events of exchanges."""

    async def _run(self, exchange: ExchangeRunner, scope: trio.CancelScope) -> None:
        with scope:
            await exchange.run()


# ------------------------------------------------------------------------------------------------------------------------


PEERS = 3
PARAMETERS = 8 << 20
CHUNK = 1 << 20
SECONDS = 2.0
DEADLINE_S = 180.0


@dataclass(frozen=True)
class ExchangeSpeed:
    """Speed of an exchange between `peers` peers in one process, over real sockets on loopback."""

    parameters_per_s: float
    peers: int
    parameters: int


async def measure_exchange(
    peers: int = PEERS, parameters: int = PARAMETERS, chunk: int = CHUNK, seconds: float = SECONDS
) -> ExchangeSpeed:
    """Run exchanges for about `seconds`, after one that opens the sockets.  Raises PeerError."""
    await trio.to_thread.run_sync(import_module, "libp2p")  # takes a second
    members = [await trio.to_thread.run_sync(ExchangePeer, parameters, chunk) for _ in range(peers)]
    failure = ""
    try:
        with trio.fail_after(DEADLINE_S + seconds):
            best_s = await _best_s(members, seconds)
    except* (NetworkError, OSError, trio.TooSlowError) as group:
        failure = str(group.exceptions[0]) or "it did not end in time"
    if failure:  # raised here, because Python 3.11.2 wraps an exception raised above in a group
        raise PeerError(f"the exchange could not be measured on this computer: {failure}")
    if len({bytes(member.result) for member in members}) > 1:
        raise PeerError(
            "the peers of the measurement computed different averages; report this error with the name of your processor"
        )
    return ExchangeSpeed(parameters / best_s, peers, parameters)


async def _best_s(members: list[ExchangePeer], seconds: float) -> float:
    """Return the shortest time from the start of an exchange until all members have its result."""
    settings, times = NetworkSettings(listen_host="127.0.0.1"), list[float]()
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(open_network(member.identity, RUN, member, settings)) for member in members]
        async with trio.open_nursery() as nursery:
            await _connect(ends)
            introductions = [Introduction(member.identity.peer_id, tree_root(member.leaves)) for member in members]
            began_at = trio.current_time()
            while len(times) < 3 or trio.current_time() - began_at < seconds:
                plan = members[0].plan(introductions, len(times), measured=False)
                begun = trio.current_time()
                async with trio.open_nursery() as together:
                    for member, end in zip(members, ends, strict=True):
                        together.start_soon(member.average, end, plan, nursery)
                times.append(trio.current_time() - begun)
            nursery.cancel_scope.cancel()
    return min(times[1:])


async def _connect(ends: list[Libp2pNetwork]) -> None:
    for end in ends:
        end.remember([address for other in ends if other is not end for address in other.addresses()])
    while any(len(end.connected()) < len(ends) - 1 for end in ends):
        await trio.sleep(0.02)
