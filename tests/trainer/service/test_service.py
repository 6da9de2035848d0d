"""The service between the peer's commands and the work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from trainer.service import frames
from trainer.service.inbox import CommandInbox, Job
from trainer.service.service import VERDICTS_AT_ONCE, Service
from trainer.worker import Done


class Waiting:
    """A worker that only waits for the last round's result."""

    receipts = np.zeros(0, np.uint8)

    def compute(self, *arguments: Any) -> Done:
        applied: Callable[[bool], bool] = arguments[-1]
        assert applied(True)
        return Done(1, 1, 0.0, 0.0)


def messages(connection: socket.socket) -> list[dict[str, Any]]:
    buffer, heard = bytearray(connection.recv(frames.MAX_FRAME_BYTES)), list[dict[str, Any]]()
    while (message := frames.take(buffer)) is not None:
        heard.append(message)
    return heard


def test_who_waits_for_a_result_gives_signs_of_life_and_does_not_go_on_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    service, done = Service(theirs, -1, -1), list[str]()
    service._worker, service._contribution, service._receipts = Waiting(), memoryview(b""), memoryview(bytearray())  # type: ignore[assignment]
    monkeypatch.setattr(service, "_map_theta", lambda: np.zeros(1, np.float32))

    def wait(self: CommandInbox, job: Job, seconds: float) -> bool:
        done.append("waited")
        job.applied = len(done) > 3
        return job.applied

    monkeypatch.setattr(CommandInbox, "wait_until_applied", wait)
    job = Job({"id": 3, "do": "compute", "task": {"round": 4, "rows": [], "steps": 1, "first_step": 8, "continues": True}})
    with ours, theirs, patch.object(CommandInbox, "wait_while_paused", lambda self, job: done.append("held")):
        service._compute(job)
        assert done == ["held", "waited", "waited", "waited", "held"]
        assert [message["waits"] for message in messages(ours)] == [False, True, True, True, False]


class Stepping:
    """A worker whose only step takes 2 s for 100 tokens."""

    receipts = np.zeros(0, np.uint8)

    def compute(self, *arguments: Any) -> Done:
        arguments[3](1, 2.0, 100, 50.0)
        return Done(100, 1, 2.0, 0.0)


@pytest.mark.parametrize(("load", "rate"), [(1.0, 50.0), (0.5, 25.0)])
def test_others_are_told_the_rate_with_the_rests_from_the_first_step_on(
    monkeypatch: pytest.MonkeyPatch, load: float, rate: float
) -> None:
    ours, theirs = socket.socketpair()
    service = Service(theirs, -1, -1)
    service._worker, service._contribution, service._receipts = Stepping(), memoryview(b""), memoryview(bytearray())  # type: ignore[assignment]
    monkeypatch.setattr(service, "_map_theta", lambda: np.zeros(1, np.float32))
    service._inbox.take({"do": "pace", "watts": 0.0, "load": load})
    with ours, theirs:
        service._compute(Job({"id": 3, "do": "compute", "task": {"round": 4, "rows": [], "steps": 1, "first_step": 8}}))
        assert [message["tokens_per_s"] for message in messages(ours)] == [pytest.approx(rate)]


class Stop(Exception):
    """Raised where the service would end its process, and for the next job after the last."""


@pytest.mark.parametrize("is_abandoned", [True, False])
def test_a_batch_that_is_gone_once_its_check_is_abandoned_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, is_abandoned: bool
) -> None:
    ours, theirs = socket.socketpair()
    service, failed, wait = Service(theirs, -1, -1), list[str](), CommandInbox.wait_until_abandoned
    jobs = [Job({"id": 5, "do": "verify"})]
    service._inbox._latest = jobs[0]

    def perform(job: Job) -> dict[str, Any]:
        raise FileNotFoundError("the batch")

    def wait_until_abandoned(self: CommandInbox, job: Job, seconds: float) -> bool:
        if is_abandoned:  # the command comes later than the error
            threading.Thread(target=self.take, args=({"do": "abandon", "id": 5},)).start()
        return wait(self, job, 60.0 if is_abandoned else 0.0)

    def fail(job: Job, error: Exception) -> None:
        failed.append(str(error))
        raise Stop

    monkeypatch.setattr(CommandInbox, "wait_until_abandoned", wait_until_abandoned)
    monkeypatch.setattr(service, "_perform", perform)
    monkeypatch.setattr(service, "_fail", fail)
    monkeypatch.setattr(service._inbox, "listen", lambda connection: None)
    monkeypatch.setattr(service._inbox, "next_job", lambda: jobs.pop() if jobs else fail(Job({"id": 6}), Stop("no more")))
    with ours, theirs, pytest.raises(Stop):
        service.run()
    assert failed == (["no more"] if is_abandoned else ["the batch"])


MOST_BATCHES, MAX_ROLLOUTS = 512, 4096
"""Of a round, and in a batch, by the limits of the manifest."""


def test_what_is_said_at_once_fits_into_a_frame() -> None:
    names = {
        "rollouts": ["ab" * 32] * MOST_BATCHES,
        "versions": [1 << 40] * MOST_BATCHES,
        "rollouts_in": "/" * 4096,
        "reference": "/" * 4096,
    }
    assert frames.pack({"id": 1 << 30, "do": "compute", "task": names})
    problems = {"problems": [(1 << 40) - 1] * MAX_ROLLOUTS, "run": "ab" * 32, "peer": "1" * 60}
    assert frames.pack({"id": 1 << 30, "do": "verify", "task": problems, "path": "/" * 4096})
    longest = {"reason": "wrong computation", "detail": "\u20ac" * 200, "reward": 0.1234567890123456, "tokens": 1 << 20}
    assert frames.pack({"id": 1 << 30, "is": "progress", "verdicts": [longest] * VERDICTS_AT_ONCE})
