"""Statements of a peer about itself: its heartbeat every few seconds, and its goodbye."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.events.status import WhyIdle
from protocol.formats.section import PRINTABLE
from protocol.formats.training import MAX_PROMPTS
from protocol.team import MAX_TEAM
from protocol.wire.envelope import MAX_ADMISSION_BYTES, MAX_LOSS, Body, Count, HashField, Number, PeerField, Rate


class Role(str, Enum):
    """Role of a peer in a run."""

    TRAINER = "trainer"
    SEED = "seed"
    ROLLOUT = "rollout"
    VALIDATOR = "validator"


class Phase(str, Enum):
    """Present activity of a peer, in one word."""

    STARTING = "starting"
    SYNCING = "syncing"
    COMPUTING = "computing"
    READY = "ready"
    EXCHANGING = "exchanging"
    VOTING = "voting"
    APPLYING = "applying"
    PAUSED = "paused"
    SEEDING = "seeding"
    GENERATING = "generating"
    VERIFYING = "verifying"
    STOPPING = "stopping"


LossField = Annotated[float, Field(ge=0, le=MAX_LOSS, allow_inf_nan=False)]
MAX_ASIDE = 4
"""Most members that a heartbeat names as set aside."""
MAX_LOSSES = 16
"""Most sources for which losses are stated."""
MAX_SAMPLE = 300
"""Most characters of a sample: a heartbeat repeats it."""
LINE_BREAK = "↵"
"""Character that stands for a line break in a sample, which is one line."""


def sample_line(text: str) -> str:
    """Return the beginning of a model's text as a sample: one line of printable characters."""
    lines = text.replace("\n", LINE_BREAK)
    return "".join(each if each.isprintable() else " " if each.isspace() else "\ufffd" for each in lines)[:MAX_SAMPLE]


class Measurement(Body):
    """The held-out loss (nats a token) of the state after `rounds` rounds that the sender claims to have measured.

    losses: the losses on the sources of the run's data, in their order; empty, and not written, if there is one source.
    samples: completions of the run's prompts, in their order; empty, and not written, if the run has none.
    """

    rounds: Count
    tip: HashField
    loss: LossField
    losses: Annotated[list[LossField], Field(max_length=MAX_LOSSES, exclude_if=lambda value: not value)] = []
    samples: Annotated[
        list[Annotated[str, Field(max_length=MAX_SAMPLE, pattern=PRINTABLE)]],
        Field(max_length=MAX_PROMPTS, exclude_if=lambda value: not value),
    ] = []


class Heartbeat(Body):
    """Heartbeat, gossiped every 2 s, or less often in a large swarm.

    incarnation: grows with every start.  seq: grows with every heartbeat.  why_idle: only a code, because the sentence for
    it may name folders and people of this computer, and is not sent. name: chosen by the person with `--name`, or derived
    from the peer ID.  team: the team to which the peer says that it belongs, as the person wrote it with `--team`; left out
    if there is none.  `protocol.team.team_named` reads it, and a text that names no team counts as none.
    """

    KIND: ClassVar[str] = "heartbeat"
    BY_GOSSIP: ClassVar[bool] = True
    incarnation: Count
    seq: Count
    name: Annotated[str, Field(max_length=40)]
    role: Annotated[Role, Field(strict=False)]
    phase: Annotated[Phase, Field(strict=False)]
    why_idle: Annotated[WhyIdle, Field(strict=False)]
    round: Count
    tip: HashField
    steps: Count
    loss: Number
    tokens_per_s: Rate
    up_bytes_per_s: Rate
    down_bytes_per_s: Rate
    addresses: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=8)]
    version: Annotated[str, Field(max_length=40)]
    team: Annotated[str, Field(max_length=MAX_TEAM, exclude_if=lambda team: not team)] = ""
    was_away: bool = False
    """True if the sender was restarted, frozen, suspended or cut off, and has made no record since."""
    bound: Annotated[Count, Field(exclude_if=lambda rounds: not rounds)] = 0
    """Number of the sender's first rounds that it cannot give up, because its votes bind it to a provisional record; left
    out if there are none."""
    measured: Measurement | None = None
    """The sender's newest measurement, while other peers may need it."""
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES, exclude_if=lambda proof: not proof)] = b""
    """Proof that the sender was admitted, if no record names it; left out if there is none."""
    aside: Annotated[list[PeerField], Field(max_length=MAX_ASIDE, exclude_if=lambda peers: not peers)] = []
    """Some of the members that the sender has set aside by their receipts; left out if there are none."""


class Goodbye(Body):
    """Statement of a peer that it leaves on purpose; from then on, it is not an elector."""

    KIND: ClassVar[str] = "goodbye"
    BY_GOSSIP: ClassVar[bool] = True
    incarnation: Count
    seq: Count
