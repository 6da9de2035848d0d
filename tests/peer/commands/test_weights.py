"""`peer weights` for a person, and what it asks for."""

from __future__ import annotations

from typing import Any

from peer.commands.models import describe_weights

COMING: dict[str, Any] = {
    "what": "result",
    "number": 3,
    "blob": "cd" * 32,
    "done": 3,
    "total": 10,
    "size_bytes": 20_000,
    "chunks": "###.......",
    "down_bytes_per_s": 1000.0,
    "sources": 4,
    "left_s": 14.0,
}


def a_blob(what: str, number: int, size_bytes: int) -> dict[str, Any]:
    return {"what": what, "number": number, "blob": "ab" * 32, "size_bytes": size_bytes}


def test_blobs_are_listed_with_what_is_on_its_way() -> None:
    blobs = [a_blob("checkpoint", 40, 8000), *(a_blob("result", round, 1000) for round in (40, 41, 42))]
    lines = describe_weights(
        {
            "run": "ef" * 32,
            "coming": [COMING, {**COMING, "what": "checkpoint", "number": 44, "sources": 1, "left_s": None}],
            "blobs": [*blobs, a_blob("file", 2, 9)],
        }
    )
    assert lines[1] == "coming  result of round 3: 3/10 chunks, 1.0 kB/s from 4 peers, 14 s to go"
    assert lines[2].strip() == "###......."
    assert lines[3] == "coming  checkpoint after 44 rounds: 3/10 chunks, 1.0 kB/s from 1 peer"
    assert lines[5:] == [
        "serves  1 checkpoint (after round 40; 8.0 kB)",
        "        3 results (of rounds 40 to 42; 3.0 kB)",
    ]
