"""The order of a life: load, restore, listen, reach the tip, round after round, linger, say goodbye."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from protocol.agreement.events import Forward
from protocol.chain.electorate import Roster
from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.node.lifecycle import HAND_OVER_S, Departure, Life, StartupBarrier
from protocol.node.round_parts import Deliveries
from protocol.node.rounds import Behind, Outcome, StateDisagreement
from protocol.run.invitation import Anchor
from protocol.run.settings import NodeSettings
from protocol.transport.handlers import Guard
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase, Role
from tests.protocol.council import INDEX, PEERS, RECORD, SETTINGS, votes_for
from tests.protocol.peers import ANN

pytestmark = pytest.mark.usefixtures("virtual_time")

COMMIT = Commit(record=RECORD, index=INDEX, certificate=votes_for(RECORD, PEERS[:4], 0))
WRONG = StateDisagreement(Hash(b"\x04" * 32))
BEGIN = ["ejections.load", "keeper.load", "claims.load", "extensions.load", "keeper.restore", "barrier.listen"]
GOODBYE = ["rounds.hand_over"]
REACH = ["keeper.reach_tip"]
ROUND = [*REACH, "barrier.may_begin", "rounds.run_next"]
BESIDE = {"heartbeats.run", "ejections.run", "ticker.run", "claims.run", "swarm.run", "extensions.run"}


class Part:
    """A component that notes in `log` what it is asked to do; what it then does or answers is in `answers`, if anything."""

    def __init__(self, name: str, log: list[str], **answers: Callable[..., Any]) -> None:
        self._name, self._log, self._answers = name, log, answers

    def __getattr__(self, what: str) -> Callable[..., Awaitable[Any]]:
        async def asked(*arguments: Any, **named: Any) -> Any:
            self._log.append(f"{self._name}.{what}")
            await trio.lowlevel.checkpoint()
            return self._answers.get(what, lambda *ignored, **too: None)(*arguments, **named)

        return asked


class Barrier(StartupBarrier):
    """Notes in `log` what it waits for; it lets a round begin when `may` says so."""

    def __init__(self, log: list[str], activity: Activity, files: object, may: Callable[[], bool]) -> None:
        nothing, as_files = cast("Any", None), cast("Any", files)
        super().__init__(nothing, nothing, nothing, nothing, nothing, activity, as_files)
        self._log, self._may = log, may

    async def listen(self) -> None:
        self._log.append("barrier.listen")
        await trio.lowlevel.checkpoint()

    async def may_begin(self) -> bool:
        self._log.append("barrier.may_begin")
        await trio.lowlevel.checkpoint()
        return self._may()

    async def linger(self) -> None:
        self._log.append("barrier.linger")
        await trio.lowlevel.checkpoint()


class Stage:
    """A life whose rounds end as `outcomes` says, in turn; after the last of them, a round never ends."""

    def __init__(
        self,
        *outcomes: Outcome,
        stop_after: int | None = None,
        checkpoint_due: bool = False,
        hand_over_s: float = 0.0,
        files_s: float = 0.0,
    ) -> None:
        self.log, self.greeted, self.events = list[str](), list[PeerId](), list[Event]()
        self.history, self.activity = SimpleNamespace(length=0), Activity(self.events.append)
        self.hand_over_s, self._files_s, self._files = hand_over_s, files_s, trio.Event()
        self.outcomes, self.refusals, self.repaired = list(outcomes), 0, list[Hash]()
        session: Any = SimpleNamespace(emit=self.events.append)
        router: Any = SimpleNamespace(open=Guard(session).open, greet_connected=self._greet_connected)
        evaluator: Any = Part("evaluator", self.log)
        evaluator.stop = lambda: self.log.append("evaluator.stop")
        history, settings = cast("Any", self.history), NodeSettings("ann", Role.TRAINER, "0", 1, stop_after=stop_after)
        keeper: Any = Part("keeper", self.log, advance=lambda commit: checkpoint_due, repair=self.repaired.append)
        keeper.is_verified = True
        files: Any = SimpleNamespace(run=self._fetch_files, are_here=not files_s, until_here=self._until_files)
        rounds: Any = SimpleNamespace(run_next=self._run_next, hand_over=self._hand_over)
        run_end: Any = SimpleNamespace(has_come=False)
        self.departure = Departure(session, settings, history, Membership(ANN.peer_id, 0.0, history), self.activity)
        barrier = Barrier(self.log, self.activity, files, self._may_begin)
        self.life = Life(router, barrier, keeper, rounds, evaluator, self.departure, run_end)
        part: dict[str, Any] = {name: Part(name, self.log) for name in ("ejections", "claims", "extensions")}
        self.memories = [part["ejections"], keeper, part["claims"], part["extensions"]]
        self.services = [
            *part.values(),
            files,
            *(cast("Any", Part(name, self.log)) for name in ("heartbeats", "ticker", "swarm")),
        ]

    def _greet_connected(self) -> None:
        self.greeted.append(ANN.peer_id)

    def _may_begin(self) -> bool:
        self.refusals -= 1
        return self.refusals < 0

    async def _run_next(self, beside: object, *, state_verified: bool) -> Outcome:
        self.log.append("rounds.run_next")
        await trio.sleep(10)
        if not self.outcomes:
            await trio.sleep_forever()
        outcome = self.outcomes.pop(0)
        self.history.length += isinstance(outcome, Commit)
        return outcome

    async def _fetch_files(self) -> None:
        await trio.sleep(self._files_s)
        self._files.set()

    async def _until_files(self, on_wait: Callable[[str], None]) -> None:
        on_wait("fetching the run's file tasks.jsonl from its peers")
        await self._files.wait()

    async def _hand_over(self) -> None:
        self.log.append("rounds.hand_over")
        await trio.sleep(self.hand_over_s)

    def run(self, meanwhile: Callable[[], None] = lambda: None, after_s: float = 1000.0) -> float:
        """Live; `meanwhile` is called after so many seconds.  The time at which the life ended."""

        async def main() -> float:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await self.life.run(self.memories, self.services)
                nursery.cancel_scope.cancel()
            return trio.current_time()

        async def call() -> None:
            await trio.sleep(after_s)
            meanwhile()

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    @property
    def steps(self) -> list[str]:
        """What was done, one after another."""
        return [each for each in self.log if each not in BESIDE]


def test_before_the_runs_files_are_here_nothing_of_its_state_is_read() -> None:
    stage = Stage(COMMIT, stop_after=1, files_s=30.0)
    seen: list[object] = []
    stage.run(lambda: seen.extend([stage.steps[:], stage.activity.why, stage.activity.detail]), 29.0)
    early, why, detail = seen
    assert isinstance(early, list) and "keeper.restore" not in early and "keeper.restore" in stage.steps
    assert (why, detail) == (WhyIdle.FETCHING_STATE, "fetching the run's file tasks.jsonl from its peers")


def test_a_life_of_two_rounds() -> None:
    stage = Stage(COMMIT, COMMIT, stop_after=2)
    stage.run()
    end = [*REACH, "evaluator.at_the_end", "barrier.linger", *GOODBYE]
    assert stage.steps == [*BEGIN, *[*ROUND, "keeper.advance"] * 2, *end]
    assert set(stage.log) > BESIDE and stage.activity.phase is Phase.STOPPING
    assert stage.greeted == [ANN.peer_id], "they were connected already"


def test_until_the_records_are_read_it_is_starting() -> None:
    stage, seen = Stage(COMMIT, stop_after=1), list[tuple[Phase, WhyIdle, str]]()

    def load() -> None:
        seen.append((stage.activity.phase, stage.activity.why, stage.activity.detail))

    memory: Any = Part("claims", stage.log, load=load)
    stage.memories[2] = memory
    stage.run()
    assert seen == [(Phase.STARTING, WhyIdle.STARTING, "reading the records from disk")]
    told = [(event.why_idle, event.detail) for event in stage.events if isinstance(event, PhaseChanged)]
    assert told[:2] == [("starting", "reading the records from disk"), ("starting", "reading the state from disk")]


def test_a_checkpoint_is_written_beside_the_next_round_when_it_is_due() -> None:
    stage = Stage(COMMIT, stop_after=1, checkpoint_due=True)
    stage.run()
    assert stage.steps.count("keeper.checkpoint") == 1


def test_a_wrong_state_is_repaired_and_a_peer_that_is_behind_catches_up() -> None:
    stage = Stage(WRONG, Behind(), COMMIT, stop_after=1)
    stage.run()
    assert stage.steps[len(BEGIN) :][:11] == [*ROUND, "keeper.repair", *ROUND, *ROUND, "keeper.advance"]
    assert stage.repaired == [WRONG.digest]


def test_no_round_begins_before_the_gathering_says_so() -> None:
    stage = Stage(COMMIT, stop_after=1)
    stage.refusals = 2
    stage.run()
    assert stage.steps[len(BEGIN) :][:8] == [*[*REACH, "barrier.may_begin"] * 2, *ROUND, "keeper.advance"]


def test_to_finish_is_to_leave_after_the_running_round_with_nothing_left_to_measure() -> None:
    stage = Stage(COMMIT, COMMIT)
    stage.run(lambda: stage.life.finish(0.0), after_s=5)
    end = [*REACH, "barrier.linger", *GOODBYE]
    assert stage.steps == [*BEGIN, *ROUND, "evaluator.stop", "keeper.advance", *end]


def test_to_leave_is_to_break_the_running_round_off_with_a_goodbye() -> None:
    stage = Stage(COMMIT)
    stage.run(stage.departure.leave, after_s=5)
    assert stage.steps == [*BEGIN, *ROUND, *GOODBYE]


def test_a_leaver_waits_for_what_it_hands_over_but_not_for_long() -> None:
    """Whoever does not answer keeps nobody from leaving."""
    began: list[float] = []
    stage = Stage(COMMIT, hand_over_s=100 * HAND_OVER_S)

    def leave() -> None:
        began.append(trio.current_time())
        stage.departure.leave()

    assert stage.run(leave, after_s=5) - began[0] == HAND_OVER_S


@pytest.mark.parametrize(
    ("length", "tip", "begins"), [(0, 0, False), (6, 0, False), (7, 0, True), (9, 0, True), (7, 1, False)]
)
async def test_a_round_begins_when_the_record_of_the_invitation_is_here(length: int, tip: int, begins: bool) -> None:
    settings = NodeSettings("me", Role.TRAINER, "0", 1, anchor=Anchor(rounds=7, tip=bytes(32)))
    replica: Any = SimpleNamespace(
        rounds=SimpleNamespace(min_members=1),
        history=SimpleNamespace(length=length, tip_at=lambda rounds: bytes([tip]) * 32, roster=Roster.start(SETTINGS)),
    )
    membership: Any = SimpleNamespace(live_peers=list, started=0.0)
    session: Any = SimpleNamespace(me="me", network=SimpleNamespace(connected=list))
    claims: Any = None
    files: Any = None
    activity = Activity(lambda event: None)
    gathering = StartupBarrier(session, replica, settings, membership, claims, activity, files)
    assert await gathering.may_begin() is begins
    assert begins or (activity.why is WhyIdle.CONNECTING and "ask for a new invitation" in activity.detail)


@pytest.mark.parametrize("durations", [[], [1.0], [1.0, 3.0, 2.0]])
@pytest.mark.parametrize("outlives_round", [False, True])
async def test_it_is_over_when_the_last_delivery_is(outlives_round: bool, durations: list[float]) -> None:
    """A leaver hands its last statements over and waits at once, before their tasks have taken a step."""

    async def request(peer: PeerId, kind: str, raw: bytes, *, timeout_s: float) -> None:
        await trio.sleep(float(raw))

    inbox: Any = None
    peers: Any = SimpleNamespace(session=SimpleNamespace(network=SimpleNamespace(request=request)))
    peers.guard = guard = Guard(peers.session)
    deliveries = Deliveries(peers)
    async with guard.open(), trio.open_nursery() as nursery:
        began = trio.current_time()
        for seconds in durations:
            statement = Forward(ANN.peer_id, "vote", str(seconds).encode())
            deliveries.send(statement, inbox, None if outlives_round else nursery)
        await deliveries.delivered()
        assert trio.current_time() - began == max(durations, default=0.0)
    deliveries.send(Forward(ANN.peer_id, "vote", b"1.0"), inbox, None)
    await deliveries.delivered()
    assert trio.current_time() - began == max(durations, default=0.0), "the guard is closed, so nothing is under way"
