"""The port that a router opens: renewed, told, given up when the router does not answer, closed at the end; and NAT-PMP."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.discovery import port_mapping, upnp
from peer.discovery.port_mapping import AGAIN_S, MOST_MISSES, NatPmp, PortMapping, default_router
from peer.discovery.upnp import Upnp
from protocol.events.events import Event, PortMapped

OUTSIDE = "/ip4/203.0.113.7/tcp/5001"
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t{gateway}\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


class ARouter:
    """answers: what it says each time, None for nothing; the last one again and again."""

    def __init__(self, name: str, *answers: tuple[str, int] | None) -> None:
        self.name, self.answers = name, list(answers)
        self.asked: list[tuple[int, int]] = []
        self.closed = 0

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        self.asked.append((port, lease_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise OSError("no answer")
        return answer

    def close(self) -> None:
        self.closed += 1


def kept_for(seconds: float, *routers: ARouter) -> tuple[list[Sequence[str]], list[Event]]:
    """What is announced and told in such a time."""
    announced, told = list[Sequence[str]](), list[Event]()

    async def main() -> None:
        mapping = PortMapping(4001, routers, announced.append, told.append)  # type: ignore[arg-type]
        with trio.move_on_after(seconds):
            await mapping.keep()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return announced, told


def test_the_first_router_that_opens_the_port_is_asked_again_in_time_and_closes_it_at_the_end() -> None:
    silent, willing = ARouter("UPnP", None), ARouter("NAT-PMP", ("203.0.113.7", 5001))
    announced, told = kept_for(2.5 * AGAIN_S, silent, willing)
    assert announced == [[OUTSIDE]] and told == [PortMapped(OUTSIDE, "NAT-PMP")]
    assert len(silent.asked) == 1 and len(willing.asked) == 3, "the one that did it before is asked first"
    assert all(port == 4001 and lease_s > 2 * AGAIN_S for port, lease_s in willing.asked)
    assert willing.closed == 1


def test_a_port_is_gone_when_nobody_renews_it_and_back_when_somebody_does() -> None:
    router = ARouter("UPnP", ("203.0.113.7", 5001), *[None] * MOST_MISSES, ("203.0.113.7", 5002))
    announced, told = kept_for((MOST_MISSES + 1.5) * AGAIN_S, router)
    assert announced == [[OUTSIDE], [], ["/ip4/203.0.113.7/tcp/5002"]]
    assert [event.by for event in told if isinstance(event, PortMapped)] == ["UPnP", "", "UPnP"]


def test_the_default_way_is_read_from_the_kernels_table() -> None:
    assert default_router(ROUTES.format(gateway="0101A8C0")) == "192.168.1.1"
    assert default_router("") is None and default_router("Iface\nnonsense") is None


def answering(answers: Sequence[bytes]) -> tuple[int, threading.Thread, list[bytes]]:
    """A router on loopback that gives these answers, one a question; its port, and what it was asked."""
    sock, questions = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), list[bytes]()
    sock.bind(("127.0.0.1", 0))

    def run() -> None:
        with sock:
            for answer in answers:
                question, asker = sock.recvfrom(64)
                questions.append(question)
                sock.sendto(answer, asker)

    thread = threading.Thread(target=run)
    thread.start()
    return sock.getsockname()[1], thread, questions


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    """A table of ways through a router on loopback."""
    (tmp_path / "route").write_text(ROUTES.format(gateway="0100007F"))
    return tmp_path / "route"


def test_nat_pmp_asks_for_the_address_and_the_port(routes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = struct.pack(">BBHI4s", 0, 128, 0, 1, socket.inet_aton("203.0.113.7"))
    port, thread, asked = answering([b"nonsense", address, struct.pack(">BBHIHHI", 0, 130, 0, 1, 4001, 5001, 3600)])
    monkeypatch.setattr(port_mapping, "PORT", port)
    assert NatPmp(routes).open(4001, 3600) == ("203.0.113.7", 5001)
    thread.join()
    assert asked == [b"\0\0", b"\0\0", struct.pack(">BBHHHI", 0, 2, 0, 4001, 4001, 3600)]


A_LIBRARY = """
class UPnP:
    lanaddr = "192.168.1.7"

    def discover(self):
        {discover}

    def selectigd(self, where=""):
        assert where in ("", "http://192.168.1.1/root.xml")
        return "http://192.168.1.1/root.xml"

    def addportmapping(self, outside, protocol, address, inside, name, host, lease_s):
        if outside == 4001:
            raise Exception("ConflictInMappingEntry")
        assert (protocol, address, inside, host) == ("TCP", "192.168.1.7", 4001, "")
        return lease_s == 0

    def externalipaddress(self):
        return "203.0.113.7"

    def deleteportmapping(self, outside, protocol):
        open({closed!r}, "w").write(str(outside))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts another library in the place of miniupnpc, with this body of `discover`; where it writes what it closed."""

    def put(discover: str) -> Path:
        text = A_LIBRARY.format(discover=discover, closed=str(tmp_path / "closed"))
        (tmp_path / "miniupnpc.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return tmp_path / "closed"

    return put


def test_upnp_takes_another_port_where_that_one_is_taken_and_closes_it(library: Callable[[str], Path]) -> None:
    closed, router = library("return 1"), Upnp()
    ip, outside = router.open(4001, 3600)
    assert ip == "203.0.113.7" and outside in upnp.PORTS
    router.close()
    assert closed.read_text() == str(outside)


def test_a_device_that_says_more_than_a_router_does_ends_in_an_error(library: Callable[[str], Path]) -> None:
    library(f"self.said = b'x' * {upnp.MEMORY_BYTES}")
    with pytest.raises(OSError, match="no port by UPnP"):
        Upnp().open(4001, 3600)


def test_a_device_that_never_ends_its_answer_is_given_up(
    library: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library("import time; time.sleep(3600)")
    monkeypatch.setattr(upnp, "ANSWER_S", 0.2)
    with pytest.raises(OSError, match="did not finish its answer"):
        Upnp().open(4001, 3600)
