"""Rest for Python's garbage collector while a large message is decoded.

The collector looks again at what is young after each 700 objects.  A large message makes tens of thousands, which all stay:
looking at them takes longer than making them.
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
