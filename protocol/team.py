"""Names of teams: a peer may say to which team it belongs, and its credit counts for that team.

The name is a claim.  Nobody owns a name, because keys and names are free.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

MAX_TEAM = 24
"""Most characters of a team's name."""
MAX_CACHED = 2048
"""Most texts whose name is remembered: the status names the team of every peer, on the event loop."""
MOST_MARKS = 3
"""Most combining marks on one letter; no language has more."""
INVISIBLE = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)))
) | set(map(chr, range(0xE0100, 0xE01F0)))
"""Letters and marks that leave no ink, with which two different names would look the same."""


@lru_cache(maxsize=MAX_CACHED)
def team_named(text: str) -> str:
    """Return the name of a team in its only form (NFC); empty if `text` is not a valid name.

    A name has letters, digits, hyphens, underscores and single spaces.  It begins with a letter or a digit, and does not end
    with a space.
    """
    name = unicodedata.normalize("NFC", text[: 4 * MAX_TEAM])
    kinds = ["mark" if kind in ("Mn", "Mc") else kind for kind in map(unicodedata.category, name)]
    if not 1 <= len(name) <= MAX_TEAM or not _is_written(kinds[0]) or name.endswith(" ") or "  " in name:
        return ""
    if any(kinds[at : at + MOST_MARKS + 1] == ["mark"] * (MOST_MARKS + 1) for at in range(len(kinds))):
        return ""
    allowed = all(_is_written(kind) or kind == "mark" or each in " -_" for each, kind in zip(name, kinds, strict=True))
    return name if allowed and not INVISIBLE & set(name) else ""


def _is_written(kind: str) -> bool:
    """Return True if `kind` is the Unicode category of a letter or a digit."""
    return kind.startswith("L") or kind == "Nd"
