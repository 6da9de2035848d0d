"""Client side of the control socket: one question and one answer, or the stream of events.

A frame is four bytes of length (big endian) and a msgpack map.  A question is `{"do": command, …}`; the answer has "ok", and
"error" (a sentence) when "ok" is false.  After the answer to "events", which holds a snapshot, the connection carries one
frame per event, and at last `{"end": reason}`.

The sockets block, so that a command, a thread of the TUI or a test can use them alike.  Nothing heavy is imported: the TUI
starts from this module, `protocol.events.events` and `protocol.events.status` alone.  The socket's file mode decides who may
connect.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

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
START_POLL_S = 0.5
LOCK_NAME = "identity.lock"
CLOCK_SLACK_S = 1.0
"""Seconds of tolerance between the times of processes and of files."""
MAX_UNIX_PATH = 100
"""Longest path used directly: sockets take 104 (BSD) to 108 (Linux) bytes; for longer paths, see `socket_address`."""


class ControlError(Exception):
    """Refusal or invalid answer of the daemon; the text is one sentence."""

    @property
    def with_remedy(self) -> str:
        """Sentence about the error, with its remedy if there is one."""
        return str(self)


class NotRunning(ControlError):
    """Error: no process listens on this data directory's control socket."""

    @property
    def with_remedy(self) -> str:
        """Sentence with the remedy: start a peer, or name another directory; none if a peer is starting."""
        if isinstance(self, StillStarting):
            return str(self)
        return f"{self}; start one with `peer join`, or name the directory of a running peer with --data-dir"


class StillStarting(NotRunning):
    """Error: a peer holds the data directory but has not opened its control socket yet."""


class BadControlFrame(ControlError):
    """Error: bytes on the control socket form no frame."""


@dataclass(frozen=True)
class Stamped:
    """An event with its time.  at: wall clock, seconds since 1970.  mono: seconds on the daemon's monotonic clock."""

    at: float
    mono: float
    event: Event

    def to_fields(self) -> dict[str, Any]:
        """Return a flat map: the two times, then the event's fields."""
        return {"at": self.at, "mono": self.mono, **self.event.to_fields()}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Stamped:
        """Parse a flat map into a stamped event; raises ValueError if it holds no event."""
        rest = dict(fields)
        try:
            at, mono = float(rest.pop("at")), float(rest.pop("mono"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError("event without its time") from error
        return cls(at, mono, from_fields(rest))


def starting_process(data_dir: Path) -> int | None:
    """Return the ID of the process that holds the data directory's lock; None if no process does.

    The lock file names a process, even after that process was killed.  So the process counts only if it began before the
    file was written.  Testing the lock would mean taking it for a moment, during which a starting peer would be refused.
    """
    path = data_dir / LOCK_NAME
    try:
        written, text = path.stat().st_mtime, path.read_text()[:32].strip()
    except (OSError, ValueError):
        return None
    if not text.isascii() or not text.isdigit():
        return None
    import psutil  # only when needed: most questions get an answer

    try:
        began = psutil.Process(int(text)).create_time()
    except (psutil.Error, OverflowError):
        return None
    return int(text) if began <= written + CLOCK_SLACK_S else None


def pack_frame(message: dict[str, Any], *, max_bytes: int) -> bytes:
    """Return the frame of `message`; raises BadControlFrame if it exceeds the limit."""
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="replace")  # a path may be invalid Unicode
    if len(body) > max_bytes:
        raise BadControlFrame(f"a frame of {len(body)} bytes is over the limit of {max_bytes}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def take_frame(buffer: bytearray, *, max_bytes: int) -> dict[str, Any] | None:
    """Remove and return the first whole frame in `buffer`, None while it is incomplete; raises BadControlFrame."""
    if len(buffer) < HEADER_BYTES:
        return None
    size = int.from_bytes(buffer[:HEADER_BYTES], "big")
    if size > max_bytes:
        raise BadControlFrame(f"a frame of {size} bytes is over the limit of {max_bytes}")
    if len(buffer) < HEADER_BYTES + size:
        return None
    body = bytes(buffer[HEADER_BYTES : HEADER_BYTES + size])
    del buffer[: HEADER_BYTES + size]
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadControlFrame("a frame that is not msgpack") from error
    if not isinstance(message, dict):
        raise BadControlFrame("a frame that is not a map")
    return message


@contextmanager
def socket_address(data_dir: Path) -> Iterator[str]:
    """Yield a path to the socket of `data_dir` that is short enough to bind or connect to; it is valid within the block."""
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
    """Live events of a peer.  `status` and `recent` are the snapshot at its start; iterate for later events.

    Raises ControlError if the snapshot holds no status.

    `end` gives the reason once the stream has ended.  Only one thread may read, but `close` may come from another.
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
        """Return the next event; None if the stream has ended (`end` says why).  Raises TimeoutError."""
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
    """Client of the daemon of `data_dir`.  Each call opens its own connection, so any thread may call."""

    def __init__(self, data_dir: Path, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.data_dir, self.timeout_s = data_dir, timeout_s

    def request(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a question, and return its answer.  Raises NotRunning, ControlError."""
        connection = self._connect()
        with connection:
            return self._ask(connection, bytearray(), {"do": command, **fields})

    def status(self) -> PeerStatus:
        """Return the peer's status.  Raises NotRunning, ControlError."""
        return _status(self.request("status"))

    def status_once_started(self, within_s: float, wait: Callable[[float], None] = time.sleep) -> PeerStatus:
        """Return the status of a peer that may be starting; ask again until it answers.  Raises as `status` does.

        within_s: seconds until StillStarting is raised.  wait: waits for so many seconds.
        """
        for _ in range(max(1, round(within_s / START_POLL_S))):
            try:
                return self.status()
            except StillStarting:
                wait(START_POLL_S)
        return self.status()

    def events(self) -> EventStream:
        """Subscribe to the events.  Raises NotRunning, ControlError."""
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
    """Return the next frame; None at the end of the connection.  Raises BadControlFrame, TimeoutError."""
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


def running_status(data_dir: Path, run: bytes | None = None) -> PeerStatus | None:
    """Return the status of the peer of a data directory; None if none answers, or if it takes part in another run."""
    with suppress(ControlError):
        status = ControlClient(data_dir).status()
        if run is None or status.run == run.hex():
            return status
    return None


def _status(fields: Any) -> PeerStatus:
    """Parse the status in an answer; raises ControlError if a field is missing, such as from an older version."""
    try:
        return PeerStatus.from_fields(fields)
    except ValueError as error:
        raise ControlError(
            "the peer's status lacks a field that this version shows; restart the peer with this version"
        ) from error


def _known(fields: dict[str, Any]) -> Stamped | None:
    """Parse a stamped event; None for an event that only a newer version knows."""
    try:
        return Stamped.from_fields(fields)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------------------------
# Parser for lines of an event log, which anybody may have written or damaged.


LATEST_S = 1e11
"""Seconds since 1970 in the year 5138, beyond any clock; calendars end some thousand years later."""
MOST = 2**63
"""Largest number in an event; sentences and pictures compute with it in floating point."""


def stamped_in(line: bytes) -> Stamped | None:
    """Return the event in a line; None for a line that no peer writes."""
    try:
        fields = json.loads(line)
        stamped = Stamped.from_fields(fields) if isinstance(fields, dict) else None
        if stamped is None or not 0 <= stamped.at <= LATEST_S or not abs(stamped.mono) <= LATEST_S:
            return None
        return _checked(stamped)
    except (ValueError, RecursionError):
        return None


MAX_LOG_LINE_BYTES = 1 << 20
"""Longest line of an event log that is read whole; a longer line holds no event."""


def logged_events(files: Iterable[Path], *kinds: type[Event]) -> Iterator[Stamped]:
    """Yield the events of these kinds, or all, in the files of an event log, oldest file first.  Blocking.

    Lines without an event are skipped, and so are paths that do not name a file.  Events of other kinds, the majority, are
    not parsed.
    """
    names = [f'"{kind.__name__}"'.encode() for kind in kinds]
    for path in filter(Path.is_file, files):
        with suppress(FileNotFoundError), path.open("rb") as file:
            while line := file.readline(MAX_LOG_LINE_BYTES):
                if names and not any(name in line for name in names):
                    continue
                if (stamped := stamped_in(line)) is not None:
                    yield stamped


def _checked(stamped: Stamped) -> Stamped | None:
    """Return the event if every field has the right type; NaN stands for null, and for a number beyond `MOST`."""
    event = stamped.event
    kinds = _KINDS.get(type(event)) or _KINDS.setdefault(type(event), get_type_hints(type(event)))
    for name, kind in kinds.items():
        value = getattr(event, name)
        if kind is float and (value is None or (isinstance(value, float) and MOST < abs(value) < math.inf)):
            object.__setattr__(event, name, math.nan)
        elif not _is(value, kind):
            return None
    return stamped


_KINDS: dict[type[Event], dict[str, Any]] = {}


def _is(value: object, kind: Any) -> bool:
    """Return True if a value from JSON has the annotated type; a type that is unknown here accepts any plain value."""
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and abs(value) <= MOST
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_is(each, inside[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, inside[0]) and _is(v, inside[1]) for k, v in value.items())
    if kind in (bool, NoneType):
        return isinstance(value, kind)
    if isinstance(value, list):
        return all(_is(each, kind) for each in value)
    if isinstance(value, dict):
        return all(_is(name, str) and _is(each, kind) for name, each in value.items())
    return any(_is(value, each) for each in (str, int, float, bool))
