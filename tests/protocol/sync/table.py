"""Two replicas on a table: ours follows what the other one serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import trio

from protocol.blobs.blob import read_chunk_header
from protocol.blobs.swarm import Swarm
from protocol.chain.history import Branch
from protocol.chain.replica import Replica, ReplicaShelf, Serving
from protocol.events.events import Event
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.run.invitation import Anchor
from protocol.run.manifest import SignedManifest
from protocol.sync.catch_up import CatchUp
from protocol.sync.fetchers import StateFetcher
from protocol.sync.following import Following, Move
from protocol.sync.fork_choice import ForkChoice
from protocol.sync.remote_chains import Claims
from protocol.transport.interface import Refused, nothing
from protocol.wire.identity import Identity, PeerId
from tests.protocol.answering import ABOUT_BLOBS, ask
from tests.protocol.chains import a_replica, grow, initialise
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, TheseMembers, a_heartbeat, a_session, at_once

CYN, DAN, EVE = (Identity.from_seed(bytes([number]) * 32) for number in (4, 5, 6))
FOUR = (ANN, BOB, CYN, DAN)


class Passing(AbstractContextManager[object, Literal[False]]):
    """Catches nothing."""

    def __exit__(self, *error: object) -> Literal[False]:
        return False


class Pushing(TableNetwork):
    """The network of another peer, which pushes chunks to us, and reaches nobody."""

    def __init__(self, table: Table, peer: PeerId) -> None:
        super().__init__()
        self._table, self._peer = table, peer

    async def push(
        self,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        *,
        timeout_s: float,
        spare: bool = False,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        await trio.lowlevel.checkpoint()
        chunk = read_chunk_header(header)
        assert chunk is not None
        landing = await self._table.swarm.open_push(self._peer, chunk, len(data))
        if landing is None:
            raise Refused("not wanted")
        landing.buffer[:] = data
        landing.complete()
        await self._table.swarm.finish_push(self._peer, chunk, landing)


class Unguarded:
    """A `Guard` that catches nothing."""

    def report(self, sender: PeerId, what: str, *, passing: tuple[type[Exception], ...]) -> Passing:
        return Passing()


class Table:
    """ours: our replica.  theirs: the one that Ann serves.  network: where others may be put."""

    def __init__(self, folder: Path, nursery: trio.Nursery, signed: SignedManifest) -> None:
        self.signed, self._nursery = signed, nursery
        self.folder, self.events = folder, list[Event]()
        ours, self.theirs = a_replica(self.signed, folder / "ours"), a_replica(self.signed, folder / "theirs")
        self.ours = replace(ours, rounds=replace(ours.rounds, listen_s=0.0))
        self.others: list[Replica] = []
        self.network = TableNetwork()
        self.serve(ANN.peer_id, self.theirs)
        self.session = session = a_session(self.signed.run, self.network, self.events)
        self.membership = Membership(ME.peer_id, trio.current_time(), self.ours.history)
        self.activity = Activity(self.events.append)
        self.swarm = Swarm(session, self.membership, ReplicaShelf(self.ours).find, at_once)
        self.fetcher = StateFetcher(session, self.ours, at_once, self.swarm)
        self.catch_up = CatchUp(session, self.ours, at_once, self.fetcher, initialise)
        self.claims = Claims(self.ours, self.membership)
        self.choice, unguarded = ForkChoice(self.ours, self.membership, self.activity), cast("Any", Unguarded())
        self.following = Following(session, unguarded, self.catch_up, self.choice, self.claims)
        self.chains = self.following.chains
        self.budget = self.chains.budget

    def serve(self, peer: PeerId, replica: Replica) -> None:
        """What this replica holds, `peer` answers, and pushes to us."""
        serving = Serving(replica, at_once)
        swarm = Swarm(
            a_session(self.signed.run, Pushing(self, peer), []), TheseMembers(), ReplicaShelf(replica).find, at_once
        )
        self._nursery.start_soon(swarm.run)

        async def answer(kind: str, data: bytes) -> bytes:
            return await ask(swarm if kind in ABOUT_BLOBS else serving, ME.peer_id, kind, data)

        self.network.answers[peer] = answer

    def another(self, name: str) -> Replica:
        """One more replica of the run."""
        self.others.append(a_replica(self.signed, self.folder / name))
        return self.others[-1]

    def branch(self, common: int, replica: Replica) -> Branch:
        """The chain of this replica as a branch of ours, which has so many records in common with it."""
        branch = Branch(self.ours.history, self.ours.store.branches, "shown", common)
        for round in range(common, replica.history.length):
            branch.append(replica.history.commit_at(round))
        return branch

    def invite(self, anchor: Anchor) -> None:
        """We join with an invitation that names this record."""
        self.chains.anchor = self.choice.anchor = anchor

    def hear(self, peer: PeerId, replica: Replica | None = None, **changes: Any) -> None:
        """A heartbeat of `peer`, with the tip of `replica`."""
        known = self.membership.get(peer)
        fields: dict[str, Any] = {"seq": known.heartbeat.seq + 1 if known else 0}
        if replica is not None:
            fields |= {"round": replica.history.length, "tip": replica.history.tip}
        self.membership.on_connected(peer, trio.current_time())
        self.membership.on_heartbeat(peer, a_heartbeat(**{**fields, **changes}), trio.current_time(), peer)

    def count_questions(self, peer: PeerId) -> list[str]:
        """The kinds of questions that `peer` is asked from now on."""
        answer, asked = self.network.answers[peer], list[str]()

        async def count(kind: str, data: bytes) -> bytes:
            asked.append(kind)
            return await answer(kind, data)

        self.network.answers[peer] = count
        return asked

    async def look(self) -> Move | None:
        """At everybody's claims; the move that is there then."""
        for known in (True, False):
            await self.following.look(known=known)
        return self.following.move

    async def found(self) -> Move | None:
        """The move that is there after Ann has told of her tip."""
        self.hear(ANN.peer_id, self.theirs)
        return await self.look()

    def share(self, rounds: int, members: Sequence[Identity], **how: Any) -> None:
        """Both replicas hold these rounds."""
        for replica in (self.ours, self.theirs):
            grow(replica, rounds, members, **how)

    def of(self, kind: type[Event]) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def fork(table: Table, shared: int, ours: dict[str, Any], theirs: dict[str, Any], rounds: int = 2) -> None:
    """Both hold `shared` rounds, then `rounds` each of their own."""
    table.share(shared, [ANN], voters=FOUR)
    grow(table.ours, rounds, [ANN], **{"voters": FOUR, **ours})
    grow(table.theirs, rounds, [ANN], **{"voters": FOUR, "salt": 1, **theirs})
    table.hear(ANN.peer_id, table.theirs)


@asynccontextmanager
async def a_table(folder: Path, signed: SignedManifest) -> AsyncIterator[Table]:
    """An open table, in virtual time."""
    async with trio.open_nursery() as nursery:
        table = Table(folder, nursery, signed)
        try:
            yield table
        finally:
            for replica in (table.ours, table.theirs, *table.others):
                replica.state.close()
        nursery.cancel_scope.cancel()
