"""Who solves which problems, whom a batch is for, and who judges it.

Pure.  What draws is always something that the one who would profit cannot choose: the tip of a version draws a peer's
problems, the root of a batch the trainer that it is for, and that trainer's signature, made after it has heard the root, the
validators.  A trainer that chose its validators itself would deceive nobody but itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import nsmallest
from itertools import count

from protocol.state.tasks_in_force import TasksInForce, first_problem
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

TWICE = 8
"""One batch in so many is dealt to two validators."""


def problems_of(
    run: Hash, tip: Hash, peer: PeerId, number: int, prompts: int, problems: int, tasks: TasksInForce
) -> tuple[int, ...]:
    """The numbers of the problems, all different, that batch `number` of `peer` at the version on `tip` is about.

    prompts: how many.  problems: of the environment; not fewer.  tasks: the sets of the version; `tasks.percent` of the
    problems are of these, of each as many as of the others.
    """
    seed = hash_bytes("problems", run + tip + peer.encode() + number.to_bytes(8, "big"))
    drawn: dict[int, None] = {}
    for at in count():
        if len(drawn) == prompts:
            break
        draw = hash_bytes("problem", seed + at.to_bytes(8, "big"))
        choice = int.from_bytes(draw[:16], "big")
        if tasks.live and int.from_bytes(draw[16:20], "big") % 100 < tasks.percent:
            one = tasks.live[int.from_bytes(draw[20:24], "big") % len(tasks.live)]
            drawn[first_problem(one.slot) + choice % one.count] = None
        else:
            drawn[choice % problems] = None
    return tuple(drawn)


def beacon_of(signature: bytes) -> Hash:
    """What the signature of a deal draws the validators with."""
    return hash_bytes("deal", signature)


def places_of(beacon: Hash) -> int:
    """How many validators a batch is dealt to."""
    return 2 if beacon[0] % TWICE == 0 else 1


def order_of(beacon: Hash, root: Hash, validators: Collection[PeerId], most: int | None = None) -> list[PeerId]:
    """The validators, or the first `most`, in the order in which the batch is dealt to them: who joins or leaves moves
    nobody else."""
    drawn = sorted(validators, key=lambda peer: hash_bytes("validator", beacon + root + peer.encode()))
    return drawn[:most]


def validators_of(beacon: Hash, root: Hash, validators: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Those that the batch is dealt to at first."""
    return tuple(order_of(beacon, root, validators, places_of(beacon)))


def some_of(tip: Hash, validators: frozenset[PeerId], most: int) -> frozenset[PeerId]:
    """Of a crowd of validators those that batches are dealt to while this is the tip, which nobody could foresee."""
    if len(validators) <= most:
        return validators
    return frozenset(nsmallest(most, validators, key=lambda peer: hash_bytes("some", tip + peer.encode())))


def trainer_of(root: Hash, trainers: Sequence[PeerId]) -> PeerId | None:
    """Which of the trainers of the last record (sorted) a batch is for; None where there is none."""
    return trainers[_lot(root) % len(trainers)] if trainers else None


def is_for(root: Hash, me: PeerId, trainers: Sequence[PeerId]) -> bool:
    """Whether `me` may learn from a batch: who was in the last record from its own share, and who was not from a share of
    the same size, which others may learn from as well."""
    if me in trainers:
        return trainer_of(root, trainers) == me
    return _lot(hash_bytes("newcomer", root + me.encode())) % (len(trainers) + 1) == 0


def _lot(root: Hash) -> int:
    return int.from_bytes(root[:8], "big")
