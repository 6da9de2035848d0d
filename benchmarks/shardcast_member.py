"""One process of PyPI shardcast 0.3.2 for `benchmarks.broadcast`: an origin, a relay or a client, which speaks JSON lines.

Needs an interpreter, or a path, that has shardcast; nothing of ours is imported.  All of its default waits (30 s between two
looks of a relay, 15 s between two tries) are set to a second or less, because only the transfer of bytes is compared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ |= {
    "SHARDCAST_LOG_LEVEL": "ERROR",
    "SHARDCAST_FAST_RETRY_INTERVAL": "1",
    "SHARDCAST_SLOW_RETRY_INTERVAL": "1",
}
PORT = 8000
LOOK_S = 0.2


def say(**words: Any) -> None:
    print(json.dumps(words), file=sys.__stdout__, flush=True)


def probe(folder: str) -> None:
    """Write the file by which a downloader measures each server before it begins."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "data1.bin"), "wb") as file:
        file.write(os.urandom(100_000))


def origin(folder: str, size: int, shard: int) -> None:
    import shardcast

    path = os.path.join(folder, "file")
    with open(path, "wb") as file:
        for at in range(0, size, 1 << 20):
            file.write(os.urandom(min(1 << 20, size - at)))
    served = os.path.join(folder, "served")
    probe(served)
    shardcast.initialize(served, PORT)
    say(ready=True)
    sys.stdin.readline()
    shardcast.broadcast(path, shard)
    say(offered=True)
    sys.stdin.readline()


def relay(folder: str, upstream: str) -> None:
    from shardcast.middle_node import MiddleNode

    probe(folder)
    MiddleNode([f"{upstream}:{PORT}"], folder, PORT, check_interval=1)
    say(ready=True)
    sys.stdin.readline()


def client(folder: str, servers: list[str]) -> None:
    from shardcast.client_node import ClientNode

    node = ClientNode([f"{server}:{PORT}" for server in servers], folder)
    say(ready=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    while True:
        versions = node.list_available_versions()
        if versions and node.download_version(sorted(versions)[-1]):
            break
        time.sleep(LOOK_S)
    say(seconds=time.perf_counter() - begun)
    sys.stdin.readline()


if __name__ == "__main__":
    role, folder = sys.argv[1], sys.argv[2]
    sys.stdout = sys.stderr
    os.makedirs(folder, exist_ok=True)
    if role == "origin":
        origin(folder, int(sys.argv[3]), int(sys.argv[4]))
    elif role == "relay":
        relay(folder, sys.argv[3])
    else:
        client(folder, sys.argv[3:])
    os._exit(0)
