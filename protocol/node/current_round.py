"""The round that runs now, as seen by the parts of a peer that outlive rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.audit.evidence import ProvenLie
from protocol.node.exchanges import Exchanges
from protocol.node.round_runner import RoundRunner
from protocol.node.work import Work
from protocol.wire.body import Body
from protocol.wire.envelope import Envelope
from protocol.wire.identity import PeerId


class CurrentRound:
    """The current round, opened by `protocol.node.rounds`.  Between rounds it answers nothing and ignores news."""

    def __init__(self) -> None:
        self._runner: RoundRunner | None = None

    @contextmanager
    def open(self, runner: RoundRunner) -> Iterator[None]:
        """Make this the current round inside the context."""
        self._runner = runner
        try:
            yield
        finally:
            self._runner = None

    @property
    def runner(self) -> RoundRunner | None:
        """Runner of the current round; None between rounds."""
        return self._runner

    @property
    def work(self) -> Work | None:
        """Our work in the current round; None between rounds."""
        return self._runner.work if self._runner is not None else None

    @property
    def exchanges(self) -> Exchanges | None:
        """Exchanges of the current round, for arriving chunks and questions; None between rounds."""
        return self._runner.exchanges if self._runner is not None else None

    # -- implements `protocol.membership.heartbeats.RoundProgress` ----------------------------------------------------

    @property
    def steps(self) -> int:
        """Inner steps done."""
        return self._runner.work.steps if self._runner is not None else 0

    @property
    def loss(self) -> float:
        """Mean loss so far, nats a token."""
        return self._runner.work.loss if self._runner is not None else 0.0

    @property
    def ready_raw(self) -> bytes:
        """Our READY as it was sent; empty until then."""
        return self._runner.work.ready_raw if self._runner is not None else b""

    # -- events -------------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue an arrived statement for the current round.  by: the peer that brought it, if not its sender."""
        if self._runner is not None:
            self._runner.inbox.receive(sender, body, envelope, by=by)

    def peer_dead(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is silent, gone or has left."""
        if self._runner is not None:
            self._runner.exchanges.peer_dead(peer)

    def peer_alive(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is heard again."""
        if self._runner is not None:
            self._runner.exchanges.peer_alive(peer)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Tell the round that a peer is proven to have lied."""
        if self._runner is not None:
            self._runner.on_verdict(verdict)
