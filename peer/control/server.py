"""The daemon's end of the control socket.

The server finds a command by its name, awaits it and frames the answer; it decides nothing about the peer.  It limits the
cost of a client: questions are small, connections are few, a client that does not read its events is dropped, and a
malformed frame ends its connection with a sentence.  A question, or a failure to answer it, can end only its own connection,
never the peer.  `peer.control.client` defines the frames.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from peer.control.client import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    BadControlFrame,
    ControlError,
    pack_frame,
    socket_address,
    take_frame,
)
from peer.control.event_log import EventLog, TooManyListeners
from protocol.events.status import PeerStatus
from protocol.formatting import size

MAX_CONNECTIONS = 64
SEND_DEADLINE_S = 5.0
"""Seconds after which a client that reads no data is dropped."""
IDLE_DEADLINE_S = 60.0
"""Seconds after which a client that asks nothing is dropped."""

log = logging.getLogger(__name__)

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Function from the fields of the question to the fields of the answer; raises ControlError to refuse with a sentence."""


class ControlServer:
    """Server of the control socket of `data_dir`.

    commands: the commands by name.  status: returns the snapshot at the start of an event stream.  The caller holds the data
    directory's lock, so an existing socket file has no owner.
    """

    def __init__(
        self,
        data_dir: Path,
        log: EventLog,
        commands: Mapping[str, Command],
        status: Callable[[], PeerStatus],
    ) -> None:
        self._data_dir, self._log, self._commands, self._status = data_dir, log, commands, status
        self._connections = 0
        self._streams = 0
        self._idle: dict[trio.SocketStream, trio.CancelScope] = {}
        self._listener: trio.socket.SocketType | None = None

    async def open(self) -> None:
        """Make the socket; clients may connect from now on.  Raises ControlError if that fails."""
        self._listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        try:
            await self._bind(self._listener)
        except BaseException:
            self._listener.close()
            raise

    async def run(self) -> None:
        """Serve the opened socket until cancelled, then remove it."""
        listener = self._listener
        assert listener is not None, "opened before it is run"
        try:
            async with trio.open_nursery() as nursery:
                await self._accept(listener, nursery)
        finally:
            listener.close()
            with socket_address(self._data_dir) as address:
                _unlink(address)

    async def streams_ended(self) -> None:
        """Wait until no event stream is served any more (after the log has closed)."""
        while self._streams:
            await trio.sleep(0.02)

    async def _bind(self, listener: trio.socket.SocketType) -> None:
        try:
            with socket_address(self._data_dir) as address:
                _unlink(address)
                mask = os.umask(0o177)  # the socket is 0600 from its first moment
                try:
                    await listener.bind(address)
                finally:
                    os.umask(mask)
            listener.listen(16)
        except OSError as error:
            where = self._data_dir
            raise ControlError(f"cannot make the control socket in {where}: {error.strerror or error}") from error

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError:
                await trio.sleep(0.1)  # out of descriptors; the network may give some back
                continue
            if self._connections >= MAX_CONNECTIONS:
                if not self._idle:
                    connection.close()
                    continue
                self._idle.pop(next(iter(self._idle))).cancel()  # so that idle clients cannot keep `peer leave` out
            self._connections += 1
            nursery.start_soon(self._serve, trio.SocketStream(connection))

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the client went away
        except Exception:
            log.exception("a control connection")  # our own mistake: it ends the connection, not the training
        finally:
            self._connections -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        buffer = bytearray()
        while True:
            try:
                question = await self._next_question(stream, buffer)
            except BadControlFrame as error:
                await _send(stream, {"ok": False, "error": str(error)})
                return
            if question is None:
                return
            if question.get("do") == "events":
                self._streams += 1
                try:
                    await self._stream_events(stream)
                finally:
                    self._streams -= 1
                return
            await _send(stream, await self._answer(question))

    async def _next_question(self, stream: trio.SocketStream, buffer: bytearray) -> dict[str, Any] | None:
        """Return the next question; None if the client has gone, or was dropped for another client."""
        with trio.CancelScope() as scope:
            self._idle[stream] = scope
            try:
                return await _receive(stream, buffer)
            finally:
                self._idle.pop(stream, None)
        return None

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        name = str(question.pop("do", ""))
        command = self._commands.get(name)
        if command is None:
            return {
                "ok": False,
                "error": "the peer does not know this command; restart it with the version that you use here",
            }
        try:
            return {"ok": True, **await command(question)}
        except ControlError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            log.exception("the control command %.40s", name)
            return {"ok": False, "error": f"the peer could not answer: unexpected {type(error).__name__}: {error}"}

    async def _stream_events(self, stream: trio.SocketStream) -> None:
        try:
            with self._log.subscribe() as events:
                recent = [stamped.to_fields() for stamped in self._log.recent()]
                await _send(stream, {"ok": True, "status": self._status().to_fields(), "recent": recent})
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_closed, stream, nursery.cancel_scope)
                    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                        async for stamped in events:
                            await _send(stream, stamped.to_fields())
                        await _send(stream, {"end": "too slow to follow" if events.dropped else "the peer stopped"})
                    nursery.cancel_scope.cancel()
        except TooManyListeners as error:
            await _send(stream, {"ok": False, "error": str(error)})


async def _until_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Stop serving a listener when it closes its end; ignore any data from it."""
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some(1024):
            pass
    scope.cancel()


async def _receive(stream: trio.SocketStream, buffer: bytearray) -> dict[str, Any] | None:
    with trio.fail_after(IDLE_DEADLINE_S):
        while (message := take_frame(buffer, max_bytes=MAX_REQUEST_BYTES)) is None:
            data = await stream.receive_some(1 << 14)
            if not data:
                return None
            buffer += data
    return message


async def _send(stream: trio.SocketStream, message: dict[str, Any]) -> None:
    with trio.fail_after(SEND_DEADLINE_S):
        await stream.send_all(_frame(message))


def _frame(message: dict[str, Any]) -> bytes:
    """Return the frame of `message`; if it is too large, the frame of an error that says so."""
    try:
        return pack_frame(message, max_bytes=MAX_ANSWER_BYTES)
    except BadControlFrame:
        refusal = f"the answer is larger than the {size(MAX_ANSWER_BYTES)} that the control socket carries"
    except Exception as error:
        log.exception("an answer that cannot be framed")
        refusal = f"the peer could not answer: unexpected {type(error).__name__}"
    return pack_frame({"ok": False, "error": refusal}, max_bytes=MAX_ANSWER_BYTES)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
