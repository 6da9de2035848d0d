"""Who may take part in a run, and whether two peers speak the same protocol.

Decides, purely: given the manifest, a peer, its token, the wall clock and whether the record chain names the peer, either
nothing (welcome) or the reason as a sentence that the refused peer shows to its user.  How a greeting travels, and what
happens to a connection after a refusal, is the node's business.

Tokens are bearer tokens unless they name a peer: whoever holds one gets in until it expires.  A token is for coming in:
who is a member of a committed record is in, and stays in when its token expires.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.run.manifest import PROTOCOL_VERSION, Admission, RunManifest, run_id
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import open_envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import MAX_TOKEN_BYTES, Body, Count, HashField, PeerField, Role, decode_body, pack

OLDEST_PROTOCOL_VERSION = PROTOCOL_VERSION
"""Oldest version of the protocol that this software still speaks."""

VersionNumber = Annotated[int, Field(ge=1, le=1_000_000)]
VersionName = Annotated[str, Field(max_length=40)]


class Token(Body):
    """The organiser's word that somebody may take part.  expiry: unix seconds.  peer: whoever holds it, if None."""

    KIND: ClassVar[str] = "token"
    run: HashField
    role: Annotated[Role, Field(strict=False)]
    expiry: Count
    peer: PeerField | None


class Hello(Body):
    """The first question to another peer."""

    KIND: ClassVar[str] = "hello"
    protocol_min: VersionNumber
    protocol_max: VersionNumber
    version: VersionName
    run: HashField
    role: Annotated[Role, Field(strict=False)]
    token: Annotated[bytes, Field(max_length=MAX_TOKEN_BYTES)] | None


class HelloReply(Body):
    """Welcome.  protocol: the version to speak.  version: the answerer's software."""

    KIND: ClassVar[str] = "hello-reply"
    protocol: VersionNumber
    version: VersionName


def make_token(organiser: Identity, run: Hash, role: Role, expiry: int, peer: PeerId | None = None) -> bytes:
    """A signed token for `run`, valid until `expiry` (unix seconds)."""
    return pack(organiser, run, Token(run=run, role=role, expiry=expiry, peer=peer)).raw


def read_token(token: bytes, run: Hash, organiser: PeerId) -> Token:
    """The token in an envelope that the organiser signed for this run; raises `Malformed`."""
    envelope = open_envelope(token, run, max_bytes=MAX_TOKEN_BYTES)
    if envelope.kind != Token.KIND:
        raise Malformed("a signed statement, but not a token")
    if envelope.sender != organiser:
        raise Malformed("a token that the run's organiser did not sign")
    body = decode_body(Token, envelope.body, max_bytes=MAX_TOKEN_BYTES)
    if body.run != run:
        raise Malformed("a token of another run")
    return body


def admit(
    manifest: RunManifest,
    peer: PeerId,
    token: bytes | None,
    wall_now: float,
    *,
    role: Role = Role.TRAINER,
    member: bool = False,
) -> str | None:
    """None when `peer` may take part in `role`; otherwise the reason and remedy.  `wall_now`: unix seconds.

    member: whether a record of the run's chain names it.  The organiser is always welcome.  A trainer's token is good for
    a seed too.
    """
    if manifest.admission is Admission.OPEN or peer == manifest.organiser:
        return None
    if manifest.admission is Admission.ALLOWLIST:
        if peer in manifest.allowlist:
            return None
        return f"the run {manifest.name} admits only listed peers; ask its organiser to list {peer}"
    if member:
        return None
    if token is None:
        return f"the run {manifest.name} admits only invited peers; ask its organiser for an invitation with a token"
    try:
        words = read_token(token, run_id(manifest), PeerId(manifest.organiser))
    except Malformed as error:
        return f"the token of the invitation is not good ({error}); ask the run's organiser for a new invitation"
    if words.expiry <= wall_now:
        return "the token of the invitation has expired; ask the run's organiser for a new invitation"
    if words.peer is not None and words.peer != peer:
        return f"the token of the invitation is for {words.peer} and not for {peer}; ask for one of your own"
    if role is Role.TRAINER and words.role is not Role.TRAINER:
        return f"the token of the invitation is for the role {words.role.value}; join with --role {words.role.value}"
    return None


def make_hello(run: Hash, role: Role, token: bytes | None, version: str) -> Hello:
    """Our greeting."""
    return Hello(
        protocol_min=OLDEST_PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=version[:40],
        run=run,
        role=role,
        token=token,
    )


def answer_hello(
    manifest: RunManifest, run: Hash, peer: PeerId, hello: Hello, wall_now: float, version: str, *, member: bool = False
) -> HelloReply | str:
    """The answer to `peer`'s greeting: welcome, or the reason of the refusal as a sentence."""
    if hello.run != run:
        return f"this peer takes part in another run ({run.hex()[:12]}); check the invitation"
    lowest = max(hello.protocol_min, OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
    highest = min(hello.protocol_max, PROTOCOL_VERSION, manifest.protocol_max)
    if lowest > highest:
        behind = hello.protocol_max < max(OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
        remedy = "install a newer version of manyhands" if behind else "install the swarm's version"
        return (
            f"software {hello.version!r} speaks protocol {_range(hello.protocol_min, hello.protocol_max)} and the "
            f"swarm ({version!r:.42}) protocol {_range(manifest.protocol_min, manifest.protocol_max)}; {remedy}"
        )
    reason = admit(manifest, peer, hello.token, wall_now, role=hello.role, member=member)
    return reason if reason is not None else HelloReply(protocol=highest, version=version[:40])


def version_problem(manifest: RunManifest) -> str | None:
    """Why this software cannot take part in the run, as a sentence; None when it can."""
    wanted = _range(manifest.protocol_min, manifest.protocol_max)
    problem = f"the run wants protocol {wanted} and this software speaks "
    problem += _range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
    if manifest.protocol_min > PROTOCOL_VERSION:
        return f"{problem}; install a newer version of manyhands"
    if manifest.protocol_max < OLDEST_PROTOCOL_VERSION:
        return f"{problem}; install an older version of manyhands"
    return None


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
