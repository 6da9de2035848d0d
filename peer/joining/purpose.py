"""Description of a run for people: its name and purpose, model, data, rate, end and organiser.

The same lines appear in `peer run create`, `peer run show` and the first lines of `peer join`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from peer.formatting import MOST_EPOCHS, epochs_read, founders_alone, times_text
from peer.resources.pace import FLOPS_A_PARAMETER, TYPICAL, kept_pace, run_s, typical_tokens_per_s
from peer.resources.requirements import training_needs
from peer.weights.base_files import base_name
from protocol.chain.base import round_settings
from protocol.chain.electorate import FEWEST_SEATED, Electorate
from protocol.events.status import RunDefinition, RunMixture
from protocol.formats.adapter import BITS_A_VALUE
from protocol.formatting import amount, clean, many, roughly, short
from protocol.run.manifest import Admission, RunManifest
from protocol.run.sections import EXAMPLES, SOURCE, AboutSection, Goal, Unit
from protocol.wire.hashes import ZERO_HASH

ASSUMED_FLOPS = 1e12
"""Speed (FLOP/s) assumed for one member of a run that was never measured: a fast processor, or a small GPU."""
MOST_TOKENS_PER_S = 50_000.0
"""Bound for small models, whose speed is not limited by arithmetic."""


@dataclass(frozen=True)
class Speed:
    """Pace of a whole run, in tokens that the loss counts.

    of: the source of the number, as a phrase.  trains_only: True if exchanges take further time.
    """

    tokens_per_s: float
    of: str
    trains_only: bool = False


def speed_here(manifest: RunManifest, data: Path) -> Speed | None:
    """Return the speed that was last measured on this computer, for a run; None if none was.  data: the data directory."""
    pace = kept_pace(data)
    return Speed(pace.tokens_per_s(manifest), pace.of, trains_only=True) if pace is not None else None


def assumed_rate(manifest: RunManifest) -> float:
    """Return the tokens per second that a simulation assumes of one member, whether the loss counts them or not."""
    return min(MOST_TOKENS_PER_S, ASSUMED_FLOPS / (FLOPS_A_PARAMETER * manifest.computed_parameters))


def assumed_by(manifest: RunManifest) -> str:
    """Describe the assumption behind `assumed_rate`."""
    is_small = assumed_rate(manifest) == MOST_TOKENS_PER_S
    return f"assumed: {'a model this small' if is_small else '1 TFLOP/s'}; `peer bench` measures it"


def run_definition(manifest: RunManifest) -> RunDefinition:
    """Return the facts that the status and the interface show."""
    about, data, model = manifest.about or AboutSection(), manifest.data, manifest.model
    mixtures = [(0, [source.weight for source in data.sources])] if data.sources else []
    mixtures += [(phase.from_tokens, phase.weights) for phase in data.phases]
    names = [clean(OWN_SOURCES.get(source.name, source.name), 64) for source in data.sources]

    def shares(weights: Sequence[int]) -> dict[str, float]:
        return {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True) if weight}

    return RunDefinition(
        description=about.description,
        url=about.url,
        licence=about.licence,
        family=model.family,
        parameters=manifest.parameters,
        frozen=manifest.model.parameters if manifest.adapter is not None else 0,
        layers=model.layers,
        dim=model.dim,
        begins_with_weights=bool(manifest.initial_state),
        rows=data.format,
        sequence_length=data.sequence_length,
        is_local=data.is_local,
        mixtures=[RunMixture(from_tokens=start, shares=shares(weights)) for start, weights in mixtures],
        data_tokens=sum(map(data.epoch_tokens, data.sources)),
        epochs=data.epochs,
        times_read={clean(OWN_SOURCES.get(name, name), 64): times for name, times in manifest.times_read().items()},
        environment=manifest.rl.environment if manifest.rl is not None else "",
        warm_rounds=manifest.rl.warm_rounds if manifest.rl is not None else 0,
        peak_rate=manifest.inner.lr,
        rollout_rate=manifest.rl.lr if manifest.rl is not None else 0.0,
        requires=training_needs(manifest),
        prompts=manifest.samples.prompts if manifest.samples is not None else [],
    )


def adapter_words(manifest: RunManifest) -> str:
    """Return words that follow the number of trained parameters if they are an adapter's; empty otherwise."""
    return f" of an adapter on {amount(manifest.model.parameters)} frozen ones" if manifest.adapter is not None else ""


def about_lines(manifest: RunManifest) -> list[tuple[str, str]]:
    """Return the run's name and what its organiser says about it: (subject, statement)."""
    about = manifest.about or AboutSection()
    said = [("about", about.description), ("licence", about.licence), ("home page", about.url)]
    return [("name", clean(manifest.name, 64)), *((subject, clean(text, 500)) for subject, text in said if text)]


def about_sentence(manifest: RunManifest) -> str:
    """Return the statements of `about_lines` in one sentence."""
    (_, name), *said = about_lines(manifest)
    return f"run {name}" + "".join(f"; {subject}: {text}" for subject, text in said)


def purpose_lines(manifest: RunManifest, speed: Speed | None = None, me: str = "") -> list[tuple[str, str]]:
    """Return the facts to know before taking part in a run: (subject, statement).

    speed: None if none was measured.  me: the peer ID of the reader; empty for other readers than the run's peers.
    """
    is_in_rounds, most_members = manifest.goal.unit is Unit.ROUNDS, manifest.rounds.max_members
    epochs = epochs_read(run_definition(manifest), per_member=is_in_rounds, most_members=most_members)
    samples = ""
    if manifest.samples is not None:
        listed = ", ".join(f'"{clean(prompt, 200)}"' for prompt in manifest.samples.prompts)
        samples = f"{listed}, completed at each evaluation with at most {manifest.samples.tokens} tokens"
    admits = "peers with an invitation of the organiser"
    if manifest.admission is Admission.ALLOWLIST:
        admits = f"{many(len(manifest.allowlist), 'listed peer')}, and the organiser"
    elif manifest.admission is Admission.OPEN:
        admits = "everybody, and one person may take part as many peers"
    return [
        ("trains", _trains(manifest)),
        ("reads", _reads(manifest)),
        *([("epochs", epochs)] if epochs else []),
        ("rate", _rate(manifest)),
        ("until", until(manifest, speed)),
        *([("samples", samples)] if samples else []),
        ("admits", admits),
        ("votes", _votes(manifest, me)),
        ("organiser", f"{short(manifest.organiser)} ({manifest.organiser})"),
    ]


def purpose_sentence(manifest: RunManifest) -> str:
    """Return the statements of `purpose_lines` in one sentence, without the duration."""
    return (
        f"this run trains {_trains(manifest)} on {_reads(manifest)}; rate {_rate(manifest)}; it ends after "
        f"{ends_after(manifest)}; organised by {short(manifest.organiser)}"
    )


def until(manifest: RunManifest, speed: Speed | None = None) -> str:
    """Describe the goal in tokens, rounds and hours, for one member that trains on all permitted tokens in each round.

    speed: as measured; None for the hours of some kinds of computers.
    """
    goal, per_round, end = manifest.goal, manifest.counted_per_round, manifest.ending_data
    if manifest.rl is not None:
        warm = f", the first {manifest.rl.warm_rounds} of them on text" if manifest.rl.warm_rounds else ""
        return f"{total_text(goal)}{warm}; how long that takes follows from who makes rollouts"
    if end is not None:
        tokens = float(end.tokens)
        of_one = f"{many(end.rounds, 'round')} of one member"
        counted = f"{amount(tokens)} tokens of all members together ({of_one}), {_ended_by_data(manifest)}"
    elif goal.unit is Unit.TOKENS:
        tokens, rounds = float(goal.total), ceil(goal.total / per_round)
        counted = f"{amount(tokens)} tokens of all members together ({many(rounds, 'round')} of one member)"
    else:
        tokens, rounds = goal.total * per_round, goal.total
        counted = f"{many(rounds, 'round')} ({amount(tokens)} tokens of each member)"
        if manifest.data_end is not None and tokens * manifest.rounds.max_members > manifest.data_end.tokens:
            most = amount(manifest.data_end.tokens)
            counted += f", or fewer with more members, which together read {most} tokens at most (data.epochs)"
    if speed is None:
        on: dict[str, list[str]] = {}
        for one in TYPICAL:
            on.setdefault(roughly(run_s(manifest, tokens, typical_tokens_per_s(manifest, one))), []).append(one.name)
        each = ", ".join(f"{took} on {' or '.join(names)}" for took, names in on.items())
        return f"{counted}, about {each} ({ESTIMATED}; `peer bench` measures yours)"
    rate = f"at {amount(speed.tokens_per_s)} tokens/s ({speed.of}"
    if speed.trains_only:
        return f"{counted}, about {roughly(run_s(manifest, tokens, speed.tokens_per_s))} {rate}; {ESTIMATED})"
    return f"{counted}, about {roughly(tokens / max(1e-9, speed.tokens_per_s))} {rate})"


ESTIMATED = "one member, home lines"


def _ended_by_data(manifest: RunManifest) -> str:
    """Return a clause about the data that end a run, and about the total that the run then does not reach."""
    goal, end = manifest.goal, manifest.ending_data
    by = f"when its data have been read {times_limit(manifest.data.epochs)} (data.epochs)"
    if end is None or (goal.unit is Unit.TOKENS and end.tokens == goal.total):
        return by
    return f"{by}, before its total of {total_text(goal)}"


def times_limit(epochs: int) -> str:
    """Format a limit on the times that data is read: "once", "2 times"."""
    return "once" if epochs == 1 else f"{epochs} times"


def ends_early(manifest: RunManifest) -> str:
    """Return a warning if data ends a run so much before its total that its rate does not come down; empty otherwise."""
    goal, end = manifest.goal, manifest.ending_data
    if end is None or not goal.cooldown:
        return ""
    reached = end.tokens if goal.unit is Unit.TOKENS else end.rounds
    if reached > goal.total * (1 - goal.cooldown):
        return ""
    name = f"total_{goal.unit.value}"
    return (
        f"the run ends {_ended_by_data(manifest)}, so its learning rate never comes down; give more data or epochs, or "
        f"write {name} = {reached}"
    )


def often_read(manifest: RunManifest) -> str:
    """Return a warning if the run reads a source more often than it can learn from it; empty otherwise."""
    times = manifest.times_read()
    name = max(times, key=lambda each: times[each], default="")
    if not name or times[name] <= MOST_EPOCHS:
        return ""
    total = "total_tokens" if manifest.total_tokens is not None else "total_rounds"
    if manifest.rl is not None:
        total = "warm_rounds in [rl]"
    return (
        f"the run reads {OWN_SOURCES.get(name, name)} {times_text(times[name])}, and a model learns its data by heart after "
        f"about {MOST_EPOCHS} times; give more data, or make {total} smaller"
    )


YEAR_S = 365 * 86_400
MOST_YEARS = 100
"""Longest run that a person may intend."""


def endless(manifest: RunManifest) -> str:
    """Return a warning if the run would not end within a lifetime on typical computers; empty otherwise.

    A round of rollouts is counted as a second.
    """
    goal = manifest.goal
    counted = goal.total if goal.unit is Unit.TOKENS else goal.total * manifest.counted_per_round
    least_s = min(run_s(manifest, counted, typical_tokens_per_s(manifest, one)) for one in TYPICAL)
    if manifest.rl is not None:
        least_s = float(goal.total) if goal.unit is Unit.ROUNDS else 0.0
    if least_s <= MOST_YEARS * YEAR_S:
        return ""
    return f"the run would take more than {MOST_YEARS} years; make total_{goal.unit.value} smaller"


def beyond_capacity(manifest: RunManifest) -> str:
    """Return a warning if a run with an adapter learns from more text than its factors can hold; empty otherwise.

    A trained value holds about two bits (Allen-Zhu and Li 2024), and text about one bit a token beyond what a model knows.
    """
    goal = manifest.goal
    if manifest.adapter is None or manifest.rl is not None:
        return ""
    counted = goal.total if goal.unit is Unit.TOKENS else goal.total * manifest.counted_per_round
    times = max(manifest.times_read().values(), default=1.0)
    held = BITS_A_VALUE * manifest.parameters
    if counted / max(1.0, times) <= held:
        return ""
    read, values = amount(counted / max(1.0, times)), amount(manifest.parameters)
    return (
        f"the run reads {read} different tokens, and the {values} values of its adapter hold about {amount(held)} bits; a "
        "higher rank in [adapter] holds more"
    )


def _votes(manifest: RunManifest, me: str) -> str:
    """Describe who decides which rounds count; the founders of an open run are taken to train from its beginning."""
    start = Electorate.start(round_settings(ZERO_HASH, manifest))
    until_round = start.founders_vote_until(start.electors)
    if until_round is not None:
        return founders_alone(start.electors, me, manifest.organiser, until_round)
    earned = f"was in {many(manifest.rounds.seasoning_rounds, 'round')} in a row"
    if manifest.founders == "anyone":
        return f"the members of the last round, until {FEWEST_SEATED} peers have a vote, which each gets that {earned}"
    who = "you too" if me == manifest.organiser else "the organiser too"
    return f"each peer that {earned} has one vote, {who}, and the run goes on while any of them is away"


def ends_after(manifest: RunManifest) -> str:
    """Format what ends a run with one member: "300 rounds", "5.0 M tokens", or its data."""
    if (end := manifest.ending_data) is None:
        return total_text(manifest.goal)
    return f"{amount(end.tokens)} tokens, {_ended_by_data(manifest)}"


def total_text(goal: Goal) -> str:
    """Format a total: "300 rounds", "5.0 M tokens"."""
    return f"{amount(goal.total)} tokens" if goal.unit is Unit.TOKENS else many(goal.total, "round")


def _trains(manifest: RunManifest) -> str:
    model, adapter = manifest.model, manifest.adapter
    layers = many(model.layers, "layer")
    shape = f"{amount(model.parameters)} parameters ({model.family}, {layers} of {model.dim})"
    if adapter is not None and manifest.base is not None:
        begins = " that goes on with another one" if manifest.initial_state else ""
        what = f"an adapter of rank {adapter.rank} ({amount(manifest.parameters)} values){begins}"
        return f"{what} beside the frozen model {base_name(manifest.base)}, {shape}, in {manifest.base.format}"
    return f"the weights of a folder: {shape}" if manifest.initial_state else f"a model of {shape} from scratch"


def _reads(manifest: RunManifest) -> str:
    """Describe the text, rollouts or both that the run learns from."""
    text = _mixed(manifest) if manifest.data.sources else "no data"
    if manifest.data.is_local:
        text = f"{ROWS[manifest.data.format]} of {UNAUDITED}"
    if manifest.rl is None:
        return text
    warm = f"{text} for {manifest.rl.warm_rounds} rounds, then " if manifest.rl.warm_rounds else ""
    return f"{warm}rollouts of {clean(manifest.rl.environment, 200)}"


UNAUDITED = "each member's own data, which stay on its computer: nobody can audit what a member read"


def ledger_remark(manifest: RunManifest) -> str:
    """Return a remark on tokens that nobody can audit; empty for a run whose rows are leased."""
    if not manifest.data.is_local:
        return ""
    return "each member trained on data of its own: nobody can audit what it read, so its tokens are its own statement"


ROWS = {"text": "text", "chat": "chats (only the assistant's turns count)", "preference": "preferences (DPO)"}
"""Kinds of rows, for people."""
OWN_SOURCES = {SOURCE: "the source and documentation of this program", EXAMPLES: "the environment's solved problems"}
"""Sources that no organiser brings, by their names."""


def _mixed(manifest: RunManifest) -> str:
    """Describe the mixture of a run's sources: the shares count rows."""
    data = manifest.data
    names = [clean(source.name, 64) for source in data.sources]

    def shares(weights: Sequence[int]) -> str:
        return ", ".join(
            f"{name} {100 * weight / sum(weights):.3g} %" for name, weight in zip(names, weights, strict=True) if weight
        )

    alone = OWN_SOURCES.get(names[0], f"{ROWS[data.format]}: {names[0]}")
    first = f"{ROWS[data.format]}: {shares([source.weight for source in data.sources])}" if len(names) > 1 else alone
    later = "".join(f"; from {amount(phase.from_tokens).strip()} tokens {shares(phase.weights)}" for phase in data.phases)
    tokens = sum(map(data.epoch_tokens, data.sources))
    limit = f", at most {times_limit(data.epochs)}" if data.epochs else ""
    return f"{first}{later} (about {amount(tokens).strip()} tokens in all{limit})"


def unusual_data(manifest: RunManifest) -> str:
    """Return a warning if given weights would be trained on our own source, which is rarely intended; empty otherwise."""
    reads_text = manifest.rl is None or manifest.rl.warm_rounds > 0
    begins = manifest.initial_state or manifest.adapter is not None
    if not begins or not reads_text or [source.name for source in manifest.data.sources] != [SOURCE]:
        return ""
    return (
        f"these weights will learn {OWN_SOURCES[SOURCE]}, because the run file names no other data; for your own, add "
        '[data] with from = "FOLDER-OR-FILE"'
    )


def _rate(manifest: RunManifest) -> str:
    inner, rl = manifest.inner, manifest.rl

    def warmed(rate: str, steps: int) -> str:
        return f"{rate}, " + (f"after {many(steps, 'step')} of warm-up" if steps else "without warm-up")

    read = warmed(f"{inner.lr:g}", inner.warmup_steps)
    if ends_early(manifest):
        read += ", never down, because the data end the run long before its total"
    elif inner.cooldown:
        read += f", down to 0 in the last {100 * inner.cooldown:g} % of the run"
    if rl is None:
        return read
    learned = warmed(f"{rl.lr:g} on rollouts", rl.warmup_steps)
    return f"{read}; {learned}" if rl.warm_rounds else learned
