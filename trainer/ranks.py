"""Ranks: the processes of a trainer that share one model.

Rank 0 is the process that the peer has started, and only rank 0 communicates with the peer. It starts the others, tells them
each operation before it begins the same operation itself, and collects their results. Operations are whole steps, so that
nothing is decided within one. The messages go through a socket for each rank; gloo and NCCL carry only parameters and
gradients (`trainer.sharding`).

The ranks find each other through a file that only this user can open. Their connections go over 127.0.0.1, which every user
of the computer can reach, so each rank proves over each connection that it knows a secret of this trainer.

The ranks end together. A rank ends when its socket closes, whatever it is doing, and rank 0 ends when another rank ends: its
own part of the model is then worthless, and some libraries wait forever for a rank that has ended. The peer then starts the
trainer again.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch

from trainer.config import TrainingConfig

Result = TypeVar("Result")

SECRET_BYTES = 32
SETTLE_S = 2.0
"""Seconds in which a rank with an error waits for the end, or the report, of the rank that met the error first."""


class Ranks:
    """Ranks of a trainer from the view of one of them; this class is for the single rank of a trainer of one process.

    number: number of this rank, from 0.  count: number of ranks.  are_together: False after an error within an operation,
    which another rank may still be in; then all have to end.
    """

    number = 0
    count = 1
    are_together = True

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tell the other ranks to begin an operation, at rank 0; do nothing at others."""

    def collect(self, own: Result) -> list[Result]:
        """Return the results of all ranks in order, at rank 0; send `own`, and return nothing, at others."""
        return [own]

    @contextmanager
    def operation(self, name: str, *arguments: Any) -> Iterator[None]:
        """Tell the other ranks to begin an operation, and do the same within."""
        self.tell(name, *arguments)
        try:
            yield
        except BaseException:
            self.are_together = self.count == 1
            raise

    def spans(self, units: int, most: int) -> Iterator[range]:
        """Yield the units that this rank computes, at most `most` at a time, perhaps 0; every rank yields equally often."""
        each = -(-units // self.count)
        begin, end = (min(units, number * each) for number in (self.number, self.number + 1))
        for at in range(begin, begin + each, most):
            yield range(min(end, at), min(end, at + most))


@dataclass(frozen=True)
class RankOrder:
    """First message to a rank.

    devices: names of all ranks' devices.  dtype: precision of products.  folder: folder of the optimisers' moments; None to
    keep none.  store: path of the file in which the ranks find each other.  secret: random bytes, with which the ranks
    recognise each other.
    """

    number: int
    config: TrainingConfig
    devices: tuple[str, ...]
    dtype: torch.dtype
    folder: Path | None
    store: str = ""
    secret: bytes = field(default=b"", repr=False)


class FollowingRank(Ranks):
    """Rank other than rank 0, in its own process."""

    def __init__(self, order: RankOrder, connection: Connection) -> None:
        self.number, self.count = order.number, len(order.devices)
        self._connection = connection

    def collect(self, own: Result) -> list[Result]:
        """Send `own` to rank 0."""
        self._connection.send(own)
        return []


class LeadingRank(Ranks):
    """Rank 0, with the processes of the other ranks.  store: path of the file in which they find each other."""

    def __init__(self, order: RankOrder, shared_fds: Sequence[int], on_end: Callable[[str, int], None]) -> None:
        """Start the other ranks, and meet them.  Call it in the main thread: Linux ends the ranks with the thread.

        order: the order for rank 0; its store and secret are chosen here.  shared_fds: descriptors of theta and the
        contribution, in memory that peer and ranks share.  on_end: called in a thread, with a sentence and the exit status,
        when another rank ends.
        """
        from trainer.sharding import join_group

        self.count = len(order.devices)
        self._on_end, self._closing = on_end, False
        self.store = _store_path()
        order = replace(order, store=self.store, secret=secrets.token_bytes(SECRET_BYTES))
        self._connections: list[Connection] = []
        self._watchers: list[threading.Thread] = []
        for number in range(1, self.count):
            connection, process = _started(shared_fds)
            self._connections.append(connection)
            self._watchers.append(threading.Thread(target=self._watch, args=(number, process), daemon=True))
            self._watchers[-1].start()
            connection.send(replace(order, number=number))
        join_group(0, self.count, order.store, order.secret, torch.device(order.devices[0]))

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tell the other ranks to begin an operation, with as many threads as this rank."""
        for connection in self._connections:
            connection.send((operation, torch.get_num_threads(), arguments))

    def collect(self, own: Result) -> list[Result]:
        """Return the results of all ranks in order."""
        return [own, *(connection.recv() for connection in self._connections)]

    def settle(self) -> None:
        """Wait a moment for the end of another rank, which explains an error of this one better than the error itself."""
        for watcher in self._watchers:
            watcher.join(SETTLE_S / len(self._watchers))

    def close(self) -> None:
        """End the other ranks."""
        from trainer.sharding import leave_group

        self._closing = True
        for connection in self._connections:
            connection.close()
        for watcher in self._watchers:
            watcher.join()
        leave_group()

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._closing:
            ended = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
            self._on_end(f"rank {number} of the trainer {ended}", status)


def _store_path() -> str:
    """Return the path of a new file for the ranks' store, which only this user can open, unlike a port of 127.0.0.1.

    On Linux it has no name in any folder, and ends with this process.  The file stays open until then, because torch's store
    writes to its path even at its own end, when another file could have the same descriptor.
    """
    fd, path = tempfile.mkstemp(prefix="manyhands-ranks-")
    if sys.platform != "linux":
        return path
    os.unlink(path)
    return f"/proc/{os.getpid()}/fd/{fd}"


def _started(shared_fds: Sequence[int]) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a rank; return the connection to it, and its process."""
    ours, theirs = socket.socketpair()
    with theirs:
        fds = (theirs.fileno(), *shared_fds)
        options = [text for name, fd in zip(OPTIONS, fds, strict=True) for text in (name, str(fd))]
        command = [sys.executable, "-m", "trainer", "--rank", *options]
        variables = dict(os.environ)  # ranks share rank 0's environment, which the peer chose
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, env=variables)
    return Connection(ours.detach()), process


OPTIONS = ("--fd", "--theta-fd", "--contribution-fd")
"""Options of a trainer process, each with a file descriptor: its socket, theta and contribution."""


Operation = tuple[str, int, Sequence[Any]]
"""Name of an operation, number of threads, and arguments."""


class OperationInbox:
    """Messages of rank 0; a thread reads them, so that the end of rank 0 ends this process at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: list[Any] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, name="operations", daemon=True).start()

    def next(self) -> Any:
        """Wait for the next message and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages)
            return self._messages.pop(0)

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify_all()
        finally:
            os._exit(0)
