"""`peer`, with one thing changed: whatever it averages for others it spoils before it signs it."""

from __future__ import annotations

import sys
from typing import Any

from peer.cli import main
from protocol.allreduce import runner
from protocol.wire.hashes import Hash, chunk_hash
from tests.attacks.exchange_liars import blow_up

honest = runner.average


def _average(*arguments: Any) -> Hash:
    honest(*arguments)
    blow_up(arguments[-1])
    return chunk_hash(arguments[-1])


if __name__ == "__main__":
    runner.average = _average  # type: ignore[assignment]
    sys.exit(main())
