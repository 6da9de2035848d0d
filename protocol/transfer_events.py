"""Events about blobs that this peer fetches; `protocol.events` has them, too."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.event import Event


@dataclass(frozen=True)
class TransferProgress(Event):
    """A blob is on its way to this peer.

    what: checkpoint, result, weights, patch, file, rollouts, tasks or reference.  number: the rounds that a checkpoint has
    applied, the round of a result, the version that weights or a patch lead to, the place of a file among the run's, the
    version that rollouts are of, 0 of tasks, the round that reference weights began.  blob: its name.  done, total: chunks.
    chunks: a map of at most 256 cells, one for one chunk or several: # where all are here, + where some are, . for none.
    sources: peers that have some of it.  left_s: None while no rate is known.
    """

    what: str
    number: int
    blob: str
    done: int
    total: int
    size_bytes: int
    chunks: str
    down_bytes_per_s: float
    sources: int
    left_s: float | None


@dataclass(frozen=True)
class TransferEnded(Event):
    """Nothing more is fetched of a blob: it is complete, or nobody has the rest, or it is not wanted any more.

    what, number, blob: as in `TransferProgress`.  fetched_bytes: that were not here when it began.  seconds: since then.
    """

    what: str
    number: int
    blob: str
    fetched_bytes: int
    seconds: float
    complete: bool


def subject(event: Event) -> tuple[str, str]:
    """Of two events with one subject the later one makes the earlier stale, if that is progress."""
    match event:
        case TransferProgress(blob=blob) | TransferEnded(blob=blob):
            return "transfer", blob
        case _:
            return type(event).__name__, ""
