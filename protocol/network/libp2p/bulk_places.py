"""Which bulk links there is room for, when peers have asked for more than there may be."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.network.interface import Members
from protocol.wire.identity import PeerId


def displaced(asker: PeerId, links: Mapping[PeerId, int], members: Members) -> PeerId | None:
    """The peer that loses a link to `asker` when all places are taken; None if the asker has to do without.

    A member takes the place of any stranger, of the one with the most links first.  Among members, as among strangers, only
    a peer that has at least two links more than the asker gives one up.
    """
    strangers = {peer: count for peer, count in links.items() if peer != asker and not members.has_member(peer)}
    if members.has_member(asker):
        if strangers:
            return max(strangers, key=lambda peer: strangers[peer])
        rivals: Mapping[PeerId, int] = {peer: count for peer, count in links.items() if peer != asker}
    else:
        rivals = strangers
    busiest = max(rivals, key=lambda peer: rivals[peer], default=None)
    return busiest if busiest is not None and rivals[busiest] > links.get(asker, 0) + 1 else None
