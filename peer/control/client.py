"""The control socket as everyone but the daemon sees it: one question and one answer, or the stream of events.

A frame is four bytes of length (big endian) and a msgpack map.  A question is `{"do": command, …}`; the answer has
"ok", and "error" (a sentence) when that is false.  After the answer to "events", which holds a snapshot, the connection
carries one frame an event, and at last `{"end": reason}`.

Blocking sockets, so that a command, a thread of the TUI or a test can use it alike.  Imports nothing heavy: the TUI
starts from this module, `protocol.events.events` and `protocol.events.status` alone.  The socket's file mode decides who
may connect.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack

from protocol.events.events import Event, from_fields
from protocol.events.status import PeerStatus

SOCKET_NAME = "control.sock"
HEADER_BYTES = 4
MAX_REQUEST_BYTES = 64 << 10
"""Largest frame to the daemon."""
MAX_ANSWER_BYTES = 8 << 20
"""Largest frame from the daemon (a ledger or a snapshot of a long run)."""
ANSWER_TIMEOUT_S = 10.0
LOCK_NAME = "identity.lock"
CLOCK_SLACK_S = 1.0
"""Between the times of processes and of files."""
MAX_UNIX_PATH = 100
"""Socket paths have at most 104 (BSD) to 108 bytes (Linux); longer ones go through the folder's descriptor."""


class ControlError(Exception):
    """The daemon refused, or does not answer as it should; the text is one sentence."""


class NotRunning(ControlError):
    """Nobody listens on this data directory's control socket."""

    @property
    def with_remedy(self) -> str:
        """The sentence for somebody who wants a peer to run here."""
        return f"{self}; start one with `peer join`"


class StillStarting(NotRunning):
    """A peer holds the data directory, and has not opened its control socket yet."""

    @property
    def with_remedy(self) -> str:
        """The sentence, which has its remedy already."""
        return str(self)


class BadFrame(ControlError):
    """Bytes on the control socket that are no frame."""


@dataclass(frozen=True)
class Stamped:
    """An event with its time.  at: wall clock, seconds since 1970.  mono: seconds on the daemon's monotonic clock."""

    at: float
    mono: float
    event: Event

    def to_fields(self) -> dict[str, Any]:
        """A flat map: the two times, then the event's."""
        return {"at": self.at, "mono": self.mono, **self.event.to_fields()}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Stamped:
        """The stamped event in a flat map; raises ValueError when there is none."""
        rest = dict(fields)
        try:
            at, mono = float(rest.pop("at")), float(rest.pop("mono"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError("event without its time") from error
        return cls(at, mono, from_fields(rest))


def starting_process(data_dir: Path) -> int | None:
    """The process that holds the data directory's lock; None when none does.

    The lock names it, also after a kill: so it counts only if it began before it wrote that.  Asking the lock itself would
    mean to take it for a moment, in which a peer that starts would be refused.
    """
    path = data_dir / LOCK_NAME
    try:
        written, text = path.stat().st_mtime, path.read_text()[:32].strip()
    except (OSError, ValueError):
        return None
    if not text.isascii() or not text.isdigit():
        return None
    import psutil  # only when it is needed: most questions find somebody who answers

    try:
        began = psutil.Process(int(text)).create_time()
    except (psutil.Error, OverflowError):
        return None
    return int(text) if began <= written + CLOCK_SLACK_S else None


def pack_frame(message: dict[str, Any], *, max_bytes: int) -> bytes:
    """The frame of `message`; raises BadFrame when it is over the limit."""
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="replace")  # a path may be no Unicode
    if len(body) > max_bytes:
        raise BadFrame(f"a frame of {len(body)} bytes is over the limit of {max_bytes}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def take_frame(buffer: bytearray, *, max_bytes: int) -> dict[str, Any] | None:
    """Remove and return the first whole frame in `buffer`, None while it is not all there; raises BadFrame."""
    if len(buffer) < HEADER_BYTES:
        return None
    size = int.from_bytes(buffer[:HEADER_BYTES], "big")
    if size > max_bytes:
        raise BadFrame(f"a frame of {size} bytes is over the limit of {max_bytes}")
    if len(buffer) < HEADER_BYTES + size:
        return None
    body = bytes(buffer[HEADER_BYTES : HEADER_BYTES + size])
    del buffer[: HEADER_BYTES + size]
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadFrame("a frame that is not msgpack") from error
    if not isinstance(message, dict):
        raise BadFrame("a frame that is not a map")
    return message


@contextmanager
def socket_address(data_dir: Path) -> Iterator[str]:
    """A path to the socket of `data_dir` that is short enough to bind or connect to while the context lasts."""
    path = str(data_dir / SOCKET_NAME)
    if len(os.fsencode(path)) <= MAX_UNIX_PATH:
        yield path
        return
    if not Path("/proc/self/fd").is_dir():
        raise ControlError(f"the path {path} is too long for a socket; choose a shorter --data-dir")
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


class EventStream:
    """Live events of a peer.  `status` and `recent` are the snapshot at its start; iterate for what comes after.

    Raises ControlError when the snapshot holds no status.

    `end` says why the stream ended, once it has.  Not for two threads at once, but `close` may come from another.
    """

    def __init__(self, connection: socket.socket, buffer: bytearray, snapshot: dict[str, Any]) -> None:
        self._connection, self._buffer = connection, buffer
        self.status = _status(snapshot.get("status"))
        self.recent = [stamped for fields in snapshot.get("recent", []) if (stamped := _known(fields)) is not None]
        self.end = ""

    def __iter__(self) -> Iterator[Stamped]:
        while (stamped := self.next()) is not None:
            yield stamped

    def next(self, timeout_s: float | None = None) -> Stamped | None:
        """The next event; None when the stream has ended (`end` says why).  Raises TimeoutError."""
        while not self.end:
            self._connection.settimeout(timeout_s)
            message = _receive(self._connection, self._buffer)
            if message is None:
                self.end = "the peer is gone"
            elif "end" in message:
                self.end = str(message["end"])
            elif (stamped := _known(message)) is not None:
                return stamped
        return None

    def fileno(self) -> int:
        """The socket's descriptor, for those who wait for several things."""
        return self._connection.fileno()

    def close(self) -> None:
        """End the stream; `next` returns None from now on."""
        self.end = self.end or "closed"
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in `next`
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ControlClient:
    """Talks to the daemon of `data_dir`.  Each call is a connection of its own, so any thread may call."""

    def __init__(self, data_dir: Path, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.data_dir, self.timeout_s = data_dir, timeout_s

    def request(self, command: str, **fields: Any) -> dict[str, Any]:
        """Ask and wait for the answer.  Raises NotRunning, ControlError."""
        connection = self._connect()
        with connection:
            return self._ask(connection, bytearray(), {"do": command, **fields})

    def status(self) -> PeerStatus:
        """What the peer is doing.  Raises NotRunning, ControlError."""
        return _status(self.request("status"))

    def events(self) -> EventStream:
        """Subscribe.  Raises NotRunning, ControlError."""
        connection, buffer = self._connect(), bytearray()
        try:
            return EventStream(connection, buffer, self._ask(connection, buffer, {"do": "events"}))
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout_s)
        try:
            with socket_address(self.data_dir) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            connection.close()
            process = starting_process(self.data_dir)
            if process is not None:
                raise StillStarting(
                    f"the peer of {self.data_dir} is starting (process {process}); ask again in a few seconds"
                ) from error
            raise NotRunning(f"no peer is running with the data directory {self.data_dir}") from error
        except OSError as error:
            connection.close()
            raise ControlError(f"cannot talk to the peer of {self.data_dir}: {error.strerror or error}") from error
        return connection

    def _ask(self, connection: socket.socket, buffer: bytearray, question: dict[str, Any]) -> dict[str, Any]:
        try:
            connection.sendall(pack_frame(question, max_bytes=MAX_REQUEST_BYTES))
            answer = _receive(connection, buffer)
        except TimeoutError as error:
            raise ControlError(f"the peer did not answer within {self.timeout_s:.0f} s") from error
        except OSError as error:
            raise ControlError(f"the peer closed the connection: {error.strerror or error}") from error
        if answer is None:
            raise ControlError("the peer closed the connection without an answer")
        if not answer.pop("ok", False):
            raise ControlError(str(answer.get("error", "the peer refused without a reason")))
        return answer


def _receive(connection: socket.socket, buffer: bytearray) -> dict[str, Any] | None:
    """The next frame; None at the end of the connection.  Raises BadFrame, TimeoutError."""
    while (message := take_frame(buffer, max_bytes=MAX_ANSWER_BYTES)) is None:
        try:
            data = connection.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            return None
        if not data:
            return None
        buffer += data
    return message


def _status(fields: Any) -> PeerStatus:
    """The status in an answer; raises ControlError when it lacks something, as an older version's does."""
    try:
        return PeerStatus.from_fields(fields)
    except ValueError as error:
        raise ControlError("the peer's status lacks what this version shows; is the peer of another version?") from error


def _known(fields: dict[str, Any]) -> Stamped | None:
    """A stamped event; None for one that only a newer version knows."""
    try:
        return Stamped.from_fields(fields)
    except ValueError:
        return None
