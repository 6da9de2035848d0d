"""The round until which the founders of an open run vote alone: a forecast that equals what the rules do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.chain.base import round_settings
from protocol.chain.electorate import Electorate
from protocol.chain.founding import NEWCOMERS, founders_vote_until
from protocol.run.manifest import run_id
from protocol.run.run_file import parse_run_file
from protocol.wire.identity import Identity, PeerId

PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 8))


def start(founders: int, text: str = 'admission = "open"\n') -> Electorate:
    named = f"founders = {PEERS[:founders]}\n".replace("'", '"') if founders else 'founders = "anyone"\n'
    manifest = parse_run_file(f'name = "run"\n{named}{text}', PEERS[0])
    return Electorate.start(round_settings(run_id(manifest), manifest))


def after(now: Electorate, records: int, members: Sequence[PeerId]) -> Electorate:
    for _ in range(records):
        now = now.after(members, [b"\xff" * ((len(members) + 7) // 8)])
    return now


@pytest.mark.parametrize(
    ("founders", "training", "until"), [(1, 1, 203), (1, 0, 303), (2, 2, 103), (2, 1, 203), (3, 3, 3), (6, 6, 3)]
)
def test_the_forecast_is_what_the_rules_do(founders: int, training: int, until: int) -> None:
    now, members = start(founders), sorted({*PEERS[:training], *NEWCOMERS})
    assert founders_vote_until(now, PEERS[:training]) == until
    assert after(now, until - 1, members).is_founding and not after(now, until, members).is_founding


def test_the_forecast_follows_the_chain_as_it_stands() -> None:
    alone = after(start(1), 50, PEERS[:1])
    assert founders_vote_until(alone, PEERS[:1]) == 253, "nobody came in the first 50 rounds"
    friends = after(alone, 120, PEERS[:4])
    assert founders_vote_until(friends, PEERS[:4]) == 253, "they came in round 50, and are still there"
    assert founders_vote_until(after(friends, 83, PEERS[:4]), PEERS[:4]) is None, "others vote now"


def test_only_founders_of_an_open_run_vote_alone() -> None:
    assert founders_vote_until(start(1, 'admission = "invite"\n'), PEERS[:1]) is None
    assert founders_vote_until(start(0), PEERS[:1]) is None


def test_a_long_tenure_is_forecast_at_once() -> None:
    text = 'admission = "open"\n[rounds]\ntenure_rounds = 100_000\nseasoning_rounds = 100\n'
    assert founders_vote_until(start(1, text), PEERS[:1]) == 200_100
