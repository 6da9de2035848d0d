"""What is folded from events and status, and that it stays bounded."""

from __future__ import annotations

from peer.control.client import Stamped
from peer.control.curves import MOST_POINTS
from protocol.events import events as ev
from tests.protocol.example_status import ME, OTHER, status
from tui.picture import KEPT_LINES, KEPT_ROUNDS, Picture


def picture_of(*happened: tuple[float, ev.Event]) -> Picture:
    picture = Picture()
    for at, event in happened:
        picture.apply(Stamped(at, at, event))
    return picture


def test_a_round_says_how_long_each_part_took() -> None:
    picture = picture_of(
        (0.0, ev.PhaseChanged("computing", "", "")),
        (10.0, ev.PhaseChanged("ready", "waiting for members", "")),
        (12.0, ev.PhaseChanged("exchanging", "exchanging", "")),
        (15.0, ev.PhaseChanged("voting", "committing", "")),
        (16.0, ev.PhaseChanged("applying", "committing", "")),
        (18.0, ev.RoundCommitted(0, "aa" * 32, [ME, OTHER], 100, 2.0, True)),
        (19.0, ev.PhaseChanged("computing", "", "")),
        (24.0, ev.PhaseChanged("ready", "waiting for members", "")),
    )
    first, second = picture.rounds
    assert first.seconds == {"train": 10.0, "wait": 2.0, "exchange": 3.0, "votes": 1.0, "commit": 3.0}
    assert (first.members, first.mine, second.round, second.mine) == (2, True, 1, None)
    assert second.seconds == {"train": 5.0}


def test_steps_for_the_next_round_leave_the_current_one_as_it_is() -> None:
    ready, committed = ev.PhaseChanged("ready", "", "1 ready"), ev.RoundCommitted(0, "aa" * 32, [ME], 9, 2.0, True, {}, 0, 4)
    picture = picture_of(
        (0.0, ev.PhaseChanged("computing", "", "")),
        (1.0, ev.ComputeProgress(0, 1, 1, 2.0, 1.0, 0.0)),
        (2.0, ready),
        (3.0, ev.ComputeProgress(1, 1, 3, 2.0, 1.0, 0.0, ahead=True)),
        (5.0, ev.PhaseChanged("exchanging", "", "with 2 others")),
        (6.0, ev.PhaseChanged("exchanging", "exchanging", "with 2 others")),
        (8.0, ev.PhaseChanged("applying", "committing", "")),
        (9.0, committed),
        (9.0, ev.PhaseChanged("computing", "", "")),
        (10.0, ev.ComputeProgress(1, 2, 3, 2.0, 1.0, 0.0)),
        (11.0, ready),
    )
    first, second = picture.rounds
    assert first.seconds == {"train": 2.0, "wait": 3.0, "exchange": 3.0, "commit": 1.0, "trained ahead": 4.0}
    assert (first.members, first.fragment, first.fragments, second.round, second.mine) == (1, 0, 4, 1, None)


def test_rates_come_from_the_bytes_of_two_statuses() -> None:
    picture = Picture()
    picture.update(status(uptime_s=10.0, up_bytes=1000, down_bytes=0))
    picture.update(status(uptime_s=12.0, up_bytes=3000, down_bytes=500))
    picture.update(status(uptime_s=12.0, up_bytes=3000, down_bytes=500))
    assert list(picture.rates) == [(1000.0, 250.0)]
    picture.update(status(uptime_s=1.0, up_bytes=10, down_bytes=10))  # another life counts from nothing
    picture.update(status(uptime_s=2.0, up_bytes=20, down_bytes=10))
    assert list(picture.rates)[-1] == (10.0, 0.0)


def test_blobs_are_coming_until_they_end() -> None:
    told = ev.TransferProgress("checkpoint", 4, "aa", 3, 9, 900, "###......", 10.0, 2, 60.0)
    picture = picture_of((0.0, told))
    assert list(picture.coming) == ["aa"]
    picture.apply(Stamped(1.0, 1.0, ev.TransferEnded("checkpoint", 4, "aa", 900, 9.0, True)))
    assert not picture.coming and len(picture.ended) == 1


def test_months_of_watching_take_a_bounded_memory() -> None:
    picture = Picture()
    for number in range(KEPT_LINES + 10):
        picture.apply(Stamped(number, number, ev.RoundCommitted(number, "aa" * 32, [ME], 1, 2.0, True)))
    assert len(picture.lines) == KEPT_LINES
    assert len(picture.rounds) == KEPT_ROUNDS and len(picture.curves.training.points) <= MOST_POINTS
    assert picture.counted == picture.committed == picture.streak == KEPT_LINES + 10


def test_rounds_without_this_peer_end_its_streak() -> None:
    mine = [True, True, False, True]
    picture = picture_of(
        *((number, ev.RoundCommitted(number, "aa" * 32, [ME], 1, 2.0, each)) for number, each in enumerate(mine))
    )
    assert (picture.committed, picture.counted, picture.streak) == (4, 3, 1)


def test_the_log_tells_the_steps_within_a_round_only_on_request() -> None:
    picture = picture_of(
        (0.0, ev.PhaseChanged("paused", "paused", "paused by you")),
        (1.0, ev.PhaseChanged("computing", "", "")),
        (2.0, ev.RoundProposed(4, 0, OTHER, [ME, OTHER], [])),
        (3.0, ev.RoundProposed(4, 1, OTHER, [ME, OTHER], [])),
        (4.0, ev.StateApplied(5, "aa" * 32)),
        (5.0, ev.RoundCommitted(4, "aa" * 32, [ME], 1, 2.0, True)),
        (6.0, ev.MemberLost(4, OTHER)),
    )
    assert [line.level for line in picture.lines] == ["info", "debug", "debug", "info", "debug", "info", "warning"]


def test_rounds_that_are_given_up_leave_the_picture_and_a_person_has_to_see_that() -> None:
    made = [(float(round), ev.RoundCommitted(round, "aa" * 32, [ME], 100, 2.0, True)) for round in range(15)]
    picture = picture_of(
        *made,
        (19.0, ev.EvalLoss(13, 2.0, OTHER)),
        (20.0, ev.RolledBack(12, 3, OTHER)),
        (21.0, ev.PhaseChanged("computing", "", "")),
        (22.0, made[12][1]),
    )
    assert [each.round for each in picture.rounds] == list(range(13)), "round 12 was made anew"
    assert [point.rounds for point in picture.curves.training.points] == list(range(1, 14))
    assert not picture.evals, "of a state that is given up"
    (alarm,) = picture.alarms
    assert alarm.text.startswith("went back 3 rounds: the branch of ") and alarm.text.endswith("replace rounds 12 to 14")
    assert alarm.level == "warning" and alarm in picture.lines
