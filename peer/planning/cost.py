"""Cost of a round of some members: the time and the bytes of its exchange, of its agreement, and of gossip.

Pure.  All times are seconds, all rates bytes per second.  The numbers of chunks and of statements come from the protocol's
own modules; sizes and latencies of the wire were measured (docs/results/exchange.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts, fragment_length
from peer.planning.swarm import Numbers
from protocol.agreement.ballot import most_chunks
from protocol.allreduce.assignment import share_out
from protocol.allreduce.lateness import SPREAD, fair_time
from protocol.audit.auditor import MAX_MEMBERS_AUDITED, PART_TIMEOUT_S, audited_chunks
from protocol.chain.electorate import quorum_size
from protocol.membership.liveness import beat_interval_s
from protocol.run.manifest import RunManifest
from protocol.transport.gossip import DEGREE, DEGREE_HIGH

Flags = npt.NDArray[np.bool_]

WIRE = 1.07
"""Ratio of the bytes on a line to the payload, because of headers and acknowledgements.  Also the ratio of an exchange's
time to its ideal time, because not all lines are full at the end.  Measured with 4 and 8 peers."""
EXCHANGE_RTTS = 8.0
"""Additional round trips of an exchange: a line between distant peers fills slowly.  Fitted to measured
exchanges."""
AGREEMENT_RTTS = 4.0
"""Round trips of the agreement: eight statements one after the other, from READY to COMMIT."""
AGREEMENT_S = 0.3
"""Seconds of the agreement without round trips and bytes: signatures, and writes to the disk."""
ROUND_STATEMENT, MEMBER_STATEMENT, VOTE_STATEMENT, CHUNK_STATEMENT = 1500.0, 825.0, 762.0, 164.0
"""Bytes that a proposer sends to each other member in its four statements: in each case, for each member of the round, for
each voter of a quorum, and for each chunk."""
GOSSIP_BYTES = 1150.0
"""Bytes of a line for a message of gossip that is passed on to one neighbour."""
ROUND_GOSSIP = 6
"""Messages of gossip of each peer in a round, besides regular heartbeats: READY, a heartbeat that reports the round, and
messages that neighbours request twice because lines are busy.  Fitted to rounds of 4 and 6 peers."""
MOST_GOSSIP = 0.5
"""Largest share of a line that gossip takes from an exchange."""


class RoundSetting(NamedTuple):
    """Settings of a run that decide how often an exchange takes place and how large it is, as named in run files."""

    codec: str
    inner_steps: int
    fragments: int
    delay: int

    @classmethod
    def of(cls, manifest: RunManifest) -> RoundSetting:
        """Return the settings of a run."""
        return cls(manifest.codec, manifest.rounds.inner_steps, manifest.fragments, manifest.rounds.delay)


@dataclass(frozen=True)
class RoundLoad:
    """Work of one member in one round.  steps: inner steps.  delay: steps that it may train before it has the last result.

    parameters: number of parameters that a round exchanges.
    """

    steps: int
    delay: int
    step_tokens: int
    parameters: int
    contribution_bytes: int
    result_bytes: int
    chunks: int

    @classmethod
    def of(cls, manifest: RunManifest, setting: RoundSetting) -> RoundLoad:
        """Return the load of a run's rounds with these settings instead of its own."""
        codec = LADDER[setting.codec]
        parameters = fragment_length(manifest.parameters, codec.block, setting.fragments)
        chunk = -(-manifest.chunk_parameters // codec.block) * codec.block
        layouts = chunk_layouts(codec, parameters, chunk)
        return cls(
            steps=setting.inner_steps // setting.fragments,
            delay=setting.delay,
            step_tokens=manifest.data.sequences_per_step * manifest.data.row_tokens,
            parameters=parameters,
            contribution_bytes=layouts.contribution.payload_bytes,
            result_bytes=layouts.result.payload_bytes,
            chunks=len(layouts.result),
        )


@dataclass(frozen=True)
class RoundRules:
    """Rules of a run that no setting of the exchange changes."""

    grace_s: float
    min_members: int
    max_members: int
    state_bytes: int

    @classmethod
    def of(cls, manifest: RunManifest) -> RoundRules:
        """Return the rules of a run."""
        rounds = manifest.rounds
        return cls(rounds.grace_s, rounds.min_members, rounds.max_members, manifest.state_bytes)


# ------------------------------------------------------------------------------------------------------------------------
# Time and bytes of one exchange.


class ExchangeCost(NamedTuple):
    """Cost of an exchange for each member: seconds in which its line carries all bytes, and the bytes sent and received."""

    seconds: Numbers
    sent: Numbers
    received: Numbers


def exchange_cost(up: Numbers, down: Numbers, load: RoundLoad, electors: int) -> ExchangeCost:
    """Return the cost of an exchange of members with these lines (bytes per second).

    With N members, an owner with a share f of the chunks sends (1 - f) of its contribution and f (N - 1) results, and
    receives (1 - f) of the results and f (N - 1) contributions.
    """
    members = len(up)
    most = most_chunks(load.chunks, electors, min(electors, members))
    counts = share_out(np.minimum(up, down).tolist(), load.chunks, most)
    own = np.array(counts, np.float64) / load.chunks
    sent = (1 - own) * load.contribution_bytes + own * (members - 1) * load.result_bytes
    received = (1 - own) * load.result_bytes + own * (members - 1) * load.contribution_bytes
    if members == 1:
        sent, received = np.zeros(1), np.zeros(1)
    return ExchangeCost(WIRE * np.maximum(sent / up, received / down), sent, received)


def exchange_end(seconds: Numbers) -> float:
    """Return the time after which an exchange ends: the time of the slowest line, unless the others go on without it.

    The others wait 1.5 times as long as the faster half of the members took, and then for the fair time.
    """
    half = float(np.sort(seconds)[min(len(seconds) - 1, len(seconds) // 2)])
    waits = (1 + SPREAD) * half + fair_time(half, len(seconds))
    return float(seconds[seconds <= waits].max())


# ------------------------------------------------------------------------------------------------------------------------
# Time and bytes of the agreement, and of gossip.


class AgreementCost(NamedTuple):
    """Cost of an agreement: its seconds, and the bytes that each member sends and receives."""

    seconds: float
    sent: Numbers
    received: Numbers


def agreement_cost(up: Numbers, down: Numbers, rtt: float, load: RoundLoad, votes: Flags) -> AgreementCost:
    """Return the cost of agreeing on a round of members with these lines (bytes per second).

    rtt: seconds.  votes: True for a member that votes.  The proposer is a voter drawn by lot, and sends its statements to
    all others.  Each voter fetches all members' parts of the chunks that it audits, and a quorum has to vote.
    """
    members, voters = len(up), int(np.count_nonzero(votes))
    if members == 1:
        return AgreementCost(AGREEMENT_S, np.zeros(1), np.zeros(1))
    quorum = quorum_size(voters)
    statement = ROUND_STATEMENT + MEMBER_STATEMENT * members + VOTE_STATEMENT * quorum + CHUNK_STATEMENT * load.chunks
    audited = audited_chunks(load.chunks, members) if members <= MAX_MEMBERS_AUDITED else 0
    part = audited * load.contribution_bytes / load.chunks
    voting = votes.astype(np.float64)
    shown, fetched = part * (voters - voting), part * (members - 1) * voting
    proposal_s = WIRE * statement * (members - 1) * float(np.mean(1 / up[votes]))
    fetch_s = float(np.sort((fetched / down)[votes])[quorum - 1])
    audit_s = min(audited * PART_TIMEOUT_S, WIRE * max(float((shown / up).max()), fetch_s))
    return AgreementCost(
        AGREEMENT_S + (AGREEMENT_RTTS + bool(audited)) * rtt + proposal_s + audit_s,
        shown + voting * statement * (members - 1) / voters,
        fetched + statement * (members - 1) / members,
    )


class GossipCost(NamedTuple):
    """Cost of gossip for each peer: bytes per second sent, and as many received, and the further bytes of a round."""

    bytes_per_s: float
    round_bytes: float


def gossip_cost(peers: int) -> GossipCost:
    """Return the cost of gossip in a swarm of this many peers, each of which passes all messages on to its neighbours."""
    neighbours = peers - 1 if peers - 1 <= DEGREE_HIGH else DEGREE
    everybody = GOSSIP_BYTES * (peers - 1) * neighbours
    return GossipCost(everybody / beat_interval_s(peers), ROUND_GOSSIP * everybody)


def beside_gossip(line: Numbers, bytes_per_s: float) -> Numbers:
    """Return the rates of these lines without the part that gossip takes."""
    rates: Numbers = np.maximum(line - bytes_per_s, (1 - MOST_GOSSIP) * line)
    return rates
