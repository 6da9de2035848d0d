"""The table of connections between kinds of homes, as root: `python -m tests.routers`.

--kinds cone upnp ...   only these (reachable, cone, symmetric, double, firewall, upnp, ipv6)
--meet SECONDS          how long they have after all have come in
--json                  for programs
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.routers.homes import why_not
from tests.routers.router import Kind
from tests.routers.table import MEET_S, as_fields, measure, shown


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.routers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=[kind.value for kind in Kind], default=[kind.value for kind in Kind])
    parser.add_argument("--meet", type=float, default=MEET_S)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"there can be no homes behind routers here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        meetings = measure(Path(folder), [Kind(name) for name in arguments.kinds], arguments.meet)
    print(json.dumps(as_fields(meetings)) if arguments.json else shown(meetings))


if __name__ == "__main__":
    main()
