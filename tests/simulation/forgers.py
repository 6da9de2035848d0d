"""Electors that lie in the negotiation of a round: real nodes whose round machine says other things than it decided.

A `Forger` sees every event that its machine takes, and changes the effects that follow.  What it says is signed with its own
key; what others have signed it can repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from protocol.agreement.events import RoundEffect, RoundEvent, Send, View
from protocol.agreement.machine import RoundMachine
from protocol.node import round_runner
from protocol.wire.envelope import Body
from protocol.wire.identity import PeerId


class Forger:
    """An honest one, to be overridden.  One forger lives through all rounds of its peer."""

    def twist(
        self, machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect], view: View, now: float
    ) -> list[RoundEffect]:
        """What is done instead of `effects`, with which `machine` answered `event`."""
        return [done for effect in effects for done in self.instead(machine, effect)]

    def instead(self, machine: RoundMachine, effect: RoundEffect) -> Sequence[RoundEffect]:
        """What is done instead of one effect."""
        return self.said(machine, effect) if isinstance(effect, Send) else [effect]

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        """What is said instead of one statement."""
        return [send]


class Withholding(Forger):
    """Never says statements of these kinds to anybody but itself, or to those in `favoured`."""

    def __init__(self, *kinds: type[Body], favoured: Callable[[RoundMachine, Sequence[PeerId]], Sequence[PeerId]]) -> None:
        self._kinds, self._favoured = kinds, favoured

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        if not isinstance(send.body, self._kinds):
            return [send]
        others = [peer for peer in send.to if peer != machine.me]
        ours = [machine.me] if machine.me in send.to else []
        to = (*self._favoured(machine, others), *ours)
        return [Send(to, send.body)] if to else []


def nobody(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`."""
    return ()


def one(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`: the first in the order of proposers."""
    return machine.base.in_turn(peers)[:1]


def half(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`: the first half in the order of proposers."""
    return machine.base.in_turn(peers)[: len(peers) // 2]


Change = Callable[[RoundMachine, Any], Body | None]


class Altering(Forger):
    """Says a changed statement of one kind, to everybody or to one half of those it is for; the other half hears the true
    one.  to_itself: whether it believes its own lie.  A change to None leaves the statement as it is."""

    def __init__(self, kind: type[Body], change: Change, *, halves: bool = False, to_itself: bool = False) -> None:
        self._kind, self._change, self._halves, self._to_itself = kind, change, halves, to_itself
        self.lies = 0

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        if not isinstance(send.body, self._kind):
            return [send]
        changed = self._change(machine, send.body)
        if changed is None:
            return [send]
        self.lies += 1
        deceived = [peer for peer in send.to if peer != machine.me or self._to_itself]
        if self._halves:
            deceived = list(half(machine, deceived))
        told = tuple(peer for peer in send.to if peer not in deceived)
        return [*([Send(told, send.body)] if told else []), *([Send(tuple(deceived), changed)] if deceived else [])]


class Adding(Forger):
    """Says more: `more` looks at every event and statement of its machine."""

    def __init__(self, more: Callable[[RoundMachine, RoundEvent, list[RoundEffect]], Sequence[RoundEffect]]) -> None:
        self._more = more

    def twist(
        self, machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect], view: View, now: float
    ) -> list[RoundEffect]:
        return [*effects, *self._more(machine, event, effects)]


class LyingMachine(RoundMachine):
    """A round machine whose effects pass through a forger."""

    forger: Forger

    def handle(self, event: RoundEvent, view: View, now: float) -> list[RoundEffect]:
        return self.forger.twist(self, event, super().handle(event, view, now), view, now)


@contextmanager
def lying(forgers: Mapping[PeerId, Forger]) -> Iterator[None]:
    """Rounds that these peers begin within are played by their forgers.  May be nested for different peers."""
    honest: Any = getattr(round_runner, "RoundMachine")  # noqa: B009

    def make(me: PeerId, *arguments: Any, **options: Any) -> RoundMachine:
        if me not in forgers:
            return honest(me, *arguments, **options)  # type: ignore[no-any-return]
        machine = LyingMachine(me, *arguments, **options)
        machine.forger = forgers[me]
        return machine

    with patch.object(round_runner, "RoundMachine", make):
        yield
