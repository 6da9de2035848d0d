"""The batches that a trainer takes: of makers that it knew before the version, and every number of its share in order.

Pure.  A version's tip draws what each batch is about, and everybody can compute that for all numbers and all keys.  So

* **Numbers are taken in order.**  Those of a maker at a version that are for us are taken one after another, each when the
  one before it is delivered.  One that is not delivered (never announced, or its bytes withheld, or announced twice) holds
  the later ones up for `HOLD_S`, and its maker's history begins anew.  Nobody else says so: what we could not get proves
  nothing to others, and so frames nobody.
* **Keys are not made for a tip.**  A maker that we did not know when the version came waits for the next one.

Versions that did not come to us one after another (the first ones of our life, those of a branch that we moved to) are taken
from the first number on that we hear, of everybody: what was said before, nobody says again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.rollouts.batch import Batch, Slot
from protocol.rollouts.dealing import lot_of
from protocol.rollouts.happenings import Moved
from protocol.rollouts.scene import Scene
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import MAX_BATCHES

HOLD_S = 600.0
"""For so long a batch that is not delivered holds up the later ones of its maker."""
NEWCOMERS_S = 600.0
"""After so long without an accepted batch a version is open to makers that came after it: else it had no end where all
others are gone."""
MOST_SEQUENCES = 4096
"""Makers at a version whose numbers we count; the one that was longest without a batch makes room."""


@dataclass
class _Sequence:
    """Of a maker at a version.  next: the number that we wait for.  held_since: later ones are held up by it."""

    next: int
    held_since: float | None = None


class Intake:
    """Of one trainer.  slots: the batches that are known."""

    def __init__(self, scene: Scene, slots: Mapping[Slot, Batch]) -> None:
        self._scene, self._slots = scene, slots
        self._sequences: OrderedDict[tuple[PeerId, Hash], _Sequence] = OrderedDict()
        self._known: dict[Hash, frozenset[PeerId]] = {}
        """Of each version that came to us after the one before it, the makers that we knew then, if any."""
        self._followed: frozenset[Hash] = frozenset()
        self._came_at = 0.0
        """When the newest version came."""

    def move(self, before: Moved, after: Moved, now: float) -> None:
        """The state is another one."""
        same = after.before or after.tips.get(before.version)
        follows = before.version in before.tips and same == before.tips[before.version]
        new = [tip for version, tip in after.tips.items() if follows and version > before.version]
        self._followed = self._followed.intersection(after.tips.values()).union(new)
        self._known = {tip: makers for tip, makers in self._known.items() if tip in self._followed}
        if after.makers:
            self._known |= dict.fromkeys(new, after.makers)
        if new:
            self._came_at = now

    def admits(self, batch: Batch, now: float) -> bool:
        """Whether the turn of a batch that is for us has come."""
        return self._is_known(batch, now) and self._is_next(batch, now)

    def _is_known(self, batch: Batch, now: float) -> bool:
        known = self._known.get(Hash(batch.body.tip))
        if known is None or batch.author in known:
            return True
        if now - max(self._came_at, self._scene.accepted_at) < NEWCOMERS_S:
            return False
        del self._known[Hash(batch.body.tip)]
        return True

    def _is_next(self, batch: Batch, now: float) -> bool:
        author, tip, number = batch.slot
        sequence = self._sequences.get((author, tip))
        if sequence is None:
            sequence = _Sequence(self._ours(batch, 0) if tip in self._followed else number)
            self._sequences[author, tip] = sequence
            if len(self._sequences) > MOST_SEQUENCES:
                self._sequences.popitem(last=False)
        while sequence.next < number:
            if not self._passes(self._slots.get((author, tip, sequence.next)), sequence, author, now):
                return False
            sequence.next, sequence.held_since = self._ours(batch, sequence.next + 1), None
            self._sequences.move_to_end((author, tip))
        return sequence.next == number

    def _passes(self, first: Batch | None, sequence: _Sequence, author: PeerId, now: float) -> bool:
        """Whether later numbers need not wait any more for this one."""
        if first is not None and first.is_delivered:
            return True
        if first is not None and not first.is_withheld and not first.is_restated:
            return False  # it is up to us
        if sequence.held_since is None:
            sequence.held_since = now
        if now - sequence.held_since < HOLD_S:
            return False
        self._scene.standing.anomaly(author)
        return True

    def _ours(self, batch: Batch, start: int) -> int:
        """The first number from `start` on that is for us, at the version of `batch`, which has one."""
        author, tip, _ = batch.slot
        numbers = range(start, MAX_BATCHES)
        return next(number for number in numbers if self._scene.is_ours(batch.body.version, lot_of(tip, author, number)))
