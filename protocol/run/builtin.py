"""Corpus of the text that comes with the program (`peer.corpora.builtin`), which every peer builds for itself.

The demo run and every run file without data of its own name it.  The numbers follow from the text, which is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from protocol.run.sections import FileSection, SourceSection

SOURCE, EXAMPLES = "manyhands", "examples"
"""Name of its only source, and of the source of an environment's solved examples, which no organiser brings either."""
BUILTIN = FileSection(size=687, root="e93f39312e0ce89cd71ca0e98767817cf7951cbd2a38a2c1a93e7c0ad680a1db")
"""The manifest of the corpus, as a file of the run."""
TOKENS = 4_141_363
"""Tokens to learn from, which are bytes."""


def builtin_source(length: int) -> SourceSection:
    """Return the source of a run whose rows predict `length` tokens."""
    return SourceSection(name=SOURCE, rows=-(-(TOKENS - 1) // length))


def reads_builtin(section: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return True if a data section of a run file names no data, so that the run reads the text of the program."""
    names_none = isinstance(section, Mapping) and not {"from", "sources", "corpora", "corpus"} & set(section)
    return names_none and section.get("format", "text") == "text" and section.get("source") != "local"
