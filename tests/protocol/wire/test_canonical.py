"""One value, one encoding."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import canonical
from protocol.wire.canonical import Malformed

numbers = st.booleans() | st.integers(-(2**63), 2**64 - 1)
scalars = st.none() | numbers | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@pytest.mark.slow
@given(values)
def test_every_value_comes_back(value: object) -> None:
    data = canonical.encode(value)
    assert canonical.decode(data, max_bytes=len(data)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\xcd\x00\x01",  # 1 in two bytes
        b"\x82\xa1b\x01\xa1a\x02",  # keys out of order
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        b"\x81\x01\x02",  # a key that is no string
        b"\xca\x3f\x80\x00\x00",  # a float of 4 bytes
        b"\xd4\x05\x00",  # an extension type
        b"\x01\x01",  # something after the value
        b"\xa1\xff",  # not UTF-8
        b"",
        b"\x91" * 100_000 + b"\x01",  # nested without end
        b"\xdd\xff\xff\xff\xff",  # a list said to be of 4 G items
        msgpack.packb([[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]),
    ],
)
def test_other_encodings_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        canonical.decode(data, max_bytes=1 << 20)


def test_over_the_limit_is_refused() -> None:
    with pytest.raises(Malformed, match="over the limit"):
        canonical.decode(bytes(11), max_bytes=10)


def test_what_has_no_canonical_form_is_not_encoded() -> None:
    with pytest.raises(TypeError):
        canonical.encode({1: 2})
    with pytest.raises(TypeError):
        canonical.encode({"a": object()})
