"""Peers whose contributions are meant to harm: real nodes with a hostile trainer behind them.

An attack turns the honest contribution of the round into what is committed to and sent.  `Copying` takes another member's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import trio

from kernels.aggregate import Rule
from kernels.codecs.format import LARGEST
from kernels.codecs.quantised import Int4
from kernels.layout import ChunkSpan
from protocol.allreduce import runner
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.formats.adapter import AdapterConfig
from protocol.run.manifest import SignedManifest
from protocol.run.sections import BaseFileSection, BaseSection
from protocol.sync.fetchers import file_section, keep_file
from protocol.trainer_link import ComputeTask, Contribution, Progress
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.determinism import inline
from tests.simulation.seat import Seat
from tests.simulation.world import FRAGMENTS, World, changed, simulated_run

STALE_ROUNDS = 3 * FRAGMENTS
COPY_WAIT_S = 8.0

Attack = Callable[["HostileTrainer", Contribution], Contribution]


class HostileTrainer(ArithmeticTrainer):
    """past: what it honestly computed, round after round."""

    def __init__(self, attack: Attack, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._attack = attack
        self._commit = arguments[-1]
        self.layout = arguments[0].layouts.contribution
        self.draw = np.random.Generator(np.random.Philox(arguments[1]))
        self.past: list[Contribution] = []

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        honest = await super().compute(task, theta, on_progress, applied)
        self.past.append(replace(honest, data=memoryview(bytearray(honest.data))))
        return self.handed_in(self._attack(self, honest))

    def handed_in(self, contribution: Contribution) -> Contribution:
        self._commit(contribution.data, None)
        return contribution


class Copying(HostileTrainer):
    """Hands in what `victim` has handed in, to the byte, if that is to be had in time."""

    def __init__(self, victim: Seat, *arguments: Any) -> None:
        super().__init__(lambda trainer, honest: honest, *arguments)
        self._victim = victim
        self.copies = 0

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        own = await super().compute(task, theta, on_progress, applied)
        with trio.move_on_after(COPY_WAIT_S):
            while (seen := self._of_victim(task.round)) is None:
                await trio.sleep(0.1)
            self.copies += 1
            return self.handed_in(replace(own, data=memoryview(bytearray(seen.data))))
        return own

    def _of_victim(self, round: int) -> Contribution | None:
        work = self._victim.node._rounds.work if self._victim.node else None
        seen = work.contribution if work is not None else None
        return seen if seen is not None and seen.round == round else None


# -- attacks -----------------------------------------------------------------------------------------------------------


def _rescaled(rescale: Callable[[Any], None], trainer: HostileTrainer, honest: Contribution) -> Contribution:
    """rescale: changes the bits of the scales."""
    assert isinstance(trainer.layout.format, Int4)
    for span in trainer.layout:
        rescale(trainer.layout.format.sections(_chunk(honest, span), span.count)[0].view("<u2"))
    return honest


Values = Callable[[HostileTrainer, ChunkSpan], Any]


def _valued(values: Values, trainer: HostileTrainer, honest: Contribution) -> Contribution:
    for span in trainer.layout:
        trainer.layout.format.encode(values(trainer, span), _chunk(honest, span))
    return honest


def _chunk(contribution: Contribution, span: ChunkSpan) -> memoryview:
    return contribution.data[span.encoded]


def _flipped(trainer: HostileTrainer, honest: Contribution) -> Contribution:
    for span in trainer.layout:
        values = np.empty(span.count, np.float32)
        trainer.layout.format.decode(_chunk(honest, span), span.count, values, factor=np.float32(-1000))
        trainer.layout.format.encode(values, _chunk(honest, span))
    return honest


ATTACKS: dict[str, Attack] = {
    "huge": partial(_valued, lambda trainer, span: trainer.draw.choice([LARGEST, -LARGEST], span.count)),
    "sign flip x -1000": _flipped,
    "constant": partial(_valued, lambda trainer, span: np.ones(span.count, np.float32)),
    "random": partial(_valued, lambda trainer, span: trainer.draw.standard_normal(span.count, np.float32)),
    "zero": partial(_valued, lambda trainer, span: np.zeros(span.count, np.float32)),
    "stale": lambda trainer, honest: replace(honest, data=trainer.past[max(0, len(trainer.past) - 1 - STALE_ROUNDS)].data),
    "no work, all the tokens": partial(_valued, lambda trainer, span: np.zeros(span.count, np.float32)),
    "a norm that is not true": lambda trainer, honest: replace(_flipped(trainer, honest), norm=1e-9),
}
"""Contributions that every peer takes."""

REFUSED: dict[str, Attack] = {
    "not a number": partial(_rescaled, lambda scales: scales.fill(0x7FC0)),
    "infinite": partial(_rescaled, lambda scales: scales.fill(0x7F80)),
    "negative scales": partial(_rescaled, lambda scales: np.bitwise_or(scales, 0x8000, out=scales)),
    "larger than the codec allows": partial(_rescaled, lambda scales: scales.fill(0x7E00)),
}
"""Contributions that no peer takes."""


def claiming(tokens: int) -> Attack:
    """An honest contribution for which so many tokens are claimed."""
    return lambda trainer, honest: replace(honest, tokens=tokens)


async def averages_nothing(function: Any, *arguments: Any) -> Any:
    """For a seat whose own contribution is in no average: as an owner it would have to sign one with it, so it is mute."""
    if function is runner.average:
        await trio.sleep_forever()
    return await inline(function, *arguments)


def turn(seat: Seat, attack: Attack) -> None:
    """`seat` contributes this from its next start on."""
    seat.make_trainer = partial(HostileTrainer, attack)


def run_with(rule: Rule) -> SignedManifest:
    """The simulated run under another aggregation rule."""
    return changed(simulated_run(), aggregation=rule)


BASE = b"the bytes of a frozen model"


def adapter_run() -> SignedManifest:
    """The simulated run with an adapter, whose factors are the vector; nothing in a simulation reads its base."""
    section = file_section(BASE)
    base = BaseSection(files=[BaseFileSection(path="config.json", size=section.size, root=section.root)])
    return changed(simulated_run(), adapter=AdapterConfig(rank=16), base=base)


def give_base(seat: Seat) -> None:
    """`seat` has the base from the beginning; the others fetch it."""
    files = BlobStore(Disk(durable=False), seat.folder / "files")
    files.folder.mkdir(parents=True)
    keep_file(files, file_section(BASE), BASE)


def distance(world: World) -> float:
    """Mean squared distance of the parameters from the trainers' target, before the last round of each fragment."""
    rounds = min(world.rounds())
    node = next(seat.node for seat in world.up() if seat.node is not None)
    return mean(node.commit_at(round).record.loss for round in range(rounds - FRAGMENTS, rounds))
