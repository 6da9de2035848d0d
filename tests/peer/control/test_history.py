"""The history counts each record once, and again if the peer has replaced it; curves keep their ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from peer.control import history as run_history
from peer.control.curves import StepBack
from peer.control.history import FILE_NAME, HeldOut, Round, RunHistory, curve
from protocol.chain.credit import Credit
from protocol.wire.identity import PeerId
from tests.protocol.chains import FIVE, a_replica, a_run, credits_in, grow
from tests.protocol.example_status import NEIGHBOUR, status

ANN, BOB = FIVE[:2]
ME, STRANGER = (f"12D3KooW{'x' * 38}{end}" for end in ("ABCDEF", "MNPQRS"))
IDS = [str(each.peer_id) for each in FIVE[:3]]
RUN = a_run(ANN)


def test_records_are_counted_once_and_the_credits_are_those_of_the_ledger(tmp_path: Path) -> None:
    replica, history = a_replica(RUN, tmp_path), RunHistory(RUN, tmp_path)
    history.read()
    assert history.rounds == []
    for length in (3, 5):
        grow(replica, length - replica.history.length, [ANN, BOB])
        history.read()
        history.read()
        commits = [replica.history.commit_at(round) for round in range(length)]
        assert [each.rounds for each in history.rounds] == list(range(1, length + 1))
        assert [each.loss for each in history.rounds] == [commit.record.loss for commit in commits]
        assert history.ledger.credits == credits_in(commits)
        assert history.rounds[-1].tokens == replica.history.roster.progress.tokens
    replica.state.close()


def kept(folder: Path) -> RunHistory:
    """Read the history, and write its file as a running peer does."""
    history = RunHistory(RUN, folder)
    history.read()
    history.save()
    return history


def counted(history: RunHistory) -> tuple[object, ...]:
    history.read()
    texts = history.names, history.teams, history.curves.samples.states
    return history.rounds, history.ledger.to_fields(), history.progress, history.held_out, history.contribution(), texts


def test_the_next_process_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 4, [ANN, BOB])
    kept(tmp_path)
    grow(replica, 1, [ANN, BOB])
    again = RunHistory(RUN, tmp_path)
    assert len(again.rounds) == 4
    found = counted(again)
    (tmp_path / FILE_NAME).unlink()
    assert found == counted(RunHistory(RUN, tmp_path))
    replica.state.close()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"form":2}',
        b'{"form":1}',
        b'{"form":1,"rounds":[]}',
        b'{"form":1,"rounds":[[1,2,3.0,null,null]]}',
        b'{"form":1,"rounds":[[1,2,3.0,{},null]],"progress":[1,2],"total":1,"ledger":{},"tip":""}',
        b'{"form":1,"rounds":[[1,2,3.0,{},null]],"progress":[1,2,3],"total":1,"ledger":{"credits":{},"young":[]},"tip":"ab"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: bytes) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 2, [ANN, BOB])
    replica.state.close()
    found = counted(RunHistory(RUN, tmp_path))
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert found == counted(RunHistory(RUN, tmp_path)) and len(RunHistory(RUN, tmp_path).rounds) < 2


@pytest.mark.parametrize("name", [FILE_NAME, "events.jsonl", "events.1.jsonl"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_is_not_read(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 2, [ANN, BOB])
    replica.state.close()
    make(tmp_path / name)
    history = RunHistory(RUN, tmp_path)
    history.read()
    assert len(history.rounds) == 2 and history.names == {} == history.held_out


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 1, [ANN])
    replica.state.close()
    (tmp_path / f".{FILE_NAME}.abc.new").write_text("{")
    kept(tmp_path)
    assert [path.name for path in tmp_path.glob("*history*")] == [FILE_NAME]


def places(found: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield the path to each number within a value from JSON."""
    if isinstance(found, dict | list):
        for key, each in [*(found.items() if isinstance(found, dict) else enumerate(found))]:
            yield from places(each, (*path, key))
    elif isinstance(found, int | float):
        yield path


def test_a_file_with_a_number_that_no_run_has_is_not_used(tmp_path: Path) -> None:
    replica, log = a_replica(RUN, tmp_path), tmp_path / "events.jsonl"
    grow(replica, 1, [ANN])
    replica.state.close()
    log.write_text(line("EvalLoss", rounds=1, loss=3.0, by=IDS[0], losses={"web": 2.0}))
    found, file = counted(kept(tmp_path)), tmp_path / FILE_NAME
    whole = file.read_text()
    assert len(RunHistory(RUN, tmp_path).rounds) == 1
    for path, number in product(places(json.loads(whole)), (math.inf, math.nan, 10**400, -(10**30), "x")):
        damaged: Any = json.loads(whole)
        *way, last = path
        reduce(getitem, way, damaged)[last] = number
        file.write_text(json.dumps(damaged))
        assert not RunHistory(RUN, tmp_path).rounds, (path, number)
    assert found == counted(RunHistory(RUN, tmp_path))


def test_a_held_out_loss_in_the_log_that_no_peer_may_claim_is_left_out(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 1, [ANN])
    replica.state.close()
    losses: list[dict[str, Any]] = [{"loss": 1e300}, {"loss": -1e300}, {"loss": 2.0, "losses": {"web": 1e300}}]
    (tmp_path / "events.jsonl").write_text("".join(line("EvalLoss", rounds=1, by=IDS[0], **each) for each in losses))
    history = RunHistory(RUN, tmp_path)
    history.read()
    assert history.held_out == {}


def line(event: str, **fields: object) -> str:
    return json.dumps({"at": 1.0, "mono": 1.0, "event": event, **fields}) + "\n"


def test_held_out_losses_outlive_the_lines_of_the_log_and_names_that_were_kept(tmp_path: Path) -> None:
    replica, log = a_replica(RUN, tmp_path), tmp_path / "events.jsonl"
    grow(replica, 2, [ANN, BOB])
    called = zip(IDS, ["ann", "bob", "cat"], ["owls", "owls", "owls"], strict=True)
    joined = [line("PeerJoined", peer=peer, name=name, team=team) for peer, name, team in called]
    log.write_text("".join(joined) + line("EvalLoss", rounds=1, loss=3.0, by=IDS[0], losses={"web": 2.0}, members=1))
    early = kept(tmp_path)
    assert early.names == {IDS[0]: "ann", IDS[1]: "bob"} and set(early.teams.values()) == {"owls"}, "cat is in no record"
    log.write_text(
        line("PeerJoined", peer=IDS[1], name="rob")
        + line("EvalLoss", rounds=2, loss=2.0, by=IDS[0])
        + line("EvalLoss", rounds=3, loss=1.0, by=IDS[0])
        + line("EvalLoss", rounds=2, loss=None, by=IDS[0])
    )
    history = RunHistory(RUN, tmp_path)
    history.read()
    assert history.names == {IDS[0]: "ann", IDS[1]: "rob"}, "rob said so later"
    assert history.teams == {IDS[0]: "owls", IDS[1]: ""}, "rob named none"
    assert history.held_out == {1: HeldOut(3.0, {"web": 2.0}), 2: HeldOut(2.0, {})}, "round 3 is not on disk"
    replica.state.close()


def test_what_the_log_told_of_rounds_that_were_given_up_is_dropped_however_often_it_is_read(tmp_path: Path) -> None:
    replica, log = a_replica(RUN, tmp_path), tmp_path / "events.jsonl"
    grow(replica, 4, [ANN, BOB])

    def told(*given: tuple[str, dict[str, Any]]) -> str:
        return "".join(json.dumps({"at": 9.0, "mono": 9.0, "event": event, **fields}) + "\n" for event, fields in given)

    def states(*numbers: int, loss: float) -> list[tuple[str, dict[str, Any]]]:
        measured = [("EvalLoss", {"rounds": each, "loss": loss, "by": IDS[0]}) for each in numbers]
        return [
            *measured,
            *(("SamplesWritten", {"rounds": each, "by": IDS[0], "completions": {"a": "b"}}) for each in numbers),
        ]

    before = states(1, 2, 3, 4, loss=3.0)
    log.write_text(told(*before))
    early = kept(tmp_path)
    assert [*early.held_out] == [1, 2, 3, 4] and not early.steps_back
    back = ("RolledBack", {"to_round": 1, "abandoned": 3, "winner": IDS[1]})
    log.write_text(told(*before, back, *states(3, loss=2.0)))
    for history in (early, RunHistory(RUN, tmp_path)):  # the latter knows from its file what the earlier one counted
        for _ in range(3):
            history.read()
        assert {at: each.loss for at, each in history.held_out.items()} == {1: 3.0, 3: 2.0}
        assert [each.rounds for each in history.curves.samples.states] == [1, 3]
        assert history.steps_back == [StepBack(9.0, 1, history.rounds[0].tokens, 3)]
    log.write_text("")
    early.save()
    assert RunHistory(RUN, tmp_path).steps_back == early.steps_back, "the log has dropped the line"
    replica.state.close()


def test_samples_outlive_the_lines_of_the_log_and_are_bounded(tmp_path: Path) -> None:
    replica, log = a_replica(RUN, tmp_path), tmp_path / "events.jsonl"
    grow(replica, 2, [ANN, BOB])
    log.write_text(line("SamplesWritten", rounds=1, by=IDS[0], completions={"a": "b"}))
    kept(tmp_path)
    log.write_text(
        line("SamplesWritten", rounds=2, by=IDS[1], completions={str(each): "x" * 9999 for each in range(9)})
        + line("SamplesWritten", rounds=3, by=IDS[0], completions={"a": "of no record"})
        + line("SamplesWritten", rounds=2, by=IDS[0], completions={"a": 1})
        + line("SamplesWritten", rounds=2, by=IDS[0], completions=["a"])
    )
    history = RunHistory(RUN, tmp_path)
    history.read()
    assert [(each.rounds, each.by) for each in history.curves.samples.states] == [(1, IDS[0]), (2, IDS[1])]
    assert history.curves.samples.states[0].completions == {"a": "b"}
    assert history.curves.samples.states[1].completions == {str(each): "x" * 300 for each in range(4)}
    replica.state.close()


def test_of_too_many_members_the_names_of_those_that_were_seen_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "MAX_NAMES", 2)
    history = RunHistory(RUN, tmp_path)
    history.ledger.credits = {PeerId(peer): Credit(1) for peer in (*IDS, ME)}
    history.names, history.teams = {IDS[0]: "attic"}, {IDS[0]: ""}
    swarm = [replace(NEIGHBOUR, peer=IDS[1], name="k" * 90, team="\u202eowls"), replace(NEIGHBOUR, peer=STRANGER)]
    history.note_names(status(peer=ME, name="cellar", team="bats", swarm=swarm))
    assert history.names == {ME: "cellar", IDS[1]: "k" * 40} and history.teams == {ME: "bats", IDS[1]: ""}


def test_a_name_in_the_log_is_bounded(tmp_path: Path) -> None:
    replica, history = a_replica(RUN, tmp_path), RunHistory(RUN, tmp_path)
    grow(replica, 1, [ANN])
    replica.state.close()
    names = ["\u202eada\x1b" + "a" * 500, "B" * (1 << 20)]
    lines = [line("PeerJoined", peer=IDS[0], name=name) for name in names]
    (tmp_path / "events.jsonl").write_text("".join(lines) + "no line\n")
    history.read()
    assert history.names == {IDS[0]: "ada" + "a" * 37}


def rounds_of(*losses: float) -> list[Round]:
    return [Round(number, 100 * number, 2, loss, {}, None) for number, loss in enumerate(losses, 1)]


def test_a_curve_has_the_mean_and_the_extremes_of_some_rounds_and_ends_with_the_last() -> None:
    points = curve(rounds_of(4.0, 2.0, 3.0, 1.0, 5.0), lambda each: each.loss, 3)
    assert [(each.rounds, each.tokens, each.value, each.low, each.high) for each in points] == [
        (2, 200, 3.0, 2.0, 4.0),
        (4, 400, 2.0, 1.0, 3.0),
        (5, 500, 5.0, 5.0, 5.0),
    ]


def test_rounds_without_a_finite_value_are_left_out() -> None:
    points = curve(rounds_of(float("nan"), float("inf"), 3.0), lambda each: each.loss, 3)
    assert [each.rounds for each in points] == [3]
    assert curve(rounds_of(1.0), lambda each: each.reward, 3) == []
