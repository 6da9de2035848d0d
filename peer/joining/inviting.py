"""Addresses, tokens and descriptions of invitations.

Addresses come from the running peer, which knows at which addresses others reached it and it reached others.  If no peer
runs, the addresses come from the last peer's stored contacts, and the person is warned that perhaps no peer answers there.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.control.client import ControlClient, ControlError, running_status
from peer.discovery.contacts import is_loopback, read_contacts, read_known
from peer.joining.run_source import DEFAULT_PORT, own_addresses
from peer.paths import data_dir, run_dir
from protocol.events.status import NodeStatus
from protocol.formatting import roughly
from protocol.run.admission import DEFAULT_USES, bearer_token, read_token
from protocol.run.invitation import Anchor, Invitation
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

UNREACHED = (
    "nobody has reached this peer yet at the addresses of the invitation; if guests cannot reach it either, let "
    "its port in at your router and firewall, or name an address that they can reach with --address"
)
REMEMBERED = (
    "your peer does not run now, so the invitation names the addresses that were reached last; start your peer before your "
    "guests start theirs"
)
NOBODY = (
    "nobody has reached the addresses of this invitation yet, because your peer does not run; start it, and if "
    "guests cannot reach it, print another invitation with `peer run invite`"
)
INVITED_DAYS = 30
"""Days for which a token admits unless its maker says otherwise; members stay in the run."""
DAY_S = 86_400
LAST_YEAR = 253_402_300_799
"""End of the year 9999, in unix seconds: the latest date that can be shown."""


@dataclass(frozen=True)
class Found:
    """Addresses for an invitation.  remark: a sentence for the person if no peer is known to have reached them.

    anchor: the newest final record, as our running peer knows it.
    """

    addresses: list[str]
    remark: str = ""
    anchor: Anchor | None = None


def find_addresses(run: Hash, peer: PeerId, data: Path) -> Found:
    """Return the addresses at which guests of `run` find a peer.  peer: our own peer ID."""
    with suppress(ControlError):
        answer = ControlClient(data).request("contacts")
        running = read_known(answer)
        if answer.get("run") == run.hex() and running.for_invitation():
            remark = "" if running.here or running.there else UNREACHED
            return Found(running.for_invitation(), remark, find_anchor(run, data))
    kept = read_contacts(run_dir(data, run))
    if kept.here or kept.there:
        return Found(kept.for_invitation(), REMEMBERED)
    if kept.listening and all(is_loopback(address) for address in kept.listening):
        return Found(kept.listening, NOBODY)
    ports = [int(port) for address in kept.listening if (port := address.split("/tcp/")[1].split("/")[0]).isdecimal()]
    return Found([f"{address}/p2p/{peer}" for address in own_addresses(ports[0] if ports else DEFAULT_PORT)], NOBODY)


def find_anchor(run: Hash, data: Path) -> Anchor | None:
    """Return the newest final record that our peer knows; None if the peer takes part in another run, or does not run."""
    status = running_status(data, run)
    return anchor_of(status) if status is not None else None


def anchor_of(status: NodeStatus) -> Anchor | None:
    """Return the newest final record; None before there is one."""
    return Anchor(rounds=status.final_rounds, tip=bytes.fromhex(status.final_tip)) if status.final_rounds else None


def describe_anchor(invitation: Invitation) -> str:
    """Describe the history of the invitation in a line."""
    anchor = invitation.anchor
    if anchor is None:
        return "to the chain of its first peers"
    return f"to the chain whose tip after {anchor.rounds} rounds is {anchor.tip.hex()[:16]}"


def invite_command(run: Hash, data: Path) -> str:
    """Return the organiser's command for an invitation that several guests may use, to a run that admits by token."""
    where = "" if data == data_dir() else f" --data-dir {shlex.quote(str(data))}"
    return f"peer run invite {run.hex()[:12]} --bearer{where}"


def token_for_friends(organiser: Identity, run: Hash, key: Identity, wall_now: float) -> bytes:
    """Return a bearer token with the usual uses and expiry.  key: key that was made for it.  wall_now: unix seconds."""
    return bearer_token(organiser, run, key, expires=int(wall_now) + INVITED_DAYS * DAY_S)


def friends_line(wall_now: float) -> str:
    """Describe the invitation with such a token, which was made at `wall_now` (unix seconds)."""
    until = time.strftime("%Y-%m-%d", time.gmtime(wall_now + INVITED_DAYS * DAY_S))
    return (
        f"one for all your friends: it admits up to {DEFAULT_USES} computers until {until}, and members stay; send it like "
        "a password, because each computer that it admits gets a vote"
    )


def describe_token(invitation: Invitation, wall_now: float) -> Sequence[str]:
    """Describe the token of an invitation, its holder and its expiry, with a line for each.  wall_now: unix seconds."""
    if invitation.token is None:
        return ["without a token"]
    try:
        token = read_token(invitation.token, Hash(invitation.run), PeerId(invitation.organiser))
    except Malformed as error:
        return [f"with an invalid token: {error}"]
    left = token.expires - wall_now
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(token.expires, LAST_YEAR)))
    holders = f"a bearer token: it admits up to {token.uses} peers that hold this invitation"
    lines = [
        f"with a token for the role {token.role.value}",
        f"for {token.peer} alone" if token.peer is not None else holders,
        f"valid until {at} (in {roughly(left)})" if left > 0 else f"expired at {at} ({roughly(-left)} ago)",
    ]
    if token.until_round is not None:
        lines.append(f"the guest must become a member by round {token.until_round}")
    return lines
