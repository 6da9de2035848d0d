"""No text of this computer leaves it: paths, user and host names, and the texts of errors stay in the local log."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import pytest
from annotated_types import MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import Heartbeats
from protocol.run.admission import Hello, HelloReply
from protocol.run.settings import NodeSettings
from protocol.transport.interface import Bandwidth
from protocol.wire.envelope import PeerField
from protocol.wire.identity import Identity
from protocol.wire.messages import STATEMENTS
from protocol.wire.presence import Phase, Role
from protocol.wire.questions import HaveReply, LeavesReply, PartReply, TipsReply
from tests.protocol.chains import a_replica, a_run
from tests.protocol.peers import ANN, ME, TableNetwork, a_session

ROOT = Path(__file__).parents[2]
KNOWN = {
    "Heartbeat.name": "chosen with --name, or drawn from the peer ID",
    "Heartbeat.team": "chosen with --team",
    "Measurement.samples": "of the run's model, which completed the run's prompts",
    "Heartbeat.addresses": "where others reach this peer",
    "Heartbeat.version": "of the software",
    "Hello.version": "of the software",
    "HelloReply.version": "of the software",
    "Record.codec": "of the run",
    "TaskSet.name": "chosen by whoever publishes the set",
    "AdmittedSet.name": "chosen by whoever publishes the set",
    "LostSet.name": "chosen by whoever publishes the set",
}
"""All texts in messages, and whose they are."""
DETAILS = [
    "/home/alice.smith/.local/share/manyhands/runs/ab12/tasks/5f5f cannot be read",
    r"C:\Users\alice\AppData\Local\manyhands\runs",
    r"\\fileserver\alice\models\model.safetensors",
    "[Errno 13] Permission denied: '/home/alice/.cache/huggingface/token'",
    "alice@workstation.example.net",
    "192.168.178.23 does not answer",
    "fe80::1ff:fe23:4567:890a%wlan0",
    "HF_TOKEN=hf_abcdefghijklmnop",
    'Traceback (most recent call last):\n  File "/opt/alice/peer.py", line 3, in <module>',
    "CUDA error on GPU-8f5a2c1e-1d2b-4c3d-9e8f-0a1b2c3d4e5f (serial 1563220012345)",
    "file:///Users/alice/Documents/tasks.jsonl",
    "unshare: Operation not permitted (uid 1000, alice)",
    "~alice/.ssh/id_ed25519: bad permissions",
]


@pytest.mark.parametrize("phase", [Phase.COMPUTING, Phase.STARTING, Phase.PAUSED, Phase.GENERATING])
@pytest.mark.parametrize("detail", DETAILS)
def test_a_heartbeat_says_no_word_of_the_detail(tmp_path: Path, detail: str, phase: Phase) -> None:
    activity, replica = Activity(lambda event: None), a_replica(a_run(ANN), tmp_path)
    activity.show(phase, WhyIdle.FETCHING_TASKS, detail)
    assert activity.detail == detail, "the person reads it"
    session = a_session(a_run(ANN).run, Network(), [])
    settings = NodeSettings("me", Role.TRAINER, "0", 4)
    pace: Any = SimpleNamespace(all_tokens_per_s=0.0)
    nobody: Any = None
    beats = Heartbeats(session, settings, replica.history, nobody, pace, activity, lambda: None)
    encoded = beats._heartbeat().encode()
    assert not any(word.encode() in encoded for word in detail.split() if len(word) > 4)
    replica.state.close()


class Network(TableNetwork):
    """With the figures of a line that nobody has measured."""

    def bandwidth(self) -> Bandwidth:
        return Bandwidth(0.0, 0.0)

    def addresses(self) -> list[str]:
        return []


def test_every_text_in_a_message_is_known() -> None:
    """A field for a free text is a way for local details to strangers: whoever adds one says here whose text it is."""
    classes: list[type[BaseModel]] = [*STATEMENTS.values(), Hello, HelloReply, TipsReply, HaveReply, PartReply, LeavesReply]
    found = {name for cls in classes for name in texts_of(cls)}
    assert found <= set(KNOWN), sorted(found - set(KNOWN))
    assert {"Heartbeat.name", "Heartbeat.version", "Hello.version"} <= found


def texts_of(cls: type[BaseModel]) -> Iterator[str]:
    """The fields of a message, and of those in it, that take any text; peer IDs are none."""
    for name, field in cls.model_fields.items():
        if holds_text(field.annotation, field.metadata):
            yield f"{cls.__name__}.{name}"
        for part in parts_of(field.annotation):
            yield from texts_of(part)


def holds_text(annotation: Any, metadata: list[Any]) -> bool:
    if annotation is str:
        limits = [limit for each in metadata for limit in (each.metadata if isinstance(each, FieldInfo) else [each])]
        peer_limits = [limit for each in get_args(PeerField)[1:] for limit in each.metadata]
        return not any(limit in peer_limits for limit in limits if not isinstance(limit, MaxLen))
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return holds_text(arguments[0], [*metadata, *annotation.__metadata__])
    return get_origin(annotation) is not None and any(holds_text(each, metadata[:0]) for each in arguments)


def parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from parts_of(each)


PUBLIC = {"kind", "self._ejections.reason(peer)", "refusal", "NO_BLOB", "NO_RECORDS", "MALFORMED"}
"""Expressions in refusals: the asker's own word, what a proof says that it did, and the sentence for its user."""


def test_a_refusal_is_a_fixed_sentence() -> None:
    """Texts of errors may name files and people; they are for our own log."""
    sites = [(path, call) for path in sources() for call in refusals(path)]
    assert len(sites) > 20
    for path, call in sites:
        told = [part for argument in call.args for part in expressions(argument)]
        assert set(told) <= PUBLIC, f"{path.relative_to(ROOT)}:{call.lineno} tells {told}"


def sources() -> list[Path]:
    """All that runs in the peer process, but for what decodes the refusals of others."""
    receivers = {"requests.py", "bulk_sending.py", "network.py"}
    found = [path for room in ("protocol", "peer") for path in (ROOT / room).rglob("*.py")]
    return [path for path in found if path.name not in receivers]


def refusals(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Refused", "Offence"):
            yield node


def expressions(argument: ast.expr) -> Iterator[str]:
    """All of a text that is no literal."""
    if isinstance(argument, ast.JoinedStr):
        for part in argument.values:
            if isinstance(part, ast.FormattedValue):
                yield ast.unparse(part.value)
    elif isinstance(argument, ast.IfExp):
        yield from expressions(argument.body)
        yield from expressions(argument.orelse)
    elif not isinstance(argument, ast.Constant):
        yield ast.unparse(argument)


def test_a_name_that_nobody_chose_tells_nothing_of_the_computer() -> None:
    source = (ROOT / "peer/daemon/settings.py").read_text()
    assert 'f"peer-{peer[-6:]}"' in source
    spies = ("gethostname", "getuser", "platform.node", "getpass")
    assert not any(spy in path.read_text() for path in sources() for spy in spies)
    assert Identity.generate().peer_id[-6:] != ME.peer_id[-6:]
