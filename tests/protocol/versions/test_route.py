"""The way to a version with the fewest bytes, and none where nothing leads there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.versions.making import Route, route
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.rollouts import BlobName, PatchName, Version

WHOLE = 100_000


def root(what: str) -> Hash:
    return hash_bytes("test", what.encode())


def a_blob(what: str, size: int) -> BlobName:
    return BlobName(size=size, chunk_bytes=4096, root=root(what))


def a_version(number: int, *, anchor: bool = False, patch: int | None = 1000, base: int | None = None) -> Version:
    """patch: bytes of the patch, from the version before where no `base` is named."""
    base = base if base is not None else number - 1
    named = None
    if patch is not None:
        named = PatchName(base=base, base_root=root(f"w{base}"), blob=a_blob(f"p{number}", patch))
    return Version(version=number, weights=a_blob(f"w{number}", WHOLE), tensors=root("t"), anchor=anchor, patch=named)


def a_line(count: int, anchor_every: int = 5, patch: int = 1000) -> dict[int, Version]:
    anchors = range(1, count + 1, anchor_every)
    return {n: a_version(n, anchor=n in anchors, patch=patch if n > 1 else None) for n in range(1, count + 1)}


def taken(way: Route | None) -> list[tuple[int, str]]:
    """The legs of a way: the version and what is fetched for it."""
    assert way is not None
    return [(leg.version.version, "whole" if leg.base is None else "patch") for leg in way.legs]


def test_a_newcomer_takes_the_newest_anchor_and_the_patches_since() -> None:
    way = route(a_line(8), 8, [])
    assert taken(way) == [(6, "whole"), (7, "patch"), (8, "patch")]
    assert way is not None and way.size_bytes == WHOLE + 2000


def test_who_has_an_older_version_takes_patches_while_they_are_fewer_bytes() -> None:
    assert taken(route(a_line(8), 8, [root("w4")])) == [(number, "patch") for number in (5, 6, 7, 8)]
    large = a_line(8, patch=60_000)
    assert taken(route(large, 8, [root("w4")])) == [(6, "whole"), (7, "patch"), (8, "patch")]
    assert taken(route(large, 6, [root("w5")])) == [(6, "patch")]


def test_patches_that_are_here_cost_nothing() -> None:
    large = a_line(8, patch=60_000)
    here = [root("w4"), *(root(f"p{number}") for number in (5, 6, 7, 8))]
    way = route(large, 8, here)
    assert taken(way) == [(number, "patch") for number in (5, 6, 7, 8)] and way is not None and way.size_bytes == 0


def test_what_is_here_needs_no_way() -> None:
    assert route(a_line(3), 3, [root("w3")]) == Route(0)


def test_a_patch_whose_base_is_unknown_or_another_leads_nowhere() -> None:
    alone = {3: a_version(3)}
    assert route(alone, 3, [root("w2")]) is None, "nobody has announced version 2"
    other = {2: a_version(2, anchor=True), 3: a_version(3, base=2)}
    wrong = other[3].model_copy(update={"patch": PatchName(base=2, base_root=root("x"), blob=a_blob("p3", 10))})
    assert route({**other, 3: wrong}, 3, [root("w2")]) is None
    shorter = a_version(3).model_copy(update={"weights": a_blob("w3", WHOLE - 2)})
    assert route({**other, 3: shorter}, 3, [root("w2")]) is None, "a patch changes no size"


def test_a_patch_that_was_found_useless_is_left_out_and_the_anchor_used() -> None:
    line = a_line(6)
    assert taken(route(line, 6, [root("w5")])) == [(6, "patch")]
    assert taken(route(line, 6, [root("w5")], refused=[root("p6")])) == [(6, "whole")]
    assert route(line, 5, [root("w4")], refused=[root("p5"), root("w1")]) is None


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 90_000), st.integers(1, 12)), min_size=1, max_size=12),
    st.sets(st.integers(1, 12)),
)
def test_no_other_way_takes_fewer_bytes(drawn: list[tuple[bool, int, int]], held: set[int]) -> None:
    """Compared with all ways, tried one by one."""
    line: dict[int, Version] = {}
    for number, (anchor, patch, back) in enumerate(drawn, 1):
        base = number - back
        line[number] = a_version(number, anchor=anchor or base < 1, patch=patch if base >= 1 else None, base=max(base, 1))
    here = [root(f"w{number}") for number in held]

    def least(number: int) -> int | None:
        version = line[number]
        if version.weights.root in here:
            return 0
        costs = [WHOLE] if version.anchor else []
        if version.patch is not None and (before := least(version.patch.base)) is not None:
            costs.append(before + version.patch.blob.size)
        return min(costs, default=None)

    way = route(line, len(line), here)
    assert (way.size_bytes if way is not None else None) == least(len(line))
