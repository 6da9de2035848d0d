"""The exchanges of all members together, whatever is delivered when and whoever dies: each chunk has all parts."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.machine import (
    ASK_EVERY_S,
    AllReduceDone,
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEvent,
    ExchangeMachine,
    ExchangeTick,
    Lost,
    PartArrived,
    PeerDead,
    Reduce,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
)
from protocol.allreduce.runner import entry_of
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Plan, members_in
from tests.protocol.members import a_plan_of

PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(4))
CHUNKS = 3
MOST_DEAD = 2
STALL_S = 1e6
"""Nobody is given up but the dead: what else ends a member's time is told in `test_machine.py`."""
peers, picks = st.sampled_from(PEERS), st.integers(0, 10**6)


class Member:
    """A member with its machine, and the averages that it is making.

    signers: of each result that it holds.
    """

    def __init__(self, peer: PeerId, plan: Plan) -> None:
        self.peer, self.alive, self.begun, self.done = peer, True, False, 0
        self.machine = ExchangeMachine(peer, plan, ExchangeLimits(STALL_S), now=0.0)
        self.parts: set[tuple[PeerId, int]] = set()
        self.reducing: list[Reduce] = []
        self.reduced: list[int] = []
        self.signers: dict[int, PeerId] = {}
        self.told_dead: set[PeerId] = set()


class ExchangesMachine(RuleBasedStateMachine):
    """Four members.  under_way: pushes and questions with their senders and receivers, in no order."""

    @initialize(
        owners=st.lists(st.integers(0, len(PEERS) - 1), min_size=CHUNKS, max_size=CHUNKS),
        begin=st.sets(peers).map(lambda late: [peer for peer in PEERS if peer not in late]),
    )
    def begin(self, owners: Sequence[int], begin: Sequence[PeerId]) -> None:
        plan = a_plan_of(PEERS, owners)
        self.now = 0.0
        self.members = {peer: Member(peer, plan) for peer in PEERS}
        self.under_way: list[tuple[PeerId, PeerId, ExchangeEvent]] = []
        for peer in begin:
            self.a_member_begins(peer)

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def tell(self, member: Member, event: ExchangeEvent) -> None:
        for effect in member.machine.handle(event, self.now):
            match effect:
                case SendPart(to, chunk):
                    self.under_way.append((member.peer, to, PartArrived(member.peer, chunk)))
                case SendResult(to, chunk):
                    result = ResultArrived(member.peer, chunk, member.machine.entries[chunk], self.signer(member, chunk))
                    self.under_way.append((member.peer, to, result))
                case Ask(to, chunk):
                    self.under_way.append((member.peer, to, Asked(member.peer, chunk)))
                case Reduce(chunk, indices):
                    self.averages(member, chunk, indices)
                case Lost(peer):
                    assert peer in member.told_dead
                case AllReduceDone():
                    member.done += 1
                    assert len(member.machine.entries) == CHUNKS

    def averages(self, member: Member, chunk: int, indices: Sequence[int]) -> None:
        assert member.machine.owner(chunk) == member.peer and chunk not in member.reduced, "each chunk once, by its owner"
        assert list(indices) == sorted(set(indices)), "nothing is counted twice"
        taken = {PEERS[index] for index in indices}
        assert all(peer == member.peer or (peer, chunk) in member.parts for peer in taken), "only what came"
        assert {*PEERS} - taken <= member.told_dead, "everybody who lives is in it"
        member.reduced.append(chunk)
        member.reducing.append(Reduce(chunk, tuple(indices)))

    @property
    def coming(self) -> list[tuple[PeerId, PeerId, ExchangeEvent]]:
        """What may arrive now: a member that has not begun sends nothing yet."""
        return [each for each in self.under_way if self.members[each[0]].begun]

    def signer(self, member: Member, chunk: int) -> PeerId:
        return member.signers.setdefault(chunk, member.peer)

    def deliver(self, sender: PeerId, to: PeerId, event: ExchangeEvent) -> None:
        """As the runner does: results that are signed out of turn are told apart."""
        member = self.members[to]
        if not member.alive or (isinstance(event, Asked) and not member.begun):
            return
        if isinstance(event, ResultArrived):
            if event.chunk in member.machine.entries:
                return
            if not member.machine.failover.may_sign(event.signer, event.chunk):
                event = SignedEarly(event.signer, event.chunk)
            else:
                member.signers[event.chunk] = event.signer
        elif isinstance(event, PartArrived):
            member.parts.add((sender, event.chunk))
        self.tell(member, event)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(peer=peers)
    def a_member_begins(self, peer: PeerId) -> None:
        member = self.members[peer]
        if member.alive and not member.begun:
            member.begun = True
            self.tell(member, ContributionReady())

    @precondition(lambda self: self.coming)
    @rule(each=st.lists(picks, min_size=1, max_size=8))
    def something_arrives(self, each: Sequence[int]) -> None:
        for pick in each:
            if not self.coming:
                break
            arriving = self.coming[pick % len(self.coming)]
            self.under_way.remove(arriving)
            self.deliver(*arriving)

    @precondition(lambda self: self.coming)
    @rule(pick=picks)
    def something_arrives_twice(self, pick: int) -> None:
        self.deliver(*self.coming[pick % len(self.coming)])

    @precondition(lambda self: any(member.reducing for member in self.alive))
    @rule(pick=picks)
    def an_average_is_made(self, pick: int) -> None:
        averaging = [member for member in self.alive if member.reducing]
        member = averaging[pick % len(averaging)]
        self.make(member)

    def make(self, member: Member) -> None:
        reduce = member.reducing.pop(0)
        made_of = chunk_hash(bytes([reduce.chunk, *reduce.members]))
        if reduce.chunk not in member.machine.entries:
            member.signers[reduce.chunk] = member.peer
        self.tell(member, Averaged(reduce.chunk, entry_of(made_of, reduce.members, len(PEERS))))

    @precondition(lambda self: sum(not member.alive for member in self.members.values()) < MOST_DEAD)
    @rule(peer=peers, arrives=st.booleans())
    def a_member_dies(self, peer: PeerId, arrives: bool) -> None:
        """arrives: whether what it had sent still arrives."""
        self.members[peer].alive = False
        if not arrives:
            self.under_way = [each for each in self.under_way if each[0] != peer]

    @precondition(lambda self: any(isinstance(event, ResultArrived) for _, _, event in self.coming))
    @rule(pick=picks)
    def an_owner_dies_when_it_has_served_one(self, pick: int) -> None:
        served = [each for each in self.coming if isinstance(each[2], ResultArrived)]
        sender, to, event = served[pick % len(served)]
        if sum(not member.alive for member in self.members.values()) < MOST_DEAD:
            self.deliver(sender, to, event)
            self.a_member_dies(sender, False)

    @rule(peer=peers, dead=peers)
    def a_death_is_noticed(self, peer: PeerId, dead: PeerId) -> None:
        member = self.members[peer]
        if member.alive and not self.members[dead].alive:
            member.told_dead.add(dead)
            self.tell(member, PeerDead(dead))

    @rule(peer=peers)
    def time_passes(self, peer: PeerId) -> None:
        self.now += ASK_EVERY_S / 2
        if self.members[peer].alive:
            self.tell(self.members[peer], ExchangeTick())

    # -- facts --------------------------------------------------------------------------------------------------------

    @invariant()
    def results_are_right(self) -> None:
        for member in self.members.values() if hasattr(self, "members") else ():
            for chunk, entry in member.machine.entries.items():
                assert entry.hash == hash_of(chunk, entry), "a result is the average of whom it names"
            assert member.done == (len(member.machine.entries) == CHUNKS)
            assert len(member.reducing) <= CHUNKS

    def teardown(self) -> None:
        """Everybody who lives begins and hears of all deaths, and everything arrives: all have all results."""
        if not hasattr(self, "members"):
            return
        for member in self.alive:
            self.a_member_begins(member.peer)
            for dead in PEERS:
                self.a_death_is_noticed(member.peer, dead)
        for _ in range(20):
            while self.under_way or any(member.reducing for member in self.alive):
                if self.under_way:
                    self.deliver(*self.under_way.pop(0))
                for member in self.alive:
                    while member.reducing:
                        self.make(member)
            self.now += ASK_EVERY_S
            for member in self.alive:
                self.tell(member, ExchangeTick())
        self.results_are_right()
        for member in self.alive:
            assert member.done and not member.machine.waiting_for()


def hash_of(chunk: int, entry: ChunkEntry) -> bytes:
    return chunk_hash(bytes([chunk, *sorted(members_in(entry.mask, len(PEERS)))]))


TestExchanges = ExchangesMachine.TestCase
TestExchanges.settings = settings(max_examples=80, stateful_step_count=30, derandomize=True)
