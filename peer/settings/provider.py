"""External addresses of a rented machine, from its provider's environment variables.

RunPod: RUNPOD_PUBLIC_IP, and RUNPOD_TCP_PORT_4001 for the external port that leads to 4001 here.  Vast.ai: PUBLIC_IPADDR and
VAST_TCP_PORT_4001 likewise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from peer.settings.values import read_addresses

PROVIDERS = (("RUNPOD_PUBLIC_IP", "RUNPOD_TCP_PORT_"), ("PUBLIC_IPADDR", "VAST_TCP_PORT_"))


def mapped_addresses(environment: Mapping[str, str], port: int) -> tuple[str, ...]:
    """Return the multiaddrs that lead to `port` of this machine; none if no provider gives a readable one."""
    found: list[str] = []
    for address, prefix in PROVIDERS:
        ip, outside = environment.get(address, "").strip(), environment.get(f"{prefix}{port}", "").strip()
        with contextlib.suppress(ValueError):
            found += read_addresses(f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{outside}")
    return tuple(found)
