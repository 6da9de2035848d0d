"""Workers of a build, which encode batches and write parts: processes with one thread each, or this process.

A process reads pickled batches from a socket and answers each with a pickled `WorkerReply`.  It ends when the socket is
closed, so no worker outlives a build that is killed.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from peer.corpora.documents import DocumentEncoder
from peer.corpora.options import BuildOptions, BuildTally
from peer.corpora.parts import PartRecord, PartWriter
from peer.corpora.readers import RawBatch
from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError


@dataclass(frozen=True)
class WorkerReply:
    """Answer to a batch.  part: the part that was written with it.  tally: counts of the batch's rows."""

    tally: BuildTally
    done_bytes: int = 0
    part: PartRecord | None = None
    error: PeerError | OSError | str | None = None


Take = Callable[[WorkerReply], None]
"""Function called with every reply."""


class LocalPool:
    """Single worker, in this process.  Tokenizers still use the threads that their library chooses."""

    def __init__(self, options: BuildOptions, folder: Path, take: Take) -> None:
        self._encoder, self._parts, self._take = DocumentEncoder(options), PartWriter(folder), take

    def put(self, batch: RawBatch) -> None:
        """Encode a batch."""
        documents, tally = self._encoder.encode(batch)
        self._take(WorkerReply(tally, batch.done_bytes, self._parts.add(batch.number, documents, tally)))

    def finish(self) -> None:
        """Write the last part."""
        self._take(WorkerReply(BuildTally(), part=self._parts.flush()))

    def close(self) -> None:
        """Do nothing, because there is no process to end."""


class ProcessPool:
    """Several workers, each a process.  Every worker has at most one batch, so that none waits behind another."""

    def __init__(self, options: BuildOptions, folder: Path, take: Take, count: int) -> None:
        self._take, self._words = take, options.fields.words
        self._processes = dict(start_worker(options, folder) for _ in range(count))
        self._owed = dict.fromkeys(self._processes, 0)

    def put(self, batch: RawBatch) -> None:
        """Give a batch to a free worker; wait until there is one.  Raises the error of any worker."""
        while all(self._owed.values()):
            self._receive()
        self._send(min(self._owed, key=self._owed.__getitem__), batch)

    def finish(self) -> None:
        """Wait until all batches are in parts."""
        for connection in self._owed:
            self._send(connection, None)
        while any(self._owed.values()):
            self._receive()

    def close(self) -> None:
        """End all processes."""
        for connection, process in self._processes.items():
            process.kill()
            process.wait()
            connection.close()

    def _send(self, connection: Connection, batch: RawBatch | None) -> None:
        try:
            connection.send(batch)
        except OSError as error:
            raise self._ended(connection) from error
        self._owed[connection] += 1

    def _receive(self) -> None:
        """Take the replies that have arrived; wait for at least one."""
        for connection in wait([each for each, count in self._owed.items() if count]):
            assert isinstance(connection, Connection)
            try:
                reply: WorkerReply = connection.recv()
            except (EOFError, OSError) as error:
                raise self._ended(connection) from error
            if reply.error is not None:
                raise reply.error if isinstance(reply.error, Exception) else RuntimeError(reply.error)
            self._owed[connection] -= 1
            self._take(reply)

    def _ended(self, connection: Connection) -> PeerError:
        return PeerError(
            f"a worker of the build was ended (exit code {self._processes[connection].wait()}), perhaps for lack of memory; "
            f"{self._words.workers}",
            ExitCode.RESOURCES,
        )


def start_worker(options: BuildOptions, folder: Path) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a process that encodes batches; return our end of its socket."""
    environment = {
        **child_environment(ChildKind.HELPER),
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", f"from {__name__} import main; main({theirs.fileno()})"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for the build alone: a worker that is still starting would print a traceback
        )
    connection = Connection(ours.detach())
    connection.send((options, folder))
    return connection, process


def main(descriptor: int) -> None:
    """Encode the batches from a socket until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the build ends its workers itself
    connection = Connection(descriptor)
    worker: LocalPool | None = None
    with suppress(EOFError, ConnectionError):  # the build has ended
        while True:
            value = connection.recv()
            try:
                if worker is None:
                    options, folder = value
                    worker = LocalPool(options, folder, connection.send)
                elif value is None:
                    worker.finish()
                else:
                    worker.put(value)
            except ConnectionError:
                raise
            except (PeerError, OSError) as error:
                connection.send(WorkerReply(BuildTally(), error=error))
            except Exception:  # the build shows it
                connection.send(WorkerReply(BuildTally(), error=traceback.format_exc()))
