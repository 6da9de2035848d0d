"""Who measures the held-out loss of a committed state, and whose word on it counts: a draw, and what was claimed.

Pure.  A state is named by the tip that made it.  The tip puts the members of its record into an order by hash; whoever is
the first of them that is able measures the state and tells the others.  At genesis, where there is no record, everybody who
trains is in the order.  A claim is taken from whom we would have let measure; what is not measured by anybody stays
unknown.  Nothing else in the protocol depends on these numbers: a claim may be a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Measurement

RECENT_ROUNDS = 8
"""So many of the newest states are kept; claims on older ones come too late."""
Able = Callable[[PeerId], bool]
"""Whether a peer could measure a state now, as far as we can see."""


def drawn_order(tip: Hash, peers: Iterable[PeerId]) -> list[PeerId]:
    """`peers` in the order in which they are to measure the state at `tip`."""
    return sorted(peers, key=lambda peer: hash_bytes("evaluator", tip + peer.encode()))


def whose_turn(order: Sequence[PeerId], able: Able) -> PeerId | None:
    """Who is to measure: the first that is able."""
    return next((peer for peer in order if able(peer)), None)


@dataclass(frozen=True)
class State:
    """A committed state.  members: of the record that made it; none at genesis."""

    rounds: int
    tip: Hash
    members: tuple[PeerId, ...]


@dataclass(frozen=True)
class Measured:
    """A held-out loss (nats a token) and the peer that says so."""

    rounds: int
    loss: float
    by: PeerId


def refusal(claim: Measurement, sender: PeerId, state: State, order: Sequence[PeerId], able: Able) -> str:
    """Why `sender` is not to be believed on `state`; "" when it is.  order: everybody who may measure the state."""
    if claim.rounds != state.rounds:
        return f"it names round {claim.rounds} with the tip of {state.rounds}"
    if sender not in order:
        return "it was no member of that round"
    if any(able(peer) for peer in order[: order.index(sender)]):
        return "somebody else was drawn to measure"
    return ""


class Measurements:
    """The newest committed states, and what was measured of them."""

    def __init__(self) -> None:
        self._states: dict[Hash, State] = {}
        self._measured: dict[Hash, Measured] = {}

    def open(self, state: State) -> None:
        """From now on this state may be measured; the oldest one is forgotten."""
        self._states.pop(state.tip, None)
        self._states[state.tip] = state
        while len(self._states) > RECENT_ROUNDS:
            oldest = next(iter(self._states))
            del self._states[oldest]
            self._measured.pop(oldest, None)

    def state(self, tip: Hash) -> State | None:
        """The state with this tip; None when we do not know it, or no longer."""
        return self._states.get(tip)

    def of(self, tip: Hash) -> Measured | None:
        """What was measured of the state with this tip; None when nothing was."""
        return self._measured.get(tip)

    def take(self, state: State, loss: float, by: PeerId) -> bool:
        """Note what was measured of an open state.  False when it is known already: the first word stands."""
        if state.tip in self._measured or state.tip not in self._states:
            return False
        self._measured[state.tip] = Measured(state.rounds, loss, by)
        return True

    def newest(self, on_chain: Callable[[State], bool]) -> Measured | None:
        """The measurement of the latest state on our chain that has one; a fork may have lost to another since."""
        known = [self._measured[tip] for tip, state in self._states.items() if tip in self._measured and on_chain(state)]
        return max(known, key=lambda measured: measured.rounds, default=None)
