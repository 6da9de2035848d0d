"""Where a rented machine is reached from outside, as its provider tells in the environment.

RunPod: RUNPOD_PUBLIC_IP, and RUNPOD_TCP_PORT_4001 for the port outside that leads to 4001 here.  Vast.ai: PUBLIC_IPADDR and
VAST_TCP_PORT_4001 likewise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from peer.settings.values import read_addresses

PROVIDERS = (("RUNPOD_PUBLIC_IP", "RUNPOD_TCP_PORT_"), ("PUBLIC_IPADDR", "VAST_TCP_PORT_"))


def mapped_addresses(environment: Mapping[str, str], port: int) -> tuple[str, ...]:
    """The multiaddrs that lead to `port` of this machine; none where no provider tells one that can be read."""
    found: list[str] = []
    for address, prefix in PROVIDERS:
        ip, outside = environment.get(address, "").strip(), environment.get(f"{prefix}{port}", "").strip()
        with contextlib.suppress(ValueError):
            found += read_addresses(f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{outside}")
    return tuple(found)
