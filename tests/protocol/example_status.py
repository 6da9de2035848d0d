"""A status to show: of a peer that trains beside one other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol.events.status import (
    ComputerStatus,
    ContributionStatus,
    GpuStatus,
    PeerStatus,
    RunDefinition,
    RunMixture,
    SwarmPeer,
)

ME = "12D3KooWMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeABCDEF"
OTHER = "12D3KooWOtherOtherOtherOtherOtherOtherOtherOtherUVWXYZ"
NEIGHBOUR = SwarmPeer(
    peer=OTHER,
    name="kitchen",
    role="trainer",
    phase="ready",
    round=12,
    steps=20,
    tokens_per_s=2048.0,
    liveness="alive",
    heard_s=1.0,
    version="0.1",
)
FACTS = RunDefinition(
    description="A model of field notes on bees, for beekeepers' phones.",
    url="https://bees.example",
    licence="Apache-2.0",
    family="Llama",
    parameters=820_352,
    layers=4,
    dim=128,
    sequence_length=256,
    mixtures=[
        RunMixture(from_tokens=0, shares={"notes": 0.55, "books": 0.45}),
        RunMixture(from_tokens=10**9, shares={"notes": 0.8, "web": 0.2}),
    ],
    data_tokens=4_100_000,
    peak_rate=3e-3,
    requires="20 Mbit/s up; its model needs about 525.3 MB of memory on a CPU, "
    "or 649.7 MB of a GPU's and 3.4 GB of the computer's, 19.7 MB on disk",
)
COMPUTER = ComputerStatus(
    processor="AMD Ryzen 9 5950X 16-Core Processor",
    busy_share=0.14,
    memory_used=11_800_000_000,
    memory_total=33_500_000_000,
    watts=64.0,
    gpus=[
        GpuStatus(
            name="NVIDIA GeForce RTX 3090",
            busy_share=0.97,
            memory_used=19_300_000_000,
            memory_total=25_700_000_000,
            temperature=71.0,
            watts=298.0,
        )
    ],
    joules=2_700_000.0,
    all_joules=151_200_000.0,
)
GIVEN = ContributionStatus(rounds=11, tokens=22_400_000, tokens_today=1_200_000, rank=3, contributors=12, streak=9, days=5)
TRAINING = PeerStatus(
    peer=ME,
    name="attic",
    run="ab" * 32,
    run_name="demo",
    role="trainer",
    phase="computing",
    why_idle="",
    why_detail="",
    round=12,
    tip="cd" * 32,
    final_rounds=12,
    final_tip="cd" * 32,
    state_rounds=12,
    state_digest="ef" * 32,
    peers=1,
    members=[ME, OTHER],
    tokens=40960,
    steps=11,
    inner_steps=20,
    tokens_per_s=3200.0,
    loss=2.31,
    eval_loss=2.4,
    eval_rounds=11,
    eval_by=OTHER,
    up_bytes=3_100_000,
    down_bytes=2_900_000,
    trainer_pid=1234,
    version="0.1",
    swarm=[NEIGHBOUR],
    pid=1233,
    uptime_s=7500.0,
    run_tokens=40960,
)


def status(**changes: Any) -> PeerStatus:
    """`TRAINING` with other values."""
    return replace(TRAINING, **changes)
