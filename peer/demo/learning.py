"""A demo of learning from rollouts: the reward rises, and who cheats is set aside."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from peer.demo.aim import REPORT
from peer.demo.cast import Part
from peer.demo.member import Member
from peer.drawing import sparkline
from peer.formatting import clean, duration, number
from protocol import events as ev
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role

FIRST, LAST = 2, 3
"""Versions at the start and at the end over which the reward is averaged: one has few rollouts."""
CLEARLY = 0.15
"""How much more reward at the end than at the start is no chance: between such means that is more than three deviations."""
MOST_VERSIONS = 40
"""After which it is over, whatever has not been seen yet."""
CURVE_WIDTH = 40


class Learning:
    """An `Aim` for a cast with rollout peers and validators; what its trainer tells is what counts.

    versions: that are to learn from rollouts; None for as many as it takes until the reward has clearly risen.  There are
    more where somebody cheats who is not set aside yet, up to `MOST_VERSIONS`.
    """

    def __init__(self, cast: Sequence[Part], versions: int | None, manifest: RunManifest) -> None:
        assert manifest.rl is not None, "no run with rollouts"
        self._cast, self._versions = {part.name: part for part in cast}, versions
        self._environment, self._warm = manifest.rl.environment, manifest.rl.warm_rounds
        self._peers: dict[str, str] = {}
        self._learned: dict[int, float] = {}
        """Mean reward of the rollouts that a round's contribution was made of."""
        self._rewards: dict[int, float] = {}
        """Of those that have been committed."""
        self._committed = 0
        self._accepted, self._rejected = set[str](), set[str]()
        self._made: dict[str, int] = dict.fromkeys(self._cast, 0)
        """Batches that a peer has generated, or judged."""
        self._aside: dict[tuple[str, Role], str] = {}
        self.news: list[str] = []

    @property
    def stop_after(self) -> int | None:
        """As `Aim.stop_after`."""
        return None

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each version's rollouts so far, 0 to 1."""
        return [self._rewards[round] for round in sorted(self._rewards)]

    def apply(self, member: Member, event: ev.Event) -> None:
        """As `Aim.apply`."""
        self._peers[member.peer] = member.name
        if self._is_over:
            return
        match event:
            case ev.RolloutsGenerated():
                self._made[member.name] += 1
            case ev.BatchJudged(validator=validator) if validator == member.peer and member.part.role is Role.VALIDATOR:
                self._made[member.name] += 1
        if member.part.role is Role.TRAINER:
            self._hear_trainer(event)

    def _hear_trainer(self, event: ev.Event) -> None:
        match event:
            case ev.RolloutsUsed(round, reward=float(reward)):
                self._learned[round] = reward
            case ev.RoundCommitted(round):
                self._commit(round)
            case ev.BatchDecided(root=root, verdict="accepted"):
                self._accepted.add(root)
            case ev.BatchDecided(root=root, verdict="rejected"):
                self._rejected.add(root)
            case ev.RolloutPeerSetAside(peer, reason):
                self._set_aside(peer, Role.ROLLOUT, reason)
            case ev.ValidatorSetAside(peer, reason):
                self._set_aside(peer, Role.VALIDATOR, reason)

    def _commit(self, round: int) -> None:
        self._committed = max(self._committed, round + 1)
        if round in self._learned and round not in self._rewards:
            self._rewards[round] = self._learned[round]
            self.news.append(f"version {len(self._rewards)}: reward {number(self._rewards[round])}, {self._batches()}")
        elif round < self._warm:
            self.news.append(f"warm-up round {round + 1} of {self._warm}, on solved examples")

    def _set_aside(self, peer: str, role: Role, reason: str) -> None:
        if (peer, role) not in self._aside:
            self._aside[peer, role] = reason
            self.news.append(f"{self._name(peer)} is set aside: {clean(reason, 120)}")

    def has_arrived(self, name: str) -> bool:
        """As `Aim.has_arrived`."""
        return self._is_over

    @property
    def _is_over(self) -> bool:
        versions, wanted = len(self._rewards), self._versions
        shown = self._has_risen if wanted is None else versions >= wanted
        return (shown and not self._undetected()) or versions >= max(MOST_VERSIONS, wanted or 0)

    # -- what is told -------------------------------------------------------------------------------------------------

    def title(self) -> str:
        """As `Aim.title`."""
        cheats = [f"{part.name} cheats" for part in self._cast.values() if part.cheat is not None]
        return ", ".join(
            [f"{len(self._cast)} peers learn '{self._environment}' from rollouts that nobody has to believe", *cheats]
        )

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """As `Aim.headline`."""
        if not self._rewards:
            return f"warm-up, {self._committed} of {self._warm} rounds, {duration(seconds)}"
        curve = sparkline(self.rewards, CURVE_WIDTH, unicode=unicode)
        many = f"version {len(self._rewards)}" + (f" of {self._versions}" if self._versions is not None else "")
        return f"{many}, reward {number(self.rewards[-1])} {curve} {self._batches()}, {duration(seconds)}"

    def remark(self, name: str) -> str:
        """As `Aim.remark`."""
        part = self._cast[name]
        aside = [reason for (peer, _), reason in self._aside.items() if self._peers.get(peer) == name]
        if aside:
            return f"SET ASIDE: {aside[0]}"
        done = {Role.ROLLOUT: "made", Role.VALIDATOR: "judged"}.get(part.role)
        return f"{self._made[name]} batches {done}" if done else ""

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """As `Aim.lines`."""
        start, end = self._ends()
        curve = sparkline(self.rewards, CURVE_WIDTH, unicode=unicode)
        risen = "" if self._has_risen else "; it has not clearly risen"
        return [
            f"{len(self._rewards)} versions out of rollouts in {duration(seconds)}",
            f"reward          {number(start)} at the start, {number(end)} at the end{risen}  {curve}",
            f"batches         {self._batches()}",
            *(f"set aside       {each['name']}: {clean(each['reason'], 120)}" for each in self._ejected()),
        ]

    def fields(self, seconds: float) -> dict[str, Any]:
        """As `Aim.fields`."""
        start, end = self._ends()
        return {
            "versions": len(self._rewards),
            "seconds": round(seconds, 1),
            "reward_start": start,
            "reward_end": end,
            "accepted": len(self._accepted),
            "rejected": len(self._rejected),
            "ejected": self._ejected(),
        }

    def fault(self) -> str:
        """As `Aim.fault`."""
        honest = [each["name"] for each in self._ejected() if not self._is_cheat(each["name"])]
        if honest:
            return f"{', '.join(honest)} was set aside and is honest, {REPORT}"
        undetected = self._undetected()
        cheats, versions = ", ".join(undetected), len(self._rewards)
        return f"{cheats} cheats and was not found out in {versions} versions, {REPORT}" if undetected else ""

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def _has_risen(self) -> bool:
        start, end = self._ends()
        enough = len(self._rewards) >= FIRST + LAST
        return enough and start is not None and end is not None and end - start >= CLEARLY

    def _ends(self) -> tuple[float | None, float | None]:
        rewards = self.rewards
        return (fmean(rewards[:FIRST]), fmean(rewards[-LAST:])) if rewards else (None, None)

    def _ejected(self) -> list[dict[str, str]]:
        return [
            {"peer": peer, "name": self._name(peer), "role": role.value, "reason": reason}
            for (peer, role), reason in self._aside.items()
        ]

    def _undetected(self) -> list[str]:
        found = {self._name(peer) for peer, _ in self._aside}
        return [name for name in self._cast if self._is_cheat(name) and name not in found]

    def _is_cheat(self, name: str) -> bool:
        return name in self._cast and self._cast[name].cheat is not None

    def _name(self, peer: str) -> str:
        return self._peers.get(peer, peer)

    def _batches(self) -> str:
        return f"{len(self._accepted)} accepted, {len(self._rejected)} rejected"
