"""What a demo is to show: when it is over, what is told meanwhile, and what came out."""

from __future__ import annotations

from typing import Any, Protocol

from peer.demo.member import Member
from protocol.events.events import Event

REPORT = "which must never happen; please report it with the logs (--keep)"


class Aim(Protocol):
    """Folded from the events of all peers (pure).  Its two kinds are `Training` and `Learning`."""

    @property
    def stop_after(self) -> int | None:
        """Rounds after which each peer leaves by itself; None where it waits to be told."""
        ...

    @property
    def news(self) -> list[str]:
        """Sentences to be told once, in their order; only ever appended to."""
        ...

    def apply(self, member: Member, event: Event) -> None:
        """Take note of an event of this peer."""
        ...

    def has_arrived(self, name: str) -> bool:
        """Whether nothing more is wanted of the peer of this name."""
        ...

    def title(self) -> str:
        """What is about to happen."""
        ...

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """How far the swarm is.  seconds: since the beginning."""
        ...

    def remark(self, name: str) -> str:
        """What there is to say about a peer beside what it does now; may be empty."""
        ...

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """What came out, for a person."""
        ...

    def fields(self, seconds: float) -> dict[str, Any]:
        """What came out: the object of `--json`."""
        ...

    def fault(self) -> str:
        """What should not have happened, a sentence with the remedy; empty where all is well."""
        ...
