"""Visit to the swarm: checks that its peers answer, admit us, and reach us.  Only the manifest is fetched.

The visitor greets like any peer, listens for a few heartbeats, and sends none itself.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import trio

from peer.daemon.settings import RunChoice, chosen_port
from peer.discovery.mdns import Mdns
from peer.discovery.search import Search
from peer.doctor.checks import Check, CheckResult, OpenedPort, flawed, ok, port_keeping, reachable, skewed
from peer.doctor.corpora import ask_peers, find_corpora
from peer.errors import PeerError
from peer.joining.lobby import Lobby, fetch_manifest
from peer.joining.standing import find_standing
from peer.paths import run_dir
from peer.resources.computer import seconds_since_boot
from peer.settings.preferences import Preferences
from peer.settings.values import USUAL_PORT, mapped_addresses
from protocol.formatting import short
from protocol.membership.handshake import ClockOffsets, note_clock
from protocol.run.admission import make_hello
from protocol.run.manifest import SignedManifest
from protocol.transport.interface import Acceptance, NetworkError, Refused
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.network import Libp2pNetwork, NetworkSettings, open_network
from protocol.version import version
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import unpack
from protocol.wire.presence import Heartbeat, Role

MEET_S = 20.0
"""Seconds for a first peer to answer, and to give the manifest."""
LISTEN_S = 5.0
"""Seconds for two heartbeats of every peer."""
GREET_S = 10.0
ASK_TIMES, ASK_AGAIN_S = 4, 4.0
"""Number of questions and seconds between them: a peer dials few strangers at one time, so it may answer only later."""
MOST_HEARD = 1024
MOST_GREETED = 8


@dataclass(frozen=True)
class Visit:
    """Input of a visit.  preferences, local: the same as for `peer join`."""

    folder: Path
    identity: Identity
    choice: RunChoice
    preferences: Preferences
    local: bool = False

    @property
    def role(self) -> Role:
        """Role with which we greet."""
        return Role.TRAINER if self.preferences.role == "auto" else Role(self.preferences.role)

    @property
    def announce(self) -> tuple[str, ...]:
        """Addresses at which others reach this computer, according to the person or the machine's provider."""
        announced = self.preferences.announce
        return mapped_addresses(os.environ, self.preferences.port or USUAL_PORT) if announced is None else announced


@dataclass
class Findings:
    """Results of the visit.  rates: tokens a second, by peer that was heard."""

    checks: list[Check] = field(default_factory=list)
    signed: SignedManifest | None = None
    rates: dict[PeerId, float] = field(default_factory=dict)


class _Visitor(Lobby):
    """Listener for heartbeats."""

    def __init__(self, run: Hash, rates: dict[PeerId, float]) -> None:
        super().__init__()
        self._run, self._rates = run, rates

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Remember the rates that peers claim; forward nothing."""
        try:
            sender, body, _ = unpack(data, self._run)
        except Malformed:
            return Acceptance.IGNORE
        if isinstance(body, Heartbeat) and (sender in self._rates or len(self._rates) < MOST_HEARD):
            self._rates[sender] = max(0.0, float(body.tokens_per_s))
        return Acceptance.IGNORE


async def visit(how: Visit) -> Findings:
    """Visit the swarm; every problem becomes a failed check.  The caller holds the identity's lock."""
    found = Findings(signed=how.choice.signed)
    await trio.to_thread.run_sync(import_module, "libp2p")
    host = "127.0.0.1" if how.local else "0.0.0.0"  # noqa: S104 - strangers must reach us
    try:
        with chosen_port(how.preferences.port, how.local) as port:
            settings = NetworkSettings(host, port, None if how.local else Mdns().discover, announce=how.announce)
            visitor = _Visitor(how.choice.run, found.rates)
            async with open_network(how.identity, how.choice.run, visitor, settings) as network:
                found.checks.append(ok("port", str(network.own.port)))
                await _stay(how, network, found)
    except NetworkError as error:
        remedy = "stop the other program, or choose another port with --port or `peer config port`"
        found.checks.append(Check("port", CheckResult.FAIL, str(error).partition(";")[0], "free", remedy))
    return found


async def _stay(how: Visit, network: Libp2pNetwork, found: Findings) -> None:
    """Meet the swarm, with the port open in the router if the router supports this and the settings allow it."""
    opened, problem = OpenedPort(), None
    async with trio.open_nursery() as nursery:
        if how.preferences.port_mapping and not how.local and network.own.need_a_router():
            nursery.start_soon(opened.keep, network)
        try:
            await _meet(how, network, found, opened)
        except (NetworkError, PeerError) as error:  # raised outside the nursery, which would wrap it in a group
            problem = error
        nursery.cancel_scope.cancel()
    if problem is not None:
        raise problem


async def _meet(how: Visit, network: Libp2pNetwork, found: Findings, opened: OpenedPort) -> None:
    network.remember(how.choice.addresses)
    search = Search(network, how.choice.addresses, lambda event: None, lambda: False)
    signed, waits = how.choice.signed, [""]
    with trio.move_on_after(MEET_S):
        if signed is None:
            signed = await fetch_manifest(network, how.choice.run, how.choice.organiser, waits.append)
        else:
            while not network.connected():
                await trio.sleep(0.1)
    found.signed = signed
    refused, proof = await _admission(how, signed) if signed is not None else (None, b"")
    if signed is None or not network.connected():
        found.checks += [_nobody(how, search), *([refused] if refused is not None else [])]
        return
    found.checks.append(ok("peers", f"{len(network.connected())} answered"))
    found.checks += [refused] if refused is not None else await _greet(how, signed, proof, network)
    here = await trio.to_thread.run_sync(find_corpora, signed.manifest, run_dir(how.folder, signed.run), how.preferences)
    if here is not None and here.missing is not None:
        found.checks.append(await ask_peers(here, network))
    await trio.sleep(LISTEN_S)
    await opened.wait()
    for again in range(ASK_TIMES):
        await trio.sleep(ASK_AGAIN_S if again else 0)
        await network.ask_reachability()
        if network.reachability().overall is not Reached.UNKNOWN:
            break
    found.checks += reachable(network.reachability(), how.announce, opened.by, await port_keeping(network))


def _nobody(how: Visit, search: Search) -> Check:
    if not how.choice.addresses:
        remedy = "nothing to do if you are the first; otherwise join with an invitation from somebody who takes part"
        return Check("peers", CheckResult.WARN, "no peer of this run on this computer or network", "at least 1", remedy)
    return flawed("peers", CheckResult.FAIL, search.failure(MEET_S), limit="at least 1")


async def _admission(how: Visit, signed: SignedManifest) -> tuple[Check | None, bytes]:
    """Return the problem that this computer can detect by itself, if any, and our proof of admission."""
    me, folder = how.identity.peer_id, run_dir(how.folder, signed.run)
    known = signed.manifest, signed.run, me, how.choice.admission, time.time(), how.role, folder
    standing = await trio.to_thread.run_sync(find_standing, *known)
    if standing.problem is None:
        return None, standing.admission
    return flawed("admission", CheckResult.FAIL, standing.problem, "ask the run's organiser"), b""


async def _greet(how: Visit, signed: SignedManifest, proof: bytes, network: Libp2pNetwork) -> list[Check]:
    """Check that other peers accept our software version and our admission."""
    hello = make_hello(signed.run, how.role, proof, version()).encode()
    refusals, welcomes, clocks = list[str](), 0, ClockOffsets(time.time, seconds_since_boot)
    for peer in list(network.connected())[:MOST_GREETED]:
        try:
            asked = clocks.boot()
            answer = await network.request(peer, "hello", hello, timeout_s=GREET_S)
            note_clock(clocks, peer, answer, asked)
            network.welcome(peer)
            welcomes += 1
        except Refused as refusal:
            refusals.append(str(refusal))
        except NetworkError as error:
            refusals.append(f"{short(peer)} does not answer: {error}")
    skew = [skewed(clocks.skew)] if clocks.skew else []
    if welcomes:
        admitted = ok("admission", f"{welcomes} of {welcomes + len(refusals)} peers have us, version {version()}")
        return [admitted, *skew]
    why = (refusals or ["nobody answered"])[0]
    return [flawed("admission", CheckResult.FAIL, why, "try again, or ask the run's organiser", "at least 1 peer")]
