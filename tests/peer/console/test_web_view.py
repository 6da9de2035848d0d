"""The interface in a browser: only who has the secret, and asks this server itself from its own page, opens a view."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, CookieJar, WSMsgType, WSServerHandshakeError, web
from aiohttp.test_utils import unused_port

from peer.console import web_view
from peer.console.web_view import HOST, WRONG_ADDRESS, application
from peer.installation import ROOT
from tui.__main__ import end_with

SECRET = "5rhZ0kq"
PAGES = ("/", "/view.js", "/view.css", "/textual.js", "/xterm.css")


@asynccontextmanager
async def view(secret: str, tell: Callable[[str], None]) -> AsyncIterator[int]:
    """Serve a view; give its port."""
    port = unused_port()
    runner = web.AppRunner(await application("folder", port, secret, tell))
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
        async with view(SECRET, told.append) as port, ClientSession() as session:
            await use(session, port)

    asyncio.run(main())
    return told


def address(port: int, path: str = "/") -> str:
    return f"http://{HOST}:{port}{path}"


def page(port: int) -> dict[str, str]:
    """Headers of a request of the page."""
    return {"Origin": f"http://{HOST}:{port}"}


def test_the_address_that_is_told_has_the_secret_where_no_browser_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        for path in PAGES:
            async with session.get(address(port, path)) as answer:
                assert answer.status == 200 and not answer.cookies
                assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Referrer-Policy"] == "no-referrer" and SECRET not in await answer.text()

    (told,) = served(use, monkeypatch)
    before, _, fragment = told.partition("#")
    assert SECRET not in before and fragment == SECRET


def test_a_browser_keeps_nothing_that_another_port_could_get(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser:
            for path in (*PAGES, f"/?token={SECRET}", f"/ws/{SECRET}"):
                async with browser.get(address(port, path)):
                    pass
            async with browser.ws_connect(address(port, f"/ws/{SECRET}"), headers=page(port)):
                pass
            assert list(browser.cookie_jar) == []

    served(use, monkeypatch)


STOLEN: tuple[Mapping[str, str], ...] = (
    {},
    {"Cookie": f"manyhands-0={SECRET}"},
    {"Authorization": f"Bearer {SECRET}"},
    {"Referer": f"http://{HOST}:0/?token={SECRET}"},
)


@pytest.mark.parametrize("headers", STOLEN)
@pytest.mark.parametrize(
    "path",
    [
        "/ws",
        "/ws/wrong",
        f"/ws/{SECRET}x",
        "/ws/%ff",
        f"/ws?token={SECRET}",
    ],
)
def test_nothing_but_the_secret_in_the_path_opens_a_view(
    path: str, headers: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(session: ClientSession, port: int) -> None:
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(address(port, path), headers={**headers, **page(port)})
        assert refused.value.status in (403, 404)

    served(use, monkeypatch)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:PORT"},
        {"Origin": "null"},
        {"Host": "evil.example:PORT"},
        {"Host": "localhost:PORT"},
    ],
)
def test_no_other_page_and_no_other_name_gets_in_even_with_the_secret(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(session: ClientSession, port: int) -> None:
        sent = {name: value.replace("PORT", str(port)) for name, value in headers.items()}
        for path in (*PAGES, f"/ws/{SECRET}", "/nothing"):
            async with session.get(address(port, path), headers=sent) as answer:
                assert (answer.status, await answer.text()) == (403, WRONG_ADDRESS), path
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(address(port, f"/ws/{SECRET}"), headers={**page(port), **sent})
        assert refused.value.status == 403

    served(use, monkeypatch)


def test_a_websocket_without_an_origin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(address(port, f"/ws/{SECRET}"))
        assert refused.value.status == 403

    served(use, monkeypatch)


ODD = (
    "GET / HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\n\r\n",
    "GET /ws/SECRET HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://127.0.0.1:PORT\r\n\r\n",
    "GET /ws/SECRET HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://127.0.0.1:PORT\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: x\r\n\r\n",
    "GET /ws/SECRET HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://127.0.0.1:PORT\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \xff\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 2\r\n\r\nhi",
    "GET /static/../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    "GET /download/x HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    "GET http://[::1 HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    "\xff\xfe\x00\x01\r\n\r\n",
)


@pytest.mark.parametrize("text", ODD)
def test_an_odd_request_gets_a_short_answer_and_writes_nothing_to_the_log(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = list[bytes]()
    monkeypatch.setattr(logging.getLogger("aiohttp.server"), "level", logging.CRITICAL)  # as `serve` sets it

    async def use(session: ClientSession, port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(text.replace("PORT", str(port)).replace("SECRET", SECRET).encode("latin-1"))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        answers.append(head + await reader.readexactly(length))
        writer.close()

    served(use, monkeypatch)
    head, _, body = answers[0].partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"403", b"404", b"405"), answers
    assert b"Traceback" not in body and len(body) < 400
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_the_program_of_a_view_is_ours_a_child_of_the_server_and_gets_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = tmp_path / "program", tmp_path / "told"
    said = '"$PPID $PYTHONSAFEPATH $PYTHONPATH $COLUMNS $ROWS [$HF_TOKEN$WANDB_API_KEY] $*"'
    program.write_text(f"#!/bin/sh\necho {said} > {told}.new && mv {told}.new {told}\ncat > /dev/null\n")
    program.chmod(0o700)
    for name, value in {"PYTHONPATH": "", "PYTHONSAFEPATH": "", "HF_TOKEN": "mine", "WANDB_API_KEY": "mine"}.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        monkeypatch.setattr(sys, "executable", str(program))
        async with view(SECRET, lambda told: None) as port, ClientSession() as session:
            where = address(port, f"/ws/{SECRET}?width=90&height=99999999999")
            async with session.ws_connect(where, headers=page(port)) as opened:
                while not told.exists():
                    await opened.send_str('["ping", "7"]')
                    assert await opened.receive_json() == ["pong", "7"]

    asyncio.run(main())
    us = str(os.getpid())
    assert told.read_text().split() == [us, "1", str(ROOT), "90", "24", "[]", "-m", "tui", "--child-of", us, "folder"]


ECHO = """
import sys
sys.stdout.buffer.write(b"__GANGLION__\\n")
while head := sys.stdin.buffer.read(5):
    data = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    sys.stdout.buffer.write(b"D" + head[1:] + data)
    sys.stdout.buffer.flush()
"""


@asynccontextmanager
async def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A websocket to a program that draws what it is told."""
    (tmp_path / "tui").mkdir()
    (tmp_path / "tui" / "__main__.py").write_text(ECHO)
    monkeypatch.setattr(web_view, "child_environment", lambda child: {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})
    async with (
        view(SECRET, lambda told: None) as port,
        ClientSession() as session,
        session.ws_connect(address(port, f"/ws/{SECRET}"), headers=page(port)) as opened,
    ):
        yield opened


def test_keys_reach_the_program_and_its_screen_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with echo(tmp_path, monkeypatch) as opened:
            await opened.send_json(["stdin", "q\u00e9"])
            assert (await opened.receive()).data == "q\u00e9".encode()
            await opened.send_json(["resize", {"width": 100, "height": 10**30}])
            assert json.loads((await opened.receive()).data) == {"type": "resize", "width": 100, "height": 24}

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "{}", "7", "[]", "[[[]]]", '["stdin"]', '["stdin", 7]', '["resize", {"width": "1"}]', '["quit"]'),
        *('["stdin", "\\ud800"]', "[" * 100_000, '["resize", {"width": NaN, "height": 1}]', "1" * 10_000),
    ],
    ids=lambda text: text[:40],
)
def test_a_message_that_no_page_of_ours_sends_ends_the_view_without_a_traceback(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with echo(tmp_path, monkeypatch) as opened:
            await opened.send_str(text)
            assert (await opened.receive()).type is WSMsgType.CLOSE
            assert opened.close_code == web_view.MESSAGE_REFUSED

    asyncio.run(main())
    assert not caplog.records


def test_a_view_is_a_process_and_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: ClientSession, port: int) -> None:
        where = address(port, f"/ws/{SECRET}")
        async with session.ws_connect(where, headers=page(port)) as opened:
            assert (await opened.receive()).type is WSMsgType.CLOSE, "its program has ended"
        monkeypatch.setattr(web_view, "MOST_VIEWS", 0)
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect(where, headers=page(port))
        assert refused.value.status == 503

    served(use, monkeypatch)


def test_a_view_ends_when_the_server_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, waits = iter([7, 7, 1]), list[float]()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr("tui.__main__.time.sleep", waits.append)
    with pytest.raises(SystemExit) as ended:
        end_with(7)
    assert ended.value.code == 0 and len(waits) == 2
