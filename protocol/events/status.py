"""The content of `peer status --json`, defined once for the node, the daemon, the commands, the interface and the demo.

Frozen dataclasses that import nothing heavy.  `to_fields` is the form on the control socket and in JSON: the fields' names
are its keys, in this order; docs/reference/commands.md explains each.  Peers are peer IDs, hashes are hexadecimal, sizes are
bytes, times are seconds.  A field that is added later has a default, so that the status of an older peer can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from protocol.events.why_idle import remedy


@dataclass(frozen=True, kw_only=True)
class SwarmPeer:
    """Another peer of the run, as its last heartbeat describes it.

    round: rounds that it has committed.  steps: inner steps of its running round.
    liveness: alive, suspect, gone (fell silent) or left (said goodbye).  heard_s: seconds since that heartbeat.
    link: how it is connected to us: direct, reversed, punched or relayed; empty when it is not.
    """

    peer: str
    name: str
    role: str
    phase: str
    round: int
    steps: int
    tokens_per_s: float
    liveness: str
    heard_s: float
    version: str
    addresses: list[str] = field(default_factory=list)
    link: str = ""


@dataclass(frozen=True)
class HeldOutStatus:
    """The newest held-out loss known here.

    loss: of the state after `rounds` rounds, as the peer `by` measured it, or claims to have; None while none is known.
    percent: progress of this peer in measuring another one; None while it measures none.
    """

    loss: float | None = None
    rounds: int | None = None
    by: str | None = None
    percent: int | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutStatus:
    """This peer's work with rollouts, in a run with them; counts are of this life.

    version: the newest weights.  reward: mean of the rollouts of the last round here that learned from any, 0 to 1, as its
    members state it; None before.  generated: batches made here.  accepted, rejected, stale: verdicts on batches that a
    rollout peer made, that a validator judged, or that were for a trainer.  waiting: such batches without a verdict.
    used: batches that this trainer learned from.  accepted_tokens: of this peer's rollouts, named by records.
    generated_tokens_per_s: of outputs, in the last batches made here.  verified_per_s: rollouts, over the last minute.
    set_aside: number of peers whose rollouts or verdicts are not used any more.
    """

    version: int = 0
    reward: float | None = None
    generated: int = 0
    accepted: int = 0
    rejected: int = 0
    stale: int = 0
    waiting: int = 0
    used: int = 0
    accepted_tokens: int = 0
    generated_tokens_per_s: float = 0.0
    verified_per_s: float = 0.0
    set_aside: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A peer as its node knows it.  The defaults describe a peer whose node does not run yet.

    why_idle: a `WhyIdle`, empty while it computes.  why_detail: its sentence.  why_remedy: its remedy.
    finishing: a phrase that names what the peer waits for before it stops; empty unless it was asked to finish.
    finishing_left_s: seconds until it leaves without that.
    round: rounds committed.  tip: hash of the last record.  final_*: number of final rounds, and the tip after them.
    settled_*: the same for the rounds settled for this peer, at least the final ones.
    state_rounds, state_digest: number of rounds that the outer state has applied, and its digest.
    peers: live peers of the run besides this one; before the node runs, the connected ones.
    members, tokens, loss: of the last committed round; `loss` is the running round's once it has a step.
    steps, inner_steps: done and wanted in the running round.  round_left_s: until the last one; None when not training.
    goal_total: in `goal_unit` ("tokens" or "rounds"), of which goal_done is done; goal_left_s: seconds until then, at the
    speed of the last round made here, None before that.  run_ended: whether the total is reached.  run_tokens_per_s: of all
    members, in that round.  clock_skew: distance of this computer's clock from several others'; empty if it is small.
    eval_*: as `HeldOutStatus`.  rollouts: None in a run without them.  trainer_pid: None while no trainer is ready.
    """

    peer: str
    name: str
    run: str
    run_name: str
    role: str
    phase: str
    why_idle: str
    why_detail: str
    why_remedy: str = field(init=False)
    finishing: str = ""
    finishing_left_s: float | None = None
    round: int = 0
    tip: str = ""
    final_rounds: int = 0
    final_tip: str = ""
    settled_rounds: int = 0
    settled_tip: str = ""
    state_rounds: int = 0
    state_digest: str = ""
    peers: int = 0
    members: list[str] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    inner_steps: int = 0
    tokens_per_s: float = 0.0
    round_left_s: float | None = None
    loss: float | None = None
    eval_loss: float | None = None
    eval_rounds: int | None = None
    eval_by: str | None = None
    eval_percent: int | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    trainer_pid: int | None = None
    version: str
    swarm: list[SwarmPeer] = field(default_factory=list)
    rollouts: RolloutStatus | None = None
    organiser: str = ""
    goal_unit: str = ""
    goal_total: int = 0
    goal_done: int = 0
    goal_left_s: float | None = None
    run_ended: bool = False
    run_tokens_per_s: float | None = None
    clock_skew: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why_remedy", remedy(self.why_idle))

    def names(self) -> dict[str, str]:
        """Return the names of this peer and the others of the run, by peer ID."""
        return {self.peer: self.name, **{known.peer: known.name for known in self.swarm}}


@dataclass(frozen=True, kw_only=True)
class PeerStatus(NodeStatus):
    """A running peer: its node and the process around it.

    addresses: where it listens.  reachable: whether others reach it, as they say: reachable, unreachable or unknown;
    reachability: the same for each address at which they see it, or which it announces.
    invitation: to an open run, else empty.
    invite_command: command with which the organiser of a run that admits by token makes an invitation, else empty.
    """

    pid: int
    uptime_s: float
    addresses: list[str] = field(default_factory=list)
    invitation: str = ""
    invite_command: str = ""
    reachable: str = "unknown"
    reachability: dict[str, str] = field(default_factory=dict)

    @classmethod
    def around(cls, node: NodeStatus, *, pid: int, uptime_s: float, **around: Any) -> Self:
        """Return the status of the process `pid` around `node`; the other fields of this class are given by their names."""
        known = {each.name: getattr(node, each.name) for each in fields(NodeStatus) if each.init}
        return cls(**known, pid=pid, uptime_s=uptime_s, **around)

    def to_fields(self) -> dict[str, Any]:
        """Return the flat map on the control socket and in JSON; `swarm` is a list of maps."""
        return asdict(self)

    @classmethod
    def from_fields(cls, given: Any) -> Self:
        """Return the status in a map, without fields that only a newer version knows; raise ValueError if one is missing."""
        try:
            swarm = [SwarmPeer(**_known(SwarmPeer, each)) for each in given.get("swarm", ())]
            told = given.get("rollouts")
            rollouts = RolloutStatus(**_known(RolloutStatus, told)) if told is not None else None
            return cls(**{**_known(cls, given), "swarm": swarm, "rollouts": rollouts})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no status of a peer: {error}") from error


def _known(cls: type[NodeStatus] | type[SwarmPeer] | type[RolloutStatus], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `given` that `cls` is made from."""
    names = {each.name for each in fields(cls) if each.init}
    return {name: value for name, value in given.items() if name in names}
