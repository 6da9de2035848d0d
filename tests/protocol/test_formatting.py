"""Names, numbers and addresses as a person reads them."""

from __future__ import annotations

import math

import pytest

from protocol.formatting import (
    amount,
    attempted,
    clean,
    duration,
    endpoint,
    naming,
    number,
    roughly,
    short,
    size,
    to_go,
)
from protocol.short_id import short_id
from protocol.wire.identity import Identity


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


def test_a_loss_that_is_rounded_to_zero_has_no_sign() -> None:
    assert (number(-0.0001), number(-0.0), number(0.0), number(-0.001)) == ("0.000", "0.000", "0.000", "-0.001")
