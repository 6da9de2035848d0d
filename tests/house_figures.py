"""`python -m tests.house_figures [--json]`: the size of each top-level folder, in figures that tell how it is to read."""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from statistics import median
from typing import Any

from tests.house_rules import PRODUCT, ROOT

SHORT = 60
"""Lines below which a file counts as short."""
MOST_PARAMETERS = 7


def figures(folder: str) -> dict[str, Any]:
    """Return the figures of one folder; files named `__init__.py` do not count."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    trees = [ast.parse(path.read_text()) for path in paths]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    crowded = [
        each
        for each in functions
        if each.name == "__init__" and len(each.args.args) + len(each.args.kwonlyargs) - 1 > MOST_PARAMETERS
    ]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        "folder": folder,
        "lines": sum(lines.values()),
        "files": len(paths),
        "median": round(median(lines.values())),
        "short": sum(count < SHORT for count in lines.values()),
        "crowded": len(crowded),
        "twice": sum(count > 1 for count in names.values()),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.house_figures", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    rows = [figures(folder) for folder in PRODUCT]
    heads = ("folder", "lines", "files", "median", f"under {SHORT}", f"__init__ over {MOST_PARAMETERS}", "names twice")
    print("".join(head.rjust(16) for head in heads))
    for row in rows:
        print("".join(str(value).rjust(16) for value in row.values()))
    if parser.parse_args().json:
        print(json.dumps({"folders": rows}))


if __name__ == "__main__":
    main()
