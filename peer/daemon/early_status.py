"""What `peer status` says before there is a node to ask: the same keys as `protocol.node.node.Node.status`."""

from __future__ import annotations

from typing import Any

from peer.cli import version
from protocol.wire.messages import Phase, WhyIdle


def early_status(
    *, peer: str, name: str, run: str, run_name: str, role: str, waiting_for: str, peers: int
) -> dict[str, Any]:
    """The status of a peer that is still on its way into its run.  peers: connected."""
    return {
        "peer": peer, "name": name, "run": run, "run_name": run_name, "role": role, "phase": Phase.STARTING.value,
        "why_idle": WhyIdle.CONNECTING.value, "why_detail": waiting_for, "round": 0, "tip": "", "state_rounds": 0,
        "state_digest": "", "peers": peers, "members": [], "tokens": 0, "steps": 0, "inner_steps": 0, "tokens_per_s": 0.0,
        "round_left_s": None, "loss": None, "eval_loss": None, "eval_rounds": None, "eval_by": None, "eval_percent": None,
        "up_bytes": 0, "down_bytes": 0, "trainer_pid": None, "version": version(), "swarm": [],
    }
