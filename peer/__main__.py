"""Entry point of `python -m peer`, which is the `peer` command."""

import sys

from peer.cli import main

sys.exit(main())
