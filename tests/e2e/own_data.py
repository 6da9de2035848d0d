"""From files to a trained and measured model: `python -m tests.e2e.own_data --megabytes 200 --kind text`.

A script writes data of its own, `peer data build` makes a corpus of it, three peers train on the corpus that one of them
has, `peer export` writes the model, and `peer eval` and transformers measure it on the held-out rows.

    text        .txt, .jsonl.zst and .parquet, a byte-pair tokenizer that is trained here, a model from scratch
    bytes       the same files without a tokenizer
    qwen2       the same files, and a folder of transformers with tied embeddings and a tokenizer as Qwen2's to begin with
    chat        chats in one .jsonl, and that folder
    preference  preferences in one .jsonl, and that folder; measured is the margin as well

Exits with 1 unless the held-out loss of each source falls, every byte of the others' blocks came from peers, the relative
difference of the perplexities is under 1e-3, and the margin rises.  Needs the extras `data` and `oracle`.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import psutil
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from protocol.events import events as ev
from tests.e2e.held_out_oracle import held_out_rows, loss_of, margins, open_model, preference_loss
from tests.e2e.own_texts import (
    END,
    KINDS,
    VOCABULARY,
    documents,
    write_chats,
    write_inputs,
    write_preferences,
    write_tokenizer,
)
from tests.e2e.swarm import PATIENCE_S, Swarm
from trainer.data.tokenizer_json import QWEN2

BAR = 1e-3
"""Largest relative difference of the perplexities."""
BETA = 0.1
BUILD_PATIENCE_S = 4 * 3600.0
LOOK_S = 0.1
MARKS = (END, "<|im_start|>", "<|im_end|>")
WEIGHTS = {"stories": 50, "reports": 30, "code": 20}
RUN = """
name = "own data"
total_rounds = 100000
[model]
{model}
{tokenizer}
[data]
{data}
sequence_length = {length}
sequences_per_step = {sequences}
[inner]
lr = {lr}
warmup_steps = 10
[rounds]
inner_steps = {steps}
min_members = 3
grace_s = 3.0
eviction_s = 10.0
stall_s = 4.0
"""


@dataclass(frozen=True)
class DataKind:
    """A form of data and model.  begins: with a folder of transformers.  format: of the rows."""

    begins: bool
    format: str
    length: int
    lr: float


DATA_KINDS = {
    "text": DataKind(False, "text", 128, 2e-3),
    "bytes": DataKind(False, "text", 256, 2e-3),
    "qwen2": DataKind(True, "text", 128, 1e-3),
    "chat": DataKind(True, "chat", 128, 1e-3),
    "preference": DataKind(True, "preference", 63, 3e-4),
}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------------------
# The data, the tokenizer and the folder.


def write_folder(folder: Path) -> None:
    """A small Qwen2 of transformers with tied embeddings, random weights, and a tokenizer of the same form as Qwen2's."""
    import transformers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for kind in KINDS for text in documents(kind, 100_000, seed=1)), trainer)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=[MARKS.index(MARKS[2]), 0],
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": MARKS[2]}))


def write_data(folder: Path, kind: str, size: int) -> dict[str, Path]:
    """Write the files of a kind; their paths by source."""
    if kind == "chat":
        return {"chats": write_chats(folder / "chats.jsonl", size)}
    if kind == "preference":
        return {"pairs": write_preferences(folder / "pairs.jsonl", size)}
    return write_inputs(folder / "texts", size)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size


# ------------------------------------------------------------------------------------------------------------------------
# The build.


@dataclass(frozen=True)
class Built:
    """A build.  peak_bytes: most resident memory of all its processes together."""

    input_bytes: int
    tokens: int
    documents: int
    seconds: float
    tokens_per_s: float
    peak_bytes: int


def tree_bytes(process: psutil.Process) -> int:
    """Resident memory of a process and all below it."""
    found = 0
    try:
        for each in [process, *process.children(recursive=True)]:
            found += each.memory_info().rss
    except psutil.Error:
        pass
    return found


def build(swarm: Swarm, inputs: dict[str, Path], words: list[str]) -> Built:
    """`peer data build` into the folder `corpus` beside the run file."""
    named = [f"{source}={path}" for source, path in inputs.items()]
    command = [sys.executable, "-m", "peer", "data", "build", str(swarm.folder / "corpus"), *named, *words, "--json"]
    command += ["--data-dir", str(swarm.place("organiser"))]
    log, peak, begun = swarm.folder / "build.log", 0, time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, env=swarm.environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        tree, told_at = psutil.Process(process.pid), begun
        while process.poll() is None:
            peak = max(peak, tree_bytes(tree))
            if time.monotonic() > told_at + 10:
                told_at = time.monotonic()
                say(f"building: {log.read_text().splitlines()[-1:]}"[:200])
            if time.monotonic() > begun + BUILD_PATIENCE_S:
                raise SystemExit(f"the build is not done after {BUILD_PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    seconds, lines = time.monotonic() - begun, log.read_text().splitlines()
    if process.returncode:
        raise SystemExit("the build failed:\n" + "\n".join(lines[-5:]))
    splits = json.loads(lines[-1])["splits"]
    tokens, count = (sum(split[name] for split in splits) for name in ("tokens", "documents"))
    return Built(sum(map(size_of, inputs.values())), tokens, count, seconds, tokens / seconds, peak)


# ------------------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(frozen=True)
class RunOutcome:
    """A run.  first, last: held-out losses by source after `first_rounds` and `last_rounds` rounds.

    downloads: bytes of blocks by origin, for each peer; "disk": blocks that were there.
    """

    rounds: int
    seconds: float
    first_rounds: int
    last_rounds: int
    first: dict[str, float]
    last: dict[str, float]
    downloads: dict[str, dict[str, int]]


def run_text(kind: str, sources: list[str], steps: int) -> str:
    """The run file."""
    form = DATA_KINDS[kind]
    data = [f'format = "{form.format}"'] if form.format != "text" else ['documents = "masked"']
    if form.format == "preference":
        data.append(f"beta = {BETA}")
    if len(sources) == 1:
        data.append('from = "corpus"')
    else:
        tables = [f'{{ name = "{name}", from = "corpus", weight = {WEIGHTS[name]} }}' for name in sources]
        data.append(f"sources = [{', '.join(tables)}]")
    return RUN.format(
        model='from = "base"' if form.begins else f"vocab = {256 if kind == 'bytes' else VOCABULARY}\ndim = 64\nlayers = 2",
        tokenizer='[tokenizer]\nfrom = "tokenizer.json"\nends = [0]' if kind == "text" else "",
        data="\n".join(data),
        length=form.length,
        sequences=8,
        lr=form.lr,
        steps=steps,
    )


def train(swarm: Swarm, sources: list[str], rounds: int) -> RunOutcome:
    """Three peers, of which the organiser has the corpus, until the state after `rounds` rounds is measured."""
    organiser, *others = peers = [swarm.peer(name).start() for name in ("organiser", "friend", "cousin")]
    begun, told = time.monotonic(), set[int]()

    def measured() -> dict[int, dict[str, float]]:
        return {
            each.rounds: each.losses or dict.fromkeys(sources, each.loss)
            for each in organiser.heard(ev.EvalLoss)
            if each.rounds
        }

    def is_done() -> bool:
        if organiser.committed not in told:
            told.add(organiser.committed)
            losses = measured()
            newest = losses[max(losses)] if losses else {}
            say(f"{organiser.committed} of {rounds} rounds; held out {_rounded(newest)}")
        return max(measured(), default=0) >= rounds

    patience_s = max(PATIENCE_S, 120.0 * rounds)
    swarm.until(f"{rounds} rounds of all three", is_done, patience_s)
    seconds, found = time.monotonic() - begun, measured()
    swarm.whole(*peers)
    swarm.equal(organiser.committed, *peers)
    downloads = {peer.name: peer.status()["block_bytes"] for peer in peers}
    committed = organiser.committed
    for peer in (*others, organiser):
        assert peer.leave() == 0, f"{peer.name}: {peer.log[-2000:]}"
    return RunOutcome(committed, seconds, min(found), max(found), found[min(found)], found[max(found)], downloads)


def _rounded(losses: dict[str, float]) -> str:
    return ", ".join(f"{source} {loss:.3f}" for source, loss in losses.items()) or "nothing yet"


# ------------------------------------------------------------------------------------------------------------------------
# The measurement of the exported folder.


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of the exported model on the held-out rows of a source.  tokens: as `peer eval` counts them."""

    source: str
    tokens: int
    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        """Their relative difference."""
        return abs(self.ours - self.theirs) / self.theirs


@dataclass(frozen=True)
class Outcome:
    """All that was found.  margin: mean on the held-out preferences, of the exported model against the initial one.

    preference_loss: the DPO loss that these margins have.
    """

    kind: str
    megabytes: float
    built: Built
    run: RunOutcome
    perplexities: list[Perplexity]
    margin: float | None = None
    preference_loss: float | None = None
    flaws: list[str] = field(default_factory=list)


def perplexities(swarm: Swarm, kind: str, sources: list[str], most_tokens: int) -> list[Perplexity]:
    """Measure the folder `exported` with `peer eval` and with transformers."""
    corpus, exported, form = swarm.folder / "corpus", swarm.folder / "exported", DATA_KINDS[kind]
    length = ["--length", str(form.length)] if form.format == "text" else []
    words = ["eval", str(exported), "--corpus", str(corpus), "--tokens", str(most_tokens), *length, "--json"]
    printed = swarm.command(swarm.place("organiser"), *words, patience_s=BUILD_PATIENCE_S)
    told = {each["source"]: each for each in json.loads(printed.splitlines()[-1])["sources"]}
    say("`peer eval` is done; transformers measures the same rows")
    model, found = open_model(exported), []
    for source in sources:
        rows = held_out_rows(corpus, source, form.length, most_tokens)
        rows = rows[::2] if form.format == "preference" else rows
        tokens = sum(int(row.counts[1:].sum()) for row in rows)
        assert tokens == told[source]["tokens"], f"{source}: {tokens} tokens count, and ours are {told[source]['tokens']}"
        found.append(Perplexity(source, tokens, told[source]["perplexity"], math.exp(loss_of(model, rows))))
    return found


def flaws_of(outcome: Outcome) -> list[str]:
    """What was not as it should be."""
    run, flaws = outcome.run, list[str]()
    flaws += [
        f"the loss on {source} does not fall"
        for source in run.first
        if not run.last.get(source, math.inf) < run.first[source]
    ]
    for name, origins in run.downloads.items():
        came = sum(origins[origin] for origin in ("peer", "seed", "mirror"))
        if (came == 0) != (name == "organiser"):
            flaws.append(f"{name} downloaded {came} bytes of blocks")
    flaws += [
        f"perplexities on {each.source} differ by {each.difference:.1e}"
        for each in outcome.perplexities
        if not each.difference < BAR
    ]
    if outcome.margin is not None and not outcome.margin > 0:
        flaws.append(f"the margin is {outcome.margin:.3f}")
    return flaws


def measure(folder: Path, kind: str, megabytes: float, rounds: int, steps: int, most_tokens: int) -> Outcome:
    """Do all of it in an empty folder."""
    form = DATA_KINDS[kind]
    with Swarm(folder, RUN) as swarm:
        say(f"{kind}: writing {megabytes:g} MB")
        inputs = write_data(folder, kind, int(megabytes * 1e6))
        words = ["--tokenizer", "bytes"]
        if form.begins:
            write_folder(folder / "base")
            words = ["--tokenizer", str(folder / "base")]
        elif kind == "text":
            write_tokenizer(folder / "tokenizer.json")
            words = ["--tokenizer", str(folder / "tokenizer.json"), "--end", END]
        if form.format != "text":
            words += ["--kind", form.format, "--sequence-length", str(form.length)]
        built = build(swarm, inputs, words)
        say(f"built {built.tokens:,} tokens in {built.seconds:.1f} s")
        swarm.run_file.write_text(run_text(kind, list(inputs), steps))
        swarm.create_run()
        run = train(swarm, list(inputs), rounds)
        swarm.command(swarm.place("organiser"), "export", str(folder / "exported"), "--dtype", "fp32")
        outcome = Outcome(kind, megabytes, built, run, perplexities(swarm, kind, list(inputs), most_tokens))
        if form.format == "preference":
            rows = held_out_rows(folder / "corpus", "pairs", form.length, most_tokens)
            found = margins(open_model(folder / "exported"), open_model(folder / "base"), rows, BETA)
            outcome = replace(outcome, margin=fmean(found), preference_loss=preference_loss(found))
    return replace(outcome, flaws=flaws_of(outcome))


def show(outcome: Outcome) -> None:
    built, run = outcome.built, outcome.run
    print(f"{outcome.kind}, {outcome.megabytes:g} MB ({built.input_bytes / 1e6:.1f} MB of files)")
    speed = (
        f"{built.seconds:.1f} s, {built.tokens_per_s:,.0f} tokens/s, {built.peak_bytes / 1e6:.0f} MB in all its processes"
    )
    print(f"  build      {built.tokens:,} tokens of {built.documents:,} documents in {speed}")
    print(f"  run        {run.rounds} rounds of three peers in {run.seconds:.0f} s")
    for source, loss in run.first.items():
        rounds = f"after {run.first_rounds} and {run.last_rounds} rounds"
        print(f"  held out   {source}: {loss:.4f} and {run.last[source]:.4f} {rounds}")
    for name, origins in run.downloads.items():
        print(f"  blocks     {name}: " + ", ".join(f"{origin} {count / 1e6:.2f} MB" for origin, count in origins.items()))
    for each in outcome.perplexities:
        both = f"{each.ours:.5f} ours, {each.theirs:.5f} of transformers, {each.difference:.1e} apart"
        print(f"  perplexity {each.source}, {each.tokens:,} tokens: {both}")
    if outcome.margin is not None:
        print(f"  margin     {outcome.margin:.3f} (0 before the run), loss {outcome.preference_loss:.4f} (ln 2 = 0.6931)")
    print("  " + ("; ".join(outcome.flaws) or "all as it should be"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.own_data", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=3, help="size of the data (3)")
    parser.add_argument("--kind", choices=[*DATA_KINDS, "all"], default="text", help="form of data and model (text)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of the run (8)")
    parser.add_argument("--steps", type=int, default=20, help="inner steps of a round (20)")
    parser.add_argument(
        "--tokens", type=int, default=1 << 16, help="held-out tokens of each source that are compared (65536)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each kind")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *anything: sys.exit(1))  # so that the folder and the peers go
    if missing := [name for name in ("pyarrow", "transformers") if find_spec(name) is None]:
        raise SystemExit(f"{' and '.join(missing)} missing; install the extras: pip install -e '.[data,oracle]'")
    torch.set_num_threads(1)
    is_right = True
    for kind in DATA_KINDS if arguments.kind == "all" else [arguments.kind]:
        with tempfile.TemporaryDirectory(prefix="own-data-") as name:
            outcome = measure(Path(name), kind, arguments.megabytes, arguments.rounds, arguments.steps, arguments.tokens)
        is_right &= not outcome.flaws
        if arguments.json:
            print(json.dumps(asdict(outcome)), flush=True)
        else:
            show(outcome)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
