"""The kinds of statements and their fields belong to one version of the protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from protocol.run.manifest import PROTOCOL_VERSION
from protocol.wire.envelope import Body
from protocol.wire.messages import STATEMENTS

STATED = Path(__file__).with_name("statements.txt")


def bodies_in(annotation: Any) -> Iterator[type[Body]]:
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
    for argument in get_args(annotation):
        yield from bodies_in(argument)


def fields_of(body: type[Body]) -> str:
    """The names of the fields, each with the fields of the bodies in it."""
    fields = []
    for name, field in sorted(body.model_fields.items()):
        inner = [fields_of(each) for each in bodies_in(field.annotation)]
        fields.append(f"{name}({'; '.join(inner)})" if inner else name)
    return " ".join(fields)


def test_the_kinds_and_fields_of_statements_are_those_of_this_version() -> None:
    """If they changed since the last release: raise `PROTOCOL_VERSION`, and write the file with REWRITE=1."""
    lines = [f"protocol {PROTOCOL_VERSION}", *(f"{kind}: {fields_of(body)}" for kind, body in sorted(STATEMENTS.items()))]
    text = "\n".join(lines) + "\n"
    if os.environ.get("REWRITE"):
        STATED.write_text(text)
    assert STATED.read_text() == text
