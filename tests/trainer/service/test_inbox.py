"""What interrupts what in the trainer: the inbox between the peer's commands and the work."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.service import frames
from trainer.service.inbox import Abandoned, CommandInbox, Job


def inbox(*commands: str) -> CommandInbox:
    """One to which these commands came, with the IDs 1, 2, ..."""
    made = CommandInbox()
    for number, command in enumerate(commands):
        made.take({"do": command, "id": number + 1, "watts": 200.0, "load": 0.5})
    return made


def running(box: CommandInbox) -> Job:
    job = box.next_job()
    assert job is not None
    return job


def test_work_comes_before_an_evaluation_which_a_pause_holds_up() -> None:
    box = inbox("evaluate", "compute")
    assert running(box).message["do"] == "compute"
    assert box.next_job() is None, "now there is only the evaluation"
    first = box.evaluation
    assert first is not None and first.id == 1
    box.take({"do": "pause"})
    assert box.evaluation is None
    box.take({"do": "resume"})
    assert box.next_job() is None and box.evaluation is first
    box.take({"do": "evaluate", "id": 3})
    box.evaluated(first)
    assert box.evaluation is not None and box.evaluation.id == 3, "one that is done is not taken for the next one"


@pytest.mark.parametrize(
    "command",
    [{"do": "compute", "id": 3}, {"do": "pause"}, {"do": "finish"}, {"do": "abandon", "id": 1}, {"do": "abandon", "id": 2}],
)  # fmt: skip
def test_everything_that_is_asked_interrupts_an_evaluation(command: dict[str, object]) -> None:
    box = inbox("compute", "evaluate")
    job = running(box)
    assert not box.is_urgent(job)
    box.take(command)
    assert box.is_urgent(job)


def test_a_job_is_held_while_paused_and_when_it_is_abandoned() -> None:
    box = inbox("generate")
    job = running(box)
    assert not box.is_held(job)
    box.take({"do": "pause"})
    assert box.is_held(job)
    box.take({"do": "resume"})
    assert not box.is_held(job)
    box.wait_while_paused(job)
    box.take({"do": "abandon", "id": 1})
    assert box.is_held(job)
    with pytest.raises(Abandoned):
        box.wait_while_paused(job)


def test_a_job_that_is_abandoned_while_it_waits_is_never_begun() -> None:
    box = inbox("compute")
    box.take({"do": "verify", "id": 2})
    box.take({"do": "abandon", "id": 2})
    box.take({"do": "keep_version", "id": 3})
    assert [running(box).id, running(box).id] == [1, 3]
    box.take({"do": "verify", "id": 4})
    box.take({"do": "abandon", "id": 4})
    box.take({"do": "evaluate", "id": 5})
    assert box.next_job() is None, "there is only the evaluation"


def test_messages_come_out_whole_however_they_are_cut() -> None:
    sent: list[dict[str, Any]] = [{"do": "pause"}, {"do": "compute", "id": 3, "task": {"round": 1}}]
    data, buffer = b"".join(frames.pack(message) for message in sent), bytearray()
    received = []
    for byte in data:
        buffer.append(byte)
        while (message := frames.take(buffer)) is not None:
            received.append(message)
    assert received == sent


def test_oversized_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        frames.take(bytearray(b"\xff\xff\xff\xff"))
