"""Builds that are broken on purpose, one or more for each invariant: the proof that the checks can fail.

A mutation patches the protocol for the length of a run.  The run is judged as any other; a mutation that no seed finds means
that the simulator is too kind, or the judge blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import trio

from protocol.agreement import ballot, policy
from protocol.agreement.ballot import Justification
from protocol.agreement.events import Persist, RoundEffect
from protocol.agreement.machine import RoundMachine
from protocol.agreement.policy import ClosingPolicy
from protocol.agreement.voter import Voter
from protocol.allreduce import runner
from protocol.allreduce.machine import ExchangeMachine
from protocol.audit import evidence
from protocol.chain import records
from protocol.chain.base import Base
from protocol.chain.leases import LeasePool, Leases
from protocol.chain.replica import Replica
from protocol.chain.results import ResultName
from protocol.chain.store import VoteFiles
from protocol.node.contributor import Contributor
from protocol.node.rounds import RunningRound
from protocol.sync import fork_choice
from protocol.sync.catch_up import CatchUp
from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit
from tests.simulation.disks import FaultyDisk


@dataclass(frozen=True)
class Mutation:
    """`broken` names the invariant that it breaks, `how` says in a phrase what is wrong with the build.

    shows: what one of the failures that it causes says.
    """

    name: str
    broken: str
    how: str
    shows: str
    patches: Callable[[], Sequence[Any]]


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Within, the build is broken."""
    with ExitStack() as stack:
        for each in MUTATIONS[name].patches() if name else ():
            stack.enter_context(each)
        yield


def _instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Patch `owner.name` by what `make` makes of it."""
    return patch.object(owner, name, make(getattr(owner, name)))


# -- agreement ----------------------------------------------------------------------------------------------------------


def _quorum_of_one() -> Sequence[Any]:
    def one(*arguments: Any) -> int:
        return 1

    return [
        patch.object(policy, "quorum_size", one),
        *(patch.object(module, "quorum_of", one) for module in (records, ballot)),
    ]


def _votes_not_persisted() -> Sequence[Any]:
    return [patch.object(VoteFiles, "save", lambda self, round, tip, raw: None)]


def _lock_ignored() -> Sequence[Any]:
    """The proposer puts its own record to the vote, whatever others are locked on, and nobody minds."""
    return [patch.object(Justification, "highest_locks", lambda self: [])]


# -- parity -------------------------------------------------------------------------------------------------------------


def _applied_twice() -> Sequence[Any]:
    """After a restart the newest result is applied once more."""

    def twice(restore: Any) -> Any:
        async def restores(self: CatchUp) -> None:
            await restore(self)
            history, state, manifest = self.replica.history, self.replica.state, self.replica.manifest
            if history.length and state.rounds == history.length:
                newest = history.commit_at(state.rounds - 1)
                round, members = newest.record.round, newest.record.members
                result = self.stored_result(newest)
                if result is not None:
                    state.rounds -= 1
                    step = manifest.outer_step(round, [member.tokens for member in members], result)
                    state.apply(result, newest.record.fragment, step)

        return restores

    def unchecked(apply: Any) -> Any:
        async def applies(self: CatchUp, commit: Commit, result: memoryview) -> None:
            honest = commit.model_copy(
                update={"record": commit.record.model_copy(update={"state_digest": self.replica.state.digest()})}
            )
            await apply(self, honest, result)

        return applies

    return [_instead(CatchUp, "restore", twice), _instead(CatchUp, "apply", unchecked)]


def _own_average_kept() -> Sequence[Any]:
    """What a member averaged itself stays in its result, whatever version the record names, and nobody looks at it again."""
    return [
        patch.object(Replica, "result", lambda self, record, index: self.store.results.view(ResultName.of(record))),
        patch.object(
            ExchangeMachine, "adopt", lambda self, index: [chunk for chunk in range(len(index)) if chunk not in self.entries]
        ),
    ]


# -- mass ---------------------------------------------------------------------------------------------------------------


def _divisor_of_all() -> Sequence[Any]:
    """The sum of those who came is divided by the tokens of more; and the audits reckon alike."""

    def heavy(aggregate: Any) -> Any:
        def average(rule: Any, codec: Any, parts: Any, weights: Any, count: int, out: Any) -> None:
            aggregate(rule, codec, [*parts, parts[0]], [*weights, sum(weights) // 4], count, out)

        return average

    return [_instead(module, "aggregate", heavy) for module in (runner, evidence)]


# -- no loss ------------------------------------------------------------------------------------------------------------


def _ready_member_dropped() -> Sequence[Any]:
    """A proposer leaves the last ready member out of its plan, and nobody minds."""

    def short(agreed: Any) -> Any:
        def fewer(self: ClosingPolicy, view: Any, digest: Any) -> Any:
            peers = agreed(self, view, digest)
            return peers[:-1] if len(peers) > 2 else peers

        return fewer

    return [
        _instead(ClosingPolicy, "agreed", short),
        patch.object(Justification, "allows_plan", lambda self, plan, max_members: True),
    ]


# -- progress -----------------------------------------------------------------------------------------------------------


def _attempt_never_advances() -> Sequence[Any]:
    return [
        patch.object(RoundMachine, "_give_up_attempt", lambda self, now: None),
        patch.object(Voter, "_can_propose", lambda self, ballot, view: True),
    ]


# -- heal ---------------------------------------------------------------------------------------------------------------


def _fork_choice_keeps_ours() -> Sequence[Any]:
    return [patch.object(fork_choice.ForkChoice, "_wins", lambda *about: False)]


# -- crash --------------------------------------------------------------------------------------------------------------


def _never_synced() -> Sequence[Any]:
    """What is acted on lies in the cache only."""
    return [
        patch.object(FaultyDisk, "sync", lambda self, file: None),
        patch.object(FaultyDisk, "flush", lambda self, path, mapping: None),
        patch.object(FaultyDisk, "sync_folder", lambda self, folder: None),
    ]


def _unsynced_result_believed() -> Sequence[Any]:
    """A result gets its name before its bytes are safe, and is taken for what its name says."""

    def believing(self: CatchUp, commit: Commit) -> memoryview | None:
        record = commit.record
        return self.replica.store.results.view(ResultName.of(record))

    return [
        patch.object(FaultyDisk, "flush", lambda self, path, mapping: None),
        patch.object(CatchUp, "stored_result", believing),
    ]


def _sent_before_persisted() -> Sequence[Any]:
    """A vote is on its way a moment before it is on the disk."""

    def hasty(perform: Any) -> Any:
        async def performs(self: RunningRound, effect: RoundEffect, nursery: trio.Nursery) -> None:
            if isinstance(effect, Persist):

                async def later() -> None:
                    await trio.sleep(0.5)
                    await perform(self, effect, nursery)

                nursery.start_soon(later)
            else:
                await perform(self, effect, nursery)

        return performs

    return [_instead(RunningRound, "_perform", hasty)]


# -- order --------------------------------------------------------------------------------------------------------------


def _round_skipped() -> Sequence[Any]:
    """A result that cannot be had at once counts as applied."""

    def skipping(replay: Any) -> Any:
        async def replays(self: CatchUp) -> None:
            if self.replica.state.rounds and self.replica.state.rounds + 1 < self.replica.history.length:
                self.replica.state.rounds += 1
            await replay(self)

        return replays

    return [_instead(CatchUp, "replay", skipping), _applied_twice()[1]]


# -- once ---------------------------------------------------------------------------------------------------------------


def _shared_slots_accepted() -> Sequence[Any]:
    """Two newcomers that drew the same lease are both members."""
    return [patch.object(Base, "shares_slots", lambda self, manifest, peers: False)]


def _whole_leases_consumed() -> Sequence[Any]:
    """Who stopped after some steps consumed its whole lease, and nobody minds."""

    def whole(after: Any) -> Any:
        return lambda self, terms, consumed: after(self, terms, dict.fromkeys(consumed, ((0, terms.rows),)))

    return [_instead(Leases, "after", whole)]


def _returned_rows_forgotten() -> Sequence[Any]:
    """Only rows from the cursor on are leased."""

    def forgetful(after: Any) -> Any:
        def forgets(self: LeasePool, *arguments: Any) -> LeasePool:
            pool: LeasePool = after(self, *arguments)
            return replace(pool, returned=())

        return forgets

    return [_instead(LeasePool, "after", forgetful)]


def _another_slot_after_a_restart() -> Sequence[Any]:
    """Who has died once reads the rows of another order of the holders."""

    def elsewhere(train: Any) -> Any:
        async def trains(self: Contributor, trainer: Any, base: Base, *arguments: Any) -> Any:
            if self._settings.incarnation > 1:
                base = replace(base, leases=replace(base.leases, beacon=Hash(bytes(32))))
            return await train(self, trainer, base, *arguments)

        return trains

    return [_instead(Contributor, "_train", elsewhere)]


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation("quorum-of-one", "agreement", "one vote certifies a record", "agreement:", _quorum_of_one),
        Mutation(
            "votes-not-persisted", "agreement", "view changes and votes are not written", "agreement:", _votes_not_persisted
        ),
        Mutation("lock-ignored", "agreement", "a proposer overrules a lock", "agreement:", _lock_ignored),
        Mutation("applied-twice", "parity", "a restart applies the newest result again", "parity:", _applied_twice),
        Mutation("own-average-kept", "parity", "a member keeps its version of a chunk", "parity:", _own_average_kept),
        Mutation("divisor-of-all", "mass", "the divisor is not the tokens averaged", "mass:", _divisor_of_all),
        Mutation(
            "ready-member-dropped", "no loss", "a proposer leaves a ready member out", "no loss:", _ready_member_dropped
        ),
        Mutation(
            "attempt-never-advances",
            "progress",
            "nobody follows a proposer that died",
            "no round after",
            _attempt_never_advances,
        ),
        Mutation(
            "fork-choice-keeps-ours",
            "heal",
            "both sides of a fork keep their chain",
            "one tip and one state",
            _fork_choice_keeps_ours,
        ),
        Mutation("never-synced", "crash", "nothing is synced before it is acted on", "", _never_synced),
        Mutation("unsynced-result-believed", "crash", "a result is named before it is safe", "", _unsynced_result_believed),
        Mutation("sent-before-persisted", "crash", "a vote is sent before it is on disk", "", _sent_before_persisted),
        Mutation(
            "shared-slots-accepted", "once", "two members of a record read the same rows", "once:", _shared_slots_accepted
        ),
        Mutation(
            "whole-leases-consumed", "once", "rows that nobody read count as consumed", "once:", _whole_leases_consumed
        ),
        Mutation("returned-rows-forgotten", "once", "returned rows are not leased again", "once:", _returned_rows_forgotten),
        Mutation(
            "another-slot-after-a-restart",
            "once",
            "a peer that died reads the rows of others",
            "once:",
            _another_slot_after_a_restart,
        ),
        Mutation("round-skipped", "order", "a missing result counts as applied", "order:", _round_skipped),
    )
}
