"""Finding the peers of one run on the local network, by multicast DNS.

The service type carries the run, so peers of other runs are never seen.  zeroconf keeps its own thread; addresses
come back through trio's entry queue.  Without a usable network it is silently off until there is one: bootstrap addresses
remain.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

LOOK_UP_MS = 2000
LOOK_S = 5.0
"""Between two looks at our own addresses."""

log = logging.getLogger(__name__)


async def discover(
    run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
) -> None:
    """Announce our `addresses`, and report those of others, until cancelled; anew when ours change.

    Where there is no multicast, it is tried again when there are other addresses: a laptop often starts before its network.
    """
    token = trio.lowlevel.current_trio_token()

    def report(others: list[str]) -> None:
        try:
            token.run_sync_soon(found, others)
        except trio.RunFinishedError:
            return  # discovered while the program ends

    while True:
        announced = list(addresses())
        service: Zeroconf | None = None
        try:
            service = await trio.to_thread.run_sync(_start, run, me, announced, report)
        except Exception as error:  # noqa: BLE001 - zeroconf raises many kinds where there is no multicast
            log.debug("no discovery on the local network: %r", error)
        try:
            while list(addresses()) == announced:
                await trio.sleep(LOOK_S)
        finally:
            if service is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(service.close)


def service_info(run: Hash, me: PeerId, addresses: Sequence[str]) -> ServiceInfo:
    """What is announced: the addresses, of IPv4 and IPv6, as text."""
    from zeroconf import ServiceInfo

    kind = f"_mh-{bytes(run).hex()[:10]}._tcp.local."
    split = [address.split("/") for address in addresses]
    hosts = dict.fromkeys(parts[2] for parts in split if parts[1] in ("ip4", "ip6"))
    return ServiceInfo(
        kind,
        f"{me}.{kind}",
        port=int(addresses[0].split("/")[4]),
        addresses=[ipaddress.ip_address(host).packed for host in hosts],
        properties={f"a{index}": address for index, address in enumerate(addresses[:8])},
        server=f"{me[-20:].lower()}.local.",
    )


def _start(run: Hash, me: PeerId, addresses: list[str], report: Callable[[list[str]], None]) -> Zeroconf:
    from zeroconf import ServiceListener, Zeroconf

    info = service_info(run, me, addresses)
    kind, name = info.type, info.name

    class Listener(ServiceListener):
        def add_service(self, zc: Zeroconf, type_: str, name_: str) -> None:
            info = None if name_ == name else zc.get_service_info(type_, name_, timeout=LOOK_UP_MS)
            if info is not None:
                report([value.decode(errors="replace") for value in info.properties.values() if value])

        def update_service(self, zc: Zeroconf, type_: str, name_: str) -> None:
            self.add_service(zc, type_, name_)

        def remove_service(self, zc: Zeroconf, type_: str, name_: str) -> None:
            return

    zeroconf = Zeroconf()
    try:
        zeroconf.register_service(info, cooperating_responders=True)  # nobody else's claim to our name counts
        zeroconf.add_service_listener(kind, Listener())  # a browser of our own would go on after `close`
    except BaseException:
        zeroconf.close()
        raise
    return zeroconf
