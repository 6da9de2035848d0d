"""Less work for Python's garbage collector, which stops all threads while it looks.

It looks again at what is young after each 700 objects.  A large message makes tens of thousands, which all stay: looking at
them takes longer than making them.  And now and again it looks at everything, of which most was there from the start.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Within, nothing is collected, in any thread; for moments.  Safe to use in several threads at once."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def spare_what_is_loaded() -> None:
    """What exists now, modules above all, is not looked at again before the next call.  Call it when everything is loaded.

    What was spared before and is garbage by now goes: a peer that leaves its run and comes back, all in one process, would
    keep every earlier network and node for good, since these refer to each other.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
