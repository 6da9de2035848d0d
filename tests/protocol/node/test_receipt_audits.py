"""Audits of receipts at one node: which answers count against a member, and whom others may have audited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from protocol.audit.receipts import LATE, MOST_WITHHELD
from protocol.chain.records import record_hash
from protocol.events.events import ContributionAudited, MemberSetAside, Notice
from protocol.formats.training import RECEIPT_BYTES
from protocol.membership.activity import Activity
from protocol.node.receipts import FETCH_S, ROUNDS_SERVED, ReceiptAudits, receipts_hash
from protocol.run.sections import DataSection
from protocol.trainer_link import ReceiptAudit
from protocol.transport.handlers import Statement
from protocol.transport.interface import Refused, Unreachable
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Heartbeat
from protocol.wire.questions import SLICE_BYTES, ReceiptsRequest
from tests.protocol.chains import a_run, in_run, next_commit, store_result
from tests.protocol.example_status import NEIGHBOUR
from tests.protocol.node.stage import Stage
from tests.protocol.peers import ANN, BOB, ME, a_heartbeat, a_session, at_once

WIDTH, STEPS = 128, 3
ONE = bytes(range(RECEIPT_BYTES))
TRUE = ONE * (WIDTH * STEPS)
FALSE = bytes(len(TRUE))
ROUND_S = FETCH_S / 3
ENOUGH = 10
"""Rounds in which a share of the rows allows audits of two members."""
STRANGER = Identity.from_seed(b"\x09" * 32)

pytestmark = in_run(a_run(ME, ANN, BOB, data=DataSection(sequence_length=8, sequences_per_step=WIDTH)))
Answer = Callable[[], Awaitable[bytes]]


class LiteralTrainer:
    """A trainer that finds the receipt `ONE` for every row."""

    audits = True

    def __init__(self) -> None:
        self.before_answer: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def audit(self, task: ReceiptAudit, state: memoryview) -> list[float]:
        await self.before_answer()
        claimed = b"".join(each.claimed for each in task.points)
        starts = range(0, len(claimed), RECEIPT_BYTES)
        return [0.9 if claimed[start : start + RECEIPT_BYTES] == ONE else 0.0 for start in starts]


class AuditRoom:
    """A node that has trained a round with Ann and Bob.  committed: the receipts to which these commit, None for none."""

    def __init__(self, stage: Stage, committed: bytes | None = TRUE) -> None:
        self.stage = stage
        session, activity = a_session(stage.run, stage.network, stage.events), Activity(stage.events.append)
        self.trainer = trainer = LiteralTrainer()
        self.audits = ReceiptAudits(
            session, stage.guard, stage.replica, stage.membership, activity, at_once, cast("Any", trainer)
        )
        commit, result = next_commit(stage.replica, [ME, ANN, BOB], voters=[ANN, BOB])
        mine, theirs = self.audits.keep(memoryview(TRUE)), receipts_hash(committed) if committed is not None else None
        members = [
            each.model_copy(update={"steps": STEPS, "receipts": mine if each.peer == ME.peer_id else theirs})
            for each in commit.record.members
        ]
        self._commit = commit.model_copy(update={"record": commit.record.model_copy(update={"members": members})})
        store_result(stage.replica, self._commit, result)

    async def play_round(self, answers: Mapping[PeerId, Answer]) -> None:
        """Audit the members in the round after theirs; those without an answer are not connected."""
        self.stage.network.answers = {peer: partial(given, answer) for peer, answer in answers.items()}
        base = self.stage.replica.base
        for _ in range(ENOUGH):
            self.audits.note(base, self._commit)
        self.audits.begin(replace(base, round=1, tip=record_hash(self._commit.record)))
        with trio.move_on_after(ROUND_S):
            await self.audits.run()
            await trio.sleep_forever()
        await self.audits.close(0.0)

    async def rounds_until_aside(self, answer: Answer, most: int, *, pause_s: float = FETCH_S) -> int | None:
        """Play at most so many rounds in which Ann answers like this; return the one in which she is set aside.

        pause_s: seconds between two rounds.
        """
        for count in range(1, most + 1):
            await self.play_round({ANN.peer_id: answer, BOB.peer_id: sends(TRUE)})
            await trio.sleep(pause_s)
            if self.audits.aside(1):
                assert ANN.peer_id in [each.peer for each in self.stage.events if isinstance(each, MemberSetAside)]
                return count
        return None

    def hear(self, author: Identity, *aside: PeerId) -> None:
        """As when `author` says that it has set these members aside."""
        heartbeat = a_heartbeat(aside=sorted(aside))
        said = Statement[Heartbeat](author.peer_id, heartbeat, pack(author, self.stage.run, heartbeat), author.peer_id)
        self.audits.hear_heartbeat(said)

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """The audited members, in order, each with the verdict."""
        return [(each.peer, each.verdict) for each in self.stage.events if isinstance(each, ContributionAudited)]


async def given(answer: Answer, kind: str, data: object) -> bytes:
    return await answer()


def sends(answer: bytes, *, after_s: float = 0.0) -> Answer:
    """Return an answer that takes a time."""

    async def send() -> bytes:
        await trio.sleep(after_s)
        return answer

    return send


def fails(error: Exception, *, after_s: float = 0.0) -> Answer:
    """Return an answer that ends with an error."""

    async def fail() -> bytes:
        await trio.sleep(after_s)
        raise error

    return fail


SILENCE = fails(Unreachable("no answer"), after_s=FETCH_S)


async def test_a_round_that_is_over_waits_for_the_audit_that_runs_and_no_other_begins(stage: Stage) -> None:
    room, audited = AuditRoom(stage), trio.Event()
    room.trainer.before_answer = audited.wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.play_round, {ANN.peer_id: sends(TRUE), BOB.peer_id: sends(TRUE)})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(room.audits.close, 60.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not room.verdicts
        audited.set()
    assert [verdict for _, verdict in room.verdicts] == ["sound"], "one of two"
    await room.play_round({ANN.peer_id: sends(TRUE), BOB.peer_id: sends(TRUE)})
    assert len(room.verdicts) == 3, "and both in the next round"


async def test_who_does_not_answer_keeps_nobody_else_from_an_audit(stage: Stage) -> None:
    room = AuditRoom(stage)
    await room.play_round({ANN.peer_id: SILENCE, BOB.peer_id: sends(TRUE)})
    assert room.verdicts == [(BOB.peer_id, "sound")]


async def test_false_receipts_are_found_in_the_first_round(stage: Stage) -> None:
    room = AuditRoom(stage, FALSE)
    assert await room.rounds_until_aside(sends(FALSE), 1) == 1
    assert (ANN.peer_id, "suspect") in room.verdicts
    shown = room.audits.shown(replace(NEIGHBOUR, peer=ANN.peer_id))
    assert shown.audited_tokens > 0 < shown.aside_until and shown.set_aside


@pytest.mark.parametrize(
    "answer",
    [
        SILENCE,
        fails(Refused("those receipts are not here")),
        sends(FALSE),
        sends(TRUE[:-1]),
        sends(TRUE + b"0"),
        sends(b""),
    ],
    ids=["silence", "a refusal", "others than committed", "too few", "too many", "nothing"],
)
async def test_who_does_not_send_what_it_committed_to_is_set_aside_after_some_rounds(stage: Stage, answer: Answer) -> None:
    assert await AuditRoom(stage).rounds_until_aside(answer, 9) == MOST_WITHHELD


async def test_who_committed_to_no_receipts_is_set_aside_after_some_rounds(stage: Stage) -> None:
    assert await AuditRoom(stage, None).rounds_until_aside(sends(TRUE), 9) == MOST_WITHHELD


async def test_an_answer_after_the_round_counts_in_part_and_nobody_is_asked_twice_at_a_time(stage: Stage) -> None:
    late = sends(TRUE, after_s=ROUND_S + 1)
    assert await AuditRoom(stage).rounds_until_aside(late, 99, pause_s=0) == 2 * MOST_WITHHELD / LATE


async def test_an_answer_between_two_rounds_is_late_as_well(stage: Stage) -> None:
    late = sends(TRUE, after_s=ROUND_S + 1)
    assert await AuditRoom(stage).rounds_until_aside(late, 99, pause_s=2) == MOST_WITHHELD / LATE


async def test_a_member_without_a_connection_is_blamed_in_part_and_only_if_the_next_record_names_it(stage: Stage) -> None:
    room, most = AuditRoom(stage), int(MOST_WITHHELD / LATE)
    for _ in range(most):
        await room.play_round({})
    assert not room.audits.aside(1) and not room.verdicts
    await room.play_round({})
    assert room.audits.aside(1) == {ANN.peer_id, BOB.peer_id}


async def test_the_receipts_of_the_newest_rounds_are_served(stage: Stage) -> None:
    audits = AuditRoom(stage).audits
    names = [audits.keep(memoryview(bytes([number]) * RECEIPT_BYTES)) for number in range(ROUNDS_SERVED + 1)]
    assert audits.keep(memoryview(b"")) is None

    async def ask(name: Hash | None, offset: int) -> bytes:
        assert name is not None
        question = ReceiptsRequest(receipts=name, offset=offset, length=SLICE_BYTES)
        return await audits.answer(ANN.peer_id, question)

    assert await ask(names[-1], 1) == bytes([ROUNDS_SERVED]) * (RECEIPT_BYTES - 1)
    assert await ask(names[1], 2 * RECEIPT_BYTES) == b""
    with pytest.raises(Refused, match="not here"):
        await ask(names[0], 0)


async def test_only_electors_are_heard_and_the_user_is_told_once_of_each(stage: Stage) -> None:
    room = AuditRoom(stage)
    room.hear(STRANGER, ME.peer_id)
    assert not stage.events
    for _ in range(3):
        room.hear(ANN, ME.peer_id, BOB.peer_id)
        room.hear(ANN)
    assert ["set this peer aside" in each.text for each in stage.events if isinstance(each, Notice)] == [True]
    assert not room.audits.aside(1), "nobody is believed"
