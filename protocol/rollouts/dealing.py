"""Who solves which problems, whom a batch is for, and who judges it.

Pure.  Nobody who would profit from a draw can vary its inputs.  The tip of a version, the maker and the number of a batch
draw its problems and the trainer that it is for; nothing that the maker writes into the batch or its statement does.  That
trainer's signature, made after it has heard the root, draws the validators.  A trainer that chose its validators itself
would deceive nobody but itself.  docs/security.md lists all draws of the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import nsmallest
from itertools import count, islice

from protocol.chain.tasks_in_force import TasksInForce, first_problem
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

TWICE = 8
"""One batch in so many is dealt to two validators."""
REDRAWS = 8
"""Tasks of a set that are drawn for one place in a batch, until one is new; then the place is the environment's."""


def problems_of(
    run: Hash, tip: Hash, peer: PeerId, number: int, prompts: int, problems: int, tasks: TasksInForce
) -> tuple[int, ...]:
    """The numbers of the problems, all different, that batch `number` of `peer` at the version on `tip` is about.

    prompts: how many.  problems: of the environment; not fewer.  tasks: the sets of the version; `tasks.percent` of the
    problems are of these, of each as many as of the others.  Batches differ by one in how many are of the sets, and of each
    set: a batch that had many more would be worth grinding keys for.
    """
    seed = hash_bytes("problems", run + tip + peer.encode() + number.to_bytes(8, "big"))
    draws = (int.from_bytes(hash_bytes("problem", seed + at.to_bytes(8, "big")), "big") for at in count())
    drawn: dict[int, None] = {}
    if tasks.live:
        of_sets, first = (prompts * tasks.percent + next(draws) % 100) // 100, next(draws)
        for place in range(of_sets):
            one = tasks.live[(first + place) % len(tasks.live)]
            choices = (first_problem(one.slot) + next(draws) % one.count for _ in range(REDRAWS))
            drawn |= dict.fromkeys(islice((choice for choice in choices if choice not in drawn), 1))
    while len(drawn) < prompts:
        drawn[next(draws) % problems] = None
    return tuple(drawn)


def beacon_of(signature: bytes) -> Hash:
    """What the signature of a deal draws the validators with."""
    return hash_bytes("deal", signature)


def places_of(beacon: Hash) -> int:
    """How many validators a batch is dealt to."""
    return 2 if beacon[0] % TWICE == 0 else 1


def order_of(
    beacon: Hash,
    root: Hash,
    validators: Collection[PeerId],
    most: int | None = None,
    late: Collection[PeerId] = frozenset(),
) -> list[PeerId]:
    """The validators, or the first `most`, in the order in which the batch is dealt to them: who joins or leaves moves
    nobody else.

    late: those that came when the beacon was known; they come last, for their keys may be made for it.
    """
    drawn = sorted(validators, key=lambda peer: (peer in late, hash_bytes("validator", beacon + root + peer.encode())))
    return drawn[:most]


def validators_of(beacon: Hash, root: Hash, validators: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Those that the batch is dealt to at first."""
    return tuple(order_of(beacon, root, validators, places_of(beacon)))


def some_of(
    tip: Hash, validators: frozenset[PeerId], most: int, late: Collection[PeerId] = frozenset()
) -> frozenset[PeerId]:
    """Of a crowd of validators those that batches are dealt to while this is the tip, which nobody could foresee.

    late: those that came when the tip was known, as in `order_of`.
    """
    if len(validators) <= most:
        return validators
    drawn = nsmallest(most, validators, key=lambda peer: (peer in late, hash_bytes("some", tip + peer.encode())))
    return frozenset(drawn)


def lot_of(tip: Hash, author: PeerId, number: int) -> Hash:
    """Draws the trainer that batch `number` of `author` at the version on `tip` is for.  Nothing in the batch plays a part:
    its maker could vary it until it drew the trainer that it likes."""
    return hash_bytes("share", tip + author.encode() + number.to_bytes(8, "big"))


def trainer_of(lot: Hash, trainers: Sequence[PeerId]) -> PeerId | None:
    """Which of the trainers of the version's record (sorted) a batch with this lot is for; None where there is none."""
    return trainers[_number_in(lot) % len(trainers)] if trainers else None


def is_for(lot: Hash, me: PeerId, trainers: Sequence[PeerId]) -> bool:
    """Whether `me` may learn from a batch: who was in the version's record from its own share, and who was not from a share
    of the same size, which others may learn from as well."""
    if me in trainers:
        return trainer_of(lot, trainers) == me
    return _number_in(hash_bytes("newcomer", lot + me.encode())) % (len(trainers) + 1) == 0


def _number_in(lot: Hash) -> int:
    return int.from_bytes(lot[:8], "big")
