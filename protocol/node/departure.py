"""A departure at the end of the running round: what the peer waits for, and when it stops waiting.

The round is completed together with others.  Where nobody is left who could end the wait, or at the deadline, the peer
leaves without the round.  Pure but for the clock and what it looks at.
"""

from __future__ import annotations

import trio

from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.wire.presence import Role, WhyIdle

ALONE_S = 30.0
"""How long nobody who could end the wait has to be here before the peer leaves."""
PATIENCE_S = 1800.0
"""How long it waits for others at most, beyond its own training."""
MAX_TRAINING_S = 86_400.0
"""What its own training counts for the deadline, at most."""
LOOK_S = 1.0

OWN_WORK = frozenset({WhyIdle.BUSY, WhyIdle.STARTING, WhyIdle.TRAINER_RESTARTING})
"""A trainer ends these by itself."""
FETCHING = frozenset({WhyIdle.CONNECTING, WhyIdle.FETCHING_STATE, WhyIdle.FETCHING_TASKS, WhyIdle.FETCHING_REFERENCE})
"""Any peer may end these."""


def helpers(role: Role, why: WhyIdle) -> frozenset[Role] | None:
    """Return the roles of those who can end the wait `why` of a peer with this role; None if it needs nobody."""
    if role is Role.TRAINER and why in OWN_WORK:
        return None
    if why is WhyIdle.WAITING_FOR_ROLLOUTS:
        return frozenset({Role.ROLLOUT})
    return frozenset(Role) if why in FETCHING else frozenset({Role.TRAINER})


class Departure:
    """Begins once, when the person asks for it.  role: of this peer."""

    def __init__(self, role: Role, membership: Membership, activity: Activity) -> None:
        self._role, self._membership, self._activity = role, membership, activity
        self._begun = trio.Event()
        self._deadline = self._latest = 0.0
        self._alone_since: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the peer stops when its round is complete."""
        return self._begun.is_set()

    def begin(self, training_s: float) -> None:
        """Stop after this round; asked again, the first deadline holds.  training_s: seconds that our own training needs."""
        if not self.has_begun:
            now = trio.current_time()
            self._deadline = now + min(training_s, MAX_TRAINING_S) + PATIENCE_S
            self._latest = now + MAX_TRAINING_S + PATIENCE_S
            self._begun.set()

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline; None while the peer does not depart."""
        return max(0.0, self._deadline - trio.current_time()) if self.has_begun else None

    @property
    def waits_for(self) -> str:
        """A phrase: what the round still needs; empty while the peer does not depart."""
        if not self.has_begun:
            return ""
        return self._activity.detail or self._activity.why.value or f"its own work ({self._activity.phase.value})"

    async def given_up(self) -> str:
        """Wait until there is no point in waiting any more; the reason, a phrase."""
        await self._begun.wait()
        while True:
            now = trio.current_time()
            if helpers(self._role, self._activity.why) is None:  # our own work, whose length may not have been known
                self._deadline = max(self._deadline, min(now + PATIENCE_S, self._latest))
            if now >= self._deadline:
                return f"it was not complete in time ({self.waits_for})"
            self._alone_since = None if self._is_helped() else (self._alone_since or now)
            if self._alone_since is not None and now - self._alone_since >= ALONE_S:
                return f"nobody is left to complete it with ({self.waits_for})"
            await trio.sleep(LOOK_S)

    def _is_helped(self) -> bool:
        """Return True if somebody is here who may end the wait."""
        roles = helpers(self._role, self._activity.why)
        if roles is None:
            return True
        return any(known.heartbeat.role in roles for peer, known in self._membership if self._membership.is_live(peer))
