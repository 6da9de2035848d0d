"""The checks of rollouts can fail: each build that is broken on purpose breaks the invariant that it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from protocol.node.contributor import Contributor
from protocol.rollouts import policy
from protocol.rollouts.batch import BytesLocation, Decision, Opinion, PooledBatch
from protocol.rollouts.events import PoolEffect
from protocol.rollouts.policy import PoolContext, TrainerPolicy
from protocol.rollouts.pool import Pool
from protocol.rollouts.selection import SelectedBatches, Selection
from protocol.rollouts.trust import TrustScores
from protocol.trainer_link import Contribution
from protocol.wire.hashes import hash_bytes
from protocol.wire.messages import Learned, UsedBatch, learned_from
from protocol.wire.presence import Role
from protocol.wire.rollouts import Reason
from tests.attacks.rollout_liars import OneBad, Turncoat
from tests.simulation.rollout_trainer import RolloutTrainer
from tests.simulation.rollouts import cast, rl_run
from tests.simulation.runs import begin, simulate
from tests.simulation.world import World

pytestmark = pytest.mark.slow

SEEDS = 8
"""Every mutation is found within so many seeds."""
TROUPE = {Role.TRAINER: 4, Role.ROLLOUT: 3, Role.VALIDATOR: 3}
LIARS: dict[tuple[Role, int], type[RolloutTrainer]] = {
    (Role.TRAINER, 0): Turncoat,
    (Role.ROLLOUT, 0): OneBad,
    (Role.VALIDATOR, 0): Turncoat,
}


def _unverified() -> Any:
    """Whatever is heard is accepted."""

    def look(self: TrainerPolicy, batch: PooledBatch, now: float) -> list[PoolEffect]:
        batch.is_due = True
        batch.led = self.needs_bytes(batch)
        ready = batch.led and batch.bytes_ is BytesLocation.HERE
        return self._context.decide(batch, Decision.ACCEPTED) if ready else []

    return patch.object(TrainerPolicy, "look", look)


def _own_check_ignored() -> Any:
    """A trainer takes everything that it has checked, whatever it found."""
    return patch.object(policy, "opinion_of", lambda codes: Opinion.GOOD)


def _undecided_used() -> Any:
    """Learns from whatever is here."""

    def usable(self: Pool, version: int) -> list[PooledBatch]:
        return [
            batch
            for batch in self
            if batch.bytes_ is BytesLocation.HERE and not batch.used and batch.body.version <= version
        ]

    return patch.object(Pool, "usable", usable)


def _second_verdict() -> Any:
    """What was decided is decided again."""
    decide = PoolContext.decide

    def again(self: PoolContext, batch: PooledBatch, decision: Decision, reason: Reason = Reason.NONE) -> list[PoolEffect]:
        batch.decision = None
        return decide(self, batch, decision, reason)

    return patch.object(PoolContext, "decide", again)


@contextmanager
def _used_again() -> Iterator[None]:
    """Nothing is remembered of what was learned from, and nothing read of it in the records."""
    use = Selection.use

    def forgetful(self: Selection, round: int, chosen: SelectedBatches, contribution: Contribution) -> Learned | None:
        learned = use(self, round, chosen, contribution)
        for batch in chosen.batches:
            batch.used = False
        return learned

    with patch.object(Selection, "use", forgetful), patch.object(Contributor, "_learned_before", lambda self: frozenset()):
        yield


def _one_accuser() -> Any:
    """One elector's word is enough to set a peer aside."""
    return patch.object(TrustScores, "reproduced", lambda self, author, rejecting, electors: True)


def _validators_believed() -> Any:
    """What a validator rejects is held against its maker."""
    return patch.object(PoolContext, "accuse", _accused)


def _accused(context: PoolContext, batch: PooledBatch) -> list[PoolEffect]:
    bad = any(found.opinion is Opinion.BAD for found in batch.judgements.values())
    return context.set_aside(batch.author, "somebody says so") if bad else []


def _other_root() -> Any:
    """READY names something else than what was learned from."""
    commit = Contributor.commit

    async def lying(self: Contributor, base: Any, work: Any, contribution: Any, state_digest: Any) -> Any:
        others = [UsedBatch(each.author, hash_bytes("other", each.root), each.tokens) for each in work.rollouts.batches]
        work.rollouts = learned_from(others, None)
        return await commit(self, base, work, contribution, state_digest)

    return patch.object(Contributor, "commit", lying)


MUTATIONS: list[tuple[Callable[[], Any], str]] = [
    (_unverified, "checked:"),
    (_own_check_ignored, "checked:"),
    (_undecided_used, "checked:"),
    (_second_verdict, "once:"),
    (_used_again, "once:"),
    (_one_accuser, "just:"),
    (_validators_believed, "just:"),
    (_other_root, "committed:"),
]


def _run(seed: int) -> str | None:
    async def scenario(world: World) -> None:
        cast(world, TROUPE, LIARS)
        await begin(world, 9, within_s=120)

    return simulate(sum(TROUPE.values()), scenario, seed, signed=rl_run()).failure


def test_the_sound_build_holds() -> None:
    assert _run(1) is None


@pytest.mark.parametrize(
    ("mutation", "shows"),
    [MUTATIONS[1], MUTATIONS[0], *MUTATIONS[2:]],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_a_broken_build_is_noticed(mutation: Callable[[], Any], shows: str) -> None:
    failures = []
    with mutation():
        for seed in range(1, SEEDS + 1):
            failures.append(_run(seed))
            if shows in (failures[-1] or ""):
                return
    pytest.fail(f"nobody noticed: {failures}")
