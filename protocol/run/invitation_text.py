"""Text of an invitation: `mh1` and base58 of a checksum and a body, recovered from text that mail, chats or shells changed.

This module knows nothing of the body (`protocol.run.invitation`) and imports little, so that a command can tell a text that
was cut or mistyped before it does anything else.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice

import base58

from protocol.wire.canonical import Malformed
from protocol.wire.hashes import hash_bytes

PREFIX = "mh1"
AROUND = "\"'`<>()[]*_“”‘’„«»,;.:!?…"
"""Characters that mail and chats put around an invitation."""
BASE, ZERO = 58, "1"
"""Base of base58, and its digit for a zero byte at the beginning."""
MAX_INVITATION_CHARACTERS = 7500
CHECKSUM_BYTES = 4
MAX_BEGINNINGS = 4
"""Most places in one text at which an invitation is looked for."""
MAX_RUNS = 256
"""Most pieces into which line breaks may have cut an invitation, with the words of a sentence behind it."""
LEAST_IN_A_SENTENCE = 32
"""Fewest characters of the first piece of an invitation that stands in a sentence."""
RUN = re.compile("[1-9A-HJ-NP-Za-km-z]+")
BEGINNING = re.compile(f"(?<![0-9A-Za-z/]){PREFIX}[1-9A-HJ-NP-Za-km-z]*")


def invitation_text(body: bytes) -> str:
    """Return the invitation with this body as text."""
    return PREFIX + base58.b58encode(_checksum(body) + body).decode()


def looks_like_invitation(text: str) -> bool:
    """Return True if the text is meant as an invitation or its beginning, maybe in a sentence, and not as a file name."""
    compact = _compact(text)
    if compact.startswith(PREFIX):
        return len(compact) > 64 or (len(compact) > 16 and compact.isalnum())
    return any(len(found[0]) >= LEAST_IN_A_SENTENCE for found in BEGINNING.finditer(_seen(text)))


def body_in(text: str) -> bytes:
    """Return the body of the invitation in `text`, undoing the changes of mail and chats; raise `Malformed` without one.

    Line breaks inside, quotes, angle brackets, invisible characters and a sentence around the invitation are removed: the
    checksum says where it ends.
    """
    if len(text) > 2 * MAX_INVITATION_CHARACTERS:
        raise Malformed("this text is too long for an invitation; paste the invitation alone")
    text = _seen(text)
    beginnings = islice(BEGINNING.finditer(text), MAX_BEGINNINGS)
    body = next((body for found in beginnings if (body := _body_at(text, found.start())) is not None), None)
    if body is None:
        raise Malformed(_problem(text))
    return body


def _body_at(text: str, start: int) -> bytes | None:
    """Return the body of the invitation that begins at `start`; None if no invitation with a right checksum does.

    Runs of permitted characters are joined one by one until the checksum fits, because a line may be broken anywhere.
    """
    joined = ""
    value: int = 0
    for number, run in enumerate(RUN.finditer(text, start)):
        piece = run[0] if number else run[0][len(PREFIX) :]
        joined += piece
        if number >= MAX_RUNS or len(PREFIX + joined) > MAX_INVITATION_CHARACTERS:
            return None
        # each character is decoded once: decoding takes time that grows with the square of the length
        value = value * BASE ** len(piece) + base58.b58decode_int(piece)
        zeros = len(joined) - len(joined.lstrip(ZERO))
        raw = bytes(zeros) + value.to_bytes((value.bit_length() + 7) // 8, "big")
        if len(raw) > CHECKSUM_BYTES and raw[:CHECKSUM_BYTES] == _checksum(raw[CHECKSUM_BYTES:]):
            return raw[CHECKSUM_BYTES:]
    return None


def _problem(text: str) -> str:
    """Return the reason why a text has no invitation, as a sentence with the remedy."""
    compact = _compact(text)
    found = BEGINNING.search(text)
    if not compact.startswith(PREFIX) and (found is None or len(found[0]) < LEAST_IN_A_SENTENCE):
        return f"an invitation begins with {PREFIX}; copy it whole from where you got it"
    if len(compact) > MAX_INVITATION_CHARACTERS:
        return "this text is too long for an invitation; paste the invitation alone"
    if compact.startswith(PREFIX) and RUN.fullmatch(compact) is None:
        return "the invitation has a character that cannot be in one; copy it again"
    return (
        "the invitation is incomplete or mistyped; copy it again, from mh1 to the very end, and put it between quotes if "
        "it has line breaks"
    )


def _seen(text: str) -> str:
    """Return the text without invisible characters: zero-width ones, soft hyphens, marks of direction."""
    return "".join(each for each in text if unicodedata.category(each) != "Cf")


def _compact(text: str) -> str:
    return "".join(_seen(text).split()).strip(AROUND)


def _checksum(body: bytes) -> bytes:
    return hash_bytes("invitation", body)[:CHECKSUM_BYTES]
