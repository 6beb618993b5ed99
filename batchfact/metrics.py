"""A run's counters for Prometheus, on request, over HTTP.

It reads `Progress` when it is asked and keeps nothing. prometheus-client is imported only where a port is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batchfact.errors import UsageError
from batchfact.progress import Progress

if TYPE_CHECKING:
    from prometheus_client import Metric


class ProgressCollector:
    """What a scrape sees."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        progress = self.progress
        yield GaugeMetricFamily("batchfact_rows", "Rows of the input.", progress.num_rows)
        yield GaugeMetricFamily("batchfact_rows_resumed", "Rows that were done before.", progress.num_resumed)
        committed = CounterMetricFamily("batchfact_rows_committed", "Rows committed by this run.", labels=["status"])
        for status, rows in list(progress.statuses.items()):
            committed.add_metric([status], rows)
        yield committed
        labels = CounterMetricFamily("batchfact_rows_labelled", "Scored rows by label.", labels=["label"])
        for label, rows in list(progress.labels.items()):
            labels.add_metric([label], rows)
        yield labels
        yield GaugeMetricFamily("batchfact_requests_in_flight", "Requests with the engine.", progress.num_in_flight)
        tokens = CounterMetricFamily("batchfact_tokens", "Tokens of answered requests.", labels=["kind"])
        usage = progress.usage
        for kind, count in (("prompt", usage.prompt), ("cached", usage.cached), ("output", usage.output)):
            tokens.add_metric([kind], count)
        yield tokens
        yield CounterMetricFamily("batchfact_engine_restarts", "Engines started again.", progress.num_restarts)
        yield CounterMetricFamily(
            "batchfact_requests_given_up", "Requests that ended the engine twice.", progress.num_given_up
        )
        yield GaugeMetricFamily("batchfact_elapsed_seconds", "Since the run began.", progress.elapsed_s)
        if progress.eta_s is not None:
            yield GaugeMetricFamily("batchfact_eta_seconds", "Until all rows are committed.", progress.eta_s)
        phase = GaugeMetricFamily("batchfact_phase", "What the run is doing: 1.", labels=["phase"])
        phase.add_metric([progress.phase], 1)
        yield phase


@contextmanager
def served(progress: Progress, host: str, port: int | None) -> Iterator[None]:
    """Answer scrapes at `http://host:port/metrics` in the block; without a port nothing is opened.

    Raises: UsageError where prometheus-client is not installed or the port cannot be had.
    """
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError as error:
        raise UsageError("--metrics-port needs prometheus-client; pip install 'batchfact[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(ProgressCollector(progress))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--metrics-port {port} cannot be opened on {host}: {error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
