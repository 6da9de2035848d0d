"""Runs by invitation: tokens that are lent, stolen, or used by more peers than they may admit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import trio

from protocol.run.admission import bearer_token, bound_token, make_proof
from protocol.run.manifest import Admission, SignedManifest
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from tests.attacks.attack import Attack
from tests.attacks.forgeries import keys, ready
from tests.attacks.ghosts import Strangers
from tests.attacks.stage import Stage, founded_run, listed_run
from tests.simulation.world import ORGANISER, changed

KEY = Identity.from_seed(b"\x2b" * 32)
LATER_S = 1_000_000
USES = 2


@lru_cache(maxsize=4)
def invited_run(peers: int) -> SignedManifest:
    """Founded by its seats; whoever else comes has to show a token."""
    return changed(founded_run(peers), admission=Admission.INVITE)


async def begin(stage: Stage, round: int = 2) -> None:
    """Every seat has a token of its own."""
    for seat in stage.world.seats:
        token = bound_token(ORGANISER, stage.run, seat.peer, expires=LATER_S)
        seat.admission = make_proof(token, stage.run, seat.peer)
    await stage.begin(round)


async def _ready_for_a_while(stage: Stage, crowd: Strangers, proofs: Mapping[PeerId, bytes], rounds: int = 8) -> None:
    """Each key is alive, and ready with its proof, in so many rounds."""
    crowd.connect()
    first = stage.rounds()
    with trio.fail_after(300):
        while stage.rounds() < first + rounds:
            node = stage.node()
            await crowd.beat(node.rounds, node.tip)
            body = ready(node._history.base, node._replica.state.digest(), serial=node.rounds)
            for key in crowd.keys:
                said = body.model_copy(update={"admission": proofs[key.peer_id]})
                await crowd.speaker.network.publish(pack(key, stage.run, said).raw)
            await trio.sleep(1.0)


async def bearer_token_of_a_crowd(stage: Stage) -> None:
    """A token for two peers, shown by twelve."""
    await begin(stage)
    crowd = Strangers(stage.world, 12)
    token = bearer_token(ORGANISER, stage.run, KEY, expires=LATER_S, uses=USES)
    proofs = {key.peer_id: make_proof(token, stage.run, key.peer_id, KEY) for key in crowd.keys}
    await _ready_for_a_while(stage, crowd, proofs)
    assert len(stage.in_records() & set(proofs)) <= USES, "more peers than the token admits"


async def stolen_proof(stage: Stage) -> None:
    """The proofs of members, as their READYs show them, in the READYs of others; and none at all."""
    await begin(stage)
    crowd = Strangers(stage.world, 6)
    shown = [stage.world.seats[number % 5].admission for number in range(5)]
    proofs = {key.peer_id: proof for key, proof in zip(crowd.keys, [*shown, b""], strict=True)}
    await _ready_for_a_while(stage, crowd, proofs)
    assert not stage.in_records() & set(proofs), "somebody came in with the proof of another"


async def token_of_another_organiser(stage: Stage) -> None:
    """Tokens that are well made, by somebody who may not make them."""
    await begin(stage)
    crowd = Strangers(stage.world, 6)
    proofs = {
        key.peer_id: make_proof(bound_token(keys(1)[0], stage.run, key.peer_id, expires=LATER_S), stage.run, key.peer_id)
        for key in crowd.keys
    }
    await _ready_for_a_while(stage, crowd, proofs)
    assert not stage.in_records() & set(proofs), "somebody came in with a token of its own"


async def unlisted(stage: Stage) -> None:
    """Keys that the list does not name are alive and ready."""
    await stage.begin()
    crowd = Strangers(stage.world, 6)
    await _ready_for_a_while(stage, crowd, {key.peer_id: b"" for key in crowd.keys})
    assert not stage.in_records() & {key.peer_id for key in crowd.keys}, "somebody came in who is not on the list"


ATTACKS = [
    Attack("one token, twelve keys", "it may admit two", bearer_token_of_a_crowd, 5, 0, 12, invited_run, begun=False),
    Attack("stolen proofs", "of members' READYs", stolen_proof, 5, 0, 6, invited_run, begun=False),
    Attack("tokens of somebody else", "than the organiser", token_of_another_organiser, 5, 0, 6, invited_run, begun=False),
    Attack("READYs of the unlisted", "in a run with a list", unlisted, 5, 0, 6, listed_run, begun=False),
]
