"""Each panel at odd sizes, without anything known, and with names that strangers chose to move the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.text import Text

from peer.control.client import Stamped
from peer.formatting import columns
from protocol.events import events as ev
from protocol.events.status import GpuStatus, RolloutStatus, RunMixture
from tests.hostile_texts import EACH_HOSTILE, HARMFUL
from tests.protocol.example_status import COMPUTER, FACTS, GIVEN, ME, NEIGHBOUR, OTHER, status
from tui.app import PANELS
from tui.contributions import Contributions
from tui.panels import header, me, rollouts, round, run, samples, swarm, training, transfers
from tui.panels.drawing import Look
from tui.picture import Picture
from tui.widgets import Draw

EVIL = "\x1b[2J\x1b[31mred\u202e[bold]right[/bold]\n\n\t宽宽宽宽"


def evil(text: str = EVIL, others: int = 50) -> Picture:
    """A peer among others that call themselves what a terminal obeys, and events with such texts."""
    picture, long = Picture(), (text * 99)[: 1 << 20]
    said = replace(NEIGHBOUR, name=text, role=text, phase=text, link=text, team=text)
    swarm = [replace(said, peer=f"{OTHER[:-3]}{number:03}") for number in range(others)]
    mixtures = [RunMixture(from_tokens=each, shares={text: 0.5, f"{text}{each}": 0.5}) for each in range(9)]
    facts = replace(FACTS, description=long, url=text, licence=text, requires=long, family=text, rows=text, environment=text)
    picture.update(
        status(
            swarm=swarm,
            why_detail=text,
            run_name=text,
            version=text,
            addresses=[text],
            run_definition=replace(facts, mixtures=mixtures),
            rate_phase=text,
            learning_rate=float("nan"),
            invitation=text,
            organiser=text,
            goal_unit=text,
            goal_total=9,
            goal_left_s=1e12,
            computer=replace(COMPUTER, processor=long, gpus=[GpuStatus(name=long, watts=float("inf"))] * 20),
            contribution=GIVEN,
            next_rest=long,
            limits={text: text, "max_up": long},
        )
    )
    for number, event in enumerate(
        (
            ev.PeerJoined(OTHER, text, text),
            ev.PeerEjected(OTHER, text, text),
            ev.Notice("warning", text),
            ev.EvalLoss(3, float("nan"), OTHER),
            ev.TransferProgress(text, 4, "aa", 3, 9, 900, "###..." + text, float("inf"), 2, float("nan")),
            ev.TransferEnded(text, 4, "bb", 900, float("inf"), True),
            ev.RoundCommitted(1, "aa" * 32, [OTHER], 1, float("inf"), True),
            ev.RoundCommitted(2, "aa" * 32, [OTHER], 1, 2.0, False),
            ev.RoundCommitted(3, "aa" * 32, [OTHER], 1, 3.0, False),
            ev.ExchangeProgress(4, 1, 9, [OTHER, text]),
            ev.RolloutsGenerated(3, 1, "aa", 4, 90, 900, float("nan")),
            ev.BatchJudged(OTHER, 3, 1, "bb", text, 0, 4, 0, [text]),
            ev.BatchDecided(text, 3, 2, "cc", text, text, 4, True),
            ev.RolloutsCounted(3, float("nan"), 2, 90, {text: 90}, 0, ["aa"]),
            ev.RolloutsCounted(4, 0.5, 2, 90, {OTHER: 90}, 0, ["aa"]),
            ev.RolloutPeerSetAside(OTHER, text),
            ev.ValidatorSetAside(text, text),
            ev.RolloutsUsed(3, ["aa"], 4, 0.5, "r", None, [{"reward": 1e9, "prompt": long, "text": long}] * 2),
            ev.SamplesWritten(3, text, {text: "old", "a": text}),
            ev.SamplesWritten(4, text, {f"{text}{each}": long for each in range(9)}),
        )
    ):
        picture.apply(Stamped(float(number), float(number), event))
    return picture


def test_the_panels_show_where_blocks_came_from_and_how_preferences_go() -> None:
    picture = Picture()
    picture.update(status(block_bytes={"peer": 12_000_000, "seed": 0, "mirror": 5_000, "disk": 0}))
    picture.apply(Stamped(0.0, 0.0, ev.ReadySent(3, 900, 5, 0.5, 0.25, 0.8)))
    shown = [row.plain.rstrip() for row in transfers.draw(picture, 78, 12, Look())]
    assert "Data read: 12.0 MB from peers, 5.0 kB from mirrors" in shown
    learned = [row.plain.rstrip() for row in training.draw(picture, 78, 12, Look())]
    assert "margin 0.250, 80 % of the preferences right" in learned
    picture.update(status())
    assert not any("Blocks" in row.plain for row in transfers.draw(picture, 78, 12, Look())), "a run without corpora"


def sampled(*rounds: int) -> Picture:
    """A run with two prompts, of which some states are known."""
    picture = Picture()
    picture.update(status(run_definition=replace(FACTS, prompts=["Once", "def "])))
    for each in rounds:
        texts = {"Once": f" upon {each} " + "word " * 40, "def ": f"f{each}() -> None:↵    pass"}
        picture.apply(Stamped(float(each), float(each), ev.SamplesWritten(each, OTHER, texts)))
    return picture


def test_each_prompt_has_its_newest_completion_and_earlier_ones_down_to_the_oldest() -> None:
    rows = [row.plain.rstrip() for row in samples.draw(sampled(*range(1, 40)), 60, 21, Look())]
    assert rows[0] == "written by the model after 39 rounds, as kitchen (…UVWXYZ) says"[:60] and len(rows) == 21
    once, other = rows.index("Once"), rows.index("def")
    assert rows[once + 1].startswith("upon 39 word word") and rows[other + 1] == "f39() -> None:↵    pass"
    assert [row for row in rows if row.startswith("after")] == [
        *(row for row in rows[once:other] if row.startswith("after")),
        *(row for row in rows[other:] if row.startswith("after")),
    ]
    assert rows[other - 1].startswith("after 1 ") and rows[-1] == "after 1       f1() -> None:↵    pass"
    assert rows[once + 5].startswith("after 38 ") and rows[other + 2].startswith("after 38 ")


def test_the_best_and_a_typical_answer_stand_above_the_samples() -> None:
    picture = sampled(4)
    answers = [{"reward": 1.0, "prompt": "2 + 2 =", "text": "4"}, {"reward": 0.5, "prompt": "sort ba", "text": "ba"}]
    picture.apply(Stamped(5.0, 5.0, ev.RolloutsUsed(3, ["aa"], 8, 0.6, "r", None, answers)))
    rows = [row.plain.rstrip() for row in samples.draw(picture, 70, 22, Look())]
    assert rows[:6] == [
        "the best answer of round 3, reward 1.00",
        "2 + 2 =",
        "4",
        "a typical answer of round 3, reward 0.50",
        "sort ba",
        "ba",
    ]
    assert rows[6].startswith("written by the model after 4 rounds") and "Once" in rows
    alone = Picture()
    alone.apply(Stamped(5.0, 5.0, ev.RolloutsUsed(3, ["aa"], 8, 0.6, "r", None, answers)))
    assert alone.has_samples and len(samples.draw(alone, 70, 22, Look())) == 6, "a run without prompts"


def test_before_the_first_evaluation_the_prompts_are_shown_and_runs_without_prompts_have_no_samples() -> None:
    rows = [row.plain.rstrip() for row in samples.draw(sampled(), 70, 12, Look())]
    assert rows == ["no sample yet; the first ones come with the first evaluation", "Once", "def"]
    assert sampled().has_samples and not Picture().has_samples
    told = training.draw(sampled(), 70, 12, Look())[0].plain
    assert told.endswith("9 samples") and "9 samples" not in training.draw(sampled(), 70, 12, Look(alone=True))[0].plain


def test_blocks_that_come_are_named_in_transfers_and_in_the_reason_of_a_wait() -> None:
    picture = Picture()
    wait = "waiting for block 7 of web, from attic (50 % of this round's blocks are here)"
    picture.update(status(phase="computing", why_idle="fetching data", why_detail=wait))
    picture.apply(Stamped(0.0, 0.0, ev.TransferProgress("blocks", 2, "aa", 3, 9, 900, "###......", 1000.0, 2, 6.0)))
    assert any("blocks of shard 3 of the corpus" in row.plain for row in transfers.draw(picture, 98, 12, Look()))
    assert any(wait in row.plain for row in round.draw(picture, 118, 12, Look()))


def streamed(**fields: object) -> Picture:
    """A peer of a run with fragments that has contributed to round 12."""
    picture = Picture()
    stage = {"phase": "exchanging", "why_detail": "with 2 others", "steps": 20, "fragment": 0, "fragments": 4}
    picture.update(status(**{**stage, **fields}))
    return picture


def test_an_exchange_whose_chunks_are_all_here_says_what_the_peer_waits_for() -> None:
    why = "all parts are averaged here; waiting for the others, and for the record proposal"
    picture = streamed(why_idle="committing", why_detail=why)
    picture.apply(Stamped(0.0, 0.0, ev.ExchangeProgress(12, 7, 8, [OTHER])))
    assert "7/8 chunks" in header.draw(picture, "", 140, True)[1].plain
    picture.apply(Stamped(1.0, 1.0, ev.ExchangeProgress(12, 8, 8, [])))
    assert header.draw(picture, "", 140, True)[1].plain.startswith(f"EXCHANGING {why}")
    assert round.draw(picture, 140, 12, Look())[0].plain.startswith(f"round 12, fragment 1 of 4: exchanging: {why}")


def lived(picture: Picture, *events: tuple[float, ev.Event]) -> None:
    """The events happen at these times."""
    for at, event in events:
        picture.apply(Stamped(at, at, event))


def test_a_round_is_drawn_as_parts_in_tenths_of_seconds_and_the_running_one_up_to_now() -> None:
    picture = Picture()
    picture.update(status())
    lived(
        picture,
        (10.0, ev.PhaseChanged("computing", "", "")),
        (30.25, ev.PhaseChanged("ready", "waiting for members", "")),
        (31.0, ev.PhaseChanged("exchanging", "exchanging", "")),
        (39.0, ev.PhaseChanged("voting", "committing", "")),
        (39.75, ev.RoundCommitted(12, "aa" * 32, [ME, OTHER], 9, 2.0, True)),
        (39.75, ev.PhaseChanged("applying", "committing", "")),
        (40.0, ev.PhaseChanged("computing", "", "")),
    )
    picture.update(status(round=13, mono=50.0, busy_share=0.625, run_tokens_per_s=2624.0))
    drawn = round.draw(picture, 78, 12, Look(unicode=False))
    rows = [row.plain.rstrip() for row in drawn]
    told = " ".join(rows[-5:-3])
    assert told == (
        "times in seconds, this peer trained 62 % of the last hour, the 2 members trained 50 % of the last round"
    )
    assert rows[-3].split() == "ROUND # TRAIN . WAIT = EXCHANGE + VOTES - COMMIT BUSY".split()
    assert rows[-2].split() == ["13", "10.0", "-", "-", "-", "-", "running", "######"]
    assert rows[-1].split() == ["12", "20.2", "0.8", "8.0", "0.8", "0.2", "68", "%", "############.====+"]
    assert all(columns(row) <= 78 for row in rows)


def test_a_view_that_opens_late_in_a_round_does_not_call_the_peer_idle_in_it() -> None:
    picture = Picture()
    picture.update(status())
    committed = ev.RoundCommitted(12, "aa" * 32, [ME, OTHER], 9, 2.0, True)
    applied = ev.PhaseChanged("applying", "committing", "")
    lived(picture, (39.75, committed), (39.75, applied), (40.0, ev.PhaseChanged("computing", "", "")))
    rows = [row.plain.split() for row in round.draw(picture, 78, 12, Look(unicode=False))]
    assert ["12", "-", "-", "-", "-", "0.2", "-"] in [row[:7] for row in rows]


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"run_tokens_per_s": 2624.0}, 0.5),
        ({"run_tokens_per_s": 9999.0}, 1.0),
        ({"run_tokens_per_s": None}, None),
        ({"run_tokens_per_s": 2624.0, "members": [ME, "unknown"]}, None),
        ({"run_tokens_per_s": 2624.0, "tokens_per_s": 0.0}, None),
    ],
)
def test_the_swarm_computes_as_much_as_its_members_speeds_say(changes: dict[str, object], share: float | None) -> None:
    assert round.swarm_busy(status(**changes)) == share


@pytest.mark.parametrize("draw", [draw for _, _, draw in PANELS], ids=[title.lower() for _, title, _ in PANELS])
@pytest.mark.parametrize("width, height", [(78, 5), (40, 3), (1, 1), (0, 0), (198, 50)])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_panel_keeps_to_its_room_whatever_strangers_say(draw: Draw, width: int, height: int, unicode: bool) -> None:
    for picture in (evil(), Picture()):
        lines = draw(picture, width, height, Look(unicode=unicode))
        for line in lines[:height]:
            assert columns(line.plain) <= max(width, 0) or width < 40
            assert line.plain.isprintable() or not line.plain


@pytest.mark.slow
@pytest.mark.parametrize("text", EACH_HOSTILE)
def test_a_hostile_text_is_harmless_in_every_panel(text: str) -> None:
    picture = evil(text, others=2)
    for lines in (
        header.draw(picture, text, 118, True),
        *(draw(picture, 118, 30, Look(alone=True)) for _, _, draw in PANELS),
    ):
        for line in lines:
            assert columns(line.plain) <= 118 and not HARMFUL.search(line.plain), line.plain
            assert not {str(span.style) for span in line.spans} & {"red", "link", "@click"}, "markup is text"


@pytest.mark.parametrize("link", ["direct", "relayed"])
@pytest.mark.parametrize("width", [78, 118])
def test_the_swarm_shows_how_each_peer_is_connected(link: str, width: int) -> None:
    picture = Picture()
    picture.update(status(swarm=[replace(NEIGHBOUR, link=link), replace(NEIGHBOUR, liveness="gone", link="", heard_s=200)]))
    rows = [row.plain for row in swarm.draw(picture, width, 12, Look())]
    assert any(f"  {link}" in row for row in rows) and any("3 min ago" in row for row in rows)


def test_the_swarm_shows_no_half_of_a_number() -> None:
    picture = Picture()
    picture.update(status(swarm=[replace(NEIGHBOUR, tokens_per_s=837.0)]))
    for width in range(20, 80):
        head, *_, row = [row.plain for row in swarm.draw(picture, width, 12, Look())]
        assert ("TOK/S" in head) == ("  837" in row) == (width >= 58), "two panels side by side on 120 columns have 58"
        assert ("SHARE" in head) == (" %" in row)


def test_the_rollouts_are_counted_as_the_peer_counts_them() -> None:
    told = RolloutStatus(version=7, generated=300, accepted=80, rejected=1, used=174, accepted_tokens=12_700)
    picture = Picture()
    picture.apply(Stamped(0.0, 0.0, ev.RolloutsCounted(6, 0.5, 2, 90, {OTHER: 90}, 0, ["aa"])))
    parts = {
        "rollout": "300 batches made at 0 tokens/s, 12.7 k tokens learned from",
        "trainer": "174 batches",
        "validator": "81 batches",
    }
    for role, part in parts.items():
        picture.update(status(role=role, rollouts=told))
        assert part in rollouts.draw(picture, 118, 12, Look())[0].plain, "the view has seen one event"


def test_who_commits_no_rounds_sees_the_curve_of_the_held_out_loss() -> None:
    picture = Picture()
    picture.update(status(role="rollout"))
    picture.apply(Stamped(0.0, 0.0, ev.EvalLoss(3, 2.5, OTHER)))
    assert "the curve starts with the second held-out loss" in training.draw(picture, 58, 9, Look())[-1].plain
    picture.apply(Stamped(1.0, 1.0, ev.EvalLoss(6, 2.25, OTHER)))
    drawn = [row.plain for row in training.draw(picture, 58, 9, Look())]
    assert drawn[2].startswith("loss in nats a token, by time, the whole run"), "it knows no tokens"
    assert drawn[3].startswith("    2.5 ┤⠉") and drawn[-1].split() == ["00:00:00", "00:00:01"]
    trainer = Picture()
    trainer.update(status())
    assert "the curve starts with the second round" in training.draw(trainer, 58, 9, Look())[-1].plain


@pytest.mark.parametrize("stopped", ["", EVIL])
def test_the_head_keeps_to_its_room(stopped: str) -> None:
    for width in (30, 78, 198):
        for picture in (evil(), Picture()):
            for line in header.draw(picture, stopped, width, True):
                assert columns(line.plain) <= width and (line.plain.isprintable() or not line.plain)


def test_a_peer_that_was_paused_in_an_exchange_says_why_it_does_nothing() -> None:
    picture = Picture()
    picture.update(status(phase="paused", why_idle="paused", why_detail="paused by you"))
    picture.apply(Stamped(0.0, 0.0, ev.ExchangeProgress(12, 5, 5, [])))
    remedy = "`peer resume`, or `p` in the interface"
    assert header.draw(picture, "", 78, True)[1].plain == f"{'PAUSED paused by you':<{78 - len(remedy)}}{remedy}"
    below = [row.plain.rstrip() for row in header.draw(picture, "", 50, True)[1:]]
    assert below == ["PAUSED paused by you", f"to do: {remedy}"], "below it, where there is no room beside it"


def of_run(**changes: object) -> Picture:
    picture = Picture()
    goal = {"goal_unit": "tokens", "goal_total": 10**9, "goal_done": 25 * 10**7}
    picture.update(status(**{**goal, "run_definition": FACTS, **changes}))
    return picture


def test_a_later_mixture_is_the_present_one_once_its_tokens_are_read() -> None:
    rows = [row.plain.split() for row in run.draw(of_run(run_tokens=10**9), 78, 20, Look(unicode=False))]
    assert ["SOURCE", "SHARE"] in rows and ["notes", "80.0", "%", "################...."] in rows
    assert not any("books" in row for row in rows)


def test_the_run_says_how_often_its_data_is_read_and_that_too_often_teaches_nothing() -> None:
    often = of_run(
        run_definition=replace(FACTS, times_read={"notes": 196.2, "books": 3.0}), goal_unit="rounds", goal_total=9
    )
    rows = " ".join(row.plain.strip() for row in run.draw(often, 160, 20, Look()))
    assert (
        "reads notes about 196 times, books about 3 times with one member, and more often with more; above 4 times" in rows
    )
    once = of_run(run_definition=replace(FACTS, times_read={"notes": 1.0}), goal_unit="tokens", goal_total=9)
    rows = " ".join(row.plain.strip() for row in run.draw(once, 160, 20, Look()))
    assert "reads each source about once" in rows and "by heart" not in rows


def test_the_peak_of_the_rate_is_that_of_rollouts_once_they_are_learned_from() -> None:
    facts = replace(FACTS, environment="add", warm_rounds=3, peak_rate=1e-5, rollout_rate=3e-4)
    for number, peak in ((2, "1e-05"), (3, "0.0003")):
        rows = [
            row.plain for row in run.draw(of_run(run_definition=facts, round=number, learning_rate=1e-6), 78, 20, Look())
        ]
        assert any(row.startswith("rate") and f"(peak {peak})" in row for row in rows)


def test_an_adapter_is_not_shown_as_a_model_of_its_size() -> None:
    facts = replace(FACTS, family="Qwen3", parameters=87_293_952, frozen=8_190_726_144, layers=36, dim=4096)
    told = " ".join(row.plain.strip() for row in run.draw(of_run(run_definition=facts), 78, 20, Look()))
    assert "Qwen3, adapter of 87.3 M values on 8.2 G parameters (36 layers of 4096)" in " ".join(told.split())


def test_a_run_without_words_or_facts_shows_what_is_known() -> None:
    early = Picture()
    early.update(status(run_name="", goal_total=0))
    assert [row.plain.rstrip() for row in run.draw(early, 78, 9, Look())] == [
        "a run whose manifest is being fetched",
        "goal        not known yet",
        "invitation  -",
    ]
    told = [row.plain.rstrip() for row in run.draw(of_run(invite_command="peer run invite"), 78, 20, Look())]
    assert "invitation  the run admits by token; i copies the command that makes one" in told


def hours_of_training() -> Picture:
    """A day and a half of rounds of ten minutes, with held-out losses of two sources each hour."""
    picture = Picture()
    picture.update(status())
    for number in range(220):
        at = number * 600.0
        committed = ev.RoundCommitted(number, "aa", [OTHER], 1, 4.0 - number / 100, True, run_tokens=1000 * (number + 1))
        picture.apply(Stamped(at, at, committed))
        if number % 6 == 5:
            losses = {"code": 3.0 - number / 200, EVIL: 4.0 - number / 200}
            picture.apply(Stamped(at + 1, at + 1, ev.EvalLoss(number + 1, 3.5 - number / 200, OTHER, losses)))
    return picture


@pytest.mark.parametrize(
    ("zoom", "unit", "caption", "ticks"),
    [
        (
            0,
            0,
            "loss in nats a token, by tokens read, the whole run; sources: held out",
            ["50.0 k", "100.0 k", "150.0 k", "200.0 k"],
        ),
        (
            1,
            1,
            "loss in nats a token, by time, the last day; sources: held out",
            ["16:00", "20:00", "00:00", "04:00", "08:00", "12:00"],
        ),
        (
            2,
            0,
            "loss in nats a token, by tokens read, the last hour; sources: held out",
            [f"{thousands}.0 k" for thousands in range(214, 221)],
        ),
    ],
)
def test_curves_have_units_a_legend_and_a_zoom(zoom: int, unit: int, caption: str, ticks: list[str]) -> None:
    rows = [row.plain.rstrip() for row in training.draw(hours_of_training(), 98, 20, Look(zoom=zoom, unit=unit))]
    assert rows[2].startswith(caption) and rows[2].endswith(f"z zoom  u {'time' if unit == 0 else 'tokens'}")
    assert rows[-1].replace(" k", "_k").split() == [tick.replace(" ", "_") for tick in ticks]
    ends = [row for row in rows if row.endswith(("training", "held out", "code")) or row.endswith("[31mred[bol")]
    assert len(ends) == 4, "each line has its name at its end"


@pytest.mark.parametrize(("search", "found"), [("KITCH", 3), ("night", 2), (OTHER[-4:], 1), ("hut", 0)])
def test_peers_are_found_by_a_part_of_their_name_id_or_team(search: str, found: int) -> None:
    teams = ("Night owls", "Night owls", "bees")
    swarmed = [replace(NEIGHBOUR, peer=f"{OTHER[:-4]}{end}", team=team) for end, team in zip(range(3), teams, strict=True)]
    picture = Picture()
    picture.update(status(swarm=[replace(swarmed[0], peer=OTHER), *swarmed[1:]]))
    rows = [row.plain for row in swarm.draw(picture, 98, 12, Look(search=search))]
    assert sum("kitchen" in row for row in rows) == found


def test_the_details_of_a_peer_say_how_far_how_fast_and_how_much() -> None:
    near = replace(
        NEIGHBOUR,
        link="direct",
        reach="home network",
        round_trip_s=0.0031,
        line_up_bytes_per_s=5e6,
        line_down_bytes_per_s=2e7,
        known_s=7500.0,
        team="bees",
        counted_tokens_per_s=310.4,
    )
    picture = Picture()
    picture.update(status(swarm=[replace(near, up_bytes=1000, down_bytes=0)]))
    picture.update(status(swarm=[replace(near, up_bytes=25_000, down_bytes=4_000)], uptime_s=7502.0))
    ranked = {"members": [_member(ME, 9), _member(OTHER, 3)], "untold": 0}
    picture.contributions = Contributions.from_fields(ranked)
    for number, event in enumerate(
        (ev.AuditDone(3, 2, 2, {OTHER: 2}), ev.AuditDone(4, 1, 1, {OTHER: 1}), ev.MemberLost(5, OTHER))
    ):
        picture.apply(Stamped(0.0, float(number), event))
    look = Look(alone=True, chosen=OTHER)
    rows = [row.plain.rstrip() for row in swarm.draw(picture, 98, 18, look)]
    assert rows[-8:] == [
        f"peer      kitchen  {OTHER}",
        "work      trainer, ready, claims 2.0 k tokens/s, counted 310; after 12 rounds, step 20 of the next",
        "counted   3 rounds, 300 tokens (25.0 %); place 2 of 2; team bees",
        "audits    3 averages recomputed here, all correct; stopped delivering in 1 exchange",
        "link      direct, home network, 3.1 ms; 12.0 kB/s to it, 2.0 kB/s from it",
        "its line  5.0 MB/s up, 20.0 MB/s down, by its own measurements",
        "seen      alive, heard 1 s ago; known for 2 h 5 min; version 0.1",
        "address   -",
    ]
    told = replace(near, audits=2, audited_tokens=6200, set_aside="its receipts are wrong", aside_until=40)
    picture.update(status(swarm=[told]))
    rows = [row.plain.rstrip() for row in swarm.draw(picture, 98, 18, look)]
    assert "counted   3 rounds, 300 tokens (25.0 %), none credited here; place 2 of 2; team bees" in rows
    assert "audits    ! set aside until round 40: its receipts are wrong; 2 contributions of 6.2 k tokens" in rows
    picture.apply(Stamped(0.0, 9.0, ev.PeerEjected(OTHER, "signed a wrong average", "ab")))
    rows = [row.plain.rstrip() for row in swarm.draw(picture, 98, 18, look)]
    assert rows[-5] == "audits    ! ejected: signed a wrong average"


def _member(peer: str, rounds: int) -> dict[str, object]:
    return {"peer": peer, "share": rounds / 12, "rounds": rounds, "tokens": 100 * rounds, "batches": 0, "accepted_tokens": 0}


def test_the_swarm_by_distance_has_a_heading_for_each_group() -> None:
    trips = {"far": 0.14, "near": 0.012, "nearer": 0.011, "unknown": None}
    others = [replace(NEIGHBOUR, name=name, peer=name, reach="internet", round_trip_s=trip) for name, trip in trips.items()]
    others += [replace(NEIGHBOUR, name="beside", peer="beside", reach="this computer", round_trip_s=0.00004)]
    picture = Picture()
    picture.update(status(swarm=others))
    order = [order.name for order in swarm.ORDERS].index(swarm.DISTANCE)
    rows = [row.plain.rstrip() for row in swarm.draw(picture, 118, 24, Look(alone=True, order=order))]
    assert [row.split("  ")[0].split(" …")[0] for row in rows[1:11]] == [
        "attic (me)",
        "this computer: 1 peer",
        "beside",
        "nearer than 50 ms: 2 peers",
        "nearer",
        "near",
        "farther: 1 peer",
        "far",
        "without a measured connection: 1 peer",
        "unknown",
    ]


def test_down_goes_from_peer_to_peer_over_the_headings() -> None:
    picture, look = Picture(), Look(alone=True, order=len(swarm.ORDERS) - 1)
    picture.update(status(swarm=[NEIGHBOUR]))
    swarm.draw(picture, 98, 18, look)
    look.moved = 1
    swarm.draw(picture, 98, 18, look)
    assert look.chosen == OTHER


@pytest.mark.parametrize("given", [{}, {"members": 3}, {"members": [3], "untold": 0}, {"members": [], "untold": "x"}])
def test_what_is_no_ledger_is_a_value_error(given: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Contributions.from_fields(given)


@pytest.mark.parametrize(("unit", "unicode", "mark"), [(0, True, "◀"), (1, True, "◀"), (0, False, "<")])
def test_a_step_back_is_said_above_the_curves_and_marked_below_them(unit: int, unicode: bool, mark: str) -> None:
    picture = hours_of_training()
    rounds, at = picture.curves.training.points[-1].rounds, picture.curves.training.points[-1].at
    look = Look(unit=unit, unicode=unicode)
    assert not any("went back" in row.plain for row in training.draw(picture, 98, 20, look))
    picture.apply(Stamped(at, at, ev.RolledBack(rounds - 3, 3, OTHER)))
    picture.apply(Stamped(at + 60, at + 60, ev.RoundCommitted(rounds - 3, "aa", [ME], 100, 2.0, True)))
    rows = [row.plain.rstrip() for row in training.draw(picture, 98, 20, look)]
    assert rows[3].startswith(f"{mark} went back 3 rounds, to round {rounds - 3}, on ") and len(rows) <= 20
    assert mark in rows[-2] and not any(mark in row for row in rows[4:-2]), "on the axis"
    assert all(columns(row) <= 98 for row in rows)


def test_provisional_rounds_are_named_in_the_head_and_in_the_round() -> None:
    picture = Picture()
    picture.update(status(round=104, final_rounds=101, provisional_rounds=3, electors=[ME], unconfirmed_by=[OTHER]))
    assert "round 104 · 3 provisional" in header.draw(picture, "", 98, True)[0].plain
    said = [row.plain for row in round.draw(picture, 98, 12, Look())]
    assert any(
        "104 rounds, the last 3 provisional: " in row and row.rstrip().endswith("has not confirmed them yet") for row in said
    )
    picture.update(status(round=104, final_rounds=104, electors=[ME, NEIGHBOUR.peer]))
    assert "provisional" not in header.draw(picture, "", 98, True)[0].plain


def test_the_run_says_to_its_organiser_until_when_founders_vote_alone() -> None:
    alone = of_run(electors=[ME], founders_vote_until=203, organiser=ME)
    text = " ".join(row.plain.strip() for row in run.draw(alone, 78, 9, Look()))
    assert "you alone vote until round 203 or later: while this computer is cut off" in text.replace("  ", " ")
    assert "this peer and 1 other" in " ".join(row.plain for row in run.draw(of_run(electors=[ME, OTHER]), 78, 24, Look()))


def test_a_run_that_learns_from_rollouts_shows_rewards_first_and_no_loss_of_a_text() -> None:
    picture = Picture()
    picture.update(status(round=5, rollouts=RolloutStatus(), run_definition=replace(FACTS, environment="add")))
    picture.apply(Stamped(0.0, 0.0, ev.EvalLoss(3, 19.5, OTHER)))
    for number in range(3):
        counted = ev.RolloutsCounted(number, number / 4, 2, 160, {OTHER: 9}, 0, [], 16)
        picture.apply(Stamped(float(number), float(number), counted))
    rows = [row.plain for row in training.draw(picture, 98, 12, Look())]
    assert rows[0].startswith("reward 0.500   training loss") and rows[1].startswith("mean reward by round")
    assert not any("held out" in row or "19" in row for row in rows)
    picture.update(status(round=5, run_definition=replace(FACTS, environment="add", warm_rounds=9)))
    assert "held-out loss 19.5" in training.draw(picture, 98, 12, Look())[1].plain, "warm rounds train on text"


def test_rounds_that_teach_nothing_are_an_alarm_in_the_panel_of_rollouts() -> None:
    picture = Picture()
    picture.update(status(rollouts=RolloutStatus()))
    for number in range(3):
        picture.apply(Stamped(0.0, 0.0, ev.RolloutsUsed(number, [], 96, 0.0, "aa", informative=0)))
    told = "! nothing learned in 3 rounds: all answers to each problem had the same reward"
    assert told in [row.plain.rstrip() for row in rollouts.draw(picture, 98, 12, Look())]
    picture.apply(Stamped(0.0, 0.0, ev.NothingLearned(2, 3, 0.0, "3 + 4?", "It is 7.", "7")))
    assert picture.alarms[-1].text.startswith("nothing is learned")
    picture.apply(Stamped(0.0, 0.0, ev.RolloutsUsed(3, [], 96, 0.1, "aa", informative=2)))
    assert not any("nothing learned" in row.plain for row in rollouts.draw(picture, 98, 12, Look()))


def test_the_panel_of_rollouts_shows_how_far_the_policy_is_from_the_one_that_made_the_tokens() -> None:
    picture = Picture()
    figures: dict[str, Any] = {"behaviour_kl": 0.0125, "truncated": 0.015, "effective": 0.934}
    used = ev.RolloutsUsed(3, ["aa"], 96, 0.1, "aa", entropy=0.25, left_out=2, **figures)
    picture.update(status(rollouts=RolloutStatus(left_out=2)))
    picture.apply(Stamped(0.0, 0.0, used))
    picture.apply(Stamped(0.0, 0.0, replace(used, round=4, entropy=None, behaviour_kl=None)))
    shown = " ".join(row.plain.strip() for row in rollouts.draw(picture, 98, 12, Look()))
    told = "entropy 0.250; 0.013 nats from the one that made the tokens, 1.5 % truncated, effective 93 %; 2 batches left out"
    assert told in shown
    assert "0.013 nats from the policy that made them; 2 batches left out" in used.sentence()


LONG = "a reason that is told to its end, " * 4 + "END"


@pytest.mark.parametrize("width", [58, 78, 118])
def test_no_panel_cuts_a_line_whose_end_has_the_remedy(width: int) -> None:
    picture = Picture()
    address = f"/ip4/192.0.2.1/tcp/4001/p2p/{OTHER}"
    picture.update(
        status(
            why_idle="disk full",
            why_detail=LONG,
            phase="paused",
            addresses=[address] * 3,
            swarm=[replace(NEIGHBOUR, addresses=[address, "/END"])],
            run_definition=replace(FACTS, requires=LONG),
            next_rest=LONG,
            computer=COMPUTER,
            rollouts=RolloutStatus(),
            role="trainer",
        )
    )
    picture.apply(Stamped(0.0, 0.0, ev.Notice("warning", LONG)))
    picture.apply(
        Stamped(0.0, 0.0, ev.BatchDecided(OTHER, 3, 2, "cc", "rejected", "a reason that is long enough, END", 4, True))
    )
    whole = Look(alone=True, chosen=OTHER)

    def text(rows: list[Text]) -> str:
        assert all(columns(row.plain) <= width for row in rows)
        return " ".join(" ".join(row.plain for row in rows).split())

    heads = header.draw(picture, "", width, True)
    assert "END" in text(heads) and "or raise `max_disk`" in text(heads)
    assert "the disk END" in text(header.draw(picture, f"{LONG[:100]} the disk END", width, True))
    for key, _, draw in PANELS:
        if key in "56723":
            assert "END" in text(draw(picture, width, 40, replace(whole))), key
    assert "long enough, END" in text(rollouts.draw(picture, width, 40, replace(whole)))


def test_a_remedy_that_is_nothing_takes_no_line_of_the_head() -> None:
    picture = Picture()
    picture.update(status(phase="ready", why_idle="waiting for members", why_detail=LONG[:70]))
    assert len(header.draw(picture, "", 78, True)) == 2


def test_a_peer_alone_is_not_compared_with_a_swarm_of_itself() -> None:
    picture = Picture()
    picture.update(status(swarm=[], members=[ME], busy_share=0.75, run_tokens_per_s=2624.0))
    picture.apply(Stamped(0.0, 0.0, ev.RoundCommitted(11, "aa", [ME], 1, 2.0, True)))
    said = [row.plain for _, _, draw in PANELS for row in draw(picture, 118, 30, Look())]
    assert not any("the 1 members" in row or "(all: " in row or "of all trainers" in row for row in said)
    picture.update(status(run_tokens_per_s=2624.0))
    said = [row.plain for _, _, draw in PANELS for row in draw(picture, 118, 30, Look())]
    assert any("of all trainers" in row for row in said)
    assert any("the 2 members trained" in row for row in said) and any("(all: " in row for row in said)


def test_two_losses_have_two_names() -> None:
    picture = Picture()
    picture.update(status(loss=2.5))
    picture.apply(Stamped(0.0, 0.0, ev.RoundCommitted(11, "aa", [ME], 1, 2.75, True)))
    assert "training loss 2.750, " in training.draw(picture, 78, 9, Look())[0].plain
    assert "loss now 2.500" in me.draw(picture, 78, 9, Look())[0].plain


@pytest.mark.parametrize(("device", "told"), [("cuda:0, bf16", True), ("cpu, fp32", False), ("cpu", False)])
def test_the_share_of_a_device_is_told_of_a_gpu_only(device: str, told: bool) -> None:
    picture = Picture()
    picture.update(status(device=device, mfu=0.34))
    text = " ".join(row.plain for row in me.draw(picture, 118, 30, Look()))
    assert ("34 % of the GPU's speed (MFU)" in text) == told and ("MFU" in text) == told
