"""One process of the hivemind comparison in `benchmarks.exchange`, run by an interpreter that has hivemind 1.1.12.

It averages in fp32, because hivemind's uint8 quantisation fails with current torch.  Two threads of its own do its
reductions.
"""

from __future__ import annotations

import json
import sys
import time

import hivemind
import torch
from hivemind.utils.timed_storage import get_dht_time


def main() -> None:
    rank, peers, parameters, repeat, _ = (int(word) for word in sys.argv[1:6])
    torch.set_num_threads(1)
    dht = hivemind.DHT(initial_peers=[], start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"]) if rank == 0 else None
    if dht is not None:
        print(json.dumps({"initial": [str(address) for address in dht.get_visible_maddrs()]}), flush=True)
    words = json.loads(sys.stdin.readline())
    dht = dht or hivemind.DHT(initial_peers=words["initial"], start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager = hivemind.DecentralizedAverager(
        [torch.full((parameters,), float(rank))],
        dht,
        prefix="benchmark",
        target_group_size=peers,
        min_group_size=peers,
        min_matchmaking_time=2.0,
        request_timeout=1.0,
        start=True,
    )
    seconds = []
    for _ in range(repeat + 1):
        control = averager.step(timeout=300, wait=False, require_trigger=True, scheduled_time=get_dht_time() + 8)
        while control.stage.name not in ("AWAITING_TRIGGER",):
            time.sleep(0.01)
        begun = time.perf_counter()
        control.allow_allreduce()
        if control.result(300) is None:
            raise SystemExit("hivemind formed no group")
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds[1:]}), flush=True)
    sys.stdin.readline()
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
