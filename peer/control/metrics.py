"""Metrics of a peer for Prometheus, on 127.0.0.1 only: its status and the resources of its process, read at each request.

The library serves from its own threads, which ask the event loop for the status.  Names follow Prometheus's conventions:
base units, and `_total` for figures that only grow.  The figures of the process have Prometheus's standard names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from peer.errors import ExitCode, PeerError
from protocol.events.status import ComputerStatus, PeerStatus, RolloutStatus
from protocol.wire.presence import Phase

HOST = "127.0.0.1"


def families(status: PeerStatus) -> Iterator[Metric]:
    """Yield the metrics.  Unknown values are left out."""
    labels = {
        "peer": status.peer,
        "name": status.name,
        "run": status.run,
        "run_name": status.run_name,
        "role": status.role,
        "version": status.version,
    }
    info = GaugeMetricFamily("manyhands_info", "What this peer is; the value is 1.", labels=[*labels])
    info.add_metric([*labels.values()], 1)
    yield info
    phases = GaugeMetricFamily("manyhands_phase", "1 for the peer's present activity.", labels=["phase", "why_idle"])
    for phase in Phase:
        is_now = phase.value == status.phase
        phases.add_metric([phase.value, status.why_idle if is_now else ""], float(is_now))
    yield phases
    for name, text, value in _gauges(status):
        if value is not None:
            yield GaugeMetricFamily(f"manyhands_{name}", text, value=value)
    if status.rollouts is not None:
        yield from _of_rollouts(status.rollouts)
    if status.computer is not None:
        yield from _of_computer(status.computer)
    if status.contribution is not None:
        text = "Tokens of this peer's work that the record chain credits to it."
        yield GaugeMetricFamily("manyhands_credited_tokens", text, value=status.contribution.tokens)
    for way, count in (("up", status.up_bytes), ("down", status.down_bytes)):
        yield CounterMetricFamily(f"manyhands_{way}_bytes", f"Bytes {way} since the start, all channels.", value=count)


def _of_rollouts(told: RolloutStatus) -> Iterator[Metric]:
    batches = CounterMetricFamily(
        "manyhands_rollout_batches", "Batches of rollouts since the start, by verdict.", labels=["verdict"]
    )
    for verdict, count in (("accepted", told.accepted), ("rejected", told.rejected), ("stale", told.stale)):
        batches.add_metric([verdict], count)
    yield batches
    for name, text, value in (
        ("rollout_version", "Version of the weights.", told.version),
        ("reward", "Mean reward of the last round's rollouts, 0 to 1.", told.reward),
        ("rollout_batches_waiting", "Batches that wait for a verdict.", told.waiting),
        (
            "generated_tokens_per_second",
            "Tokens of rollouts that this peer generates a second.",
            told.generated_tokens_per_s,
        ),
        ("verified_rollouts_per_second", "Rollouts that this peer verifies a second.", told.verified_per_s),
        ("rollout_peers_set_aside", "Peers whose work is not used any more.", told.set_aside),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"manyhands_{name}", text, value=value)
    for name, text, value in (
        ("rollout_batches_generated", "Batches made here.", told.generated),
        ("rollout_batches_used", "Batches that this trainer learned from.", told.used),
        ("accepted_tokens", "Tokens of this peer's rollouts that records name.", told.accepted_tokens),
    ):
        yield CounterMetricFamily(f"manyhands_{name}", text, value=value)


def _of_computer(computer: ComputerStatus) -> Iterator[Metric]:
    for name, text, figure in (
        ("gpu_busy_share", "Share of about a second in which the GPU worked.", "busy_share"),
        ("gpu_memory_used_bytes", "Memory of the GPU that all programs use.", "memory_used"),
        ("gpu_temperature_celsius", "Temperature of the GPU.", "temperature"),
        ("gpu_power_watts", "Power that the GPU draws.", "watts"),
    ):
        family = GaugeMetricFamily(f"manyhands_{name}", text, labels=["gpu"])
        for number, gpu in enumerate(computer.gpus):
            if (value := getattr(gpu, figure)) is not None:
                family.add_metric([str(number)], value)
        if family.samples:
            yield family
    if computer.joules is not None:
        text = "Energy that the GPUs and the processor drew while the peer did not rest."
        yield CounterMetricFamily("manyhands_energy_joules", text, value=computer.joules)


def _gauges(status: PeerStatus) -> list[tuple[str, str, float | None]]:
    return [
        ("rounds", "Rounds committed.", status.round),
        ("final_rounds", "Rounds that are final.", status.final_rounds),
        ("state_rounds", "Rounds that the outer state has applied.", status.state_rounds),
        ("peers", "Live peers of the run besides this one.", status.peers),
        ("members", "Members of the last round.", len(status.members)),
        ("round_tokens", "Tokens of all members in the last round.", status.tokens),
        ("steps", "Inner steps done in the running round.", status.steps),
        ("inner_steps", "Inner steps wanted in the running round.", status.inner_steps),
        ("tokens_per_second", "Tokens a second that this peer trains.", status.tokens_per_s),
        ("mfu", "Share of the device's measured matmul speed that training reaches.", status.mfu),
        ("joules_per_token", "Energy that the GPUs drew for each token of the last round.", status.joules_per_token),
        ("busy_share", "Share of the last hour in which the trainer trained.", status.busy_share),
        ("loss", "Loss of the running round, else of the last one, in nats a token.", status.loss),
        ("held_out_loss", "The newest held-out loss known here, in nats a token.", status.eval_loss),
        ("uptime_seconds", "Since the peer started.", status.uptime_s),
    ]


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
            yield GaugeMetricFamily("manyhands_tasks", "Tasks of the peer's event loop.", value=tasks)

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
