"""An adapter run of real peers against PEFT alone on the same rows: `python -m benchmarks.adapter_peers --json`.

A decoder on bytes is first trained on Python's standard library, which any computer has, and then stays frozen.  A run
teaches its factors to answer the signature of a function with its documentation.  The base is only at the organiser, and the
run has no mirrors.  Two friends join it.  Then the organiser is killed (SIGKILL), and a late joiner gets base and state from
the friends.  It is killed once it has a chunk of the weights, starts again, and fetches the rest.  Then the organiser
comes back.  All four train to the end.

The reference is PEFT and transformers in one process.  It begins with the run's own factors, and its step has the rows that
the members of the round read in theirs, as the records name them; rates follow the run's schedule, and the optimiser is
torch's AdamW.  Both results are measured by the trainer on the same held-out rows.

Exits with 1 unless all peers end with one digest, the run has the reference's tokens, and its loss is at most 1 % above.
"""

from __future__ import annotations

import argparse
import ast
import json
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.adapters import CPU, F32, Texts, corpus_at, pretrain
from benchmarks.copies import say
from kernels.schedule import Place, scheduled_rate
from peer.paths import BLOCKS, CORPORA, run_dir
from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.leases import stretches_in
from protocol.chain.store import Store
from protocol.corpora.manifest import SHARDS
from protocol.disk import Disk
from protocol.events import events as ev
from protocol.formats.model import ModelConfig
from protocol.run.manifest import SignedManifest, open_manifest
from protocol.sync.fetchers import paths_of
from protocol.wire.identity import PeerId
from tests.e2e.swarm import Peer, Swarm
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.weights.peft_folder import PeftFolder, write_peft_folder
from trainer.weights.safetensors_file import ExportFormat
from trainer.worker import Worker

MODEL = ModelConfig(vocab=256, dim=192, layers=3, heads=6, kv_heads=3, ffn=512, rope_base=1e4, norm_eps=1e-5, tied=True)
"""Shape of the base: 1.2 M parameters."""
PATIENCE_S = 3600.0
MOST_CHATS, MOST_ANSWER = 8_000, 400
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
"""Folders of the standard library whose functions are not asked about."""
BAR_PERCENT = 1.0
SLOW = "500kbit"
"""Limit on the late joiner's download in its first life."""
LEAST_KEPT_BYTES = 100_000
"""More than the small files of the base."""
RUN = """
name = "adapter peers"
founders = "anyone"
total_rounds = {rounds}
chunk_parameters = 65536
[model]
from = "base"
[adapter]
rank = 16
alpha = 16
[data]
format = "chat"
from = "chats.jsonl"
sequence_length = 128
sequences_per_step = 2
held_out_percent = 10
[inner]
lr = {rate}
warmup_steps = 20
cooldown = 0.0
z_loss = 0.0
[rounds]
inner_steps = {steps}
min_members = 2
grace_s = 10.0
eviction_s = 15.0
stall_s = 10.0
"""


# -- the base and the chats ----------------------------------------------------------------------------------------------


def library() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def chats() -> Iterator[dict[str, str]]:
    """Yield a question and an answer for each documented function of the standard library, file after file by name."""
    for path in sorted(library().rglob("*.py")):
        place = path.relative_to(library())
        if LEFT_OUT & {*place.parts}:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        module = ".".join(place.with_suffix("").parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                question = f"{module}.{node.name}({', '.join(argument.arg for argument in node.args.args)})"
                yield {"prompt": question[:100], "completion": said.split("\n\n")[0][:MOST_ANSWER]}


def write_chats(path: Path) -> int:
    """Write the chats, without repeated ones; return their number."""
    found = dict.fromkeys(json.dumps(chat) for chat in chats())
    lines = list(found)[:MOST_CHATS]
    path.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


def make_base(folder: Path, steps: int) -> Path:
    """Return the base in `folder`, trained if it is not there."""
    base = folder / f"base-{steps}"
    if not base.exists():
        pretrain(MODEL, corpus_at(folder / "pretrain", Texts(library(), ".py")), steps, base)
    return base


# -- the run ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Bytes of a round of three members that all hold, the mean over them.  rounds: rounds of the measurement."""

    rounds: int
    up_bytes: float
    down_bytes: float


@dataclass(frozen=True)
class Joining:
    """A late joiner, from its second start to its first record as a member.

    kept_bytes: bytes of the base that were here from before it was killed.  seconds: of that time.  fetched: bytes by kind
    of file.  up_bytes, down_bytes: all that it sent and received.
    """

    kept_bytes: int
    seconds: float
    fetched: dict[str, int]
    up_bytes: int
    down_bytes: int


@dataclass(frozen=True)
class RunMeasured:
    """A finished run.  killed_at: rounds before the organiser was killed.  digest: of the state of all four."""

    killed_at: int
    digest: str
    traffic: Traffic
    joining: Joining


def line_of(peer: Peer) -> tuple[int, int]:
    """Return the bytes that a peer has sent and received."""
    status = peer.status()
    return status["up_bytes"], status["down_bytes"]


def traffic_of(swarm: Swarm, peers: list[Peer], rounds: int) -> Traffic:
    """Measure some rounds of all peers."""
    first = swarm.whole(*peers)
    before = [line_of(peer) for peer in peers]
    swarm.until("rounds of all", lambda: all(peer.committed >= first + rounds for peer in peers), PATIENCE_S)
    after, counted = [line_of(peer) for peer in peers], min(peer.committed for peer in peers) - first
    up, down = (
        sum(later[way] - earlier[way] for earlier, later in zip(before, after, strict=True)) / len(peers) / counted
        for way in (0, 1)
    )
    return Traffic(counted, up, down)


def fetched_by(peer: Peer, others: int) -> dict[str, int]:
    """Return the bytes of files that a peer has fetched, by their kind; the base follows the run's `others` files."""
    found = Counter[str]()
    for event in peer.heard(ev.TransferEnded):
        found["base" if event.what == "file" and event.number >= others else event.what] += event.fetched_bytes
    return dict(found)


def has_begun_base(peer: Peer, others: int) -> bool:
    """Return True if a peer has some chunks of a file of the base, and not all."""
    told = [event for event in peer.heard(ev.TransferProgress) if event.what == "file" and event.number >= others]
    return any(0 < event.done < event.total for event in told)


def hold_run(swarm: Swarm, signed: SignedManifest, rounds: int) -> RunMeasured:
    """Let four peers hold a run to its end."""
    manifest = signed.manifest
    assert manifest.base is not None and not manifest.base.mirrors
    others = len(manifest.files) - len(manifest.base.files)
    organiser = swarm.peer("organiser").start()
    friends = [swarm.peer(name).start() for name in ("ann", "bob")]
    traffic = traffic_of(swarm, [organiser, *friends], max(2, rounds // 6))
    assert all(fetched_by(friend, others)["base"] >= manifest.base.size_bytes for friend in friends)
    organiser.kill()
    killed_at = max(friend.committed for friend in friends)
    say(f"the organiser was killed after {killed_at} rounds")
    late = swarm.peer("late").start("--max-down", SLOW)
    swarm.until("some chunks of the base", lambda: has_begun_base(late, others))
    late.kill()
    say("the late joiner was killed while it fetched the base")
    late.start()
    began = time.monotonic()
    swarm.whole(*friends, late)
    fetched = fetched_by(late, others)
    kept = manifest.base.size_bytes - fetched["base"]
    joining = Joining(kept, time.monotonic() - began, fetched, *line_of(late))
    assert kept >= LEAST_KEPT_BYTES and fetched["base"] > 0, "nothing is fetched twice, and the organiser was gone"
    say(f"the late joiner is a member after {joining.seconds:.0f} s")
    peers = [organiser.start(), *friends, late]
    swarm.whole(*peers)
    say("all four train")
    swarm.until("the end", lambda: all(peer.committed >= rounds for peer in peers), PATIENCE_S)
    return RunMeasured(killed_at, swarm.equal(rounds, *peers), traffic, joining)


# -- the rows of the records, and PEFT alone on them -----------------------------------------------------------------------


@dataclass(frozen=True)
class RoundRows:
    """Rows of a round, from its record.  members: the numbers of the rows of each step, member by member."""

    round: int
    tokens: int
    members: list[list[list[int]]]

    def steps(self) -> Iterator[tuple[int, list[list[int]]]]:
        """Yield each step's number in the run's schedule, and the rows of the members that did it."""
        for step in range(max(map(len, self.members))):
            yield step, [rows[step] for rows in self.members if step < len(rows)]


def rows_of_records(signed: SignedManifest, folder: Path) -> list[RoundRows]:
    """Return the rows that the members of each record read."""
    manifest, count, found = signed.manifest, signed.manifest.data.sequences_per_step, list[RoundRows]()
    history = History(round_settings(signed.run, manifest), Store(folder, Disk(durable=False)))
    for round in range(history.length):
        base = history.base_on(round, history.tip_at(round), history.roster_at(round))
        members = list[list[list[int]]]()
        record = history.commit_at(round).record
        for member in record.members:
            ranges = base.rows_read(manifest, PeerId(member.peer), member.steps, stretches_in(member.stretches))
            numbers = list(chain.from_iterable(range(*each) for each in ranges))
            members.append([numbers[at : at + count] for at in range(0, len(numbers), count)])
            assert len(members[-1]) == member.steps
        found.append(RoundRows(round, sum(member.tokens for member in record.members), members))
    return found


def worker_of(signed: SignedManifest, data: Path) -> Worker:
    """Return a trainer's worker with the files and the corpus of the run's folder in a data directory."""
    folder, store = run_dir(data, signed.run), Store(run_dir(data, signed.run), Disk(durable=False))
    corpora = [link.resolve() / SHARDS for link in (folder / CORPORA).iterdir()] if (folder / CORPORA).is_dir() else []
    files = {name: str(path) for name, path in paths_of(signed.manifest, store.files).items()}
    sections = signed.manifest.trainer_sections() | {"files": files, "blocks": [*map(str, corpora), str(folder / BLOCKS)]}
    return Worker(TrainingConfig.from_sections(sections), CPU)


@dataclass(frozen=True)
class Reference:
    """PEFT alone.  tokens: counted tokens that it learned from.  theta: its factors, in the order of the run's vector."""

    tokens: int
    steps: int
    theta: F32


def train_with_peft(worker: Worker, rounds: list[RoundRows], start: F32, base: Path, folder: Path) -> Reference:
    """Train the factors with PEFT on the rows of the rounds, all members' rows of a step in one batch."""
    import peft
    import transformers

    config = worker.config
    assert config.adapter is not None
    folder.mkdir()
    write_peft_folder(folder, config.model, config.adapter, [start], ExportFormat.FP32, base_name=str(base))
    frozen = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa")
    model = peft.PeftModel.from_pretrained(frozen, folder, is_trainable=True)
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    assert sum(tensor.numel() for tensor in trained) == config.parameters
    inner, tokens, steps = config.inner, 0, 0
    optimiser = torch.optim.AdamW(trained, betas=(inner.beta1, inner.beta2), eps=inner.eps, weight_decay=inner.weight_decay)
    for each in rounds:
        for step, members in each.steps():
            rows = Rows.joined([worker.batch(numbers) for numbers in members])
            optimiser.zero_grad()
            loss_of(model, rows).backward()
            torch.nn.utils.clip_grad_norm_(trained, inner.clip_norm)
            optimiser.param_groups[0]["lr"] = scheduled_rate(inner, Place(each.round * config.inner_steps + step, 0.0))
            optimiser.step()
            tokens, steps = tokens + rows.counted, steps + 1
    model.save_pretrained(str(folder / "trained"))
    found = PeftFolder(folder / "trained", config.model)
    return Reference(tokens, steps, np.concatenate([*found.values()]))


def loss_of(model: Any, rows: Rows) -> torch.Tensor:
    """Return the mean loss of the counted tokens, in which no document of a row sees another."""
    tokens = torch.from_numpy(rows.tokens_bt.astype(np.int64))
    seen = torch.ones(rows.length, rows.length, dtype=torch.bool).tril()
    if rows.documents_bt is not None:
        documents = torch.from_numpy(rows.documents_bt)
        seen = seen & (documents[:, :, None] == documents[:, None, :])
    mask = torch.zeros(len(rows), 1, rows.length, rows.length)
    mask.masked_fill_(~seen.expand(len(rows), -1, -1)[:, None], torch.finfo(torch.float32).min)
    logits = model(input_ids=tokens[:, :-1], attention_mask=mask).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    if rows.counts_bt is None:
        return losses.mean()
    counts = torch.from_numpy(rows.counts_bt).flatten()
    return (losses * counts).sum() / counts.sum()


# -- the table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Outcome.  start, run, peft: held-out losses of the base alone, of the run and of PEFT, nats per token.

    values: number of exchanged values.  run_tokens, peft_tokens: counted tokens that were learned from.
    """

    base_bytes: int
    values: int
    chats: int
    rounds: int
    members: list[int]
    run_tokens: int
    peft_tokens: int
    peft_steps: int
    start: float
    run: float
    peft: float
    run_measured: RunMeasured

    @property
    def over_percent(self) -> float:
        return 100 * (self.run / self.peft - 1)

    @property
    def is_right(self) -> bool:
        return self.run_tokens == self.peft_tokens and self.over_percent <= BAR_PERCENT


def measure(folder: Path, base: Path, options: argparse.Namespace) -> Measured:
    """Hold the run in `folder`, and train the reference after it."""
    run = RUN.format(rounds=options.rounds, steps=options.steps, rate=options.rate)
    with Swarm(folder, run) as swarm:
        (folder / "base").symlink_to(base)
        count = write_chats(folder / "chats.jsonl")
        swarm.create_run()
        signed = open_manifest(swarm.manifest.read_bytes())
        assert signed.manifest.base is not None
        held = hold_run(swarm, signed, options.rounds)
        data = swarm.place("organiser")
        swarm.command(swarm.place("late"), "export", str(folder / "trained"), "--dtype", "fp32", patience_s=PATIENCE_S)
    rounds, worker = rows_of_records(signed, run_dir(data, signed.run)), worker_of(signed, data)
    config = worker.config
    start = np.empty(config.parameters, np.float32)
    initial_parameters(config.model, config.seed, start, config.adapter)
    say("the run is over; training with PEFT")
    reference = train_with_peft(worker, rounds, start, base, folder / "peft")
    ours = np.concatenate([*PeftFolder(folder / "trained", config.model).values()])
    at_start, at_end, alone = (worker.evaluate(theta, options.evaluation_tokens) for theta in (start, ours, reference.theta))
    return Measured(
        signed.manifest.base.size_bytes,
        config.parameters,
        count,
        len(rounds),
        [len(each.members) for each in rounds],
        sum(each.tokens for each in rounds),
        reference.tokens,
        reference.steps,
        at_start,
        at_end,
        alone,
        held,
    )


def show(found: Measured) -> None:
    """Print the tables."""
    run, joining, traffic = found.run_measured, found.run_measured.joining, found.run_measured.traffic
    print(f"base of {found.base_bytes / 1e6:.2f} MB, {found.values} values, {found.chats} chats, {found.rounds} rounds\n")
    print("| base alone | peers | PEFT alone | over PEFT | tokens of the peers | of PEFT | digests | |\n" + 8 * "|---" + "|")
    print(
        f"| {found.start:.4f} | {found.run:.4f} | {found.peft:.4f} | {found.over_percent:+.2f} % | {found.run_tokens} "
        f"| {found.peft_tokens} | one | {'holds' if found.is_right else 'MISSED'} |\n"
    )
    print(f"members of the rounds: {', '.join(map(str, found.members))}; organiser killed after {run.killed_at} rounds\n")
    print(
        f"a round of three members: {traffic.up_bytes / 1e3:.0f} kB up and {traffic.down_bytes / 1e3:.0f} kB down for each, "
        f"over {traffic.rounds} rounds"
    )
    kinds = ", ".join(f"{kind} {count / 1e3:.0f} kB" for kind, count in sorted(joining.fetched.items()))
    print(
        f"joining late, with {joining.kept_bytes / 1e3:.0f} kB of the base from before a kill: {joining.seconds:.0f} s, "
        f"{joining.down_bytes / 1e6:.2f} MB down and {joining.up_bytes / 1e6:.2f} MB "
        f"up, of which {kinds}"
    )


def main() -> int:
    """Measure once and print the tables, or one JSON object after them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapter_peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, help="folder in which the base is kept for other times (none)")
    parser.add_argument("--pretrain-steps", type=int, default=400, help="steps of the base, of 1024 tokens (400)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the run (40)")
    parser.add_argument("--steps", type=int, default=20, help="inner steps of a round, of 256 tokens (20)")
    parser.add_argument("--rate", type=float, default=3e-3, help="inner rate (0.003)")
    parser.add_argument("--evaluation-tokens", type=int, default=1 << 15)
    parser.add_argument("--json", action="store_true", help="print one JSON object after the tables")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *anything: sys.exit(1))  # so that the folder and the peers go
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="adapter-peers-", ignore_cleanup_errors=True) as name:
        kept = options.base or Path(name) / "kept"
        kept.mkdir(parents=True, exist_ok=True)
        (run := Path(name) / "run").mkdir()
        found = measure(run, make_base(kept.resolve(), options.pretrain_steps), options)
    show(found)
    if options.json:
        more = {"over_percent": found.over_percent, "is_right": found.is_right}
        print(json.dumps(asdict(found) | more), flush=True)
    return 0 if found.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
