"""`peer`, with one thing changed: in an exchange it gives nothing, and pushes worthless parts."""

from __future__ import annotations

import sys

from peer.cli import main
from protocol.node import exchanges
from tests.attacks.exchange_liars import Bogus

if __name__ == "__main__":
    exchanges.ExchangeRunner = Bogus  # type: ignore[attr-defined, misc]
    sys.exit(main())
