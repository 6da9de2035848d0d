"""One process of the gloo comparison in `benchmarks.exchange`: all-reduce in fp32 of the same number of parameters."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    rank, peers, parameters, repeat, port = (int(word) for word in sys.argv[1:6])
    torch.set_num_threads(1)
    if rank == 0:
        print(json.dumps({"port": port}), flush=True)
    sys.stdin.readline()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=peers)
    values = torch.full((parameters,), float(rank))
    seconds = []
    for _ in range(repeat + 1):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(values)
        values /= peers
        seconds.append(time.perf_counter() - begun)
    dist.destroy_process_group()
    print(json.dumps({"seconds": seconds[1:]}), flush=True)


if __name__ == "__main__":
    main()
