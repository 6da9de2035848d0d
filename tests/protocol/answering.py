"""Questions that a node answers, and components that are asked without a router."""

from __future__ import annotations

from protocol.audit.ejection import Ejections
from protocol.blobs.swarm import Swarm
from protocol.chain.replica import Serving
from protocol.membership.handshake import Handshake
from protocol.membership.heartbeats import FailureDetector
from protocol.node.rounds import Rounds
from protocol.transport.handlers import Answers, IsTold, declarations
from protocol.transport.interface import MALFORMED, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, decode_body
from protocol.wire.identity import PeerId

COMPONENTS = (Handshake, FailureDetector, Rounds, Ejections, Swarm, Serving)
"""Classes of a node that answer questions."""


def questions(*components: type) -> dict[str, type[Body] | None]:
    """The questions that these classes answer, with their forms; None for a signed statement, or for no form."""
    found: dict[str, type[Body] | None] = {}
    for component in components:
        for _, declared in declarations(component):
            if isinstance(declared, Answers):
                found[declared.question] = declared.form
            elif isinstance(declared, IsTold):
                found[declared.question] = None
    return found


QUESTIONS = questions(*COMPONENTS)
BEFORE_HELLO = {
    declared.question
    for component in COMPONENTS
    for _, declared in declarations(component)
    if isinstance(declared, Answers) and declared.anyone
}
ABOUT_BLOBS = questions(Swarm)


async def ask(component: object, peer: PeerId, kind: str, data: bytes) -> bytes:
    """The answer of a component to a question of `peer`.  Raises `Refused`."""
    for name, declared in declarations(type(component)):
        if isinstance(declared, Answers) and declared.question == kind:
            try:
                asked = [decode_body(declared.form, data)] if declared.form is not None else []
                answer: bytes = await getattr(component, name)(peer, *asked)
            except Malformed as error:
                raise Refused(MALFORMED) from error
            return answer
    raise Refused("no such question")
