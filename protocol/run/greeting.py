"""The greeting between two peers: checks that they speak the same protocol, and that one may come in to the other.

Pure.  A refusal is a sentence that the refused peer shows to its user.  The node sends greetings and deals with connections
after a refusal.  A token is for coming in: a member of a committed record is in, and stays in when its token expires.
"""

from __future__ import annotations

import time
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.run.admission import AdmittedBy, has_expired, verify_admission
from protocol.run.manifest import PROTOCOL_VERSION, Admission, RunManifest
from protocol.wire.body import MAX_ADMISSION_BYTES, Body, HashField
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

OLDEST_PROTOCOL_VERSION = PROTOCOL_VERSION
"""Oldest version of the protocol that this software still speaks."""

LAST_SECOND = 253_402_300_799
"""End of the year 9999, in unix seconds: the last second that a date can show."""

VersionNumber = Annotated[int, Field(ge=1, le=1_000_000)]
VersionName = Annotated[str, Field(max_length=40)]


class Hello(Body):
    """The first question to another peer.  admission: the sender's admission proof; empty if the run asks for none."""

    KIND: ClassVar[str] = "hello"
    protocol_min: VersionNumber
    protocol_max: VersionNumber
    version: VersionName
    run: HashField
    role: Annotated[Role, Field(strict=False)]
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)]


class HelloReply(Body):
    """Welcome to a peer.  protocol: the version to speak.  version: the answerer's software.  clock: its unix second."""

    KIND: ClassVar[str] = "hello-reply"
    protocol: VersionNumber
    version: VersionName
    clock: Annotated[int, Field(ge=0, le=LAST_SECOND)]


def make_hello(run: Hash, role: Role, admission: bytes, version: str) -> Hello:
    """Return our greeting."""
    return Hello(
        protocol_min=OLDEST_PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=version[:40],
        run=run,
        role=role,
        admission=admission,
    )


def admit_at_door(
    manifest: RunManifest,
    run: Hash,
    peer: PeerId,
    proof: bytes,
    wall_now: float,
    *,
    role: Role = Role.TRAINER,
    round: int | None = None,
) -> AdmittedBy | str:
    """Return the grounds for admitting `peer` now in `role`; else a sentence with the reason of the refusal and the remedy.

    wall_now: unix seconds.  round: of the next record, the first that could name a newcomer; None if unknown.
    """
    if manifest.admission is Admission.INVITE and not proof and peer != manifest.organiser:
        return (
            f"the run {manifest.name} admits only invited peers; send its organiser your peer ID, {peer}, "
            "and join with the invitation that comes back"
        )
    try:
        admitted = verify_admission(manifest, run, peer, proof, round, role=Role.SEED)
    except Malformed as error:
        if manifest.admission is Admission.ALLOWLIST and not proof:
            return f"the run {manifest.name} admits only listed peers; ask its organiser to list {peer}"
        return f"the invitation is not good for {peer} ({error}); ask the run's organiser for a new one"
    if has_expired(admitted, wall_now):
        return (
            "the token of the invitation has expired; ask the run's organiser for a new invitation (good until "
            f"{_date(admitted.expires)}, by a clock that shows {_date(wall_now)}: set it if that is wrong)"
        )
    try:
        admitted.require(role, round)
    except Malformed as error:
        return f"the invitation is not good here ({error}); join with --role {admitted.role.value}"
    return admitted


def answer_hello(manifest: RunManifest, run: Hash, hello: Hello, version: str, wall_now: float) -> HelloReply | str:
    """Return the answer to a greeting, judged by run and software: a welcome, or a sentence with the reason of the refusal.

    wall_now: unix seconds.
    """
    if hello.run != run:
        return f"this peer takes part in another run ({run.hex()[:12]}); check the invitation"
    lowest = max(hello.protocol_min, OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
    highest = min(hello.protocol_max, PROTOCOL_VERSION, manifest.protocol_max)
    if lowest <= highest:
        return HelloReply(protocol=highest, version=version[:40], clock=int(min(max(0, wall_now), LAST_SECOND)))
    behind = hello.protocol_max < max(OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
    remedy = "install a newer version of manyhands" if behind else "install the swarm's version"
    return (
        f"software {hello.version!r} speaks protocol {_range(hello.protocol_min, hello.protocol_max)} and the "
        f"swarm ({version!r:.42}) protocol {_range(manifest.protocol_min, manifest.protocol_max)}; {remedy}"
    )


def version_problem(manifest: RunManifest) -> str | None:
    """Return the reason why this software cannot take part in the run, as a sentence; None if it can."""
    wanted = _range(manifest.protocol_min, manifest.protocol_max)
    problem = f"the run wants protocol {wanted} and this software speaks "
    problem += _range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
    if manifest.protocol_min > PROTOCOL_VERSION:
        return f"{problem}; install a newer version of manyhands"
    if manifest.protocol_max < OLDEST_PROTOCOL_VERSION:
        return f"{problem}; install an older version of manyhands"
    return None


def _date(seconds: float) -> str:
    """Return a time in unix seconds in a form for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(max(0.0, seconds), LAST_SECOND)))


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
