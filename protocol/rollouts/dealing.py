"""Draws of a batch's problems, of the trainer that it is for, and of the validators that judge it.

Pure.  Nobody who would profit from a draw can vary its inputs.  The tip of a version, the maker and the number of a batch
draw its problems and the trainer that it is for; the contents of the batch and of its statement play no part.  That
trainer's signature, made after it has heard the root, draws the validators.  A trainer that chose its validators itself
would deceive only itself.  docs/internals/draws.md lists all draws of the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import nsmallest
from itertools import count, islice

from protocol.chain.tasks_in_force import TasksInForce, first_problem
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

TWICE = 8
"""One batch in this many is dealt to two validators."""
REDRAWS = 8
"""Most tasks of a set that are drawn for one place in a batch until one is new; then the place gets one of the
environment's."""


def problems_of(
    run: Hash, tip: Hash, peer: PeerId, number: int, prompts: int, problems: int, tasks: TasksInForce
) -> tuple[int, ...]:
    """Return the numbers of the problems, all different, of batch `number` of `peer` at the version on `tip`.

    prompts: how many problems.  problems: the number of the environment's, at least `prompts`.  tasks: the version's sets;
    `tasks.percent` of the problems come from them, as many from each set as from the others.  The number of problems from
    the sets, and from each set, differs by at most one between batches: a batch with many more would be worth grinding keys
    for.
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
    """Return the beacon by which a deal's signature draws the validators."""
    return hash_bytes("deal", signature)


def places_of(beacon: Hash) -> int:
    """Return the number of validators that a batch is dealt to at first."""
    return 2 if beacon[0] % TWICE == 0 else 1


def order_of(
    beacon: Hash,
    root: Hash,
    validators: Collection[PeerId],
    most: int | None = None,
    late: Collection[PeerId] = frozenset(),
) -> list[PeerId]:
    """Return the validators, or the first `most`, in the order in which the batch is dealt to them.

    A validator that joins or leaves does not change the order of the others.  late: validators that came when the beacon was
    known; they come last, because their keys may be made for it.
    """
    drawn = sorted(validators, key=lambda peer: (peer in late, hash_bytes("validator", beacon + root + peer.encode())))
    return drawn[:most]


def validators_of(beacon: Hash, root: Hash, validators: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Return the validators that the batch is dealt to at first."""
    return tuple(order_of(beacon, root, validators, places_of(beacon)))


def some_of(
    tip: Hash, validators: frozenset[PeerId], most: int, late: Collection[PeerId] = frozenset()
) -> frozenset[PeerId]:
    """Return the validators, at most `most`, that batches are dealt to while this is the tip; nobody could foresee them.

    late: validators that came when the tip was known, as in `order_of`.
    """
    if len(validators) <= most:
        return validators
    drawn = nsmallest(most, validators, key=lambda peer: (peer in late, hash_bytes("some", tip + peer.encode())))
    return frozenset(drawn)


def lot_of(tip: Hash, author: PeerId, number: int) -> Hash:
    """Return the lot that draws the trainer of batch `number` of `author` at the version on `tip`.

    Nothing in the batch plays a part: its maker could vary it until it drew the trainer that it likes.
    """
    return hash_bytes("share", tip + author.encode() + number.to_bytes(8, "big"))


def trainer_of(lot: Hash, trainers: Sequence[PeerId]) -> PeerId | None:
    """Return the trainer that a batch with this lot is for, of the version's record (sorted); None if the record has
    none."""
    return trainers[_number_in(lot) % len(trainers)] if trainers else None


def is_for(lot: Hash, me: PeerId, trainers: Sequence[PeerId]) -> bool:
    """Return True if `me` may learn from a batch.

    A trainer in the version's record learns from its own share.  Another one learns from a share of about the same size (one
    in `len(trainers) + 1`), which others may learn from as well.
    """
    if me in trainers:
        return trainer_of(lot, trainers) == me
    return _number_in(hash_bytes("newcomer", lot + me.encode())) % (len(trainers) + 1) == 0


def _number_in(lot: Hash) -> int:
    return int.from_bytes(lot[:8], "big")
