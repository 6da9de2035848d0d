"""What is explored by default.  The liar proposes in attempt 0, in attempt 1 or in none, as its rank says."""

from __future__ import annotations

from tests.explore.council import SEATS, Seats
from tests.explore.parts import Parting
from tests.explore.search import WHOLE, Config

LIARS: list[Seats] = [(seat,) for seat in range(SEATS)]
LIAR: Seats = (1,)
"""The one that proposes in the second attempt, when there are locks already."""
AN_HONEST: Seats = (3,)
ALL_BUT_LIAR: Seats = (0, 2, 3)
ALL_BUT_ONE: Seats = (0, 1, 2)
"""Four electors never go on without exactly two: while three are heard nobody is given up, and two make do without one."""


def _absent(*absences: Seats) -> tuple[Seats, ...]:
    return (WHOLE, *absences)


QUICK = (
    *(Config(liar, 2) for liar in LIARS),
    Config(LIAR, 3, in_order=True),
    Config(LIAR, 2, _absent(AN_HONEST), in_order=True),
)
"""A few seconds."""

DEFAULT = (
    Config((), 2),
    *(Config(liar, 2) for liar in LIARS),
    Config(LIAR, 3),
    Config(LIAR, 2, _absent(AN_HONEST)),
    *(Config(liar, 4, in_order=True) for liar in LIARS),
    Config(LIAR, 5, in_order=True),
    *(Config(LIAR, 2, _absent(absent), in_order=True) for absent in (AN_HONEST, LIAR, ALL_BUT_LIAR, ALL_BUT_ONE)),
    Config(LIAR, 2, _absent(AN_HONEST, LIAR), in_order=True),
    Config(LIAR, 3, _absent(LIAR), in_order=True),
    Config(LIAR, 3, _absent(AN_HONEST), in_order=True, max_s=120.0),
)
"""Some minutes.  The last one is stopped in time where the machine is slow."""

TWO_LIARS = Config((0, 1), 2, progress=False, confirming=False)
"""More than agreement can bear."""

PARTS_QUICK = (
    Parting(2, (1, 1), attempts=2),
    Parting(2, (1, 1), loses_seats=True),
    Parting(1, (1, 1, 1), is_open=True, max_states=1000),
    Parting(3, (5, 1, 1), max_states=1000),
)
"""A few seconds."""

PARTS_DEFAULT = (
    Parting(2, (3, 1), attempts=2),
    Parting(1, (4, 1, 1), is_open=True, max_states=20_000),
    Parting(3, (1, 1, 1), restarts=False, max_states=50_000),
    Parting(3, (5, 1, 1), max_states=20_000),
    Parting(3, (1, 1, 1), restarts=False, loses_seats=True, max_states=40_000),  # after 46 423: docs/internals/limits
    Parting(4, (1, 1, 1, 1), restarts=False, max_states=5_000),
    Parting(4, (1, 1, 1, 1), restarts=False, loses_seats=True, max_states=5_000),
)
"""Some minutes.  Three peers or more have too many states: those with the shortest traces are searched."""
