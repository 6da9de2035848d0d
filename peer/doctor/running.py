"""Checks by the peer that runs here: it has the port and the identity, and has met the others.  Blocking."""

from __future__ import annotations

from pathlib import Path

from peer.bench.lines import measure_lines
from peer.doctor.check import Check, CheckResult, ok
from peer.doctor.computer import skewed
from peer.doctor.router import reachable
from peer.doctor.visit import Findings
from peer.errors import PeerError
from peer.formatting import clean
from peer.joining.run_source import stored_manifest
from protocol.events.status import PeerStatus
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.nat.reachability import Reachability
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

LEAST_LINE = 250e3
"""Bytes a second; below 2 Mbit/s, an exchange of any model takes long."""


def ask_the_peer(status: PeerStatus, folder: Path) -> Findings:
    """Return the checks that need the swarm, from the running peer's status."""
    found = Findings(signed=stored_manifest(Hash(bytes.fromhex(status.run)), folder))
    ports = sorted({address.split("/")[4] for address in status.addresses if len(address.split("/")) > 4})
    found.checks.append(ok("port", f"{', '.join(ports)}, the running peer's"))
    others = [known for known in status.swarm if known.liveness == "alive"]
    if others:
        found.checks.append(ok("peers", f"{len(others)} live"))
    else:
        remedy = "nothing to do when you are the first; else see that the others run"
        found.checks.append(Check("peers", CheckResult.WARN, "nobody else is here", "at least 1", remedy))
    if status.clock_skew:
        found.checks.append(skewed(status.clock_skew))
    verdicts = {address: Reached(told) for address, told in status.reachability.items()}
    found.checks += reachable(Reachability(verdicts))
    found.rates = {PeerId(known.peer): known.tokens_per_s for known in others}
    return found


def lines(status: PeerStatus, folder: Path) -> Check:
    """Check the lines to some peers, which the running peer measures."""
    try:
        speed = measure_lines(folder, status.run)
    except PeerError as error:
        value, _, remedy = error.text.partition("; ")
        return Check("lines", CheckResult.UNKNOWN, clean(value, 200), "", remedy or "ask again when the round has begun")
    down, up = speed.down_bytes_per_s, speed.up_bytes_per_s
    shown = f"down {_line(down)}, up {_line(up) if up else 'not known yet'}"
    known = [rate for rate in (down, up) if rate]
    if known and min(known) < LEAST_LINE:
        return Check(
            "lines",
            CheckResult.WARN,
            shown,
            f"at least {_line(LEAST_LINE)}",
            "stop what else uses the line, or raise the caps",
        )
    return ok("lines", shown, f"at least {_line(LEAST_LINE)}")


def _line(bytes_per_s: float) -> str:
    return f"{8e-6 * bytes_per_s:.1f} Mbit/s"
