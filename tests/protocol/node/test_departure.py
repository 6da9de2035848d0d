"""A departure at the end of the round: it waits for those who can end the wait, and for nobody else, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.events.events import Event, Notice
from protocol.events.status import CopiesStatus, WhyIdle
from protocol.membership.activity import Activity
from protocol.node.lifecycle import ALONE_S, LOOK_S, PATIENCE_S, STUCK_S, Departure, helpers
from protocol.run.settings import NodeSettings
from protocol.wire.presence import Phase, Role

T, S, R, V = Role.TRAINER, Role.SEED, Role.ROLLOUT, Role.VALIDATOR
EVERYBODY = {T, S, R, V}


@pytest.mark.parametrize(
    ("role", "why", "roles"),
    [
        (T, WhyIdle.BUSY, None),
        (T, WhyIdle.TRAINER_RESTARTING, None),
        (T, WhyIdle.WAITING_FOR_ROLLOUTS, {R}),
        (T, WhyIdle.WAITING_FOR_MEMBERS, {T}),
        (T, WhyIdle.WAITING_FOR_PEERS, {T}),
        (T, WhyIdle.EXCHANGING, {T}),
        (T, WhyIdle.COMMITTING, {T}),
        (T, WhyIdle.PAUSED, {T}),
        (T, WhyIdle.MONTHLY_QUOTA, {T}),
        (T, WhyIdle.FETCHING_STATE, EVERYBODY),
        (T, WhyIdle.FETCHING_REFERENCE, EVERYBODY),
        (S, WhyIdle.NOT_A_TRAINER, {T}),
        (R, WhyIdle.BUSY, {T}),
        (R, WhyIdle.WAITING_FOR_WEIGHTS, {T}),
        (V, WhyIdle.NOTHING_TO_CHECK, {T}),
    ],
)
def test_who_can_end_a_wait(role: Role, why: WhyIdle, roles: set[Role] | None) -> None:
    assert helpers(role, why) == roles


class Stage:
    """A departing peer, and others by role, some of them gone.  `seconds` and `reason` say how it ended."""

    def __init__(self, role: Role, why: WhyIdle, others: dict[str, Role]) -> None:
        self.others, self.gone = others, set[str]()
        self.activity = Activity(lambda event: None)
        self.activity.show(Phase.READY, why, "what it waits for")
        nothing: Any = SimpleNamespace()
        settings = NodeSettings("me", role, "0", 1)
        self.departure = Departure(nothing, settings, nothing, self._membership(), self.activity)
        self.reason, self.seconds = "", 0.0

    def _membership(self) -> Any:
        class Others:
            def __iter__(inner) -> Any:  # noqa: N805
                return iter(
                    [(peer, SimpleNamespace(heartbeat=SimpleNamespace(role=role))) for peer, role in self.others.items()]
                )

            def is_live(inner, peer: str) -> bool:  # noqa: N805
                return peer not in self.gone

        return Others()

    def run(self, training_s: float = 0.0, **gone_after_s: float) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for peer, after_s in gone_after_s.items():
                    nursery.start_soon(self._go, peer, after_s)
                self.departure.begin(training_s)
                began = trio.current_time()
                self.reason = await self.departure.given_up()
                self.seconds = trio.current_time() - began
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    async def _go(self, peer: str, after_s: float) -> None:
        await trio.sleep(after_s)
        self.gone.add(peer)


def test_who_is_left_alone_leaves_soon() -> None:
    stage = Stage(T, WhyIdle.WAITING_FOR_MEMBERS, {"ann": T, "bob": S})
    stage.run(ann=100.0)
    assert 100 + ALONE_S <= stage.seconds <= 100 + ALONE_S + 2 * LOOK_S
    assert "nobody is left" in stage.reason and "what it waits for" in stage.reason


def test_with_others_it_waits_until_the_deadline_beyond_its_own_training() -> None:
    stage = Stage(T, WhyIdle.WAITING_FOR_MEMBERS, {"ann": T, "bob": R})
    stage.run(training_s=600.0)
    assert 600 + PATIENCE_S <= stage.seconds <= 600 + PATIENCE_S + 2 * LOOK_S
    assert "not complete in time" in stage.reason


@pytest.mark.usefixtures("virtual_time")
async def test_asked_again_the_first_deadline_holds_and_nobody_asked_says_nothing() -> None:
    stage = Stage(T, WhyIdle.WAITING_FOR_MEMBERS, {"ann": T})
    assert (stage.departure.left_s, stage.departure.waits_for) == (None, "")
    stage.departure.begin(0.0)
    await trio.sleep(60)
    stage.departure.begin(5000.0)
    assert stage.departure.left_s == PATIENCE_S - 60
    assert stage.departure.waits_for == "what it waits for"


# -- handing over ---------------------------------------------------------------------------------------------------------


class Census:
    """In place of `CopyCensus`: so many bytes are here only, and each count moves `step` of them to others."""

    def __init__(self, here_only: int, step: int = 0, answered: int = 2) -> None:
        self.here_only, self.step, self.answered, self.counted = here_only, step, answered, trio.Event()

    def status(self) -> CopiesStatus:
        return CopiesStatus(peers=self.answered, answered=self.answered, total_bytes=100, here_only_bytes=self.here_only)

    def hurry(self, on: bool) -> None:
        assert on

    def count(self) -> None:
        self.here_only = max(0, self.here_only - self.step)
        self.counted.set()
        self.counted = trio.Event()


def leaves_after(census: Census, *, again_after_s: float | None = None, at_once: bool = False) -> tuple[float, list[str]]:
    """Seconds until a peer with this census has left, and what it said."""
    events, took = list[Event](), [0.0]

    async def main() -> None:
        stage = Stage(T, WhyIdle.BUSY, {})
        session: Any = SimpleNamespace(emit=events.append)
        counter: Any = census
        nothing: Any = SimpleNamespace()
        settings = NodeSettings("me", T, "0", 1)
        departure = Departure(session, settings, nothing, stage._membership(), stage.activity, counter)

        async def count() -> None:
            while True:
                await trio.sleep(3)
                census.count()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(departure.run)
            nursery.start_soon(count)
            departure.leave(at_once=at_once)
            if again_after_s is not None:
                await trio.sleep(again_after_s)
                assert departure.is_leaving and not departure.left.is_set()
                assert "only this peer has" in departure.waits_for and departure.left_s
                departure.leave()
            await departure.left.wait()
            took[0] = trio.current_time()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return took[0], [event.text for event in events if isinstance(event, Notice)]


def test_the_only_holder_of_something_stays_until_others_have_it() -> None:
    took_s, said = leaves_after(Census(10_000_000, step=1_000_000))
    assert 30 <= took_s <= 40 and said[0].startswith("handing over 10.0 MB") and "90 % are at others" in said[-1]


@pytest.mark.parametrize("census", [Census(0), Census(50, answered=1)])
def test_a_peer_leaves_at_once_if_others_have_all_or_nobody_is_there(census: Census) -> None:
    assert leaves_after(census) == (0.0, [])


def test_a_second_request_and_a_used_up_quota_end_the_wait() -> None:
    assert leaves_after(Census(10_000_000), again_after_s=20.0)[0] == 20.0
    assert leaves_after(Census(10_000_000), at_once=True)[0] == 0.0


def test_a_peer_from_which_nobody_takes_anything_leaves_and_says_what_is_lost() -> None:
    took_s, said = leaves_after(Census(10_000_000))
    assert STUCK_S <= took_s <= STUCK_S + 10 and said[-1] == "leaving with 10.0 MB that no other peer has taken"
