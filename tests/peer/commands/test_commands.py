"""Commands that talk to a running peer, when there is one and when there is none."""

from __future__ import annotations

import argparse
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from peer.cli import main
from peer.commands import contributions, seconds_of
from peer.commands.status import describe_status
from peer.console.streams import print_json
from peer.control.client import LOCK_NAME, starting_process
from peer.control.ledger import team_credits, with_audits
from peer.errors import ExitCode
from peer.formatting import votes_line
from peer.keyfile import identity_lock
from tests.hostile_texts import EACH_HOSTILE, HARMFUL
from tests.protocol.example_status import FACTS, NEIGHBOUR, TRAINING, status


def test_status_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert "No peer is running" in capsys.readouterr().out
    assert main(["status", "--json", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert json.loads(capsys.readouterr().out)["running"] is False


def test_times_of_a_pause() -> None:
    assert [seconds_of(text) for text in ("45s", "30m", "30", "2h", "1d")] == [45, 1800, 1800, 7200, 86_400]
    for text in ("", "0m", "-3m", "3w", "m"):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds_of(text)


def test_the_status_says_who_votes_and_what_it_costs_that_founders_vote_alone() -> None:
    me, bob = TRAINING.peer, TRAINING.swarm[0].peer
    alone = status(electors=[me], founders_vote_until=203)
    cost = "while this computer is cut off from the others, the rounds that they make meanwhile are lost"
    assert f"votes     you alone vote until round 203 or later: {cost}" in describe_status(alone)
    founded = status(electors=[bob], founders_vote_until=203, organiser=bob)
    assert votes_line(founded).startswith(
        "the organiser alone votes until round 203 or later: while its computer is cut off"
    )
    assert votes_line(status(electors=[me, bob], founders_vote_until=103)).startswith(
        "the 2 founders alone vote until round"
    )
    assert votes_line(status(electors=[me, bob])) == "this peer and 1 other"
    assert votes_line(status(electors=[bob])) == "1 other peer, not this one yet"
    assert votes_line(status(electors=[])) == ""


def test_a_peer_that_is_starting_is_not_said_not_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.commands.status.START_S", 0.0)  # asks once more
    monkeypatch.setattr("peer.control.client.START_POLL_S", 0.01)
    with identity_lock(tmp_path):
        assert main(["status", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
        said = capsys.readouterr().out
        assert f"is starting (process {os.getpid()}); ask again in a few seconds" in said and "start one" not in said
        assert main(["leave", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
        assert "ask again in a few seconds" in capsys.readouterr().err
    assert starting_process(tmp_path) is None


def test_a_lock_that_a_killed_peer_left_is_no_peer_that_starts(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_NAME
    for text in ("", "x", "999999999", "9" * 100, "-1"):
        lock.write_text(text)
        assert starting_process(tmp_path) is None, text
    lock.write_text(str(os.getpid()))
    os.utime(lock, (1e9, 1e9))
    assert starting_process(tmp_path) is None, "the process with this number began after the lock was written"


@pytest.mark.parametrize("text", EACH_HOSTILE)
def test_status_says_a_hostile_text_harmlessly_and_its_json_is_ascii(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(NEIGHBOUR, name=text, link=text, team=text, version=text, addresses=[text])
    facts = replace(FACTS, description=text, url=text, licence=text, family=text, environment=text, prompts=[text])
    told = status(
        name=text,
        team=text,
        run_name=text,
        version=text,
        device=text,
        why_detail=text,
        addresses=[text],
        reachability={text: text},
        losses={text: 1.0, "web": 2.0},
        invitation=text,
        swarm=[other],
        run_definition=facts,
        next_rest=text,
        limits={text: text},
    )
    for line in describe_status(told):
        assert line.isprintable() and not HARMFUL.search(line)
    print_json(told.to_fields())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii() and line.isprintable() and json.loads(line)["name"] == text


def of(peer: str, tokens: int, accepted: int = 0) -> dict[str, object]:
    return {"peer": peer, "rounds": 1, "tokens": tokens, "share": tokens / 100, "batches": 0, "accepted_tokens": accepted}


def test_the_credit_of_a_team_is_the_sum_of_its_members() -> None:
    told = {"tokens": 100, "members": [of("a", 50), of("b", 30), of("c", 20), of("d", 0, 9)]}
    assert team_credits(told, {"a": "owls", "c": "owls", "b": "", "d": "bats", "e": "owls"}) == [
        {"team": "owls", "peers": 2, "tokens": 70, "share": 0.7, "accepted_tokens": 0},
        {"team": "bats", "peers": 1, "tokens": 0, "share": 0.0, "accepted_tokens": 9},
    ]
    assert team_credits(told, {}) == []


def test_a_member_that_is_set_aside_has_claimed_tokens_and_no_credited_ones() -> None:
    swarm = [
        replace(NEIGHBOUR, peer="a", audits=2, audited_tokens=20),
        replace(NEIGHBOUR, peer="b", audits=1, audited_tokens=10, set_aside="false receipts", aside_until=40),
    ]
    members = with_audits([of("a", 50), of("b", 30), of("c", 20)], swarm)
    assert [(each["tokens"], each["audited_tokens"], each["credited_tokens"]) for each in members] == [
        *((50, 20, 50), (30, 10, 0), (20, 0, 20))
    ]
    audits = {each.peer: {"audits": each.audits, "set_aside": each.set_aside, "aside_until": 40} for each in swarm}
    lines = contributions.describe_ledger({**LEDGER, "members": members, "audits": audits})
    assert lines[1].split()[-2:] == ["AUDITED", "CREDITED"] and lines[3].split()[-2:] == ["10", "0"]
    assert lines[-1].endswith("set aside here until round 40: false receipts")


LEDGER = {
    **{"run": "ab", "rounds": 48, "tokens": 9, "members": [], "names": {}, "me": "", "untold": 0, "teams": []},
    **{"fragments": 1, "remark": "", "audits": {}},
}


@pytest.mark.parametrize("team", ["owls", "\x1b[2J\u202e" + "x" * 500])
def test_the_ledger_sums_teams_in_a_table_of_their_own(
    team: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    teams = [{"team": team, "peers": 2, "tokens": 70_000, "share": 0.7, "accepted_tokens": 0}]
    found = {**LEDGER, "rounds": 1, "tokens": 100_000, "teams": teams}
    monkeypatch.setattr(contributions, "find_ledger", lambda folder, run: dict(found))
    assert main(["ledger", "--data-dir", str(tmp_path)]) == ExitCode.OK
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert rows[0].split() == ["TEAM", "PEERS", "TOKENS", "SHARE"]
    assert rows[1].endswith("70.0 k  70.0 %") and len(rows[1]) == len(rows[0]) and rows[1].isprintable()


def test_a_data_directory_that_cannot_be_written_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in (errno.EROFS, errno.EACCES, errno.EPERM):

        def refuse(*arguments: object, code: int = code, **options: object) -> None:
            raise OSError(code, os.strerror(code), str(tmp_path))

        monkeypatch.setattr("peer.paths.tempfile.NamedTemporaryFile", refuse)
        for command in (["join", "--headless"], ["id"]):
            assert main([*command, "--data-dir", str(tmp_path)]) == ExitCode.RESOURCES
            said = capsys.readouterr().err
            assert f"the data directory {tmp_path} is read-only for this user ({os.strerror(code)})" in said
            assert "--data-dir" in said
