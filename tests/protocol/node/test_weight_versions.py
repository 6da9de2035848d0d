"""What others say to a node about versions of the weights is accepted, or dropped and counted, and costs little."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.events.events import Dropped, HandlerFailed, VersionPublished, VersionRefused
from protocol.transport.interface import Acceptance, Offence, Refused
from protocol.versions.catalogue import KEPT
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body, seal
from protocol.wire.identity import Identity
from protocol.wire.messages import unpack
from protocol.wire.rollouts import MAX_STATEMENT_BYTES, BlobName, Version, VersionsReply, VersionsRequest
from tests.protocol.node.stage import Stage, on_stage
from tests.protocol.peers import ANN, BOB
from tests.protocol.versions.test_route import a_blob, a_version

ORGANISER = Identity.from_seed(b"\x2a" * 32)


def statements(stage: Stage) -> int:
    return len([*stage.versions._catalogue.all()])


def test_nobody_but_a_publisher_is_heard(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        body = a_version(1, anchor=True, patch=None)
        assert stage.gossip(ANN, body) is Acceptance.REJECT
        with pytest.raises(Offence):
            await stage.router.on_request(BOB.peer_id, "version", stage.said(ANN, body))
        assert statements(stage) == 0
        assert [event.what for event in stage.events if isinstance(event, Dropped)] == ["version", "version"]
        assert stage.versions.folder.exists() is False, "nothing was begun for it"
        assert stage.gossip(ORGANISER, body) is Acceptance.ACCEPT
        assert stage.gossip(ORGANISER, body) is Acceptance.IGNORE
        assert [event.version for event in stage.events if isinstance(event, VersionPublished)] == [1]

    on_stage(tmp_path, check)


def test_a_second_statement_makes_a_number_void_and_is_handed_on(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        first, second, third = (
            a_version(1, anchor=True, patch=None).model_copy(update={"tensors": bytes([n]) * 32}) for n in (1, 2, 3)
        )
        accepted = [stage.gossip(ORGANISER, each) for each in (first, second, third)]
        assert accepted == [Acceptance.ACCEPT, Acceptance.ACCEPT, Acceptance.IGNORE]
        assert [event.version for event in stage.events if isinstance(event, VersionRefused)] == [1]
        answer = await stage.router.on_request(BOB.peer_id, "versions", VersionsRequest().encode())
        proof = [unpack(raw, stage.run)[1] for raw in decode_body(VersionsReply, answer).statements]
        assert proof == [first, second]

    on_stage(tmp_path, check)


def made(**changes: object) -> bytes:
    """A statement's body, whatever it says."""
    good = a_version(5).model_dump() | changes
    return canonical.encode(good)


@pytest.mark.parametrize(
    "body",
    [
        made(patch=None),
        made(version=0),
        made(version=1 << 60),
        made(patch=a_version(5, base=1).patch.model_dump() | {"base": 5}),  # type: ignore[union-attr]
        made(patch=a_version(5, base=1).patch.model_dump() | {"base": 9}),  # type: ignore[union-attr]
        made(weights=a_blob("smaller than the patch", 999).model_dump()),
        made(weights={"size": 1 << 60, "chunk_bytes": 4096, "root": bytes(32)}),
        made(weights={"size": 1 << 38, "chunk_bytes": 4096, "root": bytes(32)}),
        made(weights={"size": 0, "chunk_bytes": 4096, "root": bytes(32)}),
        made(weights={"size": 4096, "chunk_bytes": 1, "root": bytes(32)}),
        made(weights={"size": 4096, "chunk_bytes": 4096, "root": bytes(31)}),
        made(tensors=b""),
        made(more=1),
        b"\x80",
    ],
)
def test_a_statement_that_cannot_be_true_is_malformed(body: bytes, tmp_path: Path) -> None:
    """Neither whole nor a patch, a patch from itself or a later version, sizes that nobody has."""
    with pytest.raises(Malformed):
        decode_body(Version, body)

    async def check(stage: Stage) -> None:
        raw = seal(ORGANISER, stage.run, "version", body).raw
        assert stage.router.on_gossip(ANN.peer_id, raw) is Acceptance.REJECT
        with pytest.raises(Offence):
            await stage.router.on_request(ANN.peer_id, "version", raw)
        assert statements(stage) == 0

    on_stage(tmp_path, check)


def test_a_flood_of_a_publisher_fills_neither_memory_nor_disk(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        for number in range(1, 3 * KEPT):
            for tensors in (1, 2, 3):
                body = a_version(number, anchor=True, patch=None).model_copy(update={"tensors": bytes([tensors]) * 32})
                stage.gossip(ORGANISER, body)
        await trio.sleep(60)
        assert statements(stage) == 2 * KEPT
        assert len([*stage.versions.folder.iterdir()]) == 2 * KEPT
        answer = await stage.router.on_request(ANN.peer_id, "versions", VersionsRequest().encode())
        assert len(answer) <= 2 * KEPT * MAX_STATEMENT_BYTES
        assert not any(isinstance(event, HandlerFailed) for event in stage.events)

    on_stage(tmp_path, check)


def test_weights_larger_than_the_model_are_refused_whoever_signed_them(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        large = BlobName(size=1 << 36, chunk_bytes=1 << 24, root=bytes(32))
        body = a_version(1, anchor=True, patch=None).model_copy(update={"weights": large})
        assert stage.gossip(ORGANISER, body) is Acceptance.REJECT
        assert statements(stage) == 0

    on_stage(tmp_path, check)


def test_questions_that_are_none_are_refused(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        for data in (b"", b"\x81\xa1x\x01", b"x" * 2000):
            with pytest.raises(Refused):
                await stage.router.on_request(ANN.peer_id, "versions", data)
            with pytest.raises(Offence):
                await stage.router.on_request(ANN.peer_id, "version", data)
        with pytest.raises(Offence, match="another kind"):
            await stage.router.on_request(ANN.peer_id, "version", stage.said(ANN, stage.ready()))

    on_stage(tmp_path, check)


def test_an_answer_full_of_forgeries_teaches_nothing(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        forged = [stage.said(ANN, a_version(number, anchor=True)) for number in (2, 3)]
        true = stage.said(ORGANISER, a_version(3, anchor=True))

        async def answer(kind: str, data: bytes) -> bytes:
            return VersionsReply(statements=[*forged, true]).encode() if kind == "versions" else b""

        stage.network.answers[BOB.peer_id] = answer
        stage.router.on_gossip(BOB.peer_id, stage.said(ORGANISER, a_version(4)))
        await trio.sleep(1)
        assert [*stage.versions._catalogue.usable] == [3, 4], "it asked for what lacks, and took what a publisher signed"

    on_stage(tmp_path, check)
