"""TOML files as people save them: a byte order mark is removed, and characters from editors are named with their line.

Shared by run files and by peer.toml.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_SAID = 200
CURLY = "“”„‟‘’‚‛«»‹›′″"
"""Quotation marks that word processors and chats put in place of the straight ones."""
UNSEEN = "\u00a0\u00ad\u200b\u200c\u200d\u200e\u200f\u2007\u202a\u202b\u202c\u202d\u202e\u202f\u2060\ufeff"
"""Characters that look like a space or like nothing."""
MAX_DOTS = 64
"""Dots in one line of a file that others may have written: the parser's time grows with the square of the parts of a dotted
name."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def decode_toml(raw: bytes) -> str:
    """Return the text of a TOML file without its byte order mark.  Raises ValueError with the reason and the remedy."""
    if raw.startswith(UTF16):
        raise ValueError("it is saved as UTF-16 (Windows calls it Unicode); save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} has a character that is not UTF-8; save the file as UTF-8") from error


def check_dots(text: str) -> None:
    """Raise ValueError if a line has more than `MAX_DOTS` dots."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"line {number} has more than {MAX_DOTS} dots; write it shorter")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.  Raises ValueError with the reason, and with the remedy if that is known."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:
        raise ValueError(_slipped_in(text, str(error)) or str(error)) from error


def _slipped_in(text: str, reason: str) -> str:
    """Return a sentence about a character that an editor put into the line of a mistake; empty if there is none."""
    found = re.search(r"\(at line (\d+), column \d+\)", reason)
    lines = text.split("\n")
    number = int(found[1]) if found is not None else len(lines)
    for at in dict.fromkeys([number, number - 1]):  # a string that does not end is reported at the line after it
        line = lines[at - 1] if 0 < at <= len(lines) else ""
        curly = "".join(dict.fromkeys(each for each in line if each in CURLY))
        if curly:
            return f"line {at} has typographic quotation marks ({' '.join(curly)}); write straight ones, \" or '"
        unseen = next((each for each in line if each in UNSEEN), "")
        if unseen:
            return f"line {at} has a character that cannot be seen (U+{ord(unseen):04X}); type that line again"
    return ""
