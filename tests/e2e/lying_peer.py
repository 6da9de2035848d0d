"""`peer`, with one thing changed: whatever it averages for others it spoils before it signs it."""

from __future__ import annotations

import sys
from typing import Any

from peer.cli import main
from protocol.exchange import averaging
from protocol.wire.hashes import Hash, chunk_hash
from tests.simulation.liars import blow_up, flip_one

honest = averaging.average


def _average(*arguments: Any) -> Hash:
    honest(*arguments)
    corrupt(arguments[-1])
    return chunk_hash(arguments[-1])


if __name__ == "__main__":
    corrupt = {"blow-up": blow_up, "flip-one": flip_one}[sys.argv.pop(1)]
    averaging.average = _average  # type: ignore[assignment]
    sys.exit(main())
