"""The interface in a browser: only who has the token, and asks this server itself, gets in."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientResponse, ClientSession, CookieJar, WSServerHandshakeError, web
from aiohttp.test_utils import unused_port

from peer.console import web_view
from peer.console.web_view import HOST, application, cookie_name
from peer.installation import ROOT
from tui.__main__ import end_with

TOKEN = "5rhZ0kq"


@asynccontextmanager
async def view(token: str, tell: Callable[[str], None]) -> AsyncIterator[int]:
    """Serve a view; give its port."""
    port = unused_port()
    runner = web.AppRunner(await application("folder", port, token, tell))
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def served(use: Callable[[ClientSession, int], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Use a served view, by its port, whose program ends at once; return what was told."""
    told = list[str]()
    monkeypatch.setattr(sys, "executable", "true")

    async def main() -> None:
        async with view(TOKEN, told.append) as port, ClientSession() as session:
            await use(session, port)

    asyncio.run(main())
    return told


def address(port: int, path: str = "/") -> str:
    return f"http://{HOST}:{port}{path}"


def test_the_address_that_is_told_opens_it_and_leaves_no_token_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        async with session.get(address(port, f"/?token={TOKEN}"), allow_redirects=False) as first:
            cookie = first.cookies[cookie_name(port)]
            assert (first.status, first.headers["Location"]) == (302, "/")
            assert cookie["httponly"] and cookie["samesite"] == "Strict"
        async with session.get(address(port), cookies={cookie_name(port): TOKEN}) as page:
            assert page.status == 200 and "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert TOKEN not in await page.text()

    (told,) = served(use, monkeypatch)
    assert told.endswith(f"/?token={TOKEN}")


def test_a_browser_keeps_the_views_of_two_peers_open() -> None:
    async def main() -> None:
        async with (
            view("one", lambda told: None) as first,
            view("other", lambda told: None) as second,
            ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser,
        ):
            for path in (address(first, "/?token=one"), address(second, "/?token=other"), address(first), address(second)):
                async with browser.get(path) as page:
                    assert page.status == 200, path

    asyncio.run(main())


OURS = f"{cookie_name(0)}={TOKEN}"
"""Cookie with the token; the port stands for the view's."""


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Cookie": OURS.replace(TOKEN, "wrong")},
        {"Cookie": OURS.replace(TOKEN, "w\u00f6rong")},
        {"Cookie": OURS, "Host": "evil.example"},
        {"Cookie": OURS, "Host": "localhost:0"},
        {"Cookie": OURS, "Origin": "https://evil.example"},
        {"Cookie": OURS, "Origin": "http://localhost:0"},
        {"Cookie": OURS, "Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/textual.js", "/download/x", "/nothing"])
def test_nobody_else_gets_in(path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[ClientResponse]()

    async def use(session: ClientSession, port: int) -> None:
        sent = {name: value.replace(cookie_name(0), cookie_name(port)) for name, value in headers.items()}
        sent = {name: value.replace("localhost:0", f"localhost:{port}") for name, value in sent.items()}
        async with session.get(address(port, path), headers=sent) as answer:
            found.append(answer)
            assert answer.status == 403, await answer.text()

    served(use, monkeypatch)
    assert len(found) == 1


def test_a_cookie_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = list[bytes]()

    async def use(session: ClientSession, port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        lines = f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\nCookie: {cookie_name(port)}="
        writer.write(lines.encode() + b"\xff\xfe\r\n\r\n")
        answered.append(await reader.readline())
        writer.close()

    served(use, monkeypatch)
    assert answered == [b"HTTP/1.1 403 Forbidden\r\n"]


def test_a_view_is_a_process_and_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        cookies = {"Cookie": f"{cookie_name(port)}={TOKEN}"}
        async with session.ws_connect(address(port, "/ws"), headers=cookies) as opened:
            assert not opened.closed
        monkeypatch.setattr(web_view, "MOST_VIEWS", 0)
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(address(port, "/ws"), headers=cookies)
        assert refused.value.status == 503

    served(use, monkeypatch)


def test_the_program_of_a_view_is_ours_and_a_child_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, told = tmp_path / "program", tmp_path / "told"
    program.write_text(f'#!/bin/sh\necho "$PPID $PYTHONSAFEPATH $PYTHONPATH $*" > {told}.new && mv {told}.new {told}\n')
    program.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONSAFEPATH", "")

    async def main() -> None:
        monkeypatch.setattr(sys, "executable", str(program))
        async with view(TOKEN, lambda told: None) as port, ClientSession() as session:
            cookies = {"Cookie": f"{cookie_name(port)}={TOKEN}"}
            async with session.ws_connect(address(port, "/ws"), headers=cookies) as opened:
                while not told.exists():
                    await opened.send_str('["ping", 0]')
                    await opened.receive()

    asyncio.run(main())
    us = str(os.getpid())
    assert told.read_text().split() == [us, "1", str(ROOT), "-m", "tui", "--child-of", us, "folder"]


def test_a_view_ends_when_the_server_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, waits = iter([7, 7, 1]), list[float]()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr("tui.__main__.time.sleep", waits.append)
    with pytest.raises(SystemExit) as ended:
        end_with(7)
    assert ended.value.code == 0 and len(waits) == 2
