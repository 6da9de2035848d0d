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
    run_definition,
    speed_here,
    until,
    unusual_data,
)
from peer.resources.pace import STEP_S, TYPICAL, keep_pace, round_s, run_s, typical_tokens_per_s
from protocol.events.status import PeerStatus
from protocol.formatting import roughly
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
        ('admission = "open"\n[rounds]\ntenure_rounds = 10\nseasoning_rounds = 1\n', "everybody", "until round 21 or later"),
        (f'admission = "open"\nfounders = ["{ANN}"]\n', "everybody", "the founder alone votes until round 203"),
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


def test_the_hours_are_at_a_speed_that_is_named() -> None:
    manifest = a_run("total_tokens = 7_200_000\n")
    assert "about 2 hours at 1.0 k tokens/s (measured)" in until(manifest, Speed(1000.0, "measured"))


def test_without_a_measurement_the_hours_of_some_computers_follow_from_their_arithmetic() -> None:
    small, large = (
        a_run(f"total_tokens = 200_000_000\n[model]\n{size}") for size in ("", "dim = 1024\nlayers = 24\nffn = 4096\n")
    )
    for manifest in (small, large):
        assert "tokens/s" not in until(manifest) and "on a laptop" in until(manifest) and "an H100 (" in until(manifest)
        assert "home lines" in until(manifest) and "`peer bench` measures" in until(manifest)
    assert " on a GPU with 12 GB or an H100 (" in until(small), "equal times are told once"
    assert until(large).count(" on a") == 3
    laptop, gpu, h100 = (run_s(large, 200_000_000, typical_tokens_per_s(large, each)) for each in TYPICAL)
    assert laptop > 10 * gpu and gpu > h100
    rounds = 200_000_000 / small.tokens_per_round
    for each in TYPICAL:
        least = rounds * (round_s(small) + STEP_S * small.rounds.inner_steps)
        assert run_s(small, 200_000_000, typical_tokens_per_s(small, each)) >= 0.999 * least, (
            "each step and round takes time"
        )


def test_a_speed_that_was_measured_here_counts_for_models_of_all_sizes(tmp_path: Path) -> None:
    manifest = a_run("total_tokens = 7_200_000\n")
    assert speed_here(manifest, tmp_path) is None
    keep_pace(tmp_path, 1000.0, 2 * manifest.parameters, "`peer bench`")
    speed = speed_here(manifest, tmp_path)
    assert speed is not None and speed.tokens_per_s == pytest.approx(2000.0)
    seconds = 3600 + 7_200_000 / manifest.tokens_per_round * round_s(manifest)
    told = until(manifest, speed)
    assert (
        f"about {roughly(seconds)} at 2.0 k tokens/s (measured on this computer on " in told and "by `peer bench`; " in told
    )


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


def test_a_run_whose_members_together_cannot_reach_the_end_of_its_data_does_not_mention_it() -> None:
    members = "[rounds]\ninner_steps = 10\nmax_members = {}\n"
    for most, is_told in ((4, False), (5, True)):
        said = dict(purpose_lines(a_run("total_rounds = 5\n" + BOOK + members.format(most))))
        assert ("or fewer with more members" in said["until"]) == ("at most 2 times with more" in said["epochs"]) == is_told
        assert is_told or said["epochs"].endswith("with one member, and more often with more")


def test_a_run_whose_total_comes_before_the_end_of_its_data_says_what_more_members_change() -> None:
    run = a_run("total_rounds = 15\n" + BOOK + ROUND)
    said = dict(purpose_lines(run))
    assert said["until"].startswith(
        "15 rounds (120.0 k tokens of each member), or fewer with more members, which together read 160.0 k tokens at most"
    )
    assert said["epochs"] == "reads each source about 1.5 times with one member, and at most 2 times with more"
    assert not ends_early(run) and not ends_early(a_run("total_tokens = 100_000\n" + BOOK + ROUND))
    tokens = a_run("total_tokens = 100_000\n" + BOOK + ROUND)
    assert dict(purpose_lines(tokens))["until"].startswith(
        "100.0 k tokens of all members together (13 rounds of one member)"
    )


def test_without_a_total_the_epochs_of_short_data_are_the_total() -> None:
    run = a_run(BOOK + ROUND)
    assert run.total_tokens == 160_000 and not ends_early(run)
    assert "when its data have been read 2 times (data.epochs), about" in dict(purpose_lines(run))["until"]
    once = a_run(BOOK.replace("epochs = 2", "epochs = 1") + ROUND)
    assert once.total_tokens == 80_000 and "at most once" in dict(purpose_lines(once))["reads"]
    long = a_run(BOOK.replace("rows = 800", "rows = 8_000_000") + ROUND)
    assert long.total_tokens is not None and long.total_tokens < 1_600_000_000


@pytest.mark.parametrize(("total", "epochs"), [(20, "less than 0.1 times"), (1280, "about 0.5 times"), (2560, "about once")])
def test_a_run_says_that_it_reads_a_part_of_its_data(total: int, epochs: str) -> None:
    run = a_run(f"total_tokens = {total}\n" + CHATS)
    assert dict(purpose_lines(run))["epochs"] == f"reads each source {epochs}"


@pytest.mark.parametrize(
    ("steps", "told"),
    [(0, "0.003, without warm-up, down"), (1, "0.003, after 1 step of warm-up, down"), (7, "after 7 steps")],
)
def test_the_rate_names_the_warm_up_if_there_is_one(steps: int, told: str) -> None:
    assert told in dict(purpose_lines(a_run(f"[inner]\nwarmup_steps = {steps}\n")))["rate"]


def test_tokens_are_those_that_the_loss_counts() -> None:
    said = dict(purpose_lines(a_run("total_tokens = 25_600\n" + CHATS)))
    assert "(about 2.6 k tokens in all)" in said["reads"]
    assert said["until"].startswith("25.6 k tokens of all members together (5 rounds of one member)")
    assert run_definition(a_run(CHATS)).data_tokens == 2560


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


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ('[rl]\nenvironment = "add"\n', "rollouts of add"),
        (
            f'[data]\ncorpora = [{FILE}]\nsources = [{{name = "examples", rows = 9}}]\n'
            '[rl]\nenvironment = "add"\nwarm_rounds = 3\n',
            "solved problems (about 4.6 k tokens in all) for 3 rounds, then",
        ),
    ],
)
def test_a_run_with_rollouts_says_so_and_promises_no_hours(text: str, reads: str) -> None:
    said = dict(purpose_lines(a_run(text)))
    assert reads in said["reads"] and "who makes rollouts" in said["until"] and "on rollouts" in said["rate"]


def test_weights_of_a_folder_are_trained_gently_and_our_own_source_is_warned_of() -> None:
    manifest = a_run(tunes=True)
    assert manifest.inner.lr == TUNING_RATE == 1e-5 and manifest.inner.warmup_steps > 0
    assert manifest.total_rounds == TUNING_ROUNDS and manifest.total_tokens is None
    assert "the weights of a folder" in dict(purpose_lines(manifest))["trains"]
    assert 'add [data] with from = "FOLDER-OR-FILE"' in unusual_data(manifest)
    assert not unusual_data(a_run())


def test_a_rate_that_the_file_says_stays() -> None:
    fields = derived({"name": "run", "organiser": ME, "inner": {"lr": 2e-4}, "total_tokens": 9}, tunes=True)
    manifest = RunManifest.model_validate(fields)
    assert manifest.inner.lr == 2e-4 and manifest.goal.total == 9


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
