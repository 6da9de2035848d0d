"""The terminal interface in a browser on this computer: `peer watch --web`.

textual-serve brings a terminal written in JavaScript; this module serves it, and carries the screen of a process over a
websocket.  Other users of the computer, pages from elsewhere in the same browser, and servers at other ports of 127.0.0.1
must not open one, so a websocket needs a secret.  It is in the fragment of the address that is printed, which no browser
sends to any server; the page moves it into the storage of its tab, which belongs to this port alone and survives a reload,
and names it only in the path of the websocket.  It is in no cookie, because a browser sends the cookies of one port to all.
Everything else that is served is the same for everybody, and loads nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError
from trainer.extras import install_command

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MOST_VIEWS = 8
"""Most views at a time; each is a process of its own."""
END_S = 1.0
"""Seconds for which the end of the server, or of a websocket, waits for a view before it kills it."""
HEARTBEAT_S = 15.0
MOST_CELLS = 1000
"""Most columns or rows of a screen."""
MESSAGE_BYTES = 1 << 20
WRONG_ADDRESS = "Open the address that `peer watch --web` printed."
NO_REQUEST = "This request does not come from the page; open the address that `peer watch --web` printed."
MESSAGE_REFUSED = 1008
"""Code of a closed websocket (RFC 6455): a message breaks the rules."""

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="dark light">
<title>Manyhands: the peer on this computer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/xterm.css">
<link rel="stylesheet" href="/view.css">
</head>
<body>
<p id="closed">The view has ended. Reload the page; if that does not help, open the address that the command printed.</p>
<p id="unknown" hidden>{WRONG_ADDRESS}</p>
<div id="terminal" class="textual-terminal" data-font-size="16"></div>
<script src="/view.js"></script>
<script src="/textual.js"></script>
</body>
</html>
"""
SCRIPT = """"use strict";
const given = location.hash.slice(1);
if (given) {
  sessionStorage.setItem("secret", given);
  history.replaceState(null, "", "/");
}
addEventListener("hashchange", () => location.reload());  // the address of a later server
const secret = sessionStorage.getItem("secret"), terminal = document.getElementById("terminal");
if (secret) {
  const shade = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  terminal.dataset.sessionWebsocketUrl = `ws://${location.host}/ws/${encodeURIComponent(secret)}/${shade}`;
  terminal.dataset.fontSize = Math.max(10, Math.min(16, Math.floor(innerWidth / 48)));  // 80 columns, if they are legible
  const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();  // it gets the keys
  const opened = new MutationObserver(() => {
    if (document.querySelector(".xterm-helper-textarea")) {
      opened.disconnect();
      focus();
    }
  });
  opened.observe(terminal, { childList: true, subtree: true });
  addEventListener("focus", focus);
} else {
  terminal.remove();  // before textual.js opens its websocket
  document.getElementById("unknown").hidden = false;
}
"""
STYLE = """
body { margin: 0; background: #0c181f; color: #fff; font-family: ui-monospace, monospace; }
@media (prefers-color-scheme: light) { body { background: #fbfaf7; color: #1d2326; } }
p { margin: 2rem; }
#closed { display: none; }
.-closed #closed { display: block; }
.-closed #terminal { display: none; }
"""


def serve(folder: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve the interface on the peer of this data directory until interrupted.  Blocking.

    Raises PeerError if the extra is not installed, or the port is taken.
    """
    try:
        web = import_module("aiohttp.web")
        import_module("textual_serve")
    except ImportError as error:
        raise PeerError(f"textual-serve is not installed; run {install_command('web')}", ExitCode.INPUT) from error
    secret = secrets.token_urlsafe(32)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # anybody on this computer can send an invalid request
    try:
        web.run_app(application(folder, port, secret, tell), host=HOST, port=port, print=None, shutdown_timeout=END_S)
    except OSError as error:
        raise PeerError(
            f"port {port} of {HOST} cannot be opened: {error.strerror}; choose another one", ExitCode.INPUT
        ) from error


async def application(folder: str, port: int, secret: str, tell: Callable[[str], None]) -> web.Application:
    """Return the application, whose websockets need this secret.  tell: gets the address, once it is served."""
    from aiohttp import web

    origin, views = f"http://{HOST}:{port}", 0
    served, policy = files(), content_policy(port)

    @web.middleware
    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse requests to another host name, because a rebound name also leads here, and from other servers' pages."""
        hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [origin])
        if hosts != [f"{HOST}:{port}"] or origins != [origin]:
            raise web.HTTPForbidden(text=WRONG_ADDRESS)
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            error.text = "There is nothing at this address."
            raise
        except ValueError as error:  # from aiohttp, for a header that is not text
            raise web.HTTPBadRequest(text=NO_REQUEST) from error

    async def give(request: web.Request) -> web.Response:
        data, kind = served[request.path]
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        headers |= {f"Cross-Origin-{of}-Policy": "same-origin" for of in ("Opener", "Resource")}
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)

    async def open_view(request: web.Request) -> web.StreamResponse:
        nonlocal views
        given = request.match_info["secret"].encode(errors="replace")
        if "Origin" not in request.headers or not compare_digest(given, secret.encode()):
            raise web.HTTPForbidden(text=WRONG_ADDRESS)
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES)
        if not socket.can_prepare(request):
            raise web.HTTPBadRequest(text=NO_REQUEST)
        if views >= MOST_VIEWS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWS} views are open; close one.")
        views += 1
        try:
            await socket.prepare(request)
            width, height = (cells(request.query.get(name, ""), usual) for name, usual in SIZE)
            await carry(socket, folder, width, height, SHADES.get(request.match_info.get("shade", ""), {}))
        finally:
            views -= 1
        return socket

    async def told(application: web.Application) -> None:
        tell(f"{origin}/#{secret}")

    made = web.Application(middlewares=[admit])
    for path in ("/ws/{secret}", "/ws/{secret}/{shade}"):
        made.router.add_get(path, open_view)
    for path in served:
        made.router.add_get(path, give)
    made.on_startup.append(told)
    return made


def content_policy(port: int) -> str:
    """Return the Content-Security-Policy of the page: it loads files of this server, and opens its websocket."""
    own = f"{HOST}:{port}"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"connect-src ws://{own} http://{own}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


def files() -> dict[str, tuple[bytes, str]]:
    """Return the content and type of each served file by path; they are the same for everybody."""
    static = Path(str(import_module("textual_serve").__file__)).parent / "static"
    return {
        "/": (PAGE.encode(), "text/html"),
        "/view.js": (SCRIPT.encode(), "text/javascript"),
        "/view.css": (STYLE.encode(), "text/css"),
        "/textual.js": ((static / "js" / "textual.js").read_bytes(), "text/javascript"),
        "/xterm.css": ((static / "css" / "xterm.css").read_bytes(), "text/css"),
    }


# ------------------------------------------------------------------------------------------------------------------------
# One view: a process of the interface, whose screen goes over a websocket.  Textual's web driver writes frames to its
# standard output, and reads them from its standard input: a kind (D for data, M for JSON), the length in four bytes, and a
# payload.  The page's messages are JSON lists that begin with a word.


SIZE = (("width", 80), ("height", 24))
"""Parameters of the websocket's address, with their usual values."""
DRIVER = {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "TEXTUAL_FPS": "60", "TEXTUAL_COLOR_SYSTEM": "truecolor"}
SHADES = {
    shade: {"COLORFGBG": colours, "TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    for shade, colours in (("dark", "15;0"), ("light", "0;15"))
}
"""Variables by which the interface chooses its theme, for each shade that a browser prefers."""
FIRST_LINE = b"__GANGLION__\n"
"""Line after which the driver writes frames."""
DATA, META = b"D", b"M"


def cells(text: str, usual: int) -> int:
    """Return a number of columns or rows; the usual number if the text is not a valid one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 and 0 < int(text) <= MOST_CELLS else usual


async def carry(socket: web.WebSocketResponse, folder: str, width: int, height: int, shade: Mapping[str, str]) -> None:
    """Show the peer of this data directory over a websocket until either end closes.  shade: entry of `SHADES`."""
    size = {"COLUMNS": str(width), "ROWS": str(height)}
    words = ["-m", "tui", "--child-of", str(os.getpid()), folder]
    variables = {**child_environment(ChildKind.INTERFACE), **DRIVER, **size, **shade}
    try:
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE, env=variables)
    except OSError as error:
        log.warning("no view can be opened: %s", error.strerror)
        return
    screen = asyncio.create_task(_show(socket, process))
    try:
        await _obey(socket, process)
    except (ConnectionError, RuntimeError):
        pass  # one of the two has ended
    finally:
        await _end(process, screen)


async def _show(socket: web.WebSocketResponse, process: Process) -> None:
    """Send what the process draws until it ends, then close the websocket."""
    assert process.stdout is not None, "it is a pipe"
    with suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError, ValueError):
        while await process.stdout.readline() not in (FIRST_LINE, b""):
            pass
        while True:
            head = await process.stdout.readexactly(5)
            payload = await process.stdout.readexactly(int.from_bytes(head[1:], "big"))
            if head[:1] == DATA:
                await socket.send_bytes(payload)
            elif head[:1] == META and json.loads(payload).get("type") == "exit":
                break
    with suppress(ConnectionError, RuntimeError):
        await socket.close()


async def _obey(socket: web.WebSocketResponse, process: Process) -> None:
    """Pass the page's messages on until it closes; close the websocket after a message that our page never sends."""
    from aiohttp import WSMsgType

    assert process.stdin is not None, "it is a pipe"
    async for message in socket:
        try:
            given = json.loads(message.data) if message.type is WSMsgType.TEXT else None
            if isinstance(given, list) and given[:1] == ["ping"]:
                await socket.send_json(["pong", *given[1:]])
                continue
            frame = frame_of(given)
        except (ValueError, RecursionError):
            await socket.close(code=MESSAGE_REFUSED, message=b"this message does not come from the page")
            return
        process.stdin.write(frame)
        await process.stdin.drain()


def frame_of(message: Any) -> bytes:
    """Return the frame for a message of the page.  Raises ValueError for any other message."""
    match message:
        case ["stdin", str(text)]:
            return _packed(DATA, text.encode())
        case ["resize", {"width": int(width), "height": int(height)}]:
            size = {"width": cells(str(width), 80), "height": cells(str(height), 24)}
            return _packed(META, json.dumps({"type": "resize", **size}).encode())
        case ["blur" | "focus" as kind]:
            return _packed(META, json.dumps({"type": kind}).encode())
    raise ValueError("this message does not come from the page")


def _packed(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


async def _end(process: Process, screen: asyncio.Task[None]) -> None:
    """Ask the process to end, and kill it if it does not."""
    assert process.stdin is not None, "it is a pipe"
    with suppress(ConnectionError, RuntimeError):
        process.stdin.write(_packed(META, b'{"type": "quit"}'))
        process.stdin.close()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
    finally:
        if process.returncode is None:
            process.kill()
        screen.cancel()
        await asyncio.wait([screen])
        await process.wait()
