"""The page about a run in a real browser: `python -m tests.browser [FOLDER]` opens it from disk in headless Chromium.

At widths of 390, 820 and 1440 pixels, light and dark, it asserts that the page loads nothing else, that the console stays
empty, that nothing is wider than the window, and that whoever hears the page hears every chart and table;
and the same of pages with hostile texts on a phone.  It also opens the interface of `peer watch --web`.  FOLDER keeps the
screenshots, and the two pictures of docs/guides/organiser.md, which are kept in docs/pictures.  Without Chromium it says so
and fails; the tests of `make test` need no browser.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aiohttp import web
from aiohttp.test_utils import unused_port

from peer.console import web_view
from peer.console.web_view import HOST, application
from peer.page.document import document
from peer.page.facts import gather
from tests.hostile_texts import HOSTILE
from tests.peer.page.crowds import history, hostile, status

WIDTHS = (390, 820, 1440)
SCHEMES = ("light", "dark")
NOW = 1_796_000_000.0
PICTURES = {"page.png": (1180, "light"), "page-phone.png": (390, "dark")}
PICTURE = {"x": 0, "y": 0, "height": 1120, "scale": 0.7}
"""Part of the page that is on a picture."""
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Browser:
    """Chromium at the other end of two pipes, which carry its DevTools protocol; it listens on no port."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._buffer, self._number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and return the result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def wait_for(self, method: str) -> None:
        """Return once an event of this name has come."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._read.read(1 << 16)
            assert data, "Chromium has ended"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(raw))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser with one empty page."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no Chromium here; install the package chromium")
    to_child, ours_out = os.pipe()
    ours_in, from_child = os.pipe()

    def connect() -> None:
        for source, target in ((os.dup(to_child), 3), (os.dup(from_child), 4)):
            os.dup2(source, target)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its helpers outlive Chromium by a moment
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        try:
            browser = Browser(ours_in, ours_out)
            target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                browser.ask(f"{domain}.enable")
            yield browser
        finally:
            process.kill()
            process.wait()


def look(browser: Browser, page: Path, width: int, scheme: str) -> bytes:
    """Open the page, assert what must hold, and return a screenshot of its whole length (PNG)."""
    show(browser, page, width, scheme)
    wide = browser.ask("Runtime.evaluate", expression="document.documentElement.scrollWidth")["result"]["value"]
    assert wide <= width, f"{wide} pixels wide in a window of {width}"
    size = browser.ask("Page.getLayoutMetrics")["cssContentSize"]
    shown = shot(browser, {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
    complaints = [event for event in browser.events if event.get("method") in COMPLAINTS]
    assert not complaints, complaints
    asked = [event["params"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    urls = [each["request"]["url"] for each in asked]
    assert [url for url in urls if not url.startswith("data:")] == [page.as_uri()], urls
    return shown


def show(browser: Browser, page: Path, width: int, scheme: str) -> None:
    """Open the page in a window of this width."""
    browser.events.clear()
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.ask("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")


def shot(browser: Browser, part: dict[str, float]) -> bytes:
    """Return a picture of a part of the open page (PNG)."""
    return base64.b64decode(browser.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=part)["data"])


DRAWN = "document.body.classList.contains('-first-byte')"
"""True once the page of a view has drawn what its program wrote."""
STAND_IN = """
import sys
text = b"this is the interface"
sys.stdout.buffer.write(b"__GANGLION__\\nD" + len(text).to_bytes(4, "big") + text)
sys.stdout.buffer.flush()
sys.stdin.read()
"""
"""Program in the place of the interface."""


async def watch(browser: Browser, folder: Path) -> None:
    """Open a view by its address and reload it; assert that it stays closed in a tab without the secret."""
    (folder / "tui").mkdir()
    (folder / "tui" / "__main__.py").write_text(STAND_IN)
    port, told = unused_port(), list[str]()
    runner = web.AppRunner(await application("folder", port, "5rhZ0kq", told.append))
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    variables = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}

    async def until(expression: str) -> None:
        while not await asyncio.to_thread(value, browser, expression):
            await asyncio.sleep(0.05)

    with patch.object(web_view, "child_environment", return_value=variables):
        await asyncio.to_thread(browser.ask, "Page.navigate", url=told[0])
        await until(DRAWN)
        assert value(browser, "location.href + document.cookie") == f"http://{HOST}:{port}/"
        await asyncio.to_thread(browser.ask, "Runtime.evaluate", expression="window.isOld = true")
        await asyncio.to_thread(browser.ask, "Page.reload")
        await until(f"!window.isOld && {DRAWN}")
        await asyncio.to_thread(browser.ask, "Page.navigate", url="about:blank")
        await asyncio.to_thread(browser.ask, "Page.navigate", url=f"http://{HOST}:{port}/")
        await until(DRAWN)  # the same tab
        target = (await asyncio.to_thread(browser.ask, "Target.createTarget", url=f"http://{HOST}:{port}/"))["targetId"]
        own, browser.session = browser.session, ""
        browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        await until("document.getElementById('unknown')?.hidden === false && !document.getElementById('terminal')")
        browser.session = own
    await runner.cleanup()


def value(browser: Browser, expression: str) -> Any:
    """Return the value of an expression in the open page; None if it has none yet."""
    return browser.ask("Runtime.evaluate", expression=expression)["result"].get("value")


def heard(browser: Browser) -> list[tuple[str, str]]:
    """Return the role and name of everything that a screen reader tells of the open page."""
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    told = [each for each in nodes if not each.get("ignored")]
    return [(each.get("role", {}).get("value", ""), each.get("name", {}).get("value", "")) for each in told]


def check_names(told: list[tuple[str, str]]) -> None:
    """Assert that every chart, table, link and control has a name."""
    assert sum(role in ("img", "image") for role, _ in told) >= 3, "the charts are not heard"
    for role, name in told:
        if role in ("img", "image", "link", "radio", "progressbar", "heading", "columnheader", "rowheader"):
            assert name, f"{role} without a name"
    assert [name for role, name in told if role == "radio"] == ["by rounds", "by tokens"]


def main() -> None:
    """Look at the page of a large run at each width, light and dark."""
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = Path(folder) / "index.html"
        facts = gather(history(Path(folder)), status(), NOW)
        page.write_text(document(facts, "run.json"))
        for width in WIDTHS:
            for scheme in SCHEMES:
                shown = look(browser, page, width, scheme)
                print(f"{width} {scheme}: no complaint, no request, nothing too wide")
                if kept is not None:
                    (kept / f"page-{width}-{scheme}.png").write_bytes(shown)
        check_names(heard(browser))
        print("every chart, table and control has a name")
        for number, (name, text) in enumerate(HOSTILE.items()):
            strange = Path(folder) / f"{number}.html"
            strange.write_text(document(gather(*hostile(Path(folder), text), NOW), "run.json"))
            look(browser, strange, WIDTHS[0], SCHEMES[0])
            print(f"with a hostile text ({name}) the same")
        asyncio.run(watch(browser, Path(folder)))
        print("a view opens by its address and after a reload, and not without the secret")
        for name, (width, scheme) in PICTURES.items():
            if kept is not None:
                show(browser, page, width, scheme)
                (kept / name).write_bytes(shot(browser, {**PICTURE, "width": width}))


if __name__ == "__main__":
    main()
