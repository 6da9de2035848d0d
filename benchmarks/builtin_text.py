"""The text that comes with the program, written again from the files of the repository: `python -m benchmarks.builtin_text`.

Takes the sources of the product and its documentation, and writes `peer/corpora/builtin.jsonl.gz`.  Files are split between
paragraphs: a corpus shuffles documents, and rows that follow each other should not all come from one long file.  The text is
frozen: the demo run and every run file without data of its own name the corpus that is built from it, so whoever
writes it again makes other runs.  Prints the constants of `protocol/run/sections.py` that belong to it.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from peer.corpora.build import build
from peer.corpora.builtin import OPTIONS, TEXT, builtin_input, read_text
from peer.corpora.folder import MANIFEST
from protocol.sync.fetchers import file_section

ROOT = Path(__file__).parents[1]
TAKEN = ("*.md", "kernels/*.py", "protocol/*.py", "trainer/*.py", "peer/*.py", "tui/*.py", "docs/*.py", "benchmarks/*.py")
"""Patterns of `git ls-files`: the sources of the product, and all pages."""
LEAST_CHARACTERS = 1500
"""Of a document, unless its file is shorter."""


def pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces that end between paragraphs."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece += paragraph + "\n\n"
        if len(piece) >= LEAST_CHARACTERS:
            yield piece.rstrip() + "\n"
            piece = ""
    if piece.strip():
        yield piece.rstrip() + "\n"


def main() -> None:
    named = subprocess.run(["git", "ls-files", "-z", *TAKEN], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = sorted(name for name in set(named.split("\0")) if name and (ROOT / name).stat().st_size)
    lines = [
        json.dumps({"id": f"{name}#{number}", "text": piece}) + "\n"
        for name in names
        for number, piece in enumerate(pieces((ROOT / name).read_text(encoding="utf-8")), 1)
    ]
    with TEXT.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write("".join(lines).encode())
    with tempfile.TemporaryDirectory() as folder:
        result = build([builtin_input(read_text())], OPTIONS, Path(folder) / "corpus")
        manifest = file_section((Path(folder) / "corpus" / MANIFEST).read_bytes())
    (source,) = result.manifest.sources
    print(
        f"{len(names)} files, {len(lines)} documents, {TEXT.stat().st_size} bytes; {source.held_out.tokens} tokens held out"
    )
    print(f"BUILTIN = {manifest!r}\nTOKENS = {source.train.tokens}")


if __name__ == "__main__":
    main()
