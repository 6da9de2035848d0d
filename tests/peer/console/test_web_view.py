"""The interface in a browser: only who has the token, and asks this server itself, gets in."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientResponse, ClientSession, WSServerHandshakeError, web
from aiohttp.test_utils import unused_port

from peer.console import web_view
from peer.console.web_view import COOKIE, HOST, application

TOKEN = "5rhZ0kq"


def served(use: Callable[[ClientSession, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Use a served view whose program ends at once; return what was told."""
    told = list[str]()
    monkeypatch.setattr(sys, "executable", "true")

    async def main() -> None:
        port = unused_port()
        runner = web.AppRunner(await application("folder", port, TOKEN, told.append))
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        try:
            async with ClientSession() as session:
                await use(session, f"http://{HOST}:{port}")
        finally:
            await runner.cleanup()

    asyncio.run(main())
    return told


def test_the_address_that_is_told_opens_it_and_leaves_no_token_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, base: str) -> None:
        async with session.get(f"{base}/?token={TOKEN}", allow_redirects=False) as first:
            assert (first.status, first.headers["Location"]) == (302, "/")
            assert first.cookies[COOKIE]["httponly"] and first.cookies[COOKIE]["samesite"] == "Strict"
        async with session.get(base, cookies={COOKIE: TOKEN}) as page:
            assert page.status == 200 and "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert TOKEN not in await page.text()

    (address,) = served(use, monkeypatch)
    assert address.endswith(f"/?token={TOKEN}")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Cookie": f"{COOKIE}=wrong"},
        {"Cookie": f"{COOKIE}=w\u00f6rong"},
        {"Cookie": f"{COOKIE}={TOKEN}", "Host": "evil.example"},
        {"Cookie": f"{COOKIE}={TOKEN}", "Origin": "https://evil.example"},
        {"Cookie": f"{COOKIE}={TOKEN}", "Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/textual.js", "/download/x", "/nothing"])
def test_nobody_else_gets_in(path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[ClientResponse]()

    async def use(session: ClientSession, base: str) -> None:
        async with session.get(base + path, headers=headers) as answer:
            found.append(answer)
            assert answer.status == 403, await answer.text()

    served(use, monkeypatch)
    assert len(found) == 1


def test_a_view_is_a_process_and_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = {"Cookie": f"{COOKIE}={TOKEN}"}

    async def use(session: ClientSession, base: str) -> None:
        async with session.ws_connect(f"{base}/ws", headers=cookies) as view:
            assert not view.closed
        monkeypatch.setattr(web_view, "MOST_VIEWS", 0)
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(f"{base}/ws", headers=cookies)
        assert refused.value.status == 503

    served(use, monkeypatch)
