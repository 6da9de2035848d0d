"""Newcomers have bounded places, and a crowd with one token pushes out nobody but itself."""

from __future__ import annotations

from protocol.membership.handshake import MAX_GUESTS, Guests
from protocol.run.admission import AdmittedBy
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import PeerId


def by(token: int, uses: int = 1) -> AdmittedBy:
    return AdmittedBy(hash_bytes("token", bytes([token])), uses=uses)


def named(*numbers: int) -> list[PeerId]:
    return [PeerId(f"peer {number}") for number in numbers]


def test_a_guest_is_remembered_with_its_proof() -> None:
    guests = Guests(lambda peer: False)
    (one,) = named(1)
    assert guests.get(one) is None and guests.add(one, b"proof", by(1))
    found = guests.get(one)
    assert found is not None and (found.proof, found.admitted) == (b"proof", by(1))
    assert guests.add(one, b"another", by(2)) and len(guests) == 1
    found = guests.get(one)
    assert found is not None and found.proof == b"another"


def test_a_bearer_token_has_as_many_places_as_uses_and_the_longest_known_makes_room() -> None:
    guests = Guests(lambda peer: False)
    one, two, three, four = named(1, 2, 3, 4)
    for peer in (one, two, three):
        assert guests.add(peer, b"", by(1, uses=3))
    assert guests.add(one, b"", by(1, uses=3)) and guests.add(four, b"", by(1, uses=3))
    assert [guests.get(peer) is not None for peer in (one, two, three, four)] == [True, False, True, True]


def test_members_keep_their_places_and_so_a_tokens_uses_end() -> None:
    one, two, three = named(1, 2, 3)
    members = {one}
    guests = Guests(members.__contains__)
    for peer in (one, two, three):
        assert guests.add(peer, b"", by(1, uses=2))
    assert guests.get(one) is not None and guests.get(two) is None
    members.add(three)
    assert not guests.add(two, b"", by(1, uses=2)), "two members came with it"
    assert guests.get(two) is None and guests.add(two, b"", by(2))
    members.add(two)
    assert guests.add(two, b"", by(1, uses=2)), "a member comes in whatever it shows"


def test_a_crowd_with_one_token_pushes_out_nobody_else() -> None:
    guests = Guests(lambda peer: False)
    honest = named(*range(50))
    for number, peer in enumerate(honest):
        assert guests.add(peer, b"", by(number))
    for peer in named(*range(1000, 1000 + 2 * MAX_GUESTS)):
        assert guests.add(peer, b"", by(100, uses=4096))
    assert len(guests) == MAX_GUESTS and all(guests.get(peer) is not None for peer in honest)
