"""Real peers are away and come back, and nobody loses what the others did meanwhile.

Whatever a test stops, cuts off or kills, it also brings back, and then looks at what everybody lost.  An absence lasts until
the others have made some rounds.  Each test ends with all peers on one tip with one state; the rounds that a peer lost are
those of the `RolledBack` events in its log.

Each kind of absence is here once; `tests.simulation.returns` plays all of them, in runs of each kind and size.  An open run
whose founder sleeps is in test_copies.py.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.links import Access, Links, address, why_not
from protocol.events import events as ev
from tests.e2e.late_trainer import LATE_TRAINER_S
from tests.e2e.suspended_peer import GAP_S
from tests.e2e.swarm import PATIENCE_S, TINY_MODEL, Peer, Swarm, invitation_in
from tests.e2e.test_invitation import free_port

pytestmark = pytest.mark.slow

RUN = (
    TINY_MODEL.replace('founders = "anyone"\n', "")
    + """
[rounds]
inner_steps = 150
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
)
"""A run of its organiser, in which a peer is missed after 8 s."""
INVITE = 'admission = "invite"\n'
QUICK_RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 10
"""
)
"""A run that anyone may begin, with several rounds in a second."""
SEASONED_ROUNDS = 4
"""Records of everybody before an absence: all electors that there will be have a vote then."""
MISSED_ROUNDS = 8
"""Rounds of the others in an absence."""
NEWCOMERS_TRAINER_S = 26.0
"""Time until a slow newcomer's trainer runs; the others make dozens of quick rounds meanwhile."""
LONG_OVER_ROUNDS = 40
"""Rounds of a quick run behind which nobody trains who is connected to the others."""
PORT, WHY_NO_LINKS = 4800, why_not()
LINE = Access(20e6, 20e6)

BEGIN_S = PATIENCE_S
"""Deadline for the first rounds of everybody."""
GO_ON_S = 180.0
"""Deadline for the rounds of the others in an absence."""
FOLLOW_S = 120.0
"""Deadline for a newcomer's first record, once its trainer runs."""
RETURN_S = 120.0
"""Deadline for the next record of everybody after a return, and for one state."""


@contextmanager
def trained_together(folder: Path, guests: int) -> Iterator[tuple[Swarm, Peer, list[Peer]]]:
    """Yield the swarm, the founder and its guests, after some rounds of all of them, in a run by invitation."""
    with Swarm(folder, INVITE + RUN) as swarm:
        founder, port = swarm.peer("founder"), free_port()
        where = f"/ip4/127.0.0.1/tcp/{port}"
        create = ("run", "create", str(swarm.run_file), "--out", str(swarm.manifest), "--address", where)
        swarm.command(founder.folder, *create)
        founder.start("--port", str(port))
        bearer = ("run", "invite", str(swarm.manifest), "--bearer", "--address", where)
        invitation = invitation_in(swarm.command(founder.folder, *bearer))
        others = [swarm.peer(f"guest-{number}", invitation).start() for number in range(1, guests + 1)]
        train_together(swarm)
        yield swarm, founder, others


def train_together(swarm: Swarm) -> None:
    """Wait until everybody is a member of some rounds in a row."""

    def have_trained() -> bool:
        names, commits = {peer.peer_id for peer in swarm.peers}, swarm.peers[0].commits
        last = sorted(commits)[-SEASONED_ROUNDS:]
        return len(last) == SEASONED_ROUNDS and all(names == set(commits[round].members) for round in last)

    swarm.until("rounds of everybody", have_trained, BEGIN_S)


@contextmanager
def asleep(peers: Sequence[Peer]) -> Iterator[None]:
    """Stop all processes of these peers within, as on a computer that sleeps."""
    stopped = [process for peer in peers for process in tree(peer)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(stopped):
            process.send_signal(signal.SIGCONT)


def tree(peer: Peer) -> list[psutil.Process]:
    """Return the processes of a peer, its own first."""
    process = psutil.Process(peer.pid)
    return [process, *process.children(recursive=True)]


def go_on_without(swarm: Swarm, others: Sequence[Peer], away: Sequence[Peer]) -> None:
    """Wait until the others have made some rounds without these peers."""
    start, names = max(peer.committed for peer in others), {peer.peer_id for peer in away}

    def have_gone_on(peer: Peer) -> bool:
        alone = [round for round in list(peer.commits) if round >= start and not names & set(peer.members_of(round))]
        return len(alone) >= MISSED_ROUNDS

    said = f"{MISSED_ROUNDS} rounds without {[peer.name for peer in away]}"
    swarm.until(said, lambda: all(map(have_gone_on, others)), GO_ON_S)


def all_are_back(swarm: Swarm) -> None:
    """Wait for a record of everybody, one tip and one state."""
    names, agreed = {peer.peer_id for peer in swarm.peers}, time.time()

    def are_members(peer: Peer) -> bool:
        records = [
            each.event for each in list(peer.stamped) if each.at > agreed and isinstance(each.event, ev.RoundCommitted)
        ]
        return any(set(record.members) == names for record in records)

    swarm.until("a record of everybody", lambda: any(map(are_members, swarm.peers)), RETURN_S)
    rounds = max(peer.committed for peer in swarm.peers)
    statuses: list[tuple[str, str, int]] = []

    def stand_on_one_tip() -> bool:
        told = [peer.status() for peer in swarm.peers]
        statuses[:] = [(each["tip"], each["state_digest"], each["state_rounds"]) for each in told]
        return len({*statuses}) == 1 and statuses[0][2] >= rounds

    swarm.until("one tip and one state", stand_on_one_tip, RETURN_S)


def nobody_lost(peers: Sequence[Peer], since: float) -> bool:
    """Return True if none of these peers has given up a round since this time (unix), in any of its lives."""
    logs = [path for peer in peers for path in peer.folder.rglob("events*.jsonl")]
    given_up = [json.loads(line) for path in logs for line in path.read_text().splitlines() if '"RolledBack"' in line]
    return not any(event["abandoned"] for event in given_up if event["at"] > since)


# -- asleep, killed, suspended --------------------------------------------------------------------------------------------


def test_founder_killed_asleep_and_suspended_follows_what_the_others_did(tmp_path: Path) -> None:
    """In a run by invitation, one absence after the other.

    Its computer is switched off; it sleeps; it is a suspended laptop, whose monotonic clock stands still meanwhile, so that
    only the boot clock says that it was away.
    """
    with trained_together(tmp_path, 2) as (swarm, founder, others):
        since, port = time.time(), listening_port(founder)
        with asleep([founder]):
            go_on_without(swarm, others, [founder])
        all_are_back(swarm)
        founder.kill()
        go_on_without(swarm, others, [founder])
        founder.program = ("tests.e2e.suspended_peer",)
        founder.start("--port", port)
        all_are_back(swarm)
        stopped_at = time.monotonic()
        with asleep([founder]):
            go_on_without(swarm, others, [founder])
            swarm.until("a gap that the clock sees", lambda: time.monotonic() - stopped_at > GAP_S + 1.0)
        all_are_back(swarm)
        assert nobody_lost(swarm.peers, since)


def listening_port(peer: Peer) -> str:
    """Return the port of a peer's addresses."""
    found: str = peer.status()["addresses"][0].split("/tcp/")[1].split("/")[0]
    return found


def test_founder_of_two_friends_sleeps_and_the_other_loses_nothing(tmp_path: Path) -> None:
    with trained_together(tmp_path, 1) as (swarm, founder, others):
        since = time.time()
        with asleep([founder]):
            go_on_without(swarm, others, [founder])
        all_are_back(swarm)
        assert nobody_lost(swarm.peers, since)


# -- cut off --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(WHY_NO_LINKS), reason=WHY_NO_LINKS)
def test_two_halves_without_each_other_keep_the_rounds_of_one_half(tmp_path: Path) -> None:
    halves = (0, 1), (2, 3)
    with Links([LINE] * 4) as links, Swarm(tmp_path, INVITE + RUN) as swarm:
        where = f"/ip4/{address(0)}/tcp/{PORT}"
        create = ("run", "create", str(swarm.run_file), "--out", str(swarm.manifest), "--address", where)
        invitation = invitation_in(swarm.command(swarm.place("founder"), *create))
        for number, name in enumerate(["founder", "guest-1", "guest-2", "guest-3"]):
            peer = swarm.peer(name, invitation if number else str(swarm.manifest))
            peer.around, peer.local = links.place(number), False
            peer.start("--port", str(PORT))
            if not number:
                bearer = ("run", "invite", str(swarm.manifest), "--bearer", "--address", where)
                invitation = invitation_in(swarm.command(peer.folder, *bearer))
        train_together(swarm)
        since, parts = time.time(), [[swarm.peers[number] for number in half] for half in halves]
        links.split(*halves)
        for part, other in (parts, reversed(parts)):
            go_on_without(swarm, part, other)
        links.rejoin(*halves)
        all_are_back(swarm)
        assert any(nobody_lost(part, since) for part in parts)


# -- newcomers ------------------------------------------------------------------------------------------------------------


def test_slow_newcomer_of_a_quick_run_begins_no_history_of_its_own(tmp_path: Path) -> None:
    """Its trainer starts when the results that it needs are long gone."""
    with Swarm.created(tmp_path, QUICK_RUN) as swarm:
        first = swarm.peer("first").start()
        swarm.until("a first round", lambda: first.committed, BEGIN_S)
        since = time.time()
        newcomer = swarm.peer("newcomer")
        newcomer.program = ("tests.e2e.late_trainer",)
        swarm.environment[LATE_TRAINER_S] = str(NEWCOMERS_TRAINER_S)
        newcomer.start()
        swarm.until("its trainer", partial(newcomer.heard, ev.TrainerStarted), BEGIN_S)
        own = "a record with the newcomer"
        swarm.until(own, lambda: any(newcomer.peer_id in each.members for each in newcomer.commits.values()), FOLLOW_S)
        records = [record for record in newcomer.heard(ev.RoundCommitted) if record.members == [newcomer.peer_id]]
        assert 0 not in [record.round for record in records], "it has begun the run anew"
        assert trained_in_vain(newcomer, first) == [], "it has trained for rounds that were long over"
        all_are_back(swarm)
        assert nobody_lost(swarm.peers, since)
        assert not [told for peer in swarm.peers for told in peer.heard(ev.SecondHistory)], "nobody has lied"


def trained_in_vain(peer: Peer, other: Peer) -> list[int]:
    """Return the rounds for which a peer trained when they had been long over at the other one."""
    done = [(each.at, each.event.rounds) for each in list(other.stamped) if isinstance(each.event, ev.StateApplied)]
    ready = [(each.at, each.event.round) for each in list(peer.stamped) if isinstance(each.event, ev.ReadySent)]
    newest = ((round, max((rounds for when, rounds in done if when < at), default=0)) for at, round in ready)
    return [round for round, rounds in newest if rounds - round > LONG_OVER_ROUNDS]
