"""Contacts for guests of this swarm: addresses of this peer and of other peers that were reached.

The network knows which of our addresses other peers reached, and which of their addresses we reached.  Before an invitation
is made, a peer that has only dialled us is dialled back at the addresses in its heartbeats.  The last contacts are kept on
disk, for invitations that are written while no peer runs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from peer.discovery.rendezvous import REREAD_S, Rendezvous
from peer.errors import PeerError
from peer.files import read_json, write_atomically
from peer.paths import runtime_dir
from protocol.events.events import Event, Notice
from protocol.run.invitation import MAX_ADDRESSES, can_be_named
from protocol.transport.dialer import peer_of
from protocol.transport.interface import Network
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from protocol.transport.network import Libp2pNetwork

# ------------------------------------------------------------------------------------------------------------------------
# Address book: addresses of other peers, from this computer's rendezvous and from earlier participations.
#
# The book only feeds addresses to the network, which dials; the handshake proves the identity of the peer that answers.
# Neither a damaged book nor an unusable runtime directory stops a peer, because it can find the other peers in other ways.


BOOK_NAME = "addresses.json"
SAVE_EVERY = 30
"""Reads of the rendezvous between two saves of the book."""
MAX_KEPT_ADDRESSES = 1000
MAX_ADDRESS_CHARACTERS = 200
MAX_BOOK_BYTES = 1 << 20


class AddressBook:
    """Address book that supplies `network`.  folder: the run's folder in the data directory."""

    def __init__(self, folder: Path, run: Hash, network: Network, emit: Callable[[Event], None]) -> None:
        self._path, self._run, self._network, self._emit = folder / BOOK_NAME, run, network, emit
        self._saved: list[str] = []
        self._told = False

    async def keep(self) -> None:
        """Supply the network until cancelled; at the end, remove our entry from the rendezvous."""
        self._network.remember(await trio.to_thread.run_sync(read_book, self._path))
        rendezvous: Rendezvous | None = None
        looks = 0
        try:
            rendezvous = Rendezvous(runtime_dir(), self._run, self._network.peer_id)
        except PeerError as error:
            self._tell(str(error))
        try:
            while True:
                if rendezvous is not None:
                    try:
                        await trio.to_thread.run_sync(rendezvous.register, self._network.addresses())
                        self._network.remember(await trio.to_thread.run_sync(rendezvous.others))
                    except OSError as error:
                        self._tell(f"peers on this computer cannot be found through {rendezvous.folder}: {error.strerror}")
                looks += 1
                if looks % SAVE_EVERY == 2:
                    self._tell(await trio.to_thread.run_sync(self._save, self._known()))
                await trio.sleep(REREAD_S)
        finally:
            if rendezvous is not None:
                rendezvous.withdraw()
            self._tell(self._save(self._known()))

    def _tell(self, text: str) -> None:
        if text and not self._told:
            self._told = True
            self._emit(Notice("warning", text))

    def _known(self) -> list[str]:
        return list(self._network.known_addresses())[:MAX_KEPT_ADDRESSES]  # best first

    def _save(self, known: list[str]) -> str:
        """Write the book if it has changed; return a sentence if that fails, otherwise nothing.  Blocking."""
        if set(known) == set(self._saved) or not self._path.parent.is_dir():
            return ""
        try:
            write_atomically(self._path, json.dumps(known).encode())
        except OSError as error:
            return f"the address book {self._path} cannot be written ({error.strerror}); remove what is in its place"
        self._saved = known
        return ""


def read_book(path: Path) -> list[str]:
    """Return the addresses in a book; none if it is missing or damaged."""
    known = read_json(path, MAX_BOOK_BYTES)
    if not isinstance(known, list):
        return []
    return [
        address
        for address in known[:MAX_KEPT_ADDRESSES]
        if isinstance(address, str) and len(address) <= MAX_ADDRESS_CHARACTERS
    ]


# ------------------------------------------------------------------------------------------------------------------------


FILE_NAME = "contacts.json"
MAX_FILE_BYTES = 1 << 16
SAVE_EVERY_S = 30.0
MAX_OWN = 6
MAX_EACH = 2
"""Most addresses of one other peer in an invitation."""
DIALLED_BACK = 8
"""Number of peers that are dialled back for an invitation."""
DIAL_BACK_S = 4.0


@dataclass(frozen=True)
class Known:
    """Known addresses.  listening: all own addresses.  here: own addresses that others reached.

    there: addresses of other peers that we reached.
    """

    listening: list[str] = field(default_factory=list)
    here: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)

    def for_invitation(self) -> list[str]:
        """Return the addresses for an invitation: the reached ones, or else the ones at which this peer listens."""
        return ([*self.here, *self.there] or self.listening)[:MAX_ADDRESSES]


class Contacts:
    """Contacts of a run.  folder: the run's folder.  swarm: returns the run's live peers with their claimed addresses."""

    def __init__(self, folder: Path, network: Libp2pNetwork, swarm: Callable[[], Mapping[PeerId, Sequence[str]]]) -> None:
        self._path, self._network, self._swarm = folder / FILE_NAME, network, swarm
        self._dialled_back: dict[PeerId, list[str]] = {}
        self._saved = read_contacts(folder)

    def known(self) -> Known:
        """Return the present contacts."""
        swarm, listening = self._swarm(), list(self._network.addresses())
        only_here = all(is_loopback(address) for address in listening)
        here = [
            address
            for address in self._network.reached_here(lambda peer: peer in swarm)
            if only_here or not is_loopback(address)
        ]
        there: dict[PeerId, list[str]] = {}
        dialled_back = [address for addresses in self._dialled_back.values() for address in addresses]
        for address in [*self._network.reached_there(), *dialled_back]:
            peer = peer_of(address)
            if peer is not None and peer in swarm and can_be_named(address) and address not in there.get(peer, ()):
                there.setdefault(peer, []).append(address)
        turns = [addresses[turn] for turn in range(MAX_EACH) for addresses in there.values() if len(addresses) > turn]
        return Known(listening, here[:MAX_OWN], turns[:MAX_ADDRESSES])

    async def dial_back(self) -> None:
        """Dial peers that have dialled us, to learn the addresses at which they can be reached."""
        reached = {peer_of(address) for address in self._network.reached_there()}
        unknown = [(peer, addresses) for peer, addresses in self._swarm().items() if peer not in reached]
        unknown = random.sample(unknown, min(len(unknown), DIALLED_BACK))  # a later call tries others
        found: dict[PeerId, list[str]] = {peer: [] for peer, _ in unknown}

        async def dial(peer: PeerId, address: str) -> None:
            if await self._network.answers(address):
                found[peer].append(address)

        with trio.move_on_after(DIAL_BACK_S):
            async with trio.open_nursery() as nursery:
                for peer, addresses in unknown:
                    for address in addresses[:MAX_OWN]:
                        if peer_of(address) == peer:
                            nursery.start_soon(dial, peer, address)
        found = {**self._dialled_back, **found}
        self._dialled_back = {peer: addresses for peer, addresses in found.items() if peer in self._swarm()}

    async def keep(self) -> None:
        """Save the contacts on disk until cancelled."""
        try:
            while True:
                await trio.sleep(SAVE_EVERY_S)
                await trio.to_thread.run_sync(self._save, self.known())
        finally:
            self._save(self.known())

    def _save(self, known: Known) -> None:
        same = known.listening == self._saved.listening  # on another network, earlier reached addresses are no longer ours
        kept = Known(known.listening, known.here or (self._saved.here if same else []), known.there or self._saved.there)
        if kept == self._saved or not self._path.parent.is_dir():
            return
        try:
            write_atomically(self._path, json.dumps(asdict(kept)).encode())
            self._saved = kept
        except OSError:
            return  # the store reports a full disk; an invitation then names our listening addresses


def read_contacts(folder: Path) -> Known:
    """Return the stored contacts of a run; empty if the file is missing or damaged."""
    return read_known(read_json(folder / FILE_NAME, MAX_FILE_BYTES))


def read_known(fields: Any) -> Known:
    """Parse contacts from a file or the control socket; skip invalid addresses."""
    if not isinstance(fields, dict):
        return Known()
    return Known(*(_addresses(fields.get(name)) for name in ("listening", "here", "there")))


def _addresses(found: Any) -> list[str]:
    if not isinstance(found, list):
        return []
    return [
        address
        for address in found[:MAX_ADDRESSES]
        if isinstance(address, str) and can_be_named(address) and peer_of(address) is not None
    ]


def is_loopback(address: str) -> bool:
    """Return True if a multiaddr leads only to this computer itself."""
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
