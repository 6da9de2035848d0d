"""Workers of a build, which encode batches and write parts: processes with one thread each, or this process.

A process reads pickled batches from its standard input and answers each with a pickled `WorkerReply`.  It ends when its
standard input ends, so no worker outlives a build that is killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peer.corpora.documents import DocumentEncoder
from peer.corpora.options import BuildOptions, BuildTally
from peer.corpora.parts import PartRecord, PartWriter
from peer.corpora.readers import RawBatch
from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError

LENGTH_BYTES = 8
WAIT_S = 0.2
"""Interval in which a reader that waits for a free worker looks for errors."""


@dataclass(frozen=True)
class WorkerReply:
    """Answer to a batch.  part: the part that was written with it.  tally: counts of the batch's rows."""

    tally: BuildTally
    done_bytes: int = 0
    part: PartRecord | None = None
    error: PeerError | OSError | str | None = None


class BatchWorker:
    """Encoder of batches in this process."""

    def __init__(self, options: BuildOptions, folder: Path) -> None:
        self._encoder, self._parts = DocumentEncoder(options), PartWriter(folder)

    def take(self, batch: RawBatch | None) -> WorkerReply:
        """Encode a batch; None for the end, with which the last part is written."""
        if batch is None:
            return WorkerReply(BuildTally(), part=self._parts.flush())
        documents, tally = self._encoder.encode(batch)
        return WorkerReply(tally, batch.done_bytes, self._parts.add(batch.number, documents, tally))


Take = Callable[[WorkerReply], None]
"""Function called with every reply, by one thread at a time."""


class LocalPool:
    """Single worker in this process.  Tokenizers still use the threads that their library likes."""

    def __init__(self, options: BuildOptions, folder: Path, take: Take) -> None:
        self._worker, self._take = BatchWorker(options, folder), take

    def put(self, batch: RawBatch) -> None:
        """Encode a batch."""
        self._take(self._worker.take(batch))

    def finish(self) -> None:
        """Write the last part."""
        self._take(self._worker.take(None))

    def close(self) -> None:
        """Do nothing, because there is no process to end."""


class ProcessPool:
    """Several workers, each a process, with a thread that feeds it."""

    def __init__(self, options: BuildOptions, folder: Path, take: Take, count: int) -> None:
        self._take, self._lock, self._words = take, threading.Lock(), options.fields.words
        self._batches: queue.Queue[RawBatch | None] = queue.Queue(count)
        self._error: BaseException | None = None
        self._is_closed = False
        self._processes = [_start(options, folder) for _ in range(count)]
        self._threads = [threading.Thread(target=self._feed, args=(each,), daemon=True) for each in self._processes]
        for thread in self._threads:
            thread.start()

    def put(self, batch: RawBatch | None) -> None:
        """Give a batch to the next free worker; waits for one.  Raises the error of any worker."""
        while True:
            self._check()
            try:
                return self._batches.put(batch, timeout=WAIT_S)
            except queue.Full:
                continue

    def finish(self) -> None:
        """Wait until all batches are in parts."""
        for _ in self._threads:
            self.put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(WAIT_S)
                self._check()
        self._check()

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        for process in self._processes:
            process.kill()
            process.wait()
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        continue

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        try:
            while not self._is_closed:
                try:
                    batch = self._batches.get(timeout=WAIT_S)
                except queue.Empty:
                    continue
                _send(process.stdin, batch)
                reply: WorkerReply = _receive(process.stdout)
                if reply.error is not None:
                    raise reply.error if isinstance(reply.error, Exception) else RuntimeError(reply.error)
                with self._lock:
                    self._take(reply)
                if batch is None:
                    return
        except (EOFError, BrokenPipeError):
            self._error = PeerError(
                f"a worker of the build was ended (exit code {process.poll()}), perhaps for lack of memory; "
                f"{self._words.workers}",
                ExitCode.RESOURCES,
            )
        except Exception as error:  # raised again by the thread that reads the inputs
            self._error = error


def _start(options: BuildOptions, folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        **child_environment(ChildKind.HELPER),
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-s", "-P", "-c", f"from {__name__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,  # Ctrl-C is for the build alone: a worker that is still starting would print a traceback
    )
    assert process.stdin is not None
    _send(process.stdin, (options, folder))
    return process


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH_BYTES, "little"))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        raise EOFError
    size = int.from_bytes(head, "little")
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)  # of our own process, over its pipe: rows from outside are only bytes in it


def main() -> None:
    """Encode the batches of standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the build ends its workers itself
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write among our replies
    worker: BatchWorker | None = None
    while True:
        try:
            value = _receive(source)
        except EOFError:
            return
        try:
            if worker is None:
                options, folder = value
                worker = BatchWorker(options, folder)
                continue
            reply = worker.take(value)
        except (PeerError, OSError) as error:
            reply = WorkerReply(BuildTally(), error=error)
        except Exception:  # the build shows it
            reply = WorkerReply(BuildTally(), error=traceback.format_exc())
        try:
            _send(target, reply)
        except BrokenPipeError:  # the build was killed, and says so itself
            os._exit(ExitCode.RESOURCES)  # no cleanup: it would try to write the rest of the reply
