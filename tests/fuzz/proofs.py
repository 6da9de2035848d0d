"""Proofs and batches of rollouts under garbage: whatever arrives is refused, or means what an honest peer said.

A case is one changed list of proofs, rollout or batch.  What is accepted though its bytes differ is looked at again by other
means than the ones under test: polynomials are evaluated number by number in Python.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from kernels.toploc import PRIME, MalformedProof, Mismatch, Thresholds, check_form, compare_all, prove
from protocol.formats.rl import RlConfig
from tests.fuzz.mutations import mutated
from tests.fuzz.tally import Tally
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, decoder, generate, parameters
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Judged, Verifier
from trainer.rl.worker import RolloutTasks, RolloutWorker, decode_batch, encode_batch

SHAPES = ((96, 128), (40, 64), (33, 16), (7, 8), (1, 4))
"""Tokens and width of the hidden states whose proofs are changed; the last ones have fewer than 128 values a chunk."""
LOT = 64
"""Well-formed lists of proofs that are compared together."""
SHIFT = 40
"""By how much the constant of a polynomial is moved at most: less is within the thresholds, more is not."""
MODEL = FAMILIES["qwen3"]
RL = RlConfig(max_tokens=24, row_tokens=64, micro_batch_tokens=1024)
PEER = "12D3KooWworker"
MANY = Assignment(b"run", 5, PEER, tuple(range(8)), 2)
FEW = Assignment(b"run", 5, PEER, (4,), 2)
OUTSIDE = (-1, 0, 255, 256, 1 << 16, 1 << 20, 1 << 64)


class ProofCases:
    """Changed proofs of some hidden states."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self._random, self._tally = random, tally
        self._states = [
            torch.randn(tokens, dim, generator=torch.Generator().manual_seed(tokens)).bfloat16() for tokens, dim in SHAPES
        ]
        self._proofs = [prove(hidden) for hidden in self._states]
        self._lot: list[tuple[int, list[bytes]]] = []

    def one(self) -> None:
        """Change something; what is still well formed is compared with others later."""
        which = self._random.randrange(len(SHAPES))
        proofs = self._changed(which)
        try:
            check_form(proofs, *SHAPES[which])
        except MalformedProof:
            self._tally.count("proofs", "malformed")
            return
        self._lot.append((which, proofs))
        if len(self._lot) == LOT:
            self.finish()

    def finish(self) -> None:
        """Compare what has come together."""
        lot, self._lot = self._lot, []
        found = compare_all([self._states[which] for which, _ in lot], [proofs for _, proofs in lot])
        for (which, proofs), mismatches in zip(lot, found, strict=True):
            if not all(Thresholds().accept(each) for each in mismatches):
                self._tally.count("proofs", "wrong computation")
            elif proofs == self._proofs[which]:
                self._tally.count("proofs", "unchanged, accepted")
            else:
                again = [compared(*each) for each in zip(self._states[which].split(32), proofs, strict=True)]
                if again != mismatches:
                    self._tally.failures.append(f"proofs of {SHAPES[which]} are compared as {mismatches}, not {again}")
                same = all(each == Mismatch(0, 0.0, 0.0) for each in again)
                self._tally.count("proofs", "same values, accepted" if same else "values within thresholds, accepted")

    def _changed(self, which: int) -> list[bytes]:
        random, proofs = self._random, [*self._proofs[which]]
        place = random.randrange(len(proofs))
        match random.randrange(10):
            case 0:
                del proofs[place]
            case 1:
                proofs.insert(place, random.choice((b"", proofs[place], random.randbytes(258))))
            case 2:
                random.shuffle(proofs)
            case 3:
                proofs[place] = random.choice(random.choice(self._proofs))
            case 4:
                proofs[place] = random.randbytes(random.choice((len(proofs[place]), 0, 1, 2, 256, 260)))
            case 5:
                proofs[place] = _with_word(proofs[place], 0, random.choice((0, 1, 127, 128, PRIME, PRIME + 1, 65535)))
            case 6:
                words = [random.randrange(PRIME) for _ in range(len(proofs[place]) // 2 - 1)]
                proofs[place] = proofs[place][:2] + b"".join(word.to_bytes(2, "big") for word in words)
            case 7:
                constant = int.from_bytes(proofs[place][2:4], "big") + random.randint(-SHIFT, SHIFT)
                proofs[place] = _with_word(proofs[place], 1, constant % PRIME)
            case 8:
                word = random.randrange(len(proofs[place]) // 2)
                proofs[place] = _with_word(proofs[place], word, random.randrange(1 << 16))
            case _:
                proofs[place] = mutated(proofs[place], random)
        return proofs


def _with_word(proof: bytes, place: int, word: int) -> bytes:
    return proof[: 2 * place] + word.to_bytes(2, "big") + proof[2 * place + 2 :]


def compared(hidden_nh: Tensor, proof: bytes) -> Mismatch:
    """What `kernels.toploc.compare` has to say of one chunk, number by number."""
    bits = [value & 0xFFFF for value in hidden_nh.flatten().view(torch.int16).tolist()]
    modulus, *coefficients = (int.from_bytes(proof[at : at + 2], "big") for at in range(0, len(proof), 2))
    largest = sorted(range(len(bits)), key=lambda at: -(bits[at] & 0x7FFF))[: len(coefficients)]
    apart = []
    for at in largest:
        proven = 0
        for coefficient in reversed(coefficients):
            proven = (proven * (at % modulus) + coefficient) % PRIME
        if proven & 0x7F80 == bits[at] & 0x7F80:
            apart.append(abs((proven & 0x7F) - (bits[at] & 0x7F)))
    if not apart:
        return Mismatch(len(largest), 2.0**64, 2.0**64)
    return Mismatch(len(largest) - len(apart), sum(apart) / len(apart), float(sorted(apart)[len(apart) // 2]))


class RolloutCases:
    """Changed rollouts of one assignment, at a verifier; several at a time, as they come in a batch."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self._random, self._tally = random, tally
        model = decoder(MODEL, parameters(MODEL))
        self._verifier = Verifier(model, Letters(), TOKENIZER, RL)
        self._good = generate(model, Letters(), MANY, RL)
        self._lot: list[Rollout] = []

    def one(self) -> None:
        """Change the next rollout of the batch; a whole batch is verified."""
        rollout = self._good[len(self._lot)]
        try:
            if self._random.random() < 0.5:
                changed = self._otherwise(rollout)
            else:
                data = mutated(rollout.encode(), self._random)
                changed = Rollout.decode(data)
                if changed.encode() != data:
                    self._tally.failures.append(f"a rollout of the bytes {data.hex()} has others itself")
        except ValueError:
            self._tally.count("rollouts", "refused")
            return
        self._lot.append(changed)
        if len(self._lot) == len(self._good):
            self.finish()

    def finish(self) -> None:
        """Verify what has come together."""
        lot, self._lot = self._lot, []
        for rollout, good, judged in zip(lot, self._good, self._verifier.verify(MANY, lot), strict=False):
            note(self._tally, "rollouts", rollout, good, judged)

    def _otherwise(self, rollout: Rollout) -> Rollout:
        random, output = self._random, [*rollout.output]
        place = random.randrange(len(output))
        match random.randrange(9):
            case 0:
                output[place] = random.choice((*OUTSIDE, random.randrange(256)))
                return replace(rollout, output=tuple(output))
            case 1:
                return replace(rollout, made=tuple(random.random() < 0.9 for _ in output))
            case 2:
                return replace(rollout, output=tuple(output[:place]), made=rollout.made[:place])
            case 3:
                more = random.randrange(1, 40)
                return replace(rollout, output=(*output, *[97] * more), made=(*rollout.made, *[True] * more))
            case 4:
                return replace(rollout, proofs=random.choice(self._good).proofs)
            case 5:
                return replace(rollout, proofs=mutated(rollout.proofs, random))
            case 6:
                return replace(rollout, problem=random.choice((*OUTSIDE, random.randrange(8))))
            case 7:
                return replace(rollout, copy=random.choice(OUTSIDE))
            case _:
                other = random.choice(self._good)
                return replace(rollout, prompt=other.prompt, output=other.output, made=other.made, proofs=other.proofs)


class BatchCases:
    """Changed bytes of whole batches, in files, at a trainer process's worker."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self._random, self._tally = random, tally
        theta = parameters(MODEL)
        self._worker = RolloutWorker(RL, MODEL, RolloutTasks(Letters(), TOKENIZER), CPU)
        self._worker.keep_version(FEW.version, theta)
        self._good = generate(decoder(MODEL, theta), Letters(), FEW, RL)
        self._bytes = encode_batch(self._good)
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "batch"

    def one(self) -> None:
        """Change a batch, and verify what the file has."""
        data = self._changed()
        try:
            rollouts = decode_batch(data)
        except ValueError:
            rollouts = []
        if rollouts and encode_batch(rollouts) != data:
            self._tally.failures.append(f"a batch of the bytes {data.hex()} has others itself")
        self._path.write_bytes(data)
        judged = self._worker.verify(FEW, self._path)
        if not rollouts:
            refused = all(each.reason is not None for each in judged)
            self._tally.count("batches", "refused")
            if not refused or len(judged) != len(self._good):
                self._tally.failures.append(f"a batch that is none was judged {judged}: {data.hex()}")
            return
        outcomes = {outcome(*each) for each in zip(rollouts, self._good, judged, strict=False)}
        if "accepted" in outcomes and len(rollouts) != len(self._good):
            self._tally.failures.append(f"a batch of another size is accepted: {data.hex()}")
        rejected = sorted(outcomes - {"unchanged, accepted"})
        self._tally.count("batches", rejected[0] if rejected else "unchanged, accepted")
        self._tally.failures += [f"a batch is accepted: {data.hex()}" for each in rejected if each == "accepted"]

    def finish(self) -> None:
        """Leave no file."""
        self._folder.cleanup()

    def _changed(self) -> bytes:
        random = self._random
        match random.randrange(5):
            case 0:
                return random.randbytes(random.choice((0, 1, 4, 8, 64, len(self._bytes))))
            case 1:
                head = random.choice((0, 1, 2, 4096, 4097, (1 << 32) - 1)).to_bytes(4, "big")
                return head + random.choice((self._bytes[4:], random.randbytes(40)))
            case 2:
                some = random.choices(self._good, k=random.choice((1, 2, 2, 2, 3)))
                return encode_batch(some)
            case _:
                return mutated(self._bytes, random)


def outcome(rollout: Rollout, good: Rollout, judged: Judged) -> str:
    """What came of a rollout that stands in the place of a good one.  "accepted" is what must not be."""
    if judged.reason is not None:
        return judged.reason.value
    if rollout == good:
        return "unchanged, accepted"
    assert judged.measured is not None
    if rollout == replace(good, proofs=rollout.proofs) and all(map(Thresholds().accept, judged.measured.mismatches)):
        return "other proofs of the same text, accepted"
    return "accepted"


def note(tally: Tally, kind: str, rollout: Rollout, good: Rollout, judged: Judged) -> None:
    """Count what came of a rollout."""
    found = outcome(rollout, good, judged)
    tally.count(kind, found)
    if found == "accepted":
        tally.failures.append(f"{rollout} is accepted")
