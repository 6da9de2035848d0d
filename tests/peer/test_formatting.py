"""Names, numbers and addresses as a person reads them."""

from __future__ import annotations

import math

import pytest

from peer.formatting import (
    amount,
    attempted,
    clean,
    computer_rows,
    duration,
    endpoint,
    energy,
    gpu_line,
    naming,
    number,
    roughly,
    short,
    size,
    to_go,
)
from protocol.events.status import ComputerStatus, GpuStatus
from protocol.short_id import short_id
from protocol.wire.identity import Identity
from tests.protocol.example_status import COMPUTER


def test_numbers_have_units_that_a_person_reads() -> None:
    assert (size(512), size(3_200_000), amount(950), amount(1500)) == ("512 B", "3.2 MB", "950", "1.5 k")
    assert (duration(45), duration(180), duration(7500)) == ("45 s", "3 min", "2 h 5 min")
    assert [roughly(each) for each in (0, 1, 119, 120, 86_400, 200_000)] == [
        "0 seconds",
        "1 second",
        "119 seconds",
        "2 minutes",
        "24 hours",
        "2 days",
    ]
    assert (number(1.23456), number(None), number(math.nan)) == ("1.235", "-", "-")
    assert (to_go(61.0), to_go(None), to_go(math.inf)) == ("61 s to go", "", "")


def test_text_of_strangers_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[0mb\n") == "a[0mb" and clean("x" * 50) == "x" * 40
    assert naming({"12D3KooWABCDEF": "\x1b[31mred"})("12D3KooWABCDEF") == f"[31mred ({short('12D3KooWABCDEF')})"
    assert naming({})("12D3KooWABCDEF") == short("12D3KooWABCDEF") == "…ABCDEF"
    assert short("12D3\x1b[2J") == "…D3[2J"


def test_a_peer_id_has_one_short_form_its_end() -> None:
    peer = Identity.from_seed(bytes(32)).peer_id
    assert short(peer) == short_id(peer) == "…" + peer[-6:] and len(peer) == 52


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.004, "0.1 s"), (0.26, "0.3 s"), (4, "4 s"), (4.25, "4.2 s"), (9.96, "10 s"), (10.4, "10 s"), (-3, "0 s"),
     (119.4, "119 s"), (math.inf, "-"), (math.nan, "-")],
)  # fmt: skip
def test_seconds_have_tenths_below_ten(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_addresses_and_what_came_of_them() -> None:
    assert endpoint("/ip4/192.0.2.1/tcp/4001/p2p/x") == "192.0.2.1 port 4001" and endpoint("/odd") == "/odd"
    tried = [{"address": f"/ip4/192.0.2.{n}/tcp/1", "times": n, "problem": "refused"} for n in range(6)]
    assert attempted(tried[:2]) == "192.0.2.0 port 1 (refused), 192.0.2.1 port 1 (1 time: refused)"
    assert attempted(tried).endswith("192.0.2.3 port 1 (3 times: refused) and 2 more")


def test_a_computer_is_described_as_far_as_it_is_known() -> None:
    assert computer_rows(COMPUTER) == [
        ("gpu", "NVIDIA GeForce RTX 3090, 19.3 GB of 25.7 GB, 97 % busy, 71 °C, 298 W"),
        ("processor", "AMD Ryzen 9 5950X 16-Core Processor, 14 % busy, 64 W, 11.8 GB of 33.5 GB of memory"),
        ("energy", "750 Wh since the start, 42.0 kWh in all"),
    ]
    assert computer_rows(None) == []
    unknown = ComputerStatus(processor="x", memory_used=0, memory_total=1000, gpus=[GpuStatus()])
    assert computer_rows(unknown) == [("gpu", "no figures"), ("processor", "x, 0 B of 1.0 kB of memory")]
    assert gpu_line(GpuStatus(name="\x1b[2J", watts=0.4)) == "[2J, 0 W"


@pytest.mark.parametrize(
    ("joules", "said"),
    [(0.0, "0.0 Wh"), (3600.0, "1.0 Wh"), (36_000.0, "10 Wh"), (3_596_400.0, "999 Wh"), (3_600_000.0, "1.0 kWh")],
)
def test_energy_is_in_watt_hours(joules: float, said: str) -> None:
    assert energy(joules) == said
