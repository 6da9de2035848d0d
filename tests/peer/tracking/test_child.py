"""The process that tracks a running peer's run: what it said last, and that it ends with the peer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from peer.environment import ChildKind
from peer.tracking.child import _last_words

PATIENCE_S = 300.0


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; print('first\\nthe server did not take it\\n', file=sys.stderr)", "the server did not take it"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; sys.stderr.write('x' * 100_000)", "xxx"),
    ],
)
def test_the_last_line_of_a_process_that_ended_is_told(program: str, told: str) -> None:
    said = trio.run(_last_words, [sys.executable, "-c", program], ChildKind.TENSORBOARD)
    assert said.endswith(told) and said.isprintable() and len(said) <= 300


def test_a_process_ends_with_the_peer_and_may_finish_what_it_does(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    program = f"import sys; open({str(begun)!r}, 'w'); sys.stdin.read(); open({str(ended)!r}, 'w')"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_last_words, [sys.executable, "-c", program], ChildKind.TENSORBOARD)
            with trio.fail_after(PATIENCE_S):
                while not begun.exists():
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert ended.exists()
