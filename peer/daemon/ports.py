"""Choice of the TCP port on which a peer listens.

Only one peer of a computer has the usual port: invitations name it and people open it in their routers.  Any further peer
here takes a free one.  A lock decides between peers that start at the same moment, because the library would let them share
a port silently.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from peer.errors import PeerError
from peer.files.lock import LockHeld, locked
from peer.joining.run_source import DEFAULT_PORT
from peer.paths import runtime_dir

FREE = 0


@contextmanager
def chosen_port(wanted: int | None, local: bool) -> Iterator[int]:
    """Yield the port to listen on, ours within the block; `FREE` lets the system choose.

    wanted: the person's choice; None for the usual port, or for a free one if that is taken or if only `local` peers meet.
    """
    if wanted is not None or local:
        yield FREE if wanted is None else wanted
        return
    with ExitStack() as stack:
        yield DEFAULT_PORT if _take(DEFAULT_PORT, stack) and _is_free(DEFAULT_PORT) else FREE


def _take(port: int, stack: ExitStack) -> bool:
    """Hold the lock on `port` among this user's peers until `stack` closes; False if another peer holds it."""
    try:
        stack.enter_context(locked(runtime_dir() / f"port-{port}.lock"))
    except (LockHeld, OSError, PeerError):
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - where the peer will listen
            probe.listen(1)
        except OSError:
            return False
    return True
