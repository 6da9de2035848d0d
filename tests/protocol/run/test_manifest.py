"""Manifests: strict, signed, named by their hash; and the run files they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kernels.codecs.format import Squares, write_squares
from kernels.codecs.ladder import LADDER
from kernels.outer_step import OuterStep, automatic
from protocol.chain.base import round_settings
from protocol.formats.model import MAX_CHUNKS, MAX_PARAMETERS, ModelConfig
from protocol.run.manifest import (
    PROTOCOL_VERSION,
    OuterSection,
    RunManifest,
    demo_manifest,
    open_manifest,
    run_id,
    sign,
)
from protocol.run.run_file import RunFileError, dump, load_run_file, parse_run_file
from protocol.run.sections import BUILTIN, builtin_source
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import seal
from protocol.wire.hashes import ZERO_HASH, hash_bytes
from protocol.wire.identity import Identity

ONE = Identity.from_seed(bytes(32))
TWO = Identity.from_seed(bytes([2]) * 32)
DEMO = demo_manifest()


def a_manifest(**fields: object) -> RunManifest:
    named = {"name": "run", "organiser": ONE.peer_id, "founders": [ONE.peer_id], "total_tokens": 10**9}
    return RunManifest.model_validate({**named, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"founders": "anyone"},
        {"founders": sorted([ONE.peer_id, TWO.peer_id])},
        {"outer": OuterSection()},
        {"outer": OuterSection(lr=1.0, momentum=0.0)},
        {"model": {"qkv_bias": True}},
        {"model": {"qk_norm": True, "head_dim": 48}},
        {"model": {"rope_factor": 8.0}},
    ],
)
def test_a_manifest_comes_back_signed_and_from_its_run_file_and_each_field_makes_another_run(fields: dict[str, Any]) -> None:
    signed = sign(ONE, a_manifest(**fields))
    assert open_manifest(signed.raw) == signed
    assert parse_run_file(dump(signed.manifest), ONE.peer_id) == signed.manifest
    assert (signed.run == sign(ONE, a_manifest()).run) is (fields == {})
    founders = fields.get("founders", [ONE.peer_id])
    assert round_settings(signed.run, signed.manifest).founders == (None if founders == "anyone" else tuple(founders))


@pytest.mark.parametrize("admission", ["open", "invite", "allowlist"])
def test_a_run_is_open_when_its_admission_is(admission: str) -> None:
    manifest = a_manifest(admission=admission, allowlist=[TWO.peer_id], rounds={"seasoning_rounds": 5})
    settings = round_settings(sign(ONE, manifest).run, manifest)
    assert (settings.is_open, settings.seasoning_rounds) == (admission == "open", 5)


def test_only_its_organiser_can_sign_a_manifest() -> None:
    forged = seal(TWO, ZERO_HASH, "manifest", a_manifest().encode()).raw
    with pytest.raises(Malformed, match="organiser"):
        open_manifest(forged)


def test_a_statement_of_a_run_is_no_manifest() -> None:
    for raw in (seal(ONE, DEMO.run, "manifest", a_manifest().encode()).raw, seal(ONE, ZERO_HASH, "x", b"").raw):
        with pytest.raises(Malformed):
            open_manifest(raw)


def test_fields_that_came_later_leave_the_runs_before_them_as_they_are() -> None:
    without_prompts = run_id(DEMO.manifest.model_copy(update={"samples": None}))
    assert without_prompts.hex() == "aafa78fc4518ae95cca8bde5d87bddaa8fb53aced14d62663c081aa6f49087cb"
    assert DEMO.run.hex() == "b74752a3c853156833d853b3eb1d58e7f53d02ffbe92c3988051591fb21fc56d"
    said = canonical.decode(DEMO.manifest.encode(), max_bytes=1 << 20)
    assert not ModelConfig.LATER & set(said["model"]) and RunManifest.LATER & set(said) == {"samples", "total_tokens"}


def test_a_default_that_came_later_is_not_written_out() -> None:
    plain = canonical.decode(a_manifest().encode(), max_bytes=1 << 20)
    for body in (
        {**plain, "initial_state": ""},
        {**plain, "model": {**plain["model"], "qk_norm": False}},
    ):
        with pytest.raises(Malformed, match="is not in canonical form"):
            open_manifest(seal(ONE, ZERO_HASH, "manifest", canonical.encode(body)).raw)


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\u202eb", "a\nb", "a" * 501])
def test_hostile_words_in_a_strangers_manifest_are_refused_unseen(text: str) -> None:
    plain = canonical.decode(a_manifest().encode(), max_bytes=1 << 20)
    about = {"description": text, "url": "", "licence": ""}
    with pytest.raises(Malformed) as refused:
        open_manifest(seal(ONE, ZERO_HASH, "manifest", canonical.encode({**plain, "about": about})).raw)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 300


def test_the_initial_state_is_a_digest() -> None:
    digest = hash_bytes("test", b"state")
    assert a_manifest(initial_state=digest.hex()).genesis == digest
    assert a_manifest().genesis is None
    for text in ("0", "zz" * 32, digest.hex().upper(), digest.hex() + "\n"):
        with pytest.raises(ValidationError):
            a_manifest(initial_state=text)


APART = Squares(1.0, 1e9)
"""Of members whose differences have nothing in common."""


def outer_step(manifest: RunManifest, round: int, tokens: Sequence[int], squares: Squares = APART) -> OuterStep:
    """The step after a round whose result has chunks with these sums."""
    result = memoryview(manifest.layouts.result.zeros())
    for span in manifest.layouts.result:
        write_squares(result[span.encoded], squares)
    return manifest.outer_step(round, tokens, result)


def test_the_outer_step_follows_from_the_members_unless_the_run_says_otherwise() -> None:
    assert a_manifest().outer == "auto"
    for inner_steps in (10, 100):
        manifest = a_manifest(rounds={"inner_steps": inner_steps})
        for tokens in ([4096], [4096] * 4, [4096, 3000]):
            for squares in (APART, Squares(2.0, 3.0)):
                wanted = automatic(tokens, inner_steps, LADDER["int4"], squares.agreement)
                assert outer_step(manifest, 0, tokens, squares) == wanted
    fixed = a_manifest(outer=OuterSection(lr=0.5, momentum=0.8))
    assert outer_step(fixed, 0, [4096]) == outer_step(fixed, 0, [4096] * 8) == (0.5, 0.8)


@pytest.mark.parametrize("claim", [1, 10, 999, 1000, 1001, 1500, 2000, 4000, 2**30, 2**40])
def test_the_claim_of_one_member_does_not_take_the_momentum_of_the_others(claim: int) -> None:
    """With tokens as weights a huge claim makes eight members count as one: rate 1, no momentum."""
    assert automatic([1000] * 7 + [2**40], 20, LADDER["int4"], APART.agreement) == (1.0, 0.0)
    fair = outer_step(a_manifest(), 0, [1000] * 8)
    step = outer_step(a_manifest(), 0, [1000] * 7 + [claim])
    assert step.momentum == fair.momentum and abs(step.rate - fair.rate) < 0.04
    assert step == outer_step(a_manifest(), 0, [1000] * 7 + [min(claim, 1500)])
    assert outer_step(a_manifest(aggregation="mean"), 0, [1000] * 8) == fair


@pytest.mark.parametrize("outer", [None, "", "Auto", {}, [], 0.7, {"lr": 0.7}, {"lr": 0.7, "momentum": 0.9, "auto": True}])
def test_a_signed_manifest_has_one_of_two_forms_of_the_outer_step_in_full(outer: object) -> None:
    body = canonical.encode({**a_manifest().model_dump(), "outer": outer})
    with pytest.raises(Malformed):
        open_manifest(seal(ONE, ZERO_HASH, "manifest", body).raw)


@pytest.mark.parametrize(
    "model",
    [
        {"vocab": 1 << 20, "dim": 1 << 15, "layers": 256, "ffn": 1 << 18},
        {"vocab": 1 << 60},
        {"layers": 10**9},
        {"dim": 130},
        {"heads": 3},
        {"kv_heads": 3},
        {"dim": 130, "head_dim": 32},
        {"head_dim": 33},
        {"head_dim": 1 << 20},
        {"vocab": 1 << 20, "dim": 1 << 12, "heads": 512, "layers": 256, "head_dim": 1024},
        {"qkv_bias": True, "qk_norm": True},
        {"rope_factor": 0.5},
        {"rope_low_freq_factor": 4.0},
        {"rope_original_context": 0},
        {"context": 1 << 40},
    ],
)
def test_absurd_models_are_refused(model: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        a_manifest(model=model)


@pytest.mark.parametrize(
    "fields",
    [
        {"chunk_parameters": 257}, {"chunk_parameters": 1 << 30}, {"checkpoint_chunk_bytes": 1 << 40},
        {"checkpoint_interval": 0}, {"protocol_min": PROTOCOL_VERSION + 1},
        {"admission": "allowlist"}, {"admission": "anyone"},
        {"founders": []}, {"founders": None}, {"founders": "organiser"}, {"founders": [ONE.peer_id] * 2},
        {"founders": sorted([ONE.peer_id, TWO.peer_id], reverse=True)}, {"founders": ["x"]},
        {"founders": sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(65))},
        {"founders": [TWO.peer_id], "admission": "allowlist", "allowlist": [ONE.peer_id]},
        {"rounds": {"seasoning_rounds": 0}}, {"rounds": {"seasoning_rounds": 101}}, {"rounds": {"tenure_rounds": 0}},
        {"rounds": {"settle_s": float("nan")}}, {"rounds": {"listen_s": -1.0}}, {"rounds": {"settle_rounds": 0}},
        {"allowlist": [TWO.peer_id, TWO.peer_id]}, {"name": "\x1b[2J"}, {"name": ""}, {"codec": "fp32"},
        {"fragments": 0}, {"fragments": 3}, {"fragments": 65}, {"rounds": {"inner_steps": 20, "delay": 21}},
        {"inner": {"lr": 0.0}}, {"inner": {"lr": float("nan")}}, {"outer": {"momentum": 1.0}},
        {"outer": "fixed"}, {"outer": None},
        {"inner": {"stable_steps": 9}}, {"inner": {"cooldown": 1.5}}, {"inner": {"cooldown": -0.1}}, {"total_rounds": 0},
        {"total_tokens": None}, {"total_rounds": 5, "total_tokens": 5}, {"total_rounds": 1 << 54},
        {"rounds": {"min_members": 3, "max_members": 2}},
        {"rounds": {"max_members": 257}}, {"rounds": {"grace_s": float("inf")}}, {"total_tokens": 0}, {"seed": True},
        {"data": {"sequence_length": 1 << 17, "sequences_per_step": 1 << 16}}, {"unknown": 1},
        {"model": {"dim": 1024, "layers": 200, "ffn": 8192}, "chunk_parameters": 256},
    ],
)  # fmt: skip
def test_senseless_manifests_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        a_manifest(**fields)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * ((1 << 20) + 1)])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFileError, match=r"run\.toml"):
        load_run_file(path, ONE.peer_id)


RL = {"environment": "sort", "warm_rounds": 3, "optimizer_steps": 2}


def test_the_first_rounds_of_a_run_with_rollouts_may_read_text() -> None:
    manifest = a_manifest(rl=RL)
    assert [manifest.learns_from_rollouts(round) for round in (0, 2, 3, 4)] == [False, False, True, True]
    assert manifest.steps_of(2) == manifest.rounds.inner_steps and manifest.steps_of(3) == 2
    tokens = [4096, 4096]
    assert outer_step(manifest, 2, tokens) == automatic(tokens, manifest.rounds.inner_steps, LADDER["int4"], APART.agreement)
    assert outer_step(manifest, 3, tokens) == (1.0, 0.0), "rollouts are old: no momentum"
    assert manifest.rate_factor(3, tokens) == pytest.approx(2**0.5, abs=0.001), "who shares rollouts steps further"
    assert manifest.rate_factor(2, tokens) == 1.0, "text is not shared"
    assert a_manifest(rl=RL, outer={"lr": 0.7, "momentum": 0.9}).rate_factor(3, tokens) == 1.0, "the organiser's choice"
    assert parse_run_file(dump(manifest), ONE.peer_id) == manifest
    without = a_manifest()
    assert not without.learns_from_rollouts(10) and without.steps_of(10) == without.rounds.inner_steps


def test_tolerances_that_contradict_each_other_or_grow_with_an_output_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"shortfall_ceiling \(1\) is less than max_shortfall \(2\)"):
        a_manifest(rl=RL | {"max_shortfall": 2.0})
    for gone in ({"max_share_beyond": 0.01}, {"shortfall_rate": 0.2}, {"shortfall_rate": float("nan")}):
        with pytest.raises(ValidationError):
            a_manifest(rl=RL | gone)


def test_a_row_of_preferences_counts_the_tokens_of_both_answers() -> None:
    text, pairs = (a_manifest(data={"format": name, "source": "local"}) for name in ("text", "preference"))
    assert pairs.data.row_tokens == 2 * text.data.row_tokens == 2 * text.data.sequence_length
    assert pairs.tokens_per_round == 2 * text.tokens_per_round


def test_two_sources_of_one_name_are_refused() -> None:
    source = builtin_source(64)
    twice = {
        "sequence_length": 64,
        "corpora": [BUILTIN, BUILTIN],
        "sources": [source, source.model_copy(update={"corpus": 1})],
    }
    with pytest.raises(ValidationError, match="two sources have the same name"):
        a_manifest(data=twice)


def test_preferences_cost_the_initial_weights_on_the_disk() -> None:
    manifest = a_manifest(data={"format": "preference", "source": "local"})
    assert manifest.stored_bytes == manifest.state_bytes + 2 * manifest.parameters and not manifest.reference_bytes


def test_a_kl_term_costs_its_reference_weights_on_the_disk() -> None:
    without, having = a_manifest(rl=RL), a_manifest(rl=RL | {"kl_weight": 0.1})
    assert (without.reference_bytes, without.stored_bytes) == (0, without.state_bytes)
    assert having.reference_bytes == 2 * having.parameters
    assert having.stored_bytes == having.state_bytes + having.reference_bytes
    assert having.trainer_sections()["rl"]["kl_weight"] == 0.1


QWEN3_32B = {
    "vocab": 151936,
    "dim": 5120,
    "layers": 64,
    "heads": 64,
    "kv_heads": 8,
    "ffn": 25600,
    "head_dim": 128,
    "qk_norm": True,
    "tied": False,
}
WIDE = {"vocab": 256, "dim": 8, "layers": 256, "heads": 1, "kv_heads": 1, "ffn": 1 << 18}
"""1.6 G parameters with a large sum of widths."""
GIGABYTES = 1 << 30


def frozen(model: dict[str, Any], files: int = 17, **adapter: Any) -> dict[str, Any]:
    described = [{"path": f"part-{number}.safetensors", "size": 32 * GIGABYTES, "root": "0" * 64} for number in range(files)]
    described.append({"path": "config.json", "size": 700, "root": "0" * 64})
    return {"model": model, "adapter": adapter, "base": {"files": described}, "chunk_parameters": 1 << 22}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (frozen(QWEN3_32B), ""),
        (frozen(QWEN3_32B, files=255), ""),
        (frozen(QWEN3_32B, files=256), "files"),
        (frozen({**QWEN3_32B, "dim": 16384, "ffn": 65536}), "200 G are allowed"),
        (frozen(WIDE, rank=256), "the adapter has .* at most 17.18 G can be trained; make adapter.rank smaller"),
        ({"model": QWEN3_32B}, "the model has 32.76 G parameters, .* or train an adapter"),
    ],
    ids=["32B", "many files", "too many files", "too large", "too many factors", "trained whole"],
)
def test_a_frozen_model_is_bounded_apart_from_what_is_trained(fields: dict[str, Any], said: str) -> None:
    if said:
        with pytest.raises(ValidationError, match=said):
            a_manifest(**fields)
        return
    manifest = a_manifest(**fields)
    assert manifest.model.parameters > MAX_PARAMETERS > manifest.parameters and manifest.chunks <= MAX_CHUNKS
    assert open_manifest(sign(ONE, manifest).raw).manifest == manifest
