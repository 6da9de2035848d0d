"""`peer rollouts`: what became of them, from the log of a run, whether its peer runs or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.cli import main
from peer.control.client import Stamped
from peer.control.event_log import EventLog, log_file, to_line
from peer.errors import ExitCode
from protocol.events import events as ev

ME, ANN, BOB = "12D3KooWme", "12D3KooWann", "12D3KooWbob"
RUN = "ab" * 32


def started() -> ev.Event:
    return ev.Started(ME, "writer", RUN, "sorting", "0.1", 1, [], "/x")


MADE = [
    started(),
    ev.PeerJoined(ANN, "ann"),
    *(ev.RolloutsGenerated(3, number, f"{number:02}", 8, 100, 900, 2.0) for number in range(4)),
    ev.BatchJudged(ME, 3, 0, "00", ANN, 8, 0, 0, []),
    ev.BatchJudged(ME, 3, 1, "01", ANN, 7, 1, 0, ["bad sampling"]),
    ev.RolloutsCounted(3, 0.25, 1, 100, {ME: 100}, 0, ["00"]),
    ev.RolloutPeerSetAside(BOB, "wrong computation"),
]
JUDGED = [
    started(),
    ev.BatchJudged(ANN, 3, 0, "00", ME, 8, 0, 0, []),
    ev.BatchJudged(BOB, 3, 0, "01", ME, 0, 8, 0, ["copied"]),
]
TRAINED = [
    started(),
    ev.BatchDecided(ANN, 3, 0, "00", "accepted", "", 8, True),
    ev.BatchDecided(BOB, 3, 0, "01", "rejected", "withheld", 8, False),
    ev.RolloutsUsed(4, ["00"], 8, 0.5, "r"),
]


def write(folder: Path, *lives: list[ev.Event]) -> None:
    """What a peer of this run logged in its lives."""
    run = folder / "runs" / RUN
    run.mkdir(parents=True, exist_ok=True)
    for events in lives:
        log = EventLog(log_file(run))
        for event in events:
            log.emit(event)
        log.flush()


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["rollouts", *words, "--data-dir", str(folder)]) == ExitCode.OK
    return capsys.readouterr().out


def test_a_rollout_peer_sees_its_batches_their_verdicts_and_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, MADE)
    text = asked(tmp_path, capsys)
    assert "this peer made 4 batches: 1 accepted, 1 rejected, 0 got too old, 2 not judged yet" in text
    assert "the run learned from 100 of their" in text and "mean reward of the last round: 0.25" in text
    rows = [row.split() for row in text.splitlines() if row.startswith("me ")]
    assert [word.split("(")[0] for word in rows[1]][:8] == ["me", "3", "1", "rejected", "bad", "sampling,", "by", "ann"]
    assert "learned from in round 3" in text and "set aside: rollouts of" in text and "wrong computation" in text


def test_earlier_lives_count_and_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, MADE, [started(), ev.RolloutsGenerated(4, 0, "10", 8, 100, 900, 2.0)])
    found = json.loads(asked(tmp_path, capsys, "--json", "--last", "2"))
    assert found["run"] == RUN and found["role"] == "rollout" and found["counts"]["generated"] == 5
    assert [batch["root"] for batch in found["batches"]] == ["10", "00"] and found["untold"] == 3
    assert found["names"][ANN] == "ann" and found["set_aside"][0]["peer"] == BOB


def test_a_validator_sees_what_it_judged_and_a_trainer_what_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "one", JUDGED)
    text = asked(tmp_path / "one", capsys)
    assert "this peer judged 2 batches of others: 1 accepted, 1 rejected, 0 unsure" in text and "copied, by me" in text
    write(tmp_path / "other", TRAINED)
    text = asked(tmp_path / "other", capsys, RUN[:6])
    assert "this trainer learned from 1 batch; 1 accepted, 1 rejected, 0 got too old" in text and "withheld" in text


def test_what_is_no_event_in_the_log_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, JUDGED)
    counted = to_line(Stamped(1.0, 1.0, ev.RolloutsCounted(3, 0.25, 1, 100, {ME: 100}, 0, ["00"])))
    with (tmp_path / "runs" / RUN / "events.jsonl").open("a") as file:
        file.write("{\n[]\n\x00\n" + counted.replace("100}", '"x"}') + "\n" + counted.replace('["00"]', "7") + "\n")
    assert "judged 2 batches" in asked(tmp_path, capsys)


@pytest.mark.parametrize(
    "events, words, sentence",
    [
        ([started()], [], "only a run with a section [rl] has any"),
        ([started()], ["ff"], "ff is not a run in"),
        (None, [], "there is no run in"),
    ],
)
def test_what_cannot_be_told_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[ev.Event] | None, words: list[str], sentence: str
) -> None:
    if events is not None:
        write(tmp_path, events)
    assert main(["rollouts", *words, "--data-dir", str(tmp_path)]) == ExitCode.INPUT
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
