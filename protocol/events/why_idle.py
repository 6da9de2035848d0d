"""The reasons for computing nothing, and a remedy for each.

Imports nothing.  The code in which a reason arises makes the sentence about it, which names peers, rounds and limits.
"""

from __future__ import annotations

from enum import Enum


class WhyIdle(str, Enum):
    """Reason for computing nothing; `why_detail` says the rest in a sentence."""

    BUSY = ""
    STARTING = "starting"
    CONNECTING = "connecting"
    WAITING_FOR_PEERS = "waiting for peers"
    FETCHING_STATE = "fetching state"
    WAITING_FOR_MEMBERS = "waiting for members"
    WAITING_FOR_ROLLOUTS = "waiting for rollouts"
    FETCHING_TASKS = "fetching tasks"
    FETCHING_REFERENCE = "fetching reference"
    WAITING_FOR_WEIGHTS = "waiting for weights"
    WAITING_FOR_VERDICTS = "waiting for verdicts"
    NOTHING_TO_CHECK = "nothing to check"
    EXCHANGING = "exchanging"
    COMMITTING = "committing"
    TRAINER_RESTARTING = "trainer restarting"
    PAUSED = "paused"
    OUTSIDE_HOURS = "outside hours"
    ON_BATTERY = "on battery"
    TOO_HOT = "too hot"
    GPU_WANTED = "gpu wanted"
    MONTHLY_QUOTA = "monthly quota"
    DISK_FULL = "disk full"
    NOT_A_TRAINER = "not a trainer"
    RUN_ENDED = "run ended"


REMEDIES = {
    WhyIdle.STARTING: "nothing; it takes seconds, or minutes with a large model",
    WhyIdle.CONNECTING: "`peer doctor INVITATION` says why; or ask for a newer invitation",
    WhyIdle.WAITING_FOR_PEERS: "nothing; or invite others",
    WhyIdle.FETCHING_STATE: "nothing; your line, the others' and `max_down` limit how fast it comes",
    WhyIdle.WAITING_FOR_MEMBERS: "nothing; a slow member is waited for as long as the run allows",
    WhyIdle.WAITING_FOR_ROLLOUTS: "nothing; or join with more peers `--role rollout`",
    WhyIdle.FETCHING_TASKS: "`peer tasks list` says which set is missing, or cannot be used",
    WhyIdle.FETCHING_REFERENCE: "nothing; or start again a trainer or seed that was in this run before",
    WhyIdle.WAITING_FOR_WEIGHTS: "nothing; a coming round brings them",
    WhyIdle.WAITING_FOR_VERDICTS: "nothing; or join with more peers `--role validator`",
    WhyIdle.NOTHING_TO_CHECK: "nothing; batches are dealt by lot",
    WhyIdle.EXCHANGING: "nothing; over a relayed or slow line it takes longer",
    WhyIdle.COMMITTING: "nothing; it takes seconds when enough of the electors are here",
    WhyIdle.TRAINER_RESTARTING: "the end of `trainer.log` in the run's folder says why",
    WhyIdle.PAUSED: "`peer resume`, or `p` in the interface",
    WhyIdle.OUTSIDE_HOURS: "nothing; or set other hours with `peer config schedule`",
    WhyIdle.ON_BATTERY: "plug it in, or `peer config on_battery yes`",
    WhyIdle.TOO_HOT: "nothing; it goes on at 5 °C less",
    WhyIdle.GPU_WANTED: "nothing; or `peer config yield_gpu no`",
    WhyIdle.MONTHLY_QUOTA: "wait for the next month, or raise `monthly_quota`",
    WhyIdle.DISK_FULL: "make room, remove a run's folder (`peer runs`), or raise `max_disk`",
    WhyIdle.NOT_A_TRAINER: "nothing; or join with `--role trainer`",
    WhyIdle.RUN_ENDED: "`peer export FOLDER` writes the model; `peer leave` ends the peer",
}
"""Remedy for each reason; docs/guides/troubleshooting.md says the same.  Each fits on a line of a small terminal.

A remedy holds wherever its reason is shown: to a founder, to a peer that is alone, and to one that nobody invited.
"""


def remedy(why: str) -> str:
    """Return the remedy for a reason, by its name; empty if nothing holds the peer up, or only a newer version knows it."""
    return next((text for known, text in REMEDIES.items() if known.value == why), "")
