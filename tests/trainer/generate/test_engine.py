"""Many sequences at a time, in any company, come out as each by itself without a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from protocol.formats.model import ModelConfig
from tests.trainer.generate.naive import CPU, FAMILIES, Written, parameters, requests, write
from trainer.generate.engine import Engine
from trainer.generate.generator import Completion, Request, Slots, complete
from trainer.generate.sampling import shortfall
from trainer.models.llama.model import Decoder

LENGTH = 141
CLOSE = 2e-4
"""More than the rounding of sums changes logits by, which is about 1e-5 here."""
CONFIG = FAMILIES["qwen3"]
FLAT = parameters(CONFIG)
every_family = pytest.mark.parametrize("family", FAMILIES)


def engine_with(prefill: int = 1024, steps: int = 0) -> type[Engine]:
    """Return the engine, with another number of known tokens at a time, and of steps between two checks."""

    class Other(Engine):
        prefill_tokens, steps_at_once = prefill, steps

    return Other


def loaded(slots: int, prefill: int = 1024, **options: Any) -> Engine:
    engine = engine_with(prefill)(CONFIG, CPU, Slots(slots, LENGTH), **options)
    engine.load(FLAT)
    return engine


@cache
def naively(family: str, temperature: float) -> list[tuple[Request, Written]]:
    """Requests and what they must give.  No choice is so close that the rounding of a sum could change it."""
    config = FAMILIES[family]
    flat = parameters(config)
    pairs = [(each, write(config, flat, each, temperature)) for each in requests(config, 12)]
    assert min(written.margin for _, written in pairs) > CLOSE
    return pairs


def completions(engine: Engine, wanted: list[Request]) -> dict[int, Completion]:
    return {completion.id: completion for completion in complete(engine, wanted)}


def check(got: Completion, request: Request, written: Written) -> None:
    assert got.output == written.output
    assert got.made == written.made
    assert got.hidden is not None and got.hidden.dtype == torch.bfloat16 and got.hidden.shape == written.hidden.shape
    # The same to the last bit of bf16, or where a number lies between two of them, to its neighbour.
    torch.testing.assert_close(got.hidden, written.hidden, rtol=2**-7, atol=1e-4)


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("slots, prefill_tokens, steps_at_once", [(5, 48, 1), (4, 7, 8), (12, 100, 3)])
def test_tokens_and_hidden_states_are_those_of_full_recomputation(
    family: str, temperature: float, slots: int, prefill_tokens: int, steps_at_once: int
) -> None:
    config, pairs = FAMILIES[family], naively(family, temperature)
    engine = engine_with(prefill_tokens, steps_at_once)(config, CPU, Slots(slots, LENGTH))
    engine.temperature = temperature
    engine.load(parameters(config))
    got = completions(engine, [request for request, _ in pairs])
    assert sorted(got) == [request.id for request, _ in pairs]
    for request, written in pairs:
        check(got[request.id], request, written)


@pytest.mark.slow
def test_tokens_of_a_running_request_are_known_and_one_that_is_stopped_leaves_no_trace() -> None:
    (first, written), (second, other) = naively("qwen2", 1.0)[:2]
    engine = Engine(FAMILIES["qwen2"], CPU, Slots(1, LENGTH))
    engine.load(parameters(FAMILIES["qwen2"]))
    engine.submit(first)
    seen = [(engine.advance(), engine.output_of(first.id))[1] for _ in range(3)]
    assert seen == [written.output[: number + 1] for number in range(3)] and engine.output_of(second.id) == ()
    engine.stop(second.id)  # which has not begun
    engine.stop(first.id)
    assert not engine.busy and engine.output_of(first.id) == ()
    check(completions(engine, [second])[second.id], second, other)


def test_requests_begin_when_a_slot_is_free_and_are_taken_when_there_is_room() -> None:
    taken: list[int] = []

    def source() -> Iterator[Request]:
        for request in same_length(8, [3, 9, 9, 9, 9, 9, 9, 9]):
            taken.append(request.id)
            yield request

    engine = loaded(2)
    assert engine.room == 2
    done = complete(engine, source())
    assert next(done).id == 0
    assert taken == [0, 1]
    assert next(done).id == 1
    assert taken == [0, 1, 2]
    assert [completion.id for completion in done] == [2, 3, 4, 5, 6, 7]
    assert engine.room == 2 and not engine.busy
    assert engine.row_steps == 2 + 7 * 8  # no row was computed for nobody: two at a time, and one where one was left


def same_length(count: int, tokens: list[int]) -> list[Request]:
    """Requests that end when they have so many tokens."""
    return [Request(number, (1, 2, 3), number, tokens[number], ()) for number in range(count)]


def test_a_prompt_that_nearly_fills_its_slot_is_computed_beside_one_that_has_just_begun() -> None:
    wanted = [Request(0, tuple(range(139)), 1, 2, ()), Request(1, tuple(range(100, 200)), 2, 5, ())]
    engine = loaded(2, prefill=60)
    engine.submit(wanted[0])
    assert engine.advance() == engine.advance() == []  # 120 of 138 tokens: a block of two rows passes the last position
    got = {completion.id: completion for completion in complete(engine, wanted[1:])}
    assert [got[each.id].output for each in wanted] == [write(CONFIG, FLAT, each).output for each in wanted]


# -- weights ----------------------------------------------------------------------------------------------------------


def test_weights_that_are_no_numbers_do_not_outlive_their_successor() -> None:
    engine = Engine(CONFIG, CPU, Slots(2, LENGTH))
    engine.load(torch.full_like(FLAT, torch.nan))
    completions(engine, same_length(2, [9, 9]))
    engine.load(FLAT)
    for request in same_length(2, [9, 9]):
        assert completions(engine, [request])[request.id].output == write(CONFIG, FLAT, request).output


# -- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replies_go_into_the_output_as_not_made_and_the_model_goes_on() -> None:
    said = {1: (7, 8, 9), 2: (), 3: tuple(range(50))}
    turns: dict[int, int] = {}

    def reply(request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> tuple[int, ...] | None:
        assert made[-1] and output[-1] in request.end_tokens
        turns[request.id] = turns.get(request.id, 0) + 1
        return said.get(turns[request.id])

    ends = tuple(range(7, 300, 40))
    wanted = [Request(each.id, each.prompt, each.key, 90, ends) for each in requests(CONFIG, 5, seed=3)]
    written = []
    for request in wanted:
        written.append(write(CONFIG, FLAT, request, reply=reply))
    assert min(each.margin for each in written) > CLOSE
    expected_turns = dict(turns)
    for slots in (1, 3):
        turns.clear()
        engine = engine_with(20)(CONFIG, CPU, Slots(slots, 190), reply=reply)
        engine.load(FLAT)
        got = completions(engine, wanted)
        assert turns == expected_turns
        for request, one in zip(wanted, written, strict=True):
            assert (got[request.id].output, got[request.id].made) == (one.output, one.made)
            hidden = got[request.id].hidden
            assert hidden is not None
            torch.testing.assert_close(hidden, one.hidden, rtol=2**-7, atol=1e-4)
    assert max(expected_turns.values()) >= 3 and any(one.made.count(False) > 50 for one in written)


def test_what_was_completed_is_not_lost_when_the_environment_fails() -> None:
    fails = True

    def reply(request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> None:
        if request.id == 1 and fails:
            raise OSError("no environment")

    engine = loaded(2, reply=reply)
    end = write(CONFIG, FLAT, Request(0, (1,), 0, 5, ())).output[4]  # both come to this end in the same step
    for number in (0, 1):
        engine.submit(Request(number, (1,), 0, 30, (end,)))
    with pytest.raises(OSError, match="no environment"):
        while True:
            engine.advance()
    fails = False
    assert sorted(completions(engine, [])) == [0, 1]


# -- proofs and precision ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_prover_gets_the_hidden_states_of_the_output_and_its_proofs_come_in_order() -> None:
    seen: list[torch.Tensor] = []
    failures = [MemoryError("no room")]

    def prove(sequences: Sequence[torch.Tensor]) -> list[list[bytes]]:
        if failures:
            raise failures.pop()
        seen.extend(hidden.clone() for hidden in sequences)
        return [[bytes([len(chunk)]) for chunk in hidden.split(32)] for hidden in sequences]

    engine = loaded(3, prove_all=prove)
    pairs = naively("qwen3", 1.0)
    with pytest.raises(MemoryError):
        list(complete(engine, [request for request, _ in pairs]))
    ended = list(complete(engine, []))  # what was not proven because the prover failed is proven later
    ended += complete(engine, [pair[0] for pair in pairs if pair[0].id not in {each.id for each in ended}])
    assert len(ended) == len(pairs)
    for completion, hidden in zip(ended, seen, strict=True):
        written = pairs[completion.id][1]
        assert completion.hidden is None
        full, rest = divmod(len(written.output), 32)
        assert completion.proofs == bytes([32] * full + [rest] * (rest > 0))
        torch.testing.assert_close(hidden, written.hidden, rtol=2**-7, atol=1e-4)


@every_family
def test_in_bf16_tokens_are_those_that_had_to_be_chosen_within_its_rounding(family: str) -> None:
    config: ModelConfig = FAMILIES[family]
    flat = parameters(config).bfloat16()
    engine = Engine(config, CPU, Slots(5, LENGTH), dtype=torch.bfloat16)
    engine.load(flat)
    reference = Decoder(config, CPU, flat.float())
    wanted = requests(config, 8)
    got = completions(engine, wanted)
    below = []
    for request in wanted:
        output = got[request.id].output
        tokens = torch.tensor(request.prompt + output)
        rows = torch.arange(len(request.prompt) - 1, len(tokens) - 1)
        with torch.no_grad():
            logits = reference(tokens[None, :-1])[0, rows] @ reference.output_weight.T
        below.append(shortfall(logits, torch.tensor(output), torch.full_like(rows, request.key), rows + 1, 1.0))
        hidden = got[request.id].hidden
        assert hidden is not None and hidden.shape == (len(output), config.dim)
    falls = torch.cat(below)
    assert len(falls) > 100
    assert falls.max() < 0.5 and (falls == 0).float().mean() > 0.9


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_, says",
    [
        (Request(4, (), 0, 5, ()), "request 4 needs a prompt"),
        (Request(4, (1,) * 41, 0, 101, ()), r"142 tokens, but a sequence has at most 141"),
        (Request(4, (1, CONFIG.vocab), 0, 5, ()), "tokens outside the vocabulary"),
        (Request(4, (1,), 0, 5, tuple(range(9))), "9 end tokens, but at most 8 are allowed"),
    ],
)
def test_requests_that_can_never_be_completed_are_refused_in_a_sentence(request_: Request, says: str) -> None:
    engine = Engine(CONFIG, CPU, Slots(1, LENGTH))
    with pytest.raises(ValueError, match=says):
        engine.submit(request_)
    assert not engine.busy
