"""Recorded logs: what is read from them, whatever is in them, and moving in them by keys."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from textual.pilot import Pilot

from peer.commands.watch import recorded
from peer.control.client import Stamped
from peer.control.event_log import LOG_NAMES, to_line
from peer.errors import PeerError
from protocol.events import events as ev
from tests.hostile_texts import HARMFUL, every_event
from tests.tui.recording import read
from tests.tui.test_keys import with_textual
from tests.tui.test_snapshots import IN_EACH_SIZE_SLOWLY, NEWCOMER, Compare
from tui.app import PANELS
from tui.panels import header
from tui.panels.drawing import Look
from tui.player import LEAST_STEP, SPEEDS, EventFile, NoEvents, Player, ToldStatus
from tui.replay import LONG_STEP_S, STEP_S, ReplayView, draw_scrubber

ANN, BOB = "12D3KooWANN", "12D3KooWBOB"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The event log of a real newcomer."""
    events = [told for told in read(NEWCOMER) if isinstance(told, Stamped) and not isinstance(told.event, ev.PROGRESS)]
    path = tmp_path / LOG_NAMES[0]
    path.write_text("".join(to_line(stamped) + "\n" for stamped in events))
    return path


def made(path: Path, rounds: int) -> Path:
    """A log of a peer that commits a round every ten seconds."""
    events: list[ev.Event] = [
        ev.Started(ANN, "ann", "aa" * 32, "demo", "0.1.0", 7, [], "/home/ann"),
        ev.PeerJoined(BOB, "bob"),
    ]
    for round in range(rounds):
        events.append(ev.PhaseChanged("computing", "", ""))
        events.append(ev.RoundCommitted(round, "bb" * 32, [ANN, BOB], 100, 5.0 - round / rounds, True))
    path.write_text("".join(to_line(Stamped(1000.0 + 5 * at, 5.0 * at, event)) + "\n" for at, event in enumerate(events)))
    return path


def shown(player: Player) -> tuple[object, ...]:
    """What a viewer would see."""
    picture = player.picture
    return (
        player.position,
        picture.status,
        picture.curves.training.points.copy(),
        [line.text for line in picture.lines],
        list(picture.rounds),
    )


@pytest.mark.parametrize("text", ["", "\x1b]52;c;aGk=\x07", "a" + "\u0301" * 99])
@pytest.mark.parametrize(("whole", "number"), [(0, 0.0), (-1, -1e308), (1, 1e308), (2**63, float(2**63)), (2, -1.0)])
def test_a_log_that_no_peer_wrote_is_drawn(tmp_path: Path, text: str, whole: int, number: float) -> None:
    started = ev.Started(ANN, "ann", "aa" * 32, "demo", "0.1.0", 7, [], "/home/ann")
    told = [
        started,
        *every_event(text, BOB, 1, 1.0),
        *every_event(text, text, whole, number),
        *every_event(text, BOB, 2, 0.5),
    ]
    told += every_event(text, BOB, 2, 0.5)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(to_line(Stamped(1000.0 + at, float(at), event)) + "\n" for at, event in enumerate(told)))
    player = Player(EventFile([path]))
    player.seek(player.ends)
    for unit in (0, 1):
        drawn = [draw(player.picture, 118, 30, Look(alone=True, unit=unit)) for _, _, draw in PANELS]
        for line in (line for lines in (header.draw(player.picture, "", 118, True), *drawn) for line in lines):
            assert not HARMFUL.search(line.plain), line.plain


def test_the_status_is_what_the_events_tell(log: Path) -> None:
    player = Player(EventFile([log]))
    player.seek(player.ends)
    status = player.picture.status
    assert status is not None and status.name == "newcomer" and status.run_name == "demo" and status.role == "trainer"
    commits = [
        told.event for told in read(NEWCOMER) if isinstance(told, Stamped) and isinstance(told.event, ev.RoundCommitted)
    ]
    assert status.round == commits[-1].round + 1 and status.tip == commits[-1].tip and status.members == commits[-1].members
    assert {known.name for known in status.swarm} and all(known.liveness for known in status.swarm)


def test_a_peer_that_follows_is_at_the_round_of_its_state() -> None:
    told = ToldStatus()
    told.apply(Stamped(0.0, 0.0, ev.Started(ANN, "ann", "aa" * 32, "demo", "0.1.0", 7, [], "/home/ann")))
    for rounds in (4, 5):
        told.apply(Stamped(1.0, 1.0, ev.StateApplied(rounds, "aa")))
    assert told.now is not None and told.now.round == 5, "it commits no rounds itself"


@pytest.mark.slow
def test_back_and_forth_shows_the_same(tmp_path: Path) -> None:
    player, straight = (Player(EventFile([made(tmp_path / "events.jsonl", 4 * LEAST_STEP)])) for _ in range(2))
    places = [random.Random(seed).uniform(player.begins, player.ends) for seed in range(12)]
    player.seek(player.ends)
    for time in sorted(places):
        straight.seek(time)
        player.seek(random.Random(time).uniform(player.begins, player.ends))
        player.seek(time)
        assert shown(player) == shown(straight)
    assert len(player._copies) > 4, "or each way back begins at the beginning"


def test_playing_takes_as_long_as_the_speed_says_and_skips_a_night(tmp_path: Path) -> None:
    path = made(tmp_path / "events.jsonl", 10)
    with path.open("a") as file:
        file.write(to_line(Stamped(90_000.0, 90_000.0, ev.PhaseChanged("computing", "", ""))) + "\n")
    player = Player(EventFile([path]))
    player.seek(player.begins)
    player.faster(-10)
    assert player.speed == SPEEDS[0] and player.play(5.0) and player.time == player.begins + 5
    player.faster(3)
    assert player.play(1.0) and player.time == player.begins + 15
    player.seek(player.begins + 105)
    assert player.play(0.1) and player.at_end and not player.play(1.0)


def test_marks_are_reached_one_after_the_other_both_ways(tmp_path: Path) -> None:
    path = made(tmp_path / "events.jsonl", 3)
    with path.open("a") as file:
        file.write(to_line(Stamped(1100.0, 100.0, ev.PeerEjected(BOB, "lied", ""))) + "\n")
    player, rounds = Player(EventFile([path])), []
    player.seek(player.begins)
    for _ in range(4):
        player.next_mark(True)
        rounds.append((len(player.picture.curves.training.points), len(player.picture.alarms)))
    assert rounds == [(1, 0), (2, 0), (3, 0), (3, 1)]
    player.next_mark(False)
    assert (len(player.picture.curves.training.points), len(player.picture.alarms)) == (3, 0)
    assert "!" in draw_scrubber(player, 100, False).plain and draw_scrubber(player, 100, False).plain.count("|") == 2


@pytest.mark.slow
def test_a_damaged_log_shows_what_is_whole(log: Path, tmp_path: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    junk = [
        b"\n",
        b"null\n",
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
        b'{"at":1,"mono":1,"event":"Unknown"}\n',
        lines[3][:20] + b"\n",
    ]
    wrong = {**json.loads(lines[0]), "name": ["x"]}
    log.write_bytes(b"".join([*lines[:5], *junk, json.dumps(wrong).encode() + b"\n", *lines[5:], lines[0][:-10]]))
    file = EventFile([log])
    assert len(file) == len(lines) and file.damaged == len(junk) + 1
    generator = random.Random(1)
    for number in range(200):
        data = bytearray(log.read_bytes())
        for _ in range(20):
            data[generator.randrange(len(data))] = generator.randrange(256)
        (tmp_path / f"{number}.jsonl").write_bytes(data)
        player = Player(EventFile([tmp_path / f"{number}.jsonl"]))
        player.seek(player.ends)
        assert draw_scrubber(player, 80, True).plain


@pytest.mark.parametrize("content", [b"", b"nothing\n", b"\0" * 100], ids=["empty", "text", "zeros"])
def test_what_is_no_log_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(NoEvents, match="no events found; give"):
        EventFile([tmp_path / "x"])
    with pytest.raises(NoEvents, match="cannot be read"):
        EventFile([tmp_path / "missing"])


def test_the_log_of_a_folder_is_found_with_its_older_parts(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"no event log in .*; name an events.jsonl"):
        recorded(tmp_path)
    run = tmp_path / "runs" / ("aa" * 32)
    run.mkdir(parents=True)
    for name in LOG_NAMES[:3]:
        (run / name).write_text("x")
    expected = [run / name for name in reversed(LOG_NAMES[:3])]
    assert recorded(tmp_path) == recorded(run) == expected and recorded(expected[0]) == expected[:1]


def stopped(log: Path) -> ReplayView:
    """A view that plays only when told."""
    player = Player(EventFile([log]))
    player.plays = False
    return ReplayView(player)


@with_textual
async def test_every_key_moves_as_it_says(log: Path) -> None:
    view = stopped(log)
    player = view._player
    async with view.run_test(size=(80, 24)) as pilot:
        await pilot.press("end")
        assert player.at_end
        await pilot.press("left")
        assert player.time == pytest.approx(max(player.begins, player.ends - STEP_S))
        await pilot.press("right", "shift+left")
        assert player.time == pytest.approx(max(player.begins, player.ends - LONG_STEP_S))
        await pilot.press("home")
        assert player.time == player.begins
        await pilot.press("shift+right", "home", "n")
        assert len(view.picture.curves.training.points) == 1
        await pilot.press("n", "N")
        assert len(view.picture.curves.training.points) == 1
        speed = player.speed
        await pilot.press("plus")
        assert player.speed > speed
        await pilot.press("minus")
        assert player.speed == speed
        await pilot.press("space")
        assert player.plays
        await pilot.press("space", "end", "space")
        assert player.plays and player.position < len(player.file)
        await pilot.press("space", "question_mark", "escape", "2", "0", "s", "l", "a", "t")
        assert view.is_running


@pytest.mark.parametrize("key", ["p", "P", "f", "x", "c"])
@with_textual
async def test_nothing_is_asked_of_a_peer(log: Path, key: str) -> None:
    view = stopped(log)
    async with view.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert [notice.message for notice in view._notifications] == ["this is a recording: it takes no commands"]


@IN_EACH_SIZE_SLOWLY
def test_a_recording(snap_compare: Compare, log: Path, size: tuple[int, int]) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        await pilot.press("end", "N")

    assert snap_compare(stopped(log), terminal_size=size, run_before=prepare)
