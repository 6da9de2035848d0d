"""A peer's mDNS: a process of its own, which comes back when it dies, and of which little is taken."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import trio

from peer.discovery import mdns
from peer.discovery.mdns import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_LOOK_UPS,
    MAX_RESIDENT_BYTES,
    Announcement,
    LookUps,
    Mdns,
    Sighting,
    peer_service,
    run_kind,
    serve,
    sighting_in,
    sighting_of,
)
from peer.environment import ChildKind, child_environment
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity

RUN, ME, OTHER = chunk_hash(b"a run"), *(Identity.from_seed(bytes([seed]) * 32).peer_id for seed in (7, 8))
KIND = run_kind(RUN.hex())
OURS = f"/ip4/192.168.1.7/tcp/4001/p2p/{ME}", f"/ip6/2001:db8::7/tcp/4001/p2p/{ME}"
THEIRS = Sighting(OTHER, (f"/ip4/192.168.1.8/tcp/4001/p2p/{OTHER}",))


def peer(number: int) -> str:
    return Identity.from_seed(number.to_bytes(32, "big")).peer_id


# -- in the peer ------------------------------------------------------------------------------------------------------


async def hear(command: list[str], heard: list[str], enough: Callable[[Mdns], bool]) -> Mdns:
    """Have `command` in place of the mDNS process until `enough`."""
    found = Mdns(command)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.discover, RUN, ME, lambda: OURS, heard.extend)
            while not enough(found):
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    return found


def script(text: str) -> list[str]:
    """A process that gets our announcement as `told`, runs `text`, and lives until its input ends."""
    return [sys.executable, "-c", f"import sys\ntold = input()\n{text}\nsys.stdout.flush()\nsys.stdin.read()"]


def test_others_are_reported_and_we_are_not() -> None:
    lines = Sighting(ME, OURS).to_line() + THEIRS.to_line()
    heard: list[str] = []
    trio.run(hear, script(f"print({lines.decode()!r})"), heard, lambda found: bool(heard))
    assert heard == list(THEIRS.addresses)


def test_a_process_that_dies_comes_back_and_has_lost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lacks memory ends like any other: before and after, what it said counts."""
    monkeypatch.setattr(mdns, "FIRST_PAUSE_S", 0.001)
    starts = tmp_path / "starts"
    line = THEIRS.to_line().decode()
    dies = script(f"open({str(starts)!r}, 'a').write(told + '\\n'); print({line!r}, end='', flush=True)\nraise MemoryError")
    heard: list[str] = []
    trio.run(hear, dies, heard, lambda found: len(heard) >= 3)
    told = [Announcement.from_line(each.encode()) for each in starts.read_text().splitlines()]
    assert len(told) >= 3 and set(told) == {Announcement(RUN.hex(), ME, OURS)}


FLOOD = f"""
for number in range(50_000):
    print({json.dumps(asdict(THEIRS))!r})
"""
ENDLESS = "while True: sys.stdout.write('x' * 5000)"


@pytest.mark.slow
@pytest.mark.parametrize("flood", [FLOOD, ENDLESS], ids=["lines", "one line"])
def test_a_flood_ends_the_process_and_little_of_it_is_taken(flood: str) -> None:
    heard: list[str] = []
    lives: list[float] = []

    class Counted(Mdns):
        async def _live(self) -> float:
            lives.append(await super()._live())
            return lives[-1]

    async def main() -> None:
        found = Counted(script(flood))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(found.discover, RUN, ME, lambda: OURS, heard.extend)
                while not lives:
                    await trio.sleep(0.005)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(heard) == (MAX_LINES if flood is FLOOD else 0)


@pytest.mark.parametrize("stubborn", ["", "import time\ntime.sleep(3600)"], ids=["obeys", "is killed"])
def test_no_process_stays_when_it_has_ended(tmp_path: Path, stubborn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns, "CLOSE_S", 0.01 if stubborn else 60.0)
    pid = tmp_path / "pid"
    command = script(f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()) + '.')\n{stubborn}")
    trio.run(hear, command, [], lambda found: pid.exists() and pid.read_text().endswith("."))
    with pytest.raises(ProcessLookupError):  # neither an orphan nor a zombie
        os.kill(int(pid.read_text()[:-1]), 0)


ODD: list[bytes] = [
    b"",
    b"[]",
    b"[" * 4000,
    b"\xff\xfe",
    json.dumps({"peer": OTHER}).encode(),
    json.dumps({"peer": OTHER, "addresses": [7, None, {}, [OTHER]]}).encode(),
    json.dumps({"peer": OTHER, "addresses": list(OURS)}).encode(),
    json.dumps({"peer": OTHER, "addresses": [f"/ip4/\x1b[2J/p2p/{OTHER}"]}).encode(),
    json.dumps({**asdict(THEIRS), "more": "x" * MAX_LINE_BYTES}).encode(),
]


@pytest.mark.parametrize("line", ODD, ids=range(len(ODD)))
def test_odd_lines_are_ignored(line: bytes) -> None:
    assert sighting_in(line) is None


def test_lines_are_read_as_they_were_written() -> None:
    ours = Announcement(RUN.hex(), ME, OURS)
    assert sighting_in(THEIRS.to_line()) == THEIRS and Announcement.from_line(ours.to_line()) == ours
    many = [f"/ip4/10.0.0.{number}/tcp/4001/p2p/{OTHER}" for number in range(100)]
    assert sighting_of(OTHER, many) == Sighting(OTHER, tuple(many[:8]))


# -- in the process ---------------------------------------------------------------------------------------------------


def test_addresses_of_both_kinds_are_announced() -> None:
    """Most homes have both."""
    info = peer_service(Announcement(RUN.hex(), ME, OURS))
    assert [value and value.decode() for value in info.properties.values()] == list(OURS)
    assert info.parsed_addresses() == ["192.168.1.7", "2001:db8::7"]
    named = f"/dns4/example.org/tcp/4001/p2p/{ME}"
    assert peer_service(Announcement(RUN.hex(), ME, (named, OURS[0]))).parsed_addresses() == ["192.168.1.7"]


def test_few_of_many_names_are_looked_up_at_one_time() -> None:
    looked_up, told, go_on = list[str](), list[Sighting](), asyncio.Event()

    async def find(kind: str, name: str) -> dict[bytes, bytes | None] | None:
        looked_up.append(name)
        await go_on.wait()
        return None if name != f"{OTHER}.{KIND}" else {b"a0": THEIRS.addresses[0].encode(), b"a1": None, b"a2": b"\xff"}

    async def main() -> None:
        look_ups = LookUps(lambda kind, name: None, find, told.append)
        for number in range(5000):
            look_ups.start(KIND, f"{number:040x}.{KIND}")  # nobody's
        assert not look_ups.running
        for _ in range(2):
            look_ups.start(KIND, f"{OTHER}.{KIND}")
        for number in range(500):
            look_ups.start(KIND, f"{peer(number)}.{KIND}")
        assert len(look_ups.running) == MAX_LOOK_UPS
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*look_ups.running.values())
        assert not look_ups.running

    asyncio.run(main())
    assert len(looked_up) == MAX_LOOK_UPS and told == [THEIRS]


def test_names_that_nobody_answers_for_keep_no_peer_from_being_found() -> None:
    """A peer's records come with its name."""
    told: list[Sighting] = []
    records = {
        f"{OTHER}.{KIND}": {b"a0": THEIRS.addresses[0].encode()},
        f"{ME}.{KIND}": {b"a0": THEIRS.addresses[0].encode()},  # of another than its name says
    }

    async def find(kind: str, name: str) -> dict[bytes, bytes | None] | None:
        await asyncio.Event().wait()
        return None

    async def main() -> None:
        look_ups = LookUps(lambda kind, name: dict(records.get(name, {})) or None, find, told.append)
        for number in range(MAX_LOOK_UPS):
            look_ups.start(KIND, f"{peer(number)}.{KIND}")
        assert len(look_ups.running) == MAX_LOOK_UPS
        for name in records:
            look_ups.start(name.partition(".")[2], name)
        for task in list(look_ups.running.values()):
            task.cancel()

    asyncio.run(main())
    assert told == [THEIRS]


@pytest.mark.slow
def test_a_process_that_holds_much_ends() -> None:
    async def main() -> int:
        sizes = [0, MAX_RESIDENT_BYTES - 1, MAX_RESIDENT_BYTES, MAX_RESIDENT_BYTES]
        try:
            await serve(Announcement(RUN.hex(), ME, OURS), print, asyncio.Event(), lambda: sizes.pop(0))
        except OSError:
            return 1  # this computer has no multicast
        return len(sizes)

    assert asyncio.run(main()) == 1


@pytest.mark.slow
def test_the_process_ends_with_its_input_and_loads_little() -> None:
    """So a peer that is killed leaves none behind."""
    environment = child_environment(ChildKind.HELPER)
    ours = Announcement(RUN.hex(), ME, ()).to_line()
    process = subprocess.run(mdns.COMMAND, input=ours, capture_output=True, timeout=60, env=environment)
    assert not process.stdout
    code = "import sys, peer.discovery.mdns as m; print(*({'libp2p', 'pydantic', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert done.stdout.strip() == ""
