"""Every question that a peer answers is in the table of docs/internals/questions.md, and no other."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import protocol
from protocol.transport.handlers import Answers, IsTold, declarations
from protocol.wire.hashes import ZERO_HASH
from tests.attacks.questions import dear_questions
from tests.protocol.peers import ANN

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/internals/questions.md"


def rows() -> list[str]:
    """The first cells of the page's tables that name a question."""
    return re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)


def declared() -> set[str]:
    """The questions that any class of the protocol answers."""
    found: set[str] = set()
    for module in pkgutil.walk_packages(protocol.__path__, "protocol."):
        for _, component in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if component.__module__ == module.name:
                found |= {each.question for _, each in declarations(component) if isinstance(each, Answers | IsTold)}
    return found


def of_transport() -> set[str]:
    """The protocols with streams of their own, besides the one that carries questions."""
    sources = (ROOT / "protocol").rglob("*.py")
    return {name for path in sources for name in re.findall(r"\.protocol\(\"([a-z-]+)\"\)", path.read_text())} - {"request"}


def test_every_question_has_one_row_in_the_table() -> None:
    assert len(declared()) >= 15 and len(of_transport()) >= 3
    assert sorted(rows()) == sorted(declared() | of_transport())


def test_strangers_flood_every_question_in_an_attack() -> None:
    asked = {kind.partition(",")[0] for kind in dear_questions(ANN, ZERO_HASH, ZERO_HASH, ZERO_HASH)}
    assert asked == declared()
