"""Which faults met which phase of the protocol, as a table: what no run met was not tested."""

from __future__ import annotations

from collections import Counter

PHASES = ("starting", "syncing", "computing", "ready", "exchanging", "voting", "applying", "stopping")
FAULTS = (
    "kill",
    "kill between two awaits",
    "power cut",
    "dies at a disk operation",
    "torn write",
    "failing fsync",
    "full disk",
    "freeze",
    "clock jump",
    "slow peer",
    "trainer death",
    "lost gossip",
    "late gossip",
    "doubled gossip",
    "lost request",
    "partition",
    "one-way link",
    "leave",
    "join",
    "restart",
)


def table(met: Counter[tuple[str, str]]) -> str:
    """Rows are faults, columns the phases in which they met a peer."""
    rows = [*FAULTS, *sorted({fault for fault, _ in met} - set(FAULTS))]
    width = max(len(row) for row in rows)
    lines = [" " * width + "".join(f"{phase:>11}" for phase in PHASES)]
    for fault in rows:
        lines.append(f"{fault:<{width}}" + "".join(f"{met[fault, phase]:>11}" for phase in PHASES))
    return "\n".join(lines)
