"""Search for the first peer of an invitation, with reports to the person: addresses, tries, problems, and advice.

This module decides when to report: soon after a change, otherwise less and less often.  The network decides which
addresses to dial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import trio

from peer.addresses import names_only_local
from peer.discovery.contacts import is_loopback
from protocol.bounds import Backoff
from protocol.events.events import Event, Notice, NoticeCode
from protocol.formatting import attempted, duration
from protocol.transport.dialer import DIAL_S, NO_ROUTE, OTHER_RUN, REFUSED, SILENT, WRONG_PEER, Attempt, peer_of

if TYPE_CHECKING:
    from protocol.transport.network import Libp2pNetwork

LOOK_S = 0.5
FIRST_S = 2.0
"""Seconds before the first report: most peers are found within this time."""
LEAST_GAP_S = 2.0
"""Shortest time between two reports (s), however much changes."""
REPEAT_S = 5.0
MOST_GAP_S = 60.0
"""Longest gap in seconds: while nothing changes, each gap is twice the one before, from `REPEAT_S` up to this limit."""
TRYING = "being tried"
CHECKS = (
    (NO_ROUTE, "check this computer's own network connection"),
    (SILENT, "check that the peer runs, and that its router and firewall let this port in"),
    (REFUSED, "check that the peer runs and listens on this port (its `peer status` names its addresses)"),
    (OTHER_RUN, "ask the person who invited you to start that peer with this run, or to send a newer invitation"),
    (WRONG_PEER, "ask the person who invited you for a newer invitation"),
)
ELSEWHERE = (
    "the invitation names only addresses of the local network that it was made in: join from there, or ask for one with "
    "an address that you can reach"
)
OTHERWISE = "ask the person who invited you for a newer invitation"


class Search:
    """Search for the peers at the addresses `wanted`.  met: True once a peer of the run was heard; the search then ends."""

    def __init__(
        self, network: Libp2pNetwork, wanted: Sequence[str], emit: Callable[[Event], None], met: Callable[[], bool]
    ) -> None:
        self._network, self._wanted, self._emit, self._met = network, tuple(wanted), emit, met
        self._peers = {peer for address in wanted if (peer := peer_of(address)) is not None}
        self.summary = ""
        """Failed attempts in one line, while no peer answers."""

    async def run(self) -> None:
        """Search until a peer was met, or until cancelled."""
        begun = trio.current_time()
        due, last, said, backoff = begun + FIRST_S, begun, list[Attempt](), Backoff(REPEAT_S, MOST_GAP_S)
        while not self._met():
            attempts, now = self._tried(), trio.current_time()
            self.summary = "" if self._answers(attempts) else told(attempts)
            what = sorted((replace(each, times=0) for each in attempts), key=lambda each: each.address)
            if what != said and said:  # a change is told soon
                due = min(due, last + LEAST_GAP_S)
            if self.summary and now >= due:
                if what != said:
                    backoff.reset()
                due, last, said = now + backoff.failed(), now, what
                seconds, advice = now - begun, check(attempts)
                text = f"no peer of the invitation answers after {duration(seconds)}: {self.summary}; {advice}"
                details = {"seconds": seconds, "tried": [asdict(attempt) for attempt in attempts], "check": advice}
                self._emit(Notice("warning", text, NoticeCode.NOBODY_ANSWERS, details))
            await trio.sleep(LOOK_S)
        self.summary = ""

    def failure(self, seconds: float) -> str:
        """Return the reason for giving up, with the remedy."""
        attempts = self._tried()
        if self._answers(attempts):
            return f"peers answer, but none gave the run's manifest in {duration(seconds)}; {OTHERWISE}"
        return f"no peer of the invitation answered in {duration(seconds)}: {told(attempts)}; {check(attempts)}"

    def _answers(self, attempts: Sequence[Attempt]) -> bool:
        """Return True if a connected peer may belong to our run."""
        foreign = {peer_of(attempt.address) for attempt in attempts if attempt.problem == OTHER_RUN}
        return any(peer not in foreign for peer in self._network.connected())

    def _tried(self) -> list[Attempt]:
        """Return the attempts at the invitation's addresses, and at other observed addresses of the same peers."""
        found = {each.address: each for each in self._network.attempts() if peer_of(each.address) in self._peers}
        waiting = [Attempt(address, 0, "") for address in self._wanted if address not in found]
        return [Attempt(each.address, each.times, each.problem or TRYING) for each in [*waiting, *found.values()]]


def told(attempts: Sequence[Attempt]) -> str:
    """Return the addresses with their results, in one line."""
    return attempted([asdict(attempt) for attempt in attempts])


def check(attempts: Sequence[Attempt]) -> str:
    """Return advice on the most informative problem."""
    problems = {attempt.problem for attempt in attempts}
    addresses = [attempt.address for attempt in attempts if not is_loopback(attempt.address)]
    if problems & {SILENT, NO_ROUTE, REFUSED} and len(addresses) == len(attempts) and names_only_local(addresses):
        return ELSEWHERE
    if problems == {NO_ROUTE}:
        return CHECKS[0][1]
    if problems == {TRYING}:
        return f"each gets {DIAL_S:.0f} s"
    return next((advice for problem, advice in CHECKS[1:] if problem in problems), OTHERWISE)
