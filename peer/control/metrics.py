"""Metrics of a peer for Prometheus, on 127.0.0.1 only: its status and the resources of its process, read at each request.

The library serves from its own threads, which ask the event loop for the status.  Names follow Prometheus's conventions:
base units, and `_total` for figures that only grow.  The figures of the process have Prometheus's standard names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.registry import Collector

from peer.errors import ExitCode, PeerError
from protocol.events.status import PeerStatus
from protocol.wire.presence import Phase

HOST = "127.0.0.1"


def families(status: PeerStatus) -> Iterator[Metric]:
    """Yield the metrics.  Unknown values are left out."""
    names = ("peer", "name", "run", "run_name", "role", "version")
    info = Gauge("manyhands_info", "Description of this peer; the value is 1.", labels=names)
    info.add_metric([getattr(status, name) for name in names], 1)
    yield info
    phases = Gauge("manyhands_phase", "1 for the peer's present activity.", labels=["phase", "why_idle"])
    for phase in Phase:
        is_now = phase.value == status.phase
        phases.add_metric([phase.value, status.why_idle if is_now else ""], float(is_now))
    yield phases
    for kind, name, text, value in _single(status):
        if value is not None:
            yield kind(f"manyhands_{name}", text, value=value)
    if (told := status.rollouts) is not None:
        batches = Counter(
            "manyhands_rollout_batches", "Batches of rollouts since the start, by verdict.", labels=["verdict"]
        )
        for verdict in ("accepted", "rejected", "stale"):
            batches.add_metric([verdict], getattr(told, verdict))
        yield batches
    for name, text, figure in GPU_FIGURES if status.computer is not None else ():
        family = Gauge(f"manyhands_{name}", text, labels=["gpu"])
        for number, gpu in enumerate(status.computer.gpus if status.computer is not None else ()):
            if (value := getattr(gpu, figure)) is not None:
                family.add_metric([str(number)], value)
        if family.samples:
            yield family


GPU_FIGURES = (
    ("gpu_busy_share", "Share of about a second in which the GPU worked.", "busy_share"),
    ("gpu_memory_used_bytes", "Memory of the GPU that all programs use.", "memory_used"),
    ("gpu_temperature_celsius", "Temperature of the GPU.", "temperature"),
    ("gpu_power_watts", "Power that the GPU draws.", "watts"),
)


def _single(status: PeerStatus) -> Iterator[tuple[type[Gauge] | type[Counter], str, str, float | None]]:
    """Yield the metrics that have one value: kind, name, text, value."""
    yield Gauge, "rounds", "Rounds committed.", status.round
    yield Gauge, "final_rounds", "Rounds that are final.", status.final_rounds
    yield Gauge, "state_rounds", "Rounds that the outer state has applied.", status.state_rounds
    yield Gauge, "peers", "Live peers of the run besides this one.", status.peers
    aside = sum(bool(each.set_aside) for each in status.swarm)
    yield Gauge, "members_set_aside", "Members whose receipts were not right, by this peer's audits.", aside
    text = "Tokens that others claimed for the rounds of theirs that this peer audited, with a verdict."
    yield Gauge, "audited_tokens", text, sum(each.audited_tokens for each in status.swarm)
    yield Gauge, "members", "Members of the last round.", len(status.members)
    yield Gauge, "round_tokens", "Tokens of all members in the last round.", status.tokens
    yield Gauge, "steps", "Inner steps done in the running round.", status.steps
    yield Gauge, "inner_steps", "Inner steps wanted in the running round.", status.inner_steps
    yield Gauge, "tokens_per_second", "Tokens a second that this peer trains.", status.tokens_per_s
    yield Gauge, "mfu", "Share of the device's measured matmul speed that training reaches.", status.mfu
    yield Gauge, "joules_per_token", "Energy that the GPUs drew for each token of the last round.", status.joules_per_token
    yield Gauge, "busy_share", "Share of the last hour in which the trainer trained.", status.busy_share
    yield Gauge, "loss", "Loss of the running round, else of the last one, in nats a token.", status.loss
    yield Gauge, "held_out_loss", "The newest held-out loss known here, in nats a token.", status.eval_loss
    yield Gauge, "uptime_seconds", "Seconds since the peer started.", status.uptime_s
    yield Counter, "up_bytes", "Bytes sent since the start, over all channels.", status.up_bytes
    yield Counter, "down_bytes", "Bytes received since the start, over all channels.", status.down_bytes
    if (told := status.rollouts) is not None:
        yield Gauge, "rollout_version", "Version of the weights.", told.version
        yield Gauge, "reward", "Mean reward of the last round's rollouts, 0 to 1.", told.reward
        yield Gauge, "policy_entropy", "Entropy of the policy in the last round learned from, in nats a token.", told.entropy
        text = "Divergence of the policy from the one that made the tokens, in nats a token."
        yield Gauge, "behaviour_kl", text, told.behaviour_kl
        text = "Share of tokens whose importance weight was truncated."
        yield Gauge, "importance_truncated_share", text, told.truncated
        text = "Effective sample size of the importance weights, as a share of the tokens."
        yield Gauge, "importance_effective_share", text, told.effective
        yield Gauge, "rollout_batches_waiting", "Batches that wait for a verdict.", told.waiting
        text = "Tokens of rollouts that this peer generates a second."
        yield Gauge, "generated_tokens_per_second", text, told.generated_tokens_per_s
        yield Gauge, "verified_rollouts_per_second", "Rollouts that this peer verifies a second.", told.verified_per_s
        yield Gauge, "rollout_peers_set_aside", "Peers whose work is not used any more.", told.set_aside
        yield Counter, "rollout_batches_generated", "Batches made here.", told.generated
        yield Counter, "rollout_batches_used", "Batches that this trainer learned from.", told.used
        text = "Batches that this trainer left out, because it does not hold the weights that made them."
        yield Counter, "rollout_batches_left_out", text, told.left_out
        yield Counter, "accepted_tokens", "Tokens of this peer's rollouts that records name.", told.accepted_tokens
    if (computer := status.computer) is not None:
        text = "Energy that the GPUs and the processor drew while the peer did not rest."
        yield Counter, "energy_joules", text, computer.joules
    if (given := status.contribution) is not None:
        yield Gauge, "credited_tokens", "Tokens of this peer's work that the record chain credits to it.", given.tokens


async def serve_metrics(port: int, status: Callable[[], PeerStatus]) -> None:
    """Answer on `port` until cancelled.  Raises `PeerError` if the port is taken."""
    token = trio.lowlevel.current_trio_token()

    def now() -> tuple[PeerStatus, int]:
        return status(), trio.lowlevel.current_statistics().tasks_living

    class OfTheStatus(Collector):
        def collect(self) -> Iterator[Metric]:
            try:
                told, tasks = trio.from_thread.run_sync(now, trio_token=token)
            except (trio.RunFinishedError, trio.Cancelled):
                return
            yield from families(told)
            yield Gauge("manyhands_tasks", "Tasks of the peer's event loop.", value=tasks)

        def describe(self) -> Iterator[Metric]:
            return iter(())  # otherwise the registry asks for the figures at once, from this thread

    registry = CollectorRegistry()
    registry.register(OfTheStatus())
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise PeerError(
            f"port {port} of {HOST} cannot be used for metrics ({error.strerror}); choose another --metrics-port",
            ExitCode.RESOURCES,
        ) from error
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]  # a client may disconnect
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.shutdown)  # within half a second
        server.server_close()
        thread.join(0)
