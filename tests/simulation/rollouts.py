"""A simulated run of reinforcement learning, and what must hold in it.

Checked    whatever an honest trainer learns from was accepted by it before, and was made right
Once       each batch that was for a trainer gets one verdict of it, and is learned from once at most
Just       nobody honest is set aside by anybody honest
Committed  a record names what its members learned from
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial

from protocol.blobs.store import leaves_of
from protocol.events.events import (
    BatchDecided,
    BatchJudged,
    Event,
    RolloutPeerSetAside,
    RolloutsUsed,
    RoundCommitted,
    ValidatorSetAside,
)
from protocol.formats.model import ModelConfig
from protocol.node.node import Node
from protocol.run.manifest import OuterSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection, RlSection
from protocol.trainer_link import RolloutTask
from protocol.wire.hashes import tree_root
from protocol.wire.presence import Role
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES
from tests.simulation.judge import Violation
from tests.simulation.rollout_trainer import RolloutTrainer
from tests.simulation.runs import Finished, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import ORGANISER, World

LOOKED_BACK = 3
"""Rounds in which a batch may be learned from: `max_async` + 1, as it is by default."""
ROLES = {Role.TRAINER: 3, Role.ROLLOUT: 3, Role.VALIDATOR: 2}


@lru_cache(maxsize=4)
def rl_run(batches_per_round: int = 2, kl_weight: float = 0.0, warm_rounds: int = 0) -> SignedManifest:
    """A run of a few thousand parameters, small batches, and rounds of a few seconds."""
    rl = RlSection(
        environment="arithmetic",
        prompts_per_batch=4,
        batches_per_round=batches_per_round,
        group_size=2,
        judge_s=6.0,
        max_tokens=16,
        row_tokens=32,
        optimizer_steps=8,
        kl_weight=kl_weight,
        warm_rounds=warm_rounds,
    )
    manifest = RunManifest(
        name="rollouts",
        organiser=ORGANISER.peer_id,
        founders="anyone",
        seed=1,
        model=ModelConfig(vocab=256, dim=8, layers=1, heads=1, kv_heads=1, ffn=8),
        data=DataSection(sequence_length=8, sequences_per_step=1),
        outer=OuterSection(lr=0.7, momentum=0.9),
        rounds=RoundSection(inner_steps=8, max_members=64, grace_s=4, eviction_s=20, stall_s=5),
        chunk_parameters=1024,
        checkpoint_interval=4,
        checkpoint_chunk_bytes=4096,
        total_tokens=10**9,
        rl=rl,
    )
    return sign(ORGANISER, manifest)


class RolloutJudge:
    """Told of everything that concerns rollouts; raises `Violation`.  The world's judge knows who lies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.right: set[str] = set()
        """Names of batches that were made right."""
        self.accepted: dict[tuple[int, int], set[str]] = defaultdict(set)
        """Of a seat's life."""
        self._decided: set[tuple[int, int, str, int, int, str]] = set()
        """By author, version, number and root: a cheat may state the same bytes again, and each branch has its numbers."""
        self.decisions: Counter[str] = Counter()
        self._learned: set[tuple[int, int, str]] = set()
        self.learned: Counter[int] = Counter()
        """Batches, by seat."""
        self.used: dict[tuple[str, int], set[str]] = defaultdict(set)
        """Roots that a peer said of a round."""
        self.aside: dict[str, dict[str, str]] = defaultdict(dict)
        """Of each peer that was set aside, who did it and why."""
        self.told: dict[str, Counter[str]] = defaultdict(Counter)
        """Of each rollout peer, the reasons that it was told."""
        world.listeners.append(self.on_event)

    def is_honest(self, seat: Seat) -> bool:
        return seat.peer not in self._world.judge.liars

    def on_learn(self, seat: Seat, round: int, batches: list[bytes]) -> None:
        names = [name_of(data) for data in batches]
        if not self.is_honest(seat):
            return
        self.learned[seat.number] += len(names)
        for name in names:
            key = (seat.number, seat.lives, name)
            if key in self._learned:
                raise Violation(f"once: {seat.number} learned from {name[:8]} again")
            self._learned.add(key)
            if name not in self.accepted[seat.number, seat.lives]:
                raise Violation(f"checked: {seat.number} learned from {name[:8]}, which it never accepted")
            if name not in self.right:
                raise Violation(f"checked: {seat.number} learned from {name[:8]}, which nobody made right")

    def on_event(self, seat: Seat, event: Event) -> None:
        if isinstance(event, BatchDecided):
            key = (seat.number, seat.lives, event.author, event.version, event.number, event.root)
            if key in self._decided:
                raise Violation(f"once: {seat.number} gave {event.root[:8]} a second verdict, {event.verdict}")
            self._decided.add(key)
            self.decisions[event.verdict] += 1
            if event.verdict == "accepted":
                self.accepted[seat.number, seat.lives].add(event.root)
        elif isinstance(event, RolloutPeerSetAside | ValidatorSetAside) and self.is_honest(seat):
            if event.peer not in self._world.judge.liars:
                raise Violation(f"just: {seat.number} set {event.peer} aside, which is honest: {event.reason}")
            self.aside[event.peer].setdefault(seat.peer, event.reason)
        elif isinstance(event, BatchJudged) and event.author == seat.peer:
            self.told[seat.peer].update(event.reasons)
        elif isinstance(event, RolloutsUsed):
            self.used[seat.peer, event.round].add(event.root)
        elif isinstance(event, RoundCommitted) and seat.node is not None:
            self._committed(seat, event.round)

    def _committed(self, seat: Seat, round: int) -> None:
        assert seat.node is not None
        if not seat.node._replica.manifest.learns_from_rollouts(round):
            return
        for member in seat.node.commit_at(round).record.members:
            name = member.rollouts.root.hex() if member.rollouts is not None else ""
            made_of_nothing = member.rollouts is None and member.against
            if made_of_nothing or member.peer in self._world.judge.liars:
                continue
            if name not in self.used[member.peer, round]:
                raise Violation(f"committed: round {round} names other rollouts than {member.peer} learned from")
            if member.rollouts is not None:
                before = _named_by(seat.node, member.peer, range(max(0, round - LOOKED_BACK), round))
                if before & {(batch.author, batch.root) for batch in member.rollouts.batches}:
                    raise Violation(f"once: round {round} names what {member.peer} had learned from before")


def _named_by(node: Node, peer: str, rounds: range) -> set[tuple[str, bytes]]:
    """The batches that a peer learned from in these rounds."""
    learned = [member.rollouts for round in rounds for member in node.commit_at(round).record.members if member.peer == peer]
    return {(batch.author, batch.root) for each in learned if each is not None for batch in each.batches}


def name_of(data: bytes) -> str:
    return tree_root(leaves_of(memoryview(data), ROLLOUT_CHUNK_BYTES)).hex()


def _noting(judge: RolloutJudge, seat: Seat, kind: type[RolloutTrainer]) -> Callable[..., RolloutTrainer]:
    """Makes the trainers of a seat's lives; the judge learns what they learn from, and what was made right."""

    def make(*arguments: object) -> RolloutTrainer:
        trainer = kind(*arguments, on_learn=partial(judge.on_learn, seat))  # type: ignore[arg-type]
        if kind.batch is RolloutTrainer.batch:
            honest = trainer.batch

            def batch(task: RolloutTask) -> bytes:
                data = honest(task)
                judge.right.add(name_of(data))
                return data

            trainer.batch = batch  # type: ignore[method-assign]
        return trainer

    return make


def cast(
    world: World, roles: Mapping[Role, int], liars: Mapping[tuple[Role, int], type[RolloutTrainer]] | None = None
) -> tuple[RolloutJudge, dict[Role, list[Seat]]]:
    """Give the seats of a world their roles, in order; some of them lie: by role and place in it."""
    judge, seats, found = RolloutJudge(world), iter(world.seats), dict[Role, list[Seat]]()
    for role, count in roles.items():
        found[role] = [next(seats) for _ in range(count)]
        for place, seat in enumerate(found[role]):
            kind = (liars or {}).get((role, place), RolloutTrainer)
            if kind is not RolloutTrainer:
                world.judge.liars[seat.peer] = None
            seat.role, seat.make_trainer = role, _noting(judge, seat, kind)
    return judge, found


Seats = Mapping[Role, list[Seat]]


def played(
    scenario: Callable[[World, RolloutJudge, Seats], Awaitable[None]],
    roles: Mapping[Role, int] = ROLES,
    liars: Mapping[tuple[Role, int], type[RolloutTrainer]] | None = None,
    *,
    signed: SignedManifest | None = None,
    seed: int = 1,
    weather: Weather | None = None,
    organiser: int | None = None,
) -> Finished:
    """Play a scenario in a world of these roles, in which every invariant has to hold.  organiser: on this seat."""

    async def cast_and_play(world: World) -> None:
        if organiser is not None:
            world.seats[organiser].identity = ORGANISER
        await scenario(world, *cast(world, roles, liars))

    return holds(simulate(sum(roles.values()), cast_and_play, seed, weather, signed or rl_run()))
