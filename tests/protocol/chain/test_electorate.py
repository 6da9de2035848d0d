"""Who votes follows from the chain alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain.base import RoundSettings, round_settings
from protocol.chain.electorate import NEWCOMERS, Electorate, contributors, quorum_size, tolerated
from protocol.run.manifest import MAX_ELECTORS, run_id
from protocol.run.run_file import parse_run_file
from protocol.wire.envelope import MAX_MEMBERS
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import mask_of
from tests.protocol.council import SETTINGS
from tests.protocol.tables import cases

OPEN = replace(SETTINGS, founders=None, is_open=True, seasoning_rounds=3, tenure_rounds=100)
CLOSED = replace(OPEN, is_open=False)


def named(letter: str, count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"{letter}{number:03d}") for number in range(count))


def founded(settings: RoundSettings, founders: Iterable[PeerId]) -> RoundSettings:
    return replace(settings, founders=tuple(sorted(founders)))


def follow(electorate: Electorate, members: Iterable[PeerId], records: int = 1, idle: Iterable[PeerId] = ()) -> Electorate:
    """After records of these members, of which the idle ones have their parts in no mask."""
    peers, silent = sorted(members), set(idle)
    mask = mask_of([index for index, peer in enumerate(peers) if peer not in silent], len(peers))
    for _ in range(records):
        electorate = electorate.after(peers, [mask])
    return electorate


A, B, C, D, E, F, G, H = named("p", 8)
FOUR = (A, B, C, D)


def test_a_quorum_is_a_majority_below_four_and_bears_less_than_a_third_of_liars_above() -> None:
    assert [quorum_size(count) for count in range(1, 14)] == [1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9]
    assert [tolerated(count) for count in range(14)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    for count in range(1, MAX_ELECTORS + 1):
        assert 2 * quorum_size(count) - count > tolerated(count), "two quorums share an honest elector"
        assert quorum_size(count) <= count - tolerated(count) or count < 4, "the honest ones are a quorum"


@given(st.integers(1, MAX_MEMBERS), st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=9))
def test_contributors_are_counted_bit_by_bit(count: int, noise: list[bytes]) -> None:
    peers, width = named("p", count), (count + 7) // 8
    masks = [(int.from_bytes(data[:width]) % (1 << count)).to_bytes(width, "little") for data in noise]
    expected = {
        peer
        for index, peer in enumerate(peers)
        if 2 * sum(int.from_bytes(mask, "little") >> index & 1 for mask in masks) > len(masks)
    }
    assert contributors(peers, masks) == expected


Step = tuple[str, int, str]
"""So many records of these members, and the electors then.  The parts of members in small letters are in no mask."""


CANDIDATES: list[Step] = [("ABCDE", 1, "ABCD"), ("ABCDEF", 1, "ABCD"), ("ABCDEFG", 5, "ABCDE")]


def peers(letters: str) -> list[PeerId]:
    return [PeerId(f"p{ord(letter) - ord('A'):03d}") for letter in letters.upper()]


@cases(
    "settings, steps",
    {
        "with admission, seasoned peers vote from the second one on, and of so few nobody loses its vote": (
            founded(CLOSED, [A]),
            [("A", 50, "A"), ("AB", 2, "A"), ("AB", 1, "AB"), ("ABC", 3, "ABC"), ("BC", 500, "ABC")],
        ),
        "a founder that sleeps while two are seasoned earns its vote like others": (
            founded(CLOSED, [A]),
            [("ABC", 2, "A"), ("BC", 3, "BC"), ("ABC", 3, "ABC")],
        ),
        "in an open run founders vote until four peers are seasoned": (
            founded(replace(OPEN, tenure_rounds=1), [A, H]),
            [("", 0, "AH"), ("BCD", 10, "AH"), ("BCDE", 2, "AH"), ("BCDE", 1, "BCDE")],
        ),
        "the last members vote where anyone founds the run, and a newcomer has no seat beside the first electors": (
            OPEN,
            [("", 0, ""), ("AB", 7, "AB"), ("C", 1, "C"), ("ABCD", 2, "ABCD"), ("ABCDE", 1, "ABCD")],
        ),
        "only contributions in a row earn a vote, and being a member keeps it": (
            CLOSED,
            [
                ("ABCD", 3, "ABCD"),
                ("aBCDe", 50, "ABCD"),
                ("ABCDE", 2, "ABCD"),
                ("ABCDe", 1, "ABCD"),
                ("ABCDE", 2, "ABCD"),
                ("ABCDE", 1, "ABCDE"),
            ],
        ),
        "three records in a row cost the vote, and it is earned again": (
            CLOSED,
            [
                ("ABCDE", 3, "ABCDE"),
                *[("ABCD", 2, "ABCDE"), ("ABCDE", 1, "ABCDE")] * 5,
                ("ABCD", 2, "ABCDE"),
                ("ABCD", 1, "ABCD"),
                ("ABCDE", 2, "ABCD"),
                ("ABCDE", 1, "ABCDE"),
            ],
        ),
        "four electors stay four until a newcomer has replaced the younger of the missing": (
            CLOSED,
            [("ABCD", 3, "ABCD"), ("AB", 50, "ABCD"), ("ABG", 3, "ABCDG"), ("ABG", 1, "ABCG")],
        ),
        "a record takes less than a third, of equals the youngest, and never leaves fewer than four": (
            CLOSED,
            [
                ("ABCDEFGH", 3, "ABCDEFGH"),
                ("ABCDEFGHIJ", 3, "ABCDEFGHIJ"),
                ("ABCDFGHIJ", 1, "ABCDEFGHIJ"),
                *[("ABCD", 2, "ABCDFGHIJ"), ("ABCD", 1, "ABCDFGH"), ("ABCD", 1, "ABCDF")],
                *[("ABCD", 1, "ABCD"), ("ABCD", 9, "ABCD")],
            ],
        ),
        "an elder that misses longer goes before a younger": (
            CLOSED,
            [("ABCDEFG", 3, "ABCDEFG"), ("DEFG", 1, "ABCDEFG"), ("EFG", 2, "ADEFG"), ("EFG", 1, "DEFG")],
        ),
        "a free seat goes to the first candidate": (
            founded(OPEN, FOUR),
            [*CANDIDATES, ("ABCDFG", 2, "ABCDE"), ("ABCDFG", 1, "ABCDF")],
        ),
        "a free seat goes to a candidate that is there": (
            founded(OPEN, FOUR),
            [*CANDIDATES, ("ABCDFG", 2, "ABCDE"), ("ABCDG", 1, "ABCDG")],
        ),
    },
)
def test_electors_follow_from_the_members_of_records(settings: RoundSettings, steps: list[Step]) -> None:
    electorate = Electorate.start(settings)
    for members, records, electors in steps:
        idle = [letter for letter in members if letter.islower()]
        electorate = follow(electorate, peers(members), records, peers("".join(idle)))
        assert electorate.electors == tuple(peers(electors)), (members, records)
        assert electorate.quorum == quorum_size(len(electors))


Record = tuple[frozenset[PeerId], frozenset[PeerId]]
"""Members, and those of them that have parts in the masks."""

PEERS = named("p", 14)


@st.composite
def histories(draw: st.DrawFn) -> tuple[RoundSettings, list[Record]]:
    """Settings, and a chain in which peers come, go for a while, and fall silent."""
    founders = draw(st.sampled_from([None, PEERS[:1], PEERS[:2], PEERS[:6]]))
    settings = replace(
        OPEN,
        founders=founders,
        is_open=draw(st.booleans()),
        seasoning_rounds=draw(st.integers(1, 4)),
        tenure_rounds=draw(st.integers(1, 12)),
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    leave, come, silent = (draw(st.sampled_from([0.02, 0.1, 0.4])) for _ in range(3))
    here, chain = set(PEERS), []
    for _ in range(draw(st.integers(1, 60))):
        here = {peer for peer in PEERS if rng.random() >= (leave if peer in here else 1 - come)} or {rng.choice(PEERS)}
        chain.append((frozenset(here), frozenset(peer for peer in here if rng.random() >= silent) or frozenset(here)))
    return settings, chain


def fold(settings: RoundSettings, chain: Sequence[Record], order: Callable[[list[PeerId]], None]) -> list[Electorate]:
    electorates = [Electorate.start(settings)]
    for members, contributing in chain:
        peers = sorted(members)
        order(peers)
        mask = mask_of([index for index, peer in enumerate(peers) if peer in contributing], len(peers))
        electorates.append(electorates[-1].after(peers, [mask, mask]))
    return electorates


@pytest.mark.slow
@given(histories(), st.randoms(use_true_random=False))
def test_the_electorate_is_a_function_of_the_chain(history: tuple[RoundSettings, list[Record]], rng: random.Random) -> None:
    settings, chain = history
    electorates = fold(settings, chain, list.sort)
    assert electorates == fold(settings, chain, rng.shuffle), "whatever the order of the bits"
    cut = len(chain) // 2
    assert electorates[: cut + 1] == fold(settings, chain[:cut], list.sort), "a longer chain does not change the past"
    for electorate in electorates:
        assert Electorate.from_fields(settings, json.loads(json.dumps(electorate.to_fields()))) == electorate


@given(histories())
def test_no_record_breaks_a_limit(history: tuple[RoundSettings, list[Record]]) -> None:
    settings, chain = history
    electorates = fold(settings, chain, list.sort)
    for before, after, (members, _) in zip(electorates, electorates[1:], chain, strict=False):
        electors = set(after.electors)
        assert list(after.electors) == sorted(electors) and len(electors) <= MAX_ELECTORS
        if after.is_founding:
            assert before.is_founding, "nobody falls back to the founders"
            assert after.electors == (settings.founders or tuple(sorted(members)))
            continue
        assert len(electors) >= (4 if settings.is_open or settings.founders is None else 2)
        if not before.is_founding:
            lost = set(before.electors) - electors
            assert len(lost) <= tolerated(len(before.electors))
        if settings.is_open:
            assert 4 * len(young(after)) <= len(electors)


def young(electorate: Electorate) -> list[PeerId]:
    settings = electorate.settings
    ages = {each.peer: electorate.height - each.since for each in electorate.standings if each.since is not None}
    return [peer for peer, age in ages.items() if age < settings.tenure_rounds and peer not in (settings.founders or ())]


@given(histories())
def test_every_new_vote_was_earned_and_every_lost_one_has_its_reason(history: tuple[RoundSettings, list[Record]]) -> None:
    settings, chain = history
    electorates = fold(settings, chain, list.sort)
    for height in range(1, len(electorates)):
        before, after = electorates[height - 1], electorates[height]
        if after.is_founding:
            continue
        for peer in set(after.electors) - (set() if before.is_founding else set(before.electors)):
            assert earned(peer, chain[:height], settings.seasoning_rounds), peer
        if before.is_founding:
            continue
        for peer in set(before.electors) - set(after.electors):
            missed = all(peer not in members for members, _ in chain[height - 3 : height])
            assert missed or (settings.is_open and peer in young(before)), peer


def earned(peer: PeerId, chain: Sequence[Record], needed: int) -> bool:
    """Whether the peer had a long enough series of contributions, and missed no three records in a row since then."""
    for end in range(len(chain), needed - 1, -1):
        if all(peer in contributing for _, contributing in chain[end - needed : end]):
            return True
        if end >= 3 and all(peer not in members for members, _ in chain[end - 3 : end]):
            return False
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("founders", "first", "third", "quorum"),
    [
        (1, 203, 203, 203),
        (3, 3, 103, 403),
        (21, 3, 103, 303),
        (22, 3, 103, None),
        (43, 3, None, None),
        (64, None, None, None),
    ],
)
def test_how_long_a_crowd_of_keys_takes(founders: int, first: int | None, third: int | None, quorum: int | None) -> None:
    """Whatever their number: as many keys as a record has room for, all from the first record on, and nobody else comes."""
    honest = named("p", founders)
    crowd = named("a", MAX_MEMBERS - founders)
    electorate = Electorate.start(founded(OPEN, honest))
    reached: dict[str, int] = {}
    for record in range(1, 500):
        electorate = follow(electorate, [*honest, *crowd])
        hostile, electors = sum(peer in crowd for peer in electorate.electors), len(electorate.electors)
        for what, holds in (
            ("first", hostile > 0),
            ("third", 3 * hostile >= electors),
            ("quorum", hostile >= electorate.quorum),
        ):
            if holds:
                reached.setdefault(what, record)
    assert (reached.get("first"), reached.get("third"), reached.get("quorum")) == (first, third, quorum)


# -- how long the founders vote -------------------------------------------------------------------------------------------

REAL = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 8))


def start(founders: int, text: str = 'admission = "open"\n') -> Electorate:
    named = f"founders = {REAL[:founders]}\n".replace("'", '"') if founders else 'founders = "anyone"\n'
    manifest = parse_run_file(f'name = "run"\n{named}{text}', REAL[0])
    return Electorate.start(round_settings(run_id(manifest), manifest))


def after(now: Electorate, records: int, members: Sequence[PeerId]) -> Electorate:
    for _ in range(records):
        now = now.after(members, [b"\xff" * ((len(members) + 7) // 8)])
    return now


@pytest.mark.parametrize(("founders", "training", "until"), [(1, 1, 203), (1, 0, 303), (2, 1, 203), (6, 6, 3)])
def test_the_forecast_is_what_the_rules_do(founders: int, training: int, until: int) -> None:
    now, members = start(founders), sorted({*REAL[:training], *NEWCOMERS})
    assert now.founders_vote_until(REAL[:training]) == until
    assert after(now, until - 1, members).is_founding and not after(now, until, members).is_founding


def test_only_founders_of_an_open_run_vote_alone() -> None:
    assert start(1, 'admission = "invite"\n').founders_vote_until(REAL[:1]) is None
    assert start(0).founders_vote_until(REAL[:1]) is None
