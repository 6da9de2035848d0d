"""What a person is told of a run before taking part in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.formatting import goal_line
from peer.joining.purpose import (
    Speed,
    about_lines,
    about_sentence,
    ends_early,
    often_read,
    purpose_lines,
    purpose_sentence,
    speed_here,
    until,
    unusual_data,
)
from peer.resources.pace import keep_pace, run_s
from protocol.events.status import PeerStatus
from protocol.run.manifest import RunManifest
from protocol.run.run_file import TUNING_RATE, TUNING_ROUNDS, derived, parse_run_file
from protocol.wire.identity import Identity

ME, ANN = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(2))
FILE = f'{{size = 1, root = "{"ab" * 32}"}}'


def a_run(text: str = "", *, tunes: bool = False) -> RunManifest:
    manifest = parse_run_file('name = "run"\n' + text, ME)
    if not tunes:
        return manifest
    fields = derived({"name": "run", "organiser": ME}, tunes=True)
    return RunManifest.model_validate({**fields, "initial_state": "ab" * 32})


def test_a_run_says_what_on_what_how_fast_until_when_and_for_whom() -> None:
    said = dict(purpose_lines(a_run("total_rounds = 300\n")))
    assert list(said) == ["trains", "reads", "epochs", "rate", "until", "admits", "votes", "organiser"]
    assert said["trains"] == "a model of 820.4 k parameters (Llama, 4 layers of 128) from scratch"
    assert said["reads"] == "the source and documentation of this program (about 4.1 M tokens in all)"
    assert said["rate"].startswith("0.003, after 100 steps of warm-up")
    assert said["until"].startswith("300 rounds (12.3 M tokens of each member), about 32 minutes on a laptop, ")
    assert said["organiser"].endswith(f"({ME})")
    sentence = purpose_sentence(a_run("total_tokens = 5_000_000\n"))
    assert "it ends after 5.0 M tokens" in sentence and f"…{ME[-6:]}" in sentence


@pytest.mark.parametrize(
    ("text", "admits", "votes"),
    [
        (
            "",
            "peers with an invitation of the organiser",
            "3 rounds in a row has one vote, the organiser too, and the run goes",
        ),
        (
            'admission = "open"\n',
            "everybody",
            "the organiser alone votes until round 203 or later: while its computer is cut",
        ),
        (f'admission = "open"\nfounders = ["{ANN}", "{ME}"]\n', "everybody", "the 2 founders alone vote until round 103"),
        ('founders = "anyone"\n', "everybody", "the members of the last round, until 4 peers have a vote"),
        (f'admission = "allowlist"\nallowlist = ["{ANN}"]\n', "1 listed peer, and the organiser", "has one vote"),
    ],
)
def test_a_run_says_whom_it_admits_and_who_votes(text: str, admits: str, votes: str) -> None:
    said = dict(purpose_lines(a_run(text)))
    assert said["admits"].startswith(admits) and votes in said["votes"]


def test_the_organisers_words_come_before_the_facts() -> None:
    assert about_lines(a_run()) == [("name", "run")] and about_sentence(a_run()) == "run run"
    run = a_run('[about]\ndescription = "Bees, by name."\nurl = "https://bees.example/a?b"\nlicence = "Apache-2.0"\n')
    said = [("about", "Bees, by name."), ("licence", "Apache-2.0"), ("home page", "https://bees.example/a?b")]
    assert about_lines(run) == [("name", "run"), *said]
    told = "run run; about: Bees, by name.; licence: Apache-2.0; home page: https://bees.example/a?b"
    assert about_sentence(run) == told
    joined = about_sentence(a_run('[about]\ndescription = "a\u200bb\ue000c"\n'))
    assert joined == "run run; about: abc", "what a terminal cannot print is left out"


CHATS = (
    f'[data]\ncorpora = [{FILE}]\nformat = "chat"\nsequence_length = 256\n'
    'sources = [{name = "talk", rows = 40, counted = 2560}]\n'
)


def test_a_run_says_how_often_it_reads_its_data_and_warns_of_learning_by_heart() -> None:
    few, often = a_run(CHATS), a_run("total_rounds = 100\n" + CHATS)
    assert dict(purpose_lines(few))["epochs"] == "reads each source about 3 times" and not often_read(few)
    assert dict(purpose_lines(often))["epochs"] == (
        "reads each source about 200 times with one member, and more often with more; above 4 times a model learns its data "
        "by heart"
    )
    assert often_read(often) == (
        "the run reads talk about 200 times, and a model learns its data by heart after about 4 times; give more data, or "
        "make total_rounds smaller"
    )


BOOK = (
    f"[data]\ncorpora = [{FILE}]\nsequence_length = 100\nsequences_per_step = 8\nepochs = 2\n"
    'sources = [{name = "book", rows = 800}]\n'
)
"""In each round a member reads 80 rows of 100 tokens."""
ROUND = "[rounds]\ninner_steps = 10\n"


def test_a_run_that_may_read_its_data_twice_ends_with_them_and_not_with_its_total() -> None:
    run = a_run("total_rounds = 3000\n" + BOOK + ROUND)
    said = dict(purpose_lines(run))
    assert said["until"].startswith(
        "160.0 k tokens of all members together (20 rounds of one member), when its data have been read 2 times "
        "(data.epochs), before its total of 3000 rounds, about "
    )
    assert "at 1.0 k tokens/s (measured)" in until(run, Speed(1000.0, "measured")) and "about 3 minutes at" in until(
        run, Speed(1000.0, "measured")
    )
    assert said["epochs"] == "reads each source about 2 times" and "never down" in said["rate"]
    assert "it ends after 160.0 k tokens, when its data have been read 2 times" in purpose_sentence(run)
    assert ends_early(run).endswith(
        "its learning rate never comes down; give more data or epochs, or write total_rounds = 20"
    )
    assert run.inner.warmup_steps == 10, "the warm-up is a twentieth of what is trained"


def test_tokens_that_the_loss_does_not_count_take_time_too(tmp_path: Path) -> None:
    """In these chats the loss counts a quarter of what is computed."""
    chats, text = a_run("total_rounds = 30\n" + CHATS), a_run("total_rounds = 30\n[data]\nsequence_length = 256\n")
    assert chats.counted_per_round == text.counted_per_round / 4
    keep_pace(tmp_path, 1000.0, chats.parameters, "`peer bench`")
    assert "at 250 tokens/s" in until(chats, speed_here(chats, tmp_path))
    assert until(chats).partition("about")[2] == until(text).partition("about")[2], "the rows are computed as a whole"
    seconds = []
    for run in (chats, text):
        speed = speed_here(run, tmp_path)
        assert speed is not None
        seconds.append(run_s(run, 30 * run.counted_per_round, speed.tokens_per_s))
    assert seconds[0] == pytest.approx(seconds[1])


def test_weights_of_a_folder_are_trained_gently_and_our_own_source_is_warned_of() -> None:
    manifest = a_run(tunes=True)
    assert manifest.inner.lr == TUNING_RATE == 1e-5 and manifest.inner.warmup_steps > 0
    assert manifest.total_rounds == TUNING_ROUNDS and manifest.total_tokens is None
    assert "the weights of a folder" in dict(purpose_lines(manifest))["trains"]
    assert 'add [data] with from = "FOLDER-OR-FILE"' in unusual_data(manifest)
    assert not unusual_data(a_run())


def a_status(**fields: object) -> PeerStatus:
    said = {"phase": "computing", "why_idle": "", "why_detail": "", "version": "1", "role": "trainer", "run_name": "r"}
    return PeerStatus.from_fields({"peer": ME, "name": "n", "run": "r", **said, "pid": 1, "uptime_s": 1.0, **fields})


def test_a_status_says_how_far_the_run_is() -> None:
    goal = {"goal_unit": "rounds", "goal_total": 100, "goal_done": 41}
    assert goal_line(a_status(**goal)) == "41 of 100 rounds (41 %)"
    assert "about 2 hours to go" in goal_line(a_status(**goal, goal_left_s=7300.0))
    assert "the run has ended" in goal_line(a_status(**{**goal, "goal_done": 100}, run_ended=True))
    tokens = {"goal_unit": "tokens", "goal_total": 2_000_000, "goal_done": 500_000}
    assert goal_line(a_status(**tokens)) == "500.0 k of 2.0 M tokens (25 %)"
    assert goal_line(a_status()) == "not known yet"
    read = {**goal, "goal_total": 3000, "data_total": 160_000, "run_tokens": 40_000}
    assert goal_line(a_status(**read)) == (
        "40.0 k of 160.0 k tokens (25 %), when its data have been read as often as data.epochs says"
    )
