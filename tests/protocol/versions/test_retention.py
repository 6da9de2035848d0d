"""Which files of weights stay: the newest, what leads to it, and what finds room below the cap."""

from __future__ import annotations

from protocol.versions.following import surplus
from protocol.wire.hashes import Hash
from tests.protocol.versions.test_route import WHOLE, a_line, root

LINE = a_line(8)  # anchors 1 and 6, patches of 1000 bytes
PLENTY = 100 * WHOLE


def files(*names: str) -> dict[Hash, int]:
    return {root(name): WHOLE if name.startswith("w") else 1000 for name in names}


ALL = files(*(f"w{number}" for number in range(1, 9)), *(f"p{number}" for number in range(2, 9)))


def kept(sizes: dict[Hash, int], keep: int, cap: int, *used: str) -> set[str]:
    gone = surplus(LINE, sizes, [root(name) for name in used], keep, cap)
    names = {root(f"{kind}{number}"): f"{kind}{number}" for kind in "wp" for number in range(1, 9)}
    return {names[each] for each in sizes if each not in gone}


def test_the_last_versions_stay_and_what_leads_a_newcomer_to_the_newest() -> None:
    assert kept(ALL, 2, PLENTY) == {"w8", "w7", "w6", "p6", "p7", "p8"}
    assert kept(ALL, 1, PLENTY) == {"w8", "w6", "p6", "p7", "p8"}
    assert kept(ALL, 4, PLENTY) == {"w8", "w7", "w6", "w5", "p6", "p7", "p8"}


def test_below_a_cap_the_newest_comes_first_then_the_way_to_it_then_older_ones() -> None:
    assert kept(ALL, 4, 2 * WHOLE + 3000) == {"w8", "w6", "p6", "p7", "p8"}
    assert kept(ALL, 4, WHOLE + 3000) == {"w8", "p6", "p7", "p8"}
    assert kept(ALL, 4, 0) == {"w8"}, "the weights that are used are never given up for a cap"


def test_what_is_in_use_stays_and_takes_its_room() -> None:
    assert kept(ALL, 1, 2 * WHOLE + 1000, "w3") >= {"w8", "w3"}
    assert "w6" not in kept(ALL, 1, 2 * WHOLE + 1000, "w3")


def test_a_file_that_no_statement_names_goes_first() -> None:
    strange = Hash(bytes(32))
    assert surplus(LINE, {**files("w8", "w2"), strange: 5}, [], 1, PLENTY) == [strange, root("w2")]
