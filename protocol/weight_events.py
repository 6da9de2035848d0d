"""Events about versions of the weights; `protocol.events` has them, too."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.event import Event


@dataclass(frozen=True)
class VersionPublished(Event):
    """A publisher has signed a version of the weights, and this peer has heard of it.

    kind: anchor (it is to be had whole) or patch.  size_bytes: of the whole.  patch_bytes: None where there is no patch.
    """

    version: int
    publisher: str
    kind: str
    size_bytes: int
    patch_bytes: int | None


@dataclass(frozen=True)
class VersionStarted(Event):
    """This peer begins to get a version.  size_bytes: to be fetched for it.  files: so many, patches or the whole."""

    version: int
    size_bytes: int
    files: int


@dataclass(frozen=True)
class VersionComplete(Event):
    """A version is on disk, every tensor as it was signed.  weights: the root of its file.  seconds: since it began."""

    version: int
    weights: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class VersionRefused(Event):
    """A version, or a way to it, is not used; `reason` is a phrase."""

    version: int
    reason: str
