"""What the chain says about peers: who may be named in a record, and how often a token was used."""

from __future__ import annotations

import pytest

from protocol.chain.electorate import check_admissions
from protocol.run.admission import TokenUses, bearer_token, bound_token, make_proof
from protocol.run.manifest import RunManifest, run_id
from protocol.wire.canonical import Malformed
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Member
from tests.protocol.members import a_member

ORGANISER, KEY = (Identity.from_seed(bytes([number]) * 32) for number in (0, 9))
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3)]
MANIFEST = RunManifest.model_validate(
    {"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", "admission": "invite", "total_rounds": 10**6}
)
RUN = run_id(MANIFEST)


def bound(peer: PeerId, until_round: int | None = None) -> bytes:
    return make_proof(bound_token(ORGANISER, RUN, peer, expires=1, until_round=until_round), RUN, peer)


def bearer(peer: PeerId) -> bytes:
    return make_proof(bearer_token(ORGANISER, RUN, KEY, expires=1, uses=2), RUN, peer, KEY)


def member(peer: PeerId, admission: bytes) -> Member:
    return a_member(peer).model_copy(update={"admission": admission})


def check(*members: Member, round: int = 5, known: frozenset[PeerId] = frozenset(), uses: TokenUses | None = None) -> None:
    check_admissions(MANIFEST, RUN, round, members, known, uses or TokenUses())


def test_a_record_names_invited_peers_and_members_of_earlier_records() -> None:
    one, two, three = PEERS
    check(member(one, bound(one)), member(two, bearer(two)))
    check(member(three, b""), known=frozenset([three]))
    check(member(three, bound(three, until_round=4)), known=frozenset([three]))


@pytest.mark.parametrize(
    "admission",
    [b"", b"rubbish", bound(PEERS[1]), bearer(PEERS[1]), bound(PEERS[0], until_round=4)],
    ids=["none", "rubbish", "another's", "another's by a bearer token", "of earlier rounds"],
)
def test_a_record_names_nobody_else(admission: bytes) -> None:
    with pytest.raises(Malformed):
        check(member(PEERS[0], admission))


def test_a_bearer_token_admits_as_many_as_it_may_in_all_records_together() -> None:
    one, two, three = PEERS
    uses = TokenUses().after([(one, bearer(one)), (two, bearer(two))])
    check(member(one, bearer(one)), uses=uses)
    with pytest.raises(Malformed, match="may admit no more"):
        check(member(three, bearer(three)), uses=uses)
    with pytest.raises(Malformed, match="may admit no more"):
        check(*(member(peer, bearer(peer)) for peer in PEERS))
