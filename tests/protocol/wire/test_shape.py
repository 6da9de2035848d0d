"""A message is as large as its fields allow, and no larger one is looked at."""

from __future__ import annotations

import gc
import weakref
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, NUMBER_BYTES, Body, Shape, freeze_gc, largest, seal
from protocol.wire.messages import (
    ENTRY_BYTES,
    MAX_USED,
    MAX_USED_BY_ALL,
    STATEMENTS,
    Finish,
    Learned,
    RecordProposal,
    UsedOfAuthor,
    unpack,
)
from tests.fuzz.examples import BODIES, HEADER, ONE, QUESTIONS, RUN

EVERY = [*BODIES, *QUESTIONS, HEADER]


class Letter(str, Enum):
    A = "a"
    LONG = "longest"


class Inner(Body):
    text: Annotated[str, Field(max_length=10)]
    peer: Annotated[str, Field(max_length=10, pattern=r"^[a-z]+$")]


class Outer(Body):
    inner: Annotated[list[Inner], Field(max_length=3)]
    letter: Letter
    word: Literal["x", "yy"]
    maybe: Annotated[bytes, Field(max_length=7)] | None
    number: int
    share: float


@pytest.mark.parametrize("body", EVERY, ids=lambda body: type(body).__name__)
def test_every_example_is_within_its_shape(body: Body) -> None:
    shape, values = largest(type(body)), msgpack_values(canonical.decode(body.encode(), max_bytes=1 << 20))
    assert len(body.encode()) <= shape.bytes and values <= shape.values


def msgpack_values(value: object) -> int:
    """The values beneath this one, keys included."""
    if isinstance(value, dict):
        return sum(2 + msgpack_values(each) for each in value.values())
    return sum(1 + msgpack_values(each) for each in value) if isinstance(value, list) else 0


def test_the_largest_message_of_a_class_is_within_its_shape_and_not_far_below() -> None:
    inner = Inner(text="\U0001f600" * 10, peer="z" * 10)
    body = Outer(inner=[inner] * 3, letter=Letter.LONG, word="yy", maybe=bytes(7), number=2**60, share=0.5)
    shape = largest(Outer)
    assert shape.values == msgpack_values(canonical.decode(body.encode(), max_bytes=1000))
    assert 0.6 * shape.bytes < len(body.encode()) <= shape.bytes


@pytest.mark.parametrize("kind", sorted(STATEMENTS))
def test_every_statement_has_a_limit_of_its_own(kind: str) -> None:
    shape = largest(STATEMENTS[kind])
    one, all_of = largest(Learned), largest(UsedOfAuthor)
    if shape.bytes > one.bytes:  # a manifest bounds the batches of all members together
        members = shape.bytes // one.bytes
        rest = Shape(shape.bytes - members * one.bytes, shape.values - members * one.values)
        batch = all_of.bytes - ENTRY_BYTES * (MAX_USED - 1)
        size = rest.bytes + members * NUMBER_BYTES + MAX_USED_BY_ALL * batch
        shape = Shape(size, rest.values + MAX_USED_BY_ALL * (1 + all_of.values))
    assert shape.bytes <= MAX_ENVELOPE_BYTES and shape.values <= canonical.MAX_VALUES


def test_a_statement_longer_than_its_kind_can_be_is_refused_before_it_is_decoded() -> None:
    junk = canonical.encode([{}] * 1000)
    with pytest.raises(Malformed, match="over the limit of"):
        unpack(seal(ONE, RUN, Finish.KIND, junk).raw, RUN)
    with pytest.raises(Malformed, match="not a message: ValueError"):
        unpack(seal(ONE, RUN, RecordProposal.KIND, canonical.encode([{}] * 70_000)).raw, RUN)


def test_an_envelope_has_as_many_values_as_fields() -> None:
    with pytest.raises(Malformed, match="not a message: ValueError"):
        unpack(canonical.encode({"v": [{}] * 50_000}), RUN)


def test_of_a_list_of_wrong_items_one_is_looked_at() -> None:
    record_proposal = next(body for body in BODIES if isinstance(body, RecordProposal))
    fields = {**record_proposal.model_dump(), "index": [{"hash": b"", "mask": b""}] * 4096}
    with pytest.raises(ValidationError) as caught:
        RecordProposal.model_validate(fields)
    assert caught.value.error_count() == 2


@pytest.mark.parametrize("body", EVERY, ids=lambda body: type(body).__name__)
def test_a_body_is_encoded_in_canonical_form(body: Body) -> None:
    assert body.encode() == canonical.encode(body.model_dump())
    assert body.model_copy(update={}).encode() == body.encode()


@pytest.mark.slow
def test_what_was_spared_and_is_garbage_goes_the_next_time() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    node = Node()
    left = weakref.ref(node)
    try:
        freeze_gc()
        del node
        freeze_gc()
        assert left() is None
    finally:
        gc.unfreeze()
