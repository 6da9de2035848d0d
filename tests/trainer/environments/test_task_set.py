"""Sets of the crowd are read strictly and within bounds."""

from __future__ import annotations

import contextlib
import io
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments.lines import line
from trainer.environments import task_file
from trainer.environments.task_file import MAX_SET_BYTES, read_task_set

SET = b"\n".join(line(problem_id=str(number)) for number in range(10))


def test_set_is_named_by_its_bytes_however_it_was_sent() -> None:
    plain, compressed = read_task_set(SET), read_task_set(zstandard.compress(SET))
    assert plain == compressed
    assert len(plain.tasks) == 10
    assert read_task_set(SET + b"\n").digest != plain.digest


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the file has no task"),
        (SET + b"\n{}", "line 11: no task: it has neither task_type"),
        (zstandard.compress(SET)[:-9], "damaged"),
        (zstandard.compress(SET)[:6], "damaged"),
        (zstandard.compress(bytes(MAX_SET_BYTES + 1)), "at most 16 MiB"),
        (zstandard.compress(b"nonsense"), "line 1: it is not JSON"),
    ],
)
def test_what_is_no_set_is_refused_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_task_set(data)


def test_compressed_set_must_say_its_size() -> None:
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        writer.write(SET)
    with pytest.raises(ValueError, match="does not say its size"):
        read_task_set(out.getvalue())


def test_size_that_lies_takes_no_memory_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_file, "MAX_SET_BYTES", 1 << 16)
    bomb = zstandard.compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read_task_set(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_refused(data: bytes, compressed: bool) -> None:
    with pytest.raises(ValueError):
        read_task_set(task_file.ZSTANDARD + data if compressed else data)


@given(st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_sets_are_read_or_refused(place: int, value: int) -> None:
    damaged = bytearray(zstandard.compress(SET))
    damaged[place % len(damaged)] = value
    with contextlib.suppress(ValueError):
        read_task_set(bytes(damaged))
