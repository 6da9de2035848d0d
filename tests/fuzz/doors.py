"""Every decoder of bytes that somebody else wrote, as one list.

A door takes bytes.  It returns the bytes that say again what it accepted (None where there is no such form), or raises
one of its refusals.  Anything else that comes out is a defect, and so is an acceptance that does not say again what came
in.  `seeds` are valid bytes to start mutations from.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import base58
import trio

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from peer.control.client import MAX_REQUEST_BYTES as MAX_CONTROL_BYTES
from peer.control.client import BadControlFrame as BadControlFrame
from peer.control.client import Stamped, pack_frame, take_frame
from peer.discovery import contacts, rendezvous
from protocol.allreduce.runner import PushHeader, push_plan
from protocol.audit.evidence import (
    Law,
    decode_evidence,
    encode_evidence,
    judge,
)
from protocol.blobs.mirrors import RangeClient, RangeFailed, WebDialer
from protocol.corpora.manifest import read_manifest
from protocol.events.events import Notice
from protocol.run.admission import AdmissionProof, Token, TokenUses, read_token, verify_admission
from protocol.run.invitation import MAX_INVITATION_BYTES, Anchor, make_invitation, read_invitation
from protocol.run.invitation_text import PREFIX
from protocol.run.manifest import Admission, RunManifest, demo_manifest, open_manifest
from protocol.transport.bulk_link import FRAME_BYTES, HEAD, TAG_BYTES, FrameKind, Keys, Link, LinkBroken
from protocol.transport.dialer import peer_of
from protocol.transport.interface import Refused
from protocol.transport.requests import decode_answer, decode_question, encode_question
from protocol.transport.streams import BadFrame
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, Body, decode_body, open_envelope, rebuild, seal
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.messages import STATEMENTS, unpack
from protocol.wire.presence import Role
from tests.fuzz.examples import BODIES, EVIDENCE, GUEST, HEADER, ONE, PROOFS, QUESTIONS, RUN
from tests.protocol.corpora.corpora import a_corpus


@dataclass(frozen=True)
class Door:
    """max_bytes: what its caller lets in at most."""

    name: str
    enter: Callable[[bytes], bytes | None]
    seeds: list[bytes]
    max_bytes: int = MAX_ENVELOPE_BYTES
    refusals: tuple[type[Exception], ...] = field(default=(Malformed,))


def _canonical(data: bytes) -> bytes:
    return canonical.encode(canonical.decode(data, max_bytes=MAX_ENVELOPE_BYTES))


def _envelope(data: bytes) -> bytes:
    found = open_envelope(data, RUN)
    return rebuild(found.run, found.kind, found.sender, found.body, found.signature).raw


def _statement(kind: str, body: bytes) -> bytes:
    """A body of any bytes, honestly signed."""
    return unpack(seal(ONE, RUN, kind, body).raw, RUN)[1].encode()


def _body(cls: type[Body], data: bytes) -> bytes:
    return decode_body(cls, data, max_bytes=2 << 20).encode()


def _manifest(body: bytes) -> bytes:
    return open_manifest(seal(ONE, Hash(bytes(32)), RunManifest.KIND, body).raw).manifest.encode()


def _token(body: bytes) -> bytes:
    return read_token(seal(ONE, RUN, Token.KIND, body).raw, RUN, ONE.peer_id).encode()


_BY_INVITATION = demo_manifest().manifest.model_copy(update={"organiser": ONE.peer_id, "admission": Admission.INVITE})


def _admission(proof: bytes) -> bytes:
    verify_admission(_BY_INVITATION, RUN, GUEST, proof, 1)
    assert TokenUses().may_admit(GUEST, proof)
    return decode_body(AdmissionProof, proof).encode()


def _token_uses(proof: bytes) -> None:
    """A proof that nobody has verified is counted, or refused."""
    TokenUses().after([(GUEST, proof)])


def _invitation_text(data: bytes) -> None:
    """Text has spaces to choose; what it says must come back."""
    found = read_invitation(data.decode("latin-1"))
    again = make_invitation(Hash(found.run), ONE.peer_id, found.addresses, found.token, found.secret, found.anchor)
    assert read_invitation(again) == found.model_copy(update={"organiser": ONE.peer_id})


def _invitation(body: bytes) -> None:
    """A body of any bytes, with the right checksum."""
    body = body[: MAX_INVITATION_BYTES + 100]  # base58 takes time in the square of it, and no longer text is let in
    checksum = hash_bytes("invitation", body)[:4]
    _invitation_text((PREFIX + base58.b58encode(checksum + body).decode()).encode())


def _push_header(data: bytes) -> bytes | None:
    plan = push_plan(data)
    if plan is None:
        return None
    return decode_body(PushHeader, data, max_bytes=16 << 10).encode()


def _evidence(data: bytes) -> bytes:
    evidence = decode_evidence(data)
    law = Law(RUN, 1, chunk_layouts(LADDER["int4"], 512, 256), "clip")
    with contextlib.suppress(Malformed):
        judge(law, evidence)
    return encode_evidence(evidence)


def _question(data: bytes) -> bytes:
    return encode_question(*decode_question(data))


def _answer(data: bytes) -> bytes:
    answer, stays_open = decode_answer(data)
    given = {"reason": str(answer)} if isinstance(answer, Refused) else {"data": answer}
    return canonical.encode({**given, "open": stays_open})


def _control(data: bytes) -> None:
    """msgpack has several forms of one value here; what it says must come back."""
    buffer = bytearray(data)
    message = take_frame(buffer, max_bytes=MAX_CONTROL_BYTES)
    if message is not None:
        with contextlib.suppress(ValueError):
            Stamped.from_fields(message)
        again = bytearray(pack_frame(message, max_bytes=2 * MAX_CONTROL_BYTES))
        assert repr(take_frame(again, max_bytes=2 * MAX_CONTROL_BYTES)) == repr(message)


def _address(data: bytes) -> bytes | None:
    text = data.decode("latin-1")
    peer = peer_of(text)
    return (text.rpartition("/p2p/")[0] + "/p2p/" + peer).encode("latin-1") if peer is not None else None


def _files(data: bytes) -> None:
    """What another program could have written into our folders."""
    for address in rendezvous._parse(data, ONE.peer_id):
        assert address.endswith(ONE.peer_id)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "book"
        path.write_bytes(data)
        assert all(isinstance(address, str) for address in contacts.read_book(path))


def _link_pair() -> tuple[socket.socket, socket.socket, Link, Link]:
    keys = Keys.agree(RUN, ONE.peer_id, ONE.peer_id, bytes(16), bytes(64))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return here, there, Link(here, keys, dialled=False), Link(there, keys, dialled=True)


def _frames(data: bytes) -> None:
    """Any bytes on a bulk socket: nothing that is not authentic is ever handed on."""
    here, there, link, other = _link_pair()
    heard = 0

    async def read_all() -> None:
        nonlocal heard
        while True:
            kind, value, size = await link.receive_head()
            plain = bytearray(size)
            await link.receive_body(memoryview(plain))
            assert (kind, value, bytes(plain)) == (FrameKind.OPEN, 7, struct.pack(">Q", 1) + b"header"), "a forgery"
            heard += 1

    try:
        there.sendall(data[: 32 << 10])
        there.shutdown(socket.SHUT_WR)
        trio.run(read_all)
    except LinkBroken:
        if not heard:
            raise
    finally:
        link.close()
        other.close()


def _frame_seed() -> bytes:
    here, there, link, other = _link_pair()
    other.send_small(FrameKind.OPEN, 7, struct.pack(">Q", 1) + b"header")
    here.setblocking(True)
    data = here.recv(1 << 12)
    link.close()
    other.close()
    return data


class _Saying(trio.abc.Stream):
    """A web server that says these bytes, whatever it is asked."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        said, self._left = bytes(self._left[: max_bytes or 4096]), self._left[max_bytes or 4096 :]
        return said

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class _Talker(WebDialer):
    """Leads every name to one server."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def look_up(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["93.184.216.34"]

    async def dial(self, ip: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return _Saying(self._data)


def _web_answer(data: bytes) -> None:
    """Any bytes of a mirror: no more and no longer pieces are handed on than were asked for."""
    pieces: list[bytes] = []

    async def keep(piece: bytes) -> None:
        pieces.append(piece)

    try:
        trio.run(RangeClient(dialer=_Talker(data)).read, "http://mirror.test/file", 10, [3, 2], keep)
        assert len(pieces) == 2
    finally:
        assert [len(piece) for piece in pieces] == [3, 2][: len(pieces)]


_WEB_HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-14/99\r\n"
_WEB_ANSWERS = [
    _WEB_HEAD + b"Content-Length: 5\r\n\r\nabcde",
    _WEB_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://other.test/file\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nabcde",
]

_JSON = [json.dumps({"pid": 1, "addresses": [f"/ip4/127.0.0.1/tcp/1/p2p/{ONE.peer_id}"]}).encode(), b"[]", b'["/ip4"]']
_TOKEN = Token(run=RUN, role=Role.TRAINER, expires=1, until_round=None, peer=GUEST, key=None, uses=1).encode()
_INVITATION = make_invitation(
    RUN, ONE.peer_id, ["/ip4/127.0.0.1/tcp/4001"], b"token", bytes(32), Anchor(rounds=7, tip=bytes(32))
)

DOORS: list[Door] = [
    Door("canonical", _canonical, [body.encode() for body in BODIES]),
    Door("envelope", _envelope, [seal(ONE, RUN, body.KIND, body.encode()).raw for body in BODIES]),
    *(Door(f"statement {body.KIND}", partial(_statement, body.KIND), [body.encode()]) for body in BODIES),
    *(Door(f"body {type(body).__name__}", partial(_body, type(body)), [body.encode()], 2 << 20) for body in QUESTIONS),
    Door(
        "manifest", _manifest, [demo_manifest().manifest.model_copy(update={"organiser": ONE.peer_id}).encode()], 320 << 10
    ),
    Door("corpus", lambda data: read_manifest(data).encode(), [a_corpus(held_out=900).manifest.encode()], 4 << 20),
    Door("web answer", _web_answer, _WEB_ANSWERS, 1 << 20, (RangeFailed,)),
    Door("token", _token, [_TOKEN], 1024),
    Door("admission", _admission, PROOFS, 1024),
    Door("token uses", _token_uses, PROOFS, 1024),
    Door("invitation", _invitation, [base58.b58decode(_INVITATION[len(PREFIX) :])[4:]], 5000),
    Door("invitation text", _invitation_text, [_INVITATION.encode()], 15_000),
    Door("push header", _push_header, [HEADER.encode()], 16 << 10),
    Door("evidence", _evidence, EVIDENCE, 2 << 20),
    Door("question", _question, [encode_question("tips", QUESTIONS[0].encode(), 10)], 2 << 20, (Malformed, BadFrame)),
    Door(
        "answer",
        _answer,
        [canonical.encode({"data": b"x", "open": True}), canonical.encode({"reason": "no", "open": False})],
        2 << 20,
        (Malformed, BadFrame),
    ),
    Door(
        "control frame",
        _control,
        [
            pack_frame(fields, max_bytes=1 << 12)
            for fields in ({"do": "status"}, Stamped(1.0, 2.0, Notice("info", "text")).to_fields())
        ],
        MAX_CONTROL_BYTES,
        (BadControlFrame,),
    ),
    Door("multiaddr", _address, [f"/ip4/127.0.0.1/tcp/1/p2p/{ONE.peer_id}".encode()], 1 << 12),
    Door("files of others", _files, _JSON, 8 << 10, ()),
    Door(
        "bulk frames",
        _frames,
        [_frame_seed(), HEAD.pack(FRAME_BYTES + TAG_BYTES, FrameKind.DATA, 0) + bytes(99)],
        1 << 16,
        (LinkBroken,),
    ),
]

assert {body.KIND for body in BODIES} == set(STATEMENTS), "a kind of statement that is not fuzzed"


def check(door: Door, data: bytes) -> bool:
    """Enter, and judge: whether it was let in.  What escapes, or does not say again what came in, is raised."""
    try:
        again = door.enter(data)
    except door.refusals:
        return False
    assert again is None or again == data, f"{door.name}: accepted {data!r}, which says {again!r}"
    return True
