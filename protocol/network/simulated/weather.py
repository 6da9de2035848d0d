"""The conditions on the links of the simulated network."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Weather:
    """Latency, bandwidth and loss.  latency_s: one way, `jitter_s` more at most.  bytes_per_s: each peer's up and down rate.

    gossip_loss, gossip_copies, gossip_late: chance that a gossip message is lost, arrives twice, or comes up to `late_s`
    late (and so after later ones), at one peer.  request_loss: chance that a question, an answer or a push gets lost.
    """

    latency_s: float = 0.02
    jitter_s: float = 0.02
    bytes_per_s: float = 50e6
    gossip_loss: float = 0.0
    gossip_copies: float = 0.0
    gossip_late: float = 0.0
    late_s: float = 3.0
    request_loss: float = 0.0
