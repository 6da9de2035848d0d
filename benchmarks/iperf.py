"""Measurement with iperf3 of an exchange's bytes on the same emulated lines: everybody sends to everybody at once."""

from __future__ import annotations

import shutil
import subprocess
import time

from benchmarks.links import Links, address

PORT = 5300


def why_not() -> str:
    """Return the reason why it cannot run here; an empty text if it can."""
    return "" if shutil.which("iperf3") else "the program iperf3 is missing; install iperf3"


def all_to_all(links: Links, peers: int, bytes_per_pair: int, congestion: str, flows: int = 1) -> float:
    """Return the seconds until the last of all pairs has its bytes.

    congestion: bbr or cubic.  flows: the TCP connections of a pair.
    """
    servers = [
        subprocess.Popen(
            [*links.place(peer), "iperf3", "-s", "-1", "-p", str(PORT + sender)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for peer in range(peers)
        for sender in range(peers)
        if sender != peer
    ]
    time.sleep(0.5)
    begun = time.perf_counter()
    clients = [
        subprocess.Popen(
            [
                *links.place(sender),
                *("iperf3", "-c", address(peer), "-p", str(PORT + sender)),
                *("-n", str(bytes_per_pair), "-C", congestion, "-P", str(flows)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for sender in range(peers)
        for peer in range(peers)
        if peer != sender
    ]
    failed = [client.wait() for client in clients]
    seconds = time.perf_counter() - begun
    for server in servers:
        server.kill()
        server.wait()
    if any(failed):
        raise SystemExit(f"{sum(map(bool, failed))} of {len(failed)} iperf3 clients failed")
    return seconds
