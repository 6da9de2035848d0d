"""Real peers on emulated home lines: narrow, far from each other, and now and then a packet is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.links import Access, Links, address, why_not
from tests.e2e.swarm import Swarm

PORT = 4800


def test_peers_on_home_lines_make_rounds_together(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    lines = [Access(20e6, 50e6), Access(20e6, 50e6), Access(5e6, 20e6)]
    with Links(lines, delay_s=0.02, loss=0.002) as links, Swarm(tmp_path) as swarm:
        printed = swarm.command(
            swarm.place("peer-0"),
            "run",
            "create",
            str(swarm.run_file),
            "--out",
            str(swarm.manifest),
            "--address",
            f"/ip4/{address(0)}/tcp/{PORT}",
        )
        invitation = next(word for word in printed.split() if word.startswith("mh1"))
        for number in range(len(lines)):
            peer = swarm.peer(f"peer-{number}", invitation)
            peer.around, peer.local = links.place(number), False
            peer.start("--port", str(PORT))
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
