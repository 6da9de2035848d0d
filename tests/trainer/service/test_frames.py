"""Frames survive being cut anywhere."""

from typing import Any

import pytest

from trainer.service import frames


def test_messages_come_out_whole_however_they_are_cut() -> None:
    sent: list[dict[str, Any]] = [{"do": "pause"}, {"do": "compute", "id": 3, "task": {"round": 1}}]
    data, buffer = b"".join(frames.pack(message) for message in sent), bytearray()
    received = []
    for byte in data:
        buffer.append(byte)
        while (message := frames.take(buffer)) is not None:
            received.append(message)
    assert received == sent


def test_oversized_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        frames.take(bytearray(b"\xff\xff\xff\xff"))
