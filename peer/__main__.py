"""`python -m peer` is the `peer` command."""

import sys

from peer.cli import main

sys.exit(main())
