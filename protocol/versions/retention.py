"""Which files of weights stay on the disk.

Pure.  Most wanted is the newest version that is here, whole.  Then what leads a newcomer to it: the newest anchor and the
patches since.  Then older versions.  What finds no room below the cap goes, unless it is in use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from protocol.wire.hashes import Hash
from protocol.wire.versions import Version


def surplus(
    usable: Mapping[int, Version], sizes: Mapping[Hash, int], used: Collection[Hash], keep: int, cap_bytes: int
) -> list[Hash]:
    """The files to be removed, the least wanted first.

    usable: by number, ascending.  sizes: of the files that are here, by root.  keep: versions that stay whole.
    """
    kept: dict[Hash, None] = {}
    left = cap_bytes - sum(sizes[root] for root in used if root in sizes)
    for root in _by_want(usable, sizes, keep):
        size = 0 if root in used else sizes[root]
        if not kept or size <= left:
            kept[root] = None
            left -= size
    order = [*_by_want(usable, sizes, len(usable))]
    gone = [root for root in sizes if root not in kept and root not in used]
    return sorted(gone, key=lambda root: order.index(root) if root in order else len(order), reverse=True)


def _by_want(usable: Mapping[int, Version], sizes: Mapping[Hash, int], keep: int) -> dict[Hash, None]:
    """The files that are here and wanted, the most wanted first."""
    newest_first = [*usable.values()][::-1]
    whole = [Hash(version.weights.root) for version in newest_first if version.weights.root in sizes]
    wanted = dict.fromkeys(whole[:1])
    since: list[Hash] = []
    for version in newest_first:
        if version.anchor:
            wanted[Hash(version.weights.root)] = None
        if version.patch is not None:
            since.append(Hash(version.patch.blob.root))
        if version.anchor and version.weights.root in sizes:
            break
    wanted |= dict.fromkeys([*reversed(since), *whole[: max(keep, 1)]])
    return {root: None for root in wanted if root in sizes}
