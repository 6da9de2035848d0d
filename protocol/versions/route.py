"""The way to a version of the weights that takes the fewest bytes.

Pure.  A patch leads from a version that counts to a higher number, an anchor is to be had whole; so one pass over the
numbers finds the best way to each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.wire.hashes import Hash
from protocol.wire.versions import BlobName, Version


@dataclass(frozen=True)
class Leg:
    """A part of the way: fetch `blob`, and have the weights of `version`.

    base: the weights that the patch is applied to; None where the blob is the weights themselves.
    """

    version: Version
    blob: BlobName
    base: BlobName | None


@dataclass(frozen=True)
class Route:
    """size_bytes: to be fetched for it.  legs: none where the weights are here already."""

    size_bytes: int
    legs: tuple[Leg, ...] = ()


def route(
    usable: Mapping[int, Version], target: int, here: Collection[Hash], refused: Collection[Hash] = ()
) -> Route | None:
    """How to get the version `target`; None where nothing leads there.

    usable: by number, ascending.  here: roots of weights and patches that need not be fetched.  refused: roots of blobs
    that turned out to be useless.
    """
    ways: dict[Hash, Route] = {root: Route(0) for root in map(Hash, here)}
    for number, version in usable.items():
        if number > target:
            break
        root = Hash(version.weights.root)
        for leg in _legs(usable, version):
            before = Route(0) if leg.base is None else ways.get(Hash(leg.base.root))
            if before is None or leg.blob.root in refused:
                continue
            size = before.size_bytes + (0 if leg.blob.root in here else leg.blob.size)
            if root not in ways or (size, len(before.legs) + 1) < (ways[root].size_bytes, len(ways[root].legs)):
                ways[root] = Route(size, (*before.legs, leg))
    return ways.get(Hash(usable[target].weights.root)) if target in usable else None


def _legs(usable: Mapping[int, Version], version: Version) -> list[Leg]:
    legs = [Leg(version, version.weights, None)] if version.anchor else []
    patch = version.patch
    base = usable[patch.base].weights if patch is not None and patch.base in usable else None
    if patch is not None and base is not None and (base.root, base.size) == (patch.base_root, version.weights.size):
        legs.append(Leg(version, patch.blob, base))
    return legs
