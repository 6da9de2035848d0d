"""Status of a peer derived from its events, for a recording, which holds no status.

Pure.  Fields that no event tells (the phase of others, bytes moved) stay empty.
"""

from __future__ import annotations

from dataclasses import replace

from peer.control.client import Stamped
from protocol.events import events as ev
from protocol.events.status import PeerStatus, SwarmPeer

MOST_PEERS = 2048
ROLES = {"generating": "rollout", "verifying": "validator", "seeding": "seed"}
"""Role of a peer, by the phase that only this role has."""


class ToldStatus:
    """Status after the events so far.  now: None before the peer has started."""

    def __init__(self) -> None:
        self.now: PeerStatus | None = None
        self._swarm: dict[str, SwarmPeer] = {}
        self._began = 0.0

    def copy(self) -> ToldStatus:
        """Return an independent copy."""
        other = ToldStatus()
        other.now, other._swarm, other._began = self.now, dict(self._swarm), self._began
        return other

    def apply(self, stamped: Stamped) -> None:
        """Fold an event into the status."""
        event = stamped.event
        if isinstance(event, ev.Started):
            self._begin(event, stamped.mono)
        if self.now is None:
            return
        match event:
            case ev.PeerJoined(peer, name):
                self._set(peer, name=name, liveness="alive", heard_s=0.0)
            case ev.PeerSuspected(peer, silent_s):
                self._set(peer, liveness="suspect", heard_s=silent_s)
            case ev.PeerGone(peer, goodbye):
                self._set(peer, liveness="left" if goodbye else "gone", link="")
            case ev.LinkChanged(peer, link) if peer in self._swarm:
                self._set(peer, link=link)
            case ev.RoundCommitted(number, _, members):
                for peer in members:
                    if peer in self._swarm:
                        self._set(peer, round=number + 1)
        alive = sum(known.liveness == "alive" for known in self._swarm.values())
        self.now = replace(
            _applied(self.now, event),
            peers=alive,
            swarm=list(self._swarm.values()),
            uptime_s=max(0.0, stamped.mono - self._began),
        )

    def _begin(self, event: ev.Started, mono: float) -> None:
        self._swarm, self._began = {}, mono
        self.now = PeerStatus(
            peer=event.peer,
            name=event.name,
            run=event.run,
            run_name=event.run_name,
            role="",
            phase="starting",
            why_idle="starting",
            why_detail="",
            version=event.version,
            pid=event.pid,
            uptime_s=0.0,
            addresses=list(event.addresses),
        )

    def _set(self, peer: str, **fields: object) -> None:
        known = self._swarm.get(peer)
        if known is None:
            if len(self._swarm) >= MOST_PEERS:
                del self._swarm[next(iter(self._swarm))]
            known = SwarmPeer(
                peer=peer,
                name="",
                role="",
                phase="",
                round=0,
                steps=0,
                tokens_per_s=0.0,
                liveness="",
                heard_s=0.0,
                version="",
            )
        self._swarm[peer] = replace(known, **fields)  # type: ignore[arg-type]


def _applied(status: PeerStatus, event: object) -> PeerStatus:
    """Return the status after an event about this peer itself."""
    match event:
        case ev.PhaseChanged(phase, why, detail):
            role = ROLES.get(phase, status.role)
            return replace(status, role=role, phase=phase, why_idle=why, why_detail=detail)
        case ev.RoundCommitted(number, tip, members, tokens, loss):
            return replace(status, round=number + 1, tip=tip, members=list(members), tokens=tokens, loss=loss)
        case ev.RecordRatified(_, record, final):
            return replace(status, final_rounds=final, final_tip=record)
        case ev.StateApplied(rounds, digest):
            seen = max(status.round, rounds)  # a peer that only follows commits no rounds
            return replace(status, round=seen, state_rounds=rounds, state_digest=digest)
        case ev.EvalLoss(rounds, loss, by):
            return replace(status, eval_loss=loss, eval_rounds=rounds, eval_by=by)
        case ev.TrainerStarted(pid):
            return replace(status, trainer_pid=pid, role=status.role or "trainer")
        case ev.TrainerStopped():
            return replace(status, trainer_pid=None)
        case ev.ReachabilityChanged(reachable, addresses):
            return replace(status, reachable=reachable, reachability=dict(addresses))
        case ev.Left():
            return replace(status, phase="stopping", why_idle="", why_detail="the peer left")
        case _:
            return status
