"""The terminal interface in a browser on this computer: `peer watch --web`.

textual-serve carries the interface's screen over a websocket; this module decides who may open it. Other users of the
computer, and pages from elsewhere in the same browser, reach 127.0.0.1 too, so every request needs a token, which is in
the address that is printed and then in a cookie, and the names of this server as host and origin. The page may load
nothing from anywhere else.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from importlib import import_module
from typing import TYPE_CHECKING

from peer.errors import ExitCode, PeerError
from peer.installation import child_environment
from trainer.extras import install_command

if TYPE_CHECKING:
    from aiohttp import web

HOST = "127.0.0.1"
MOST_VIEWS = 8
"""Most views at a time; each is a process of its own."""
END_S = 1.0
"""Seconds for which the end of the server waits for open views before it closes them."""


def cookie_name(port: int) -> str:
    """Return the name of the cookie with the token; a browser sends the cookies of every port of a computer to each."""
    return f"manyhands-{port}"


def serve(folder: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve the interface on the peer of this data directory until interrupted.  Blocking.

    Raises PeerError if the extra is not installed, or the port is taken.
    """
    try:
        web = import_module("aiohttp.web")
        import_module("textual_serve.server")
    except ImportError as error:
        raise PeerError(f"textual-serve is not installed; run {install_command('web')}", ExitCode.INPUT) from error
    token = secrets.token_urlsafe(32)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # anybody on this computer can send what is no request
    try:
        web.run_app(application(folder, port, token, tell), host=HOST, port=port, print=None, shutdown_timeout=END_S)
    except OSError as error:
        raise PeerError(
            f"port {port} of {HOST} cannot be opened: {error.strerror}; choose another one", ExitCode.INPUT
        ) from error


async def application(folder: str, port: int, token: str, tell: Callable[[str], None]) -> web.Application:
    """Return the application, which admits requests with this token only.  tell: gets the address, once it is served."""
    from aiohttp import web
    from textual_serve.server import Server

    own, cookie = f"{HOST}:{port}", cookie_name(port)
    environment = child_environment(os.environ)
    variables = [f"{name}={environment[name]}" for name in ("PYTHONPATH", "PYTHONSAFEPATH")]
    program = [sys.executable, "-m", "tui", "--child-of", str(os.getpid()), folder]
    command = shlex.join(["exec", "env", *variables, *program])
    server = Server(command, host=HOST, port=port, title="Manyhands", public_url=f"http://{HOST}:{port}")
    views = 0
    policy = (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"font-src 'self'; connect-src ws://{HOST}:{port} http://{HOST}:{port}; frame-ancestors 'none'; base-uri 'none'"
    )

    @web.middleware
    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        nonlocal views
        origin = request.headers.get("Origin")
        given = request.query.get("token", "") or request.cookies.get(cookie, "")
        is_ours = request.host == own and origin in (None, f"http://{own}")
        if not is_ours or not compare_digest(given.encode(errors="replace"), token.encode()):
            raise web.HTTPForbidden(text="Open the address that `peer watch --web` printed.")
        if request.path != "/ws":
            if "token" in request.query:  # so that no history and no list of requests has it
                found = web.HTTPFound("/")
                found.set_cookie(cookie, token, httponly=True, samesite="Strict")
                raise found
            response = await handler(request)
            response.headers.update({"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})
            return response
        if views >= MOST_VIEWS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWS} views are open; close one.")
        views += 1
        try:
            return await handler(request)
        finally:
            views -= 1

    async def told(application: web.Application) -> None:
        tell(f"http://{HOST}:{port}/?token={token}")

    made: web.Application = await server._make_app()
    made.middlewares.append(admit)
    made.on_startup.clear()  # prints a banner
    made.on_startup.append(told)
    return made
