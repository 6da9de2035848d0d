"""Nobody answers: what a person reads meanwhile, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from peer.discovery.search import LEAST_GAP_S, MOST_GAP_S, OTHERWISE, TRYING, Search, check
from protocol.events.events import Event, Notice, NoticeCode, from_fields
from protocol.transport.dialer import NO_ROUTE, OTHER_RUN, REFUSED, SILENT, WRONG_PEER, Attempt
from protocol.wire.identity import Identity, PeerId

ONE, TWO, STRANGER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3))


def at(peer: PeerId, host: int = 1) -> str:
    return f"/ip4/192.0.2.{host}/tcp/4001/p2p/{peer}"


class Dialled:
    """A network whose dialling came out as the test says."""

    def __init__(self) -> None:
        self.tried: list[Attempt] = []
        self.here: list[PeerId] = []

    def attempts(self) -> Sequence[Attempt]:
        return self.tried

    def connected(self) -> Sequence[PeerId]:
        return self.here


class Watch:
    """A search under virtual time, and what it said with the time of each word."""

    def __init__(self) -> None:
        self.network, self.said, self.met = Dialled(), list[tuple[float, Notice]](), False
        self.search = Search(self.network, [at(ONE), at(TWO, 2)], self._take, lambda: self.met)  # type: ignore[arg-type]

    def _take(self, event: Event) -> None:
        assert isinstance(event, Notice) and event.code == NoticeCode.NOBODY_ANSWERS
        self.said.append((trio.current_time(), event))

    def run(self, seconds: float) -> None:
        async def main() -> None:
            with trio.move_on_after(seconds):
                await self.search.run()

        trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_was_tried_how_often_and_why_not_is_said_within_seconds_and_then_now_and_again() -> None:
    watch = Watch()
    watch.network.tried = [Attempt(at(ONE), 3, REFUSED), Attempt(at(STRANGER, 9), 1, SILENT)]
    watch.run(45)
    times = [round(when) for when, _ in watch.said]
    assert times[0] <= 3 and len(times) >= 4
    assert all(later - sooner >= 5 for sooner, later in itertools.pairwise(times))
    first = watch.said[0][1]
    assert first.details["tried"] == [
        {"address": at(TWO, 2), "times": 0, "problem": TRYING},
        {"address": at(ONE), "times": 3, "problem": REFUSED},
    ]
    assert from_fields(first.to_fields()) == first and first.severity == "warning"
    line = first.sentence()
    assert "192.0.2.1 port 4001 (3 times: refused, because nothing listens there)" in line and "peer runs" in line
    assert "\n" not in line and "nothing listens there" in watch.search.summary


def gaps(watch: Watch) -> list[float]:
    return [later[0] - sooner[0] for sooner, later in zip(watch.said, watch.said[1:], strict=False)]


def test_silence_is_told_less_and_less_often() -> None:
    watch = Watch()
    watch.network.tried = [Attempt(at(ONE), 3, REFUSED)]
    watch.run(1000)
    assert gaps(watch) == sorted(gaps(watch)) and max(gaps(watch)) <= MOST_GAP_S + 1 and len(gaps(watch)) < 35


def test_a_change_is_told_soon_and_many_changes_in_a_bounded_number_of_words() -> None:
    watch = Watch()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.search.run)
            watch.network.tried = [Attempt(at(ONE), 3, REFUSED)]
            await trio.sleep(100.2)
            before = len(watch.said)
            watch.network.tried = [Attempt(at(ONE), 4, SILENT)]
            await trio.sleep(3)
            assert len(watch.said) == before + 1
            for round in range(400):
                watch.network.tried = [Attempt(at(ONE), round, (REFUSED, SILENT)[round % 2])]
                await trio.sleep(0.25)
            assert len(watch.said) <= before + 53 and min(gaps(watch)) >= LEAST_GAP_S
            watch.met = True

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_nothing_is_said_while_somebody_may_answer_and_all_about_one_of_another_run() -> None:
    watch = Watch()
    watch.network.here = [ONE]
    watch.network.tried = [Attempt(at(ONE), 1, "")]
    watch.run(60)
    assert not watch.said and watch.search.summary == "" and "peers answer" in watch.search.failure(120)
    foreign = Watch()
    foreign.network.here = [ONE]
    foreign.network.tried = [Attempt(at(ONE), 1, OTHER_RUN)]
    foreign.run(10)
    assert foreign.said and "another run" in foreign.said[0][1].sentence()


@pytest.mark.parametrize(("problems", "part"), [
    ([NO_ROUTE], "network connection"), ([SILENT, NO_ROUTE], "firewall"), ([REFUSED], "listens on this port"),
    ([OTHER_RUN], "with this run"), ([WRONG_PEER], "newer invitation"), ([TRYING], "each gets 10 s"), ([], OTHERWISE),
])  # fmt: skip
def test_giving_up_is_one_sentence_with_the_remedy(problems: list[str], part: str) -> None:
    assert part in check([Attempt(at(ONE), 1, problem) for problem in problems])
    watch = Watch()
    watch.network.tried = [Attempt(at(ONE, number), 1, problem) for number, problem in enumerate(problems)]
    failure = watch.search.failure(120)
    assert failure.startswith("no peer of the invitation answered in 2 min: ") and "; " in failure and "\n" not in failure
