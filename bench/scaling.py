"""A discrete-event simulation of 64 and 512 workers under the driver's own leasing rules, on measured costs.

What a lease and a pair cost the driver comes from bench/results/driver.json. How service times differ between pairs
comes from an input's lengths; how fast a worker is on the whole is a parameter, since no cluster was at hand.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.executors.leasing import LEASE_ROWS, Lease, Leasing, lease_rows
from batchfact.records import DocumentGroup, Pair
from bench.facts import RESULTS, command_line, write_result

PAIRS, DOCUMENTS = 16, 4
"""A row of the simulation stands for so many pairs of so many documents, to have fewer of them."""
SIZES = (64, 512)
RATES = (5, 10, 20, 40, 80, 160)
RATE = 10
"""Pairs a second of one worker in the scenarios: the driver is then no bottleneck."""
LEASES_A_WORKER = 8
RESTART_S = 120.0
"""From a worker's end until its successor has loaded the model."""

LeaseRows = Callable[[int, int], int]


class Scenario(Struct, frozen=True, kw_only=True):
    """One simulated run. Rates are pairs a second of one worker."""

    workers: int
    rate: float = RATE
    slow_share: float = 0.0
    slow_factor: float = 1.0
    """That share of the workers takes so many times as long."""
    long_share: float = 0.0
    long_factor: float = 1.0
    """That share of the documents takes so many times as long."""
    deaths_a_worker: float = 0.0
    """How often a worker ends in the time that the run would take without."""
    fixed_leases: bool = False
    seed: int = 0


class Costs(Struct, frozen=True):
    """CPU seconds of the driver."""

    lease_s: float
    pair_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="Parquet with the columns document and summary: for the lengths")
    parser.add_argument("--costs", type=Path, default=RESULTS / "driver.json")


def measure(args: argparse.Namespace) -> None:
    costs = read_costs(args.costs)
    lengths = read_lengths(args.input)
    runs = [{"scenario": name, **simulate(scenario, costs, lengths)} for name, scenario in scenarios()]
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "costs": {"us_a_lease": round(costs.lease_s * 1e6, 1), "us_a_pair": round(costs.pair_s * 1e6, 1)},
        "costs_from": args.costs.name,
        "service_times_from": args.input.name,
        "service_time_of_a_document_to_the_mean": {
            f"quantile {share}": round(float(np.quantile(lengths, share)), 2) for share in (0.1, 0.5, 0.9, 0.99, 1.0)
        },
        "runs": runs,
    }
    for run in runs:
        print(run)
    write_result("scaling", result)
    plot(runs, RESULTS / "scaling.svg")


def scenarios() -> Iterator[tuple[str, Scenario]]:
    for workers in SIZES:
        for rate in RATES:
            yield "rate", Scenario(workers=workers, rate=rate)
        yield "plain", Scenario(workers=workers)
        yield "leases of one size", Scenario(workers=workers, fixed_leases=True)
        yield "5% of workers at half speed", Scenario(workers=workers, slow_share=0.05, slow_factor=2)
        yield "5% of workers at a tenth", Scenario(workers=workers, slow_share=0.05, slow_factor=10)
        yield "1% of documents 20 times as long", Scenario(workers=workers, long_share=0.01, long_factor=20)
        yield "one worker in ten dies", Scenario(workers=workers, deaths_a_worker=0.1)
        yield "every worker dies once", Scenario(workers=workers, deaths_a_worker=1.0)


def read_costs(path: Path) -> Costs:
    """A straight line through the leases' sizes, and what reading and committing add to a pair."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = np.array([each["rows_a_lease"] for each in found["leases"]], float)
    spent = np.array([each["cpu_us_a_lease"] for each in found["leases"]], float)
    slope, base = np.polyfit(rows, spent, 1)
    pair_us = slope + found["read_and_group_us_a_pair"] + found["fold_and_commit_us_a_pair"]
    return Costs(max(0.0, base) / 1e6, pair_us / 1e6)


def read_lengths(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """For each document the characters that are computed for it and its summaries, as a share of the mean."""
    table = pq.read_table(path, columns=["document", "summary"]).to_pylist()
    lengths: dict[str, int] = {}
    for row in table:
        document, summary = row["document"] or "", row["summary"] or ""
        lengths[document] = lengths.get(document, len(document)) + len(summary)
    found = np.array(list(lengths.values()), float)
    return found / found.mean()


def simulate(scenario: Scenario, costs: Costs, lengths: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """One run's length, and where the time went."""
    draw = np.random.default_rng(scenario.seed)
    num_rows = scenario.workers * LEASES_A_WORKER * LEASE_ROWS // PAIRS
    documents = draw.choice(lengths, (num_rows, DOCUMENTS)) * PAIRS / DOCUMENTS / scenario.rate
    documents[draw.random(documents.shape) < scenario.long_share] *= scenario.long_factor
    service = documents.sum(axis=1)
    speeds = np.ones(scenario.workers)
    speeds[: round(scenario.slow_share * scenario.workers)] = scenario.slow_factor
    ideal_s = service.sum() / (1 / speeds).sum()
    simulation = _Simulation(scenario, costs, service, speeds, ideal_s, draw)
    ended_s = simulation.run()
    return {
        "workers": scenario.workers,
        "pairs_per_s_of_a_worker": scenario.rate,
        "pairs": num_rows * PAIRS,
        "seconds": round(float(ended_s), 1),
        "pairs_per_s": round(num_rows * PAIRS / ended_s, 1),
        "efficiency": round(ideal_s / ended_s, 4),
        "driver_busy": round(simulation.driver_busy_s / ended_s, 4),
        "tail_s": round(ended_s - simulation.fed_s, 1),
        "deaths": simulation.num_deaths,
        "pairs_asked_again": simulation.num_repeated * PAIRS,
        "pairs_given_up": simulation.num_given_up * PAIRS,
    }


class _Simulation:
    """Workers score their leases one after the other; the driver does one thing at a time."""

    def __init__(
        self,
        scenario: Scenario,
        costs: Costs,
        service: np.ndarray[Any, np.dtype[np.float64]],
        speeds: np.ndarray[Any, np.dtype[np.float64]],
        ideal_s: float,
        draw: np.random.Generator,
    ) -> None:
        self.scenario, self.costs, self.service, self.speeds, self.draw = scenario, costs, service, speeds, draw
        self.leasing = Leasing()
        self.events: list[tuple[float, int, str, int, Lease | None, int]] = []
        self.order = itertools.count()
        self.life = [0] * scenario.workers
        """How many workers of each number there were: what an ended one would have sent never comes."""
        self.free_at = [0.0] * scenario.workers
        self.next_row = 0
        self.driver_free_at = self.driver_busy_s = 0.0
        self.fed_s = 0.0
        """When the last lease was given out."""
        self.num_deaths = self.num_repeated = self.num_given_up = 0
        self.mean_life_s = ideal_s / scenario.deaths_a_worker if scenario.deaths_a_worker else None

    def run(self) -> float:
        """Seconds until the last outcome is back."""
        for worker in range(self.scenario.workers):
            self._join(0.0, worker)
        self._hand_out(0.0)
        now = 0.0
        while self.next_row < len(self.service) or not self.leasing.is_idle:
            now, _, kind, worker, lease, life = heapq.heappop(self.events)
            if kind == "joins":
                self._join(now, worker)
            elif life != self.life[worker]:
                continue
            elif kind == "dies":
                self._die(now, worker)
            elif lease is not None:
                now = self._drive(now, self.costs.lease_s + self.costs.pair_s * PAIRS * len(lease.groups))
                self.leasing.receive(worker, lease.number, lease.rows)
                if self.next_row == len(self.service) and not self.fed_s:
                    self.fed_s = now
            self._hand_out(now)
        return now

    def _drive(self, now: float, cost_s: float) -> float:
        """When the driver, which may be busy, has done what takes it so long."""
        self.driver_free_at = max(now, self.driver_free_at) + cost_s
        self.driver_busy_s += cost_s
        return self.driver_free_at

    def _push(self, at: float, kind: str, worker: int, lease: Lease | None = None) -> None:
        heapq.heappush(self.events, (at, next(self.order), kind, worker, lease, self.life[worker]))

    def _join(self, now: float, worker: int) -> None:
        self.leasing.join(worker)
        self.free_at[worker] = now
        if self.mean_life_s is not None:
            self._push(now + self.draw.exponential(self.mean_life_s), "dies", worker)

    def _die(self, now: float, worker: int) -> None:
        self.life[worker] += 1
        self.num_deaths += 1
        self.num_given_up += len(self.leasing.leave(worker))
        self._push(now + RESTART_S, "joins", worker)

    def _hand_out(self, now: float) -> None:
        while True:
            while (given := self.leasing.next()) is not None:
                self._give(now, *given)
            if self.next_row == len(self.service) or not self.leasing.wants_more:
                return
            self.leasing.add(self._next_groups())

    def _give(self, now: float, worker: int, lease: Lease) -> None:
        took_s = sum(self.service[group.number] for group in lease.groups) * self.speeds[worker]
        self.num_repeated += len(lease.groups) if lease.is_suspect or lease.is_probe else 0
        self.free_at[worker] = max(now, self.free_at[worker]) + took_s
        self._push(self.free_at[worker], "done", worker, lease)

    def _next_groups(self) -> list[DocumentGroup]:
        rows_left = (len(self.service) - self.next_row) * PAIRS
        num_rows = LEASE_ROWS if self.scenario.fixed_leases else lease_rows(rows_left, self.scenario.workers)
        first = self.next_row
        self.next_row = min(len(self.service), first + max(1, num_rows // PAIRS))
        return [document_group(number) for number in range(first, self.next_row)]


def document_group(number: int) -> DocumentGroup:
    pair = Pair(row=number, document="", summary="", document_hash=0, text_hash=0)
    return DocumentGroup(number=number, pairs=(pair,))


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Pairs a second by a worker's rate; efficiency in each scenario."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for workers in SIZES:
        mine = [run for run in runs if run["scenario"] == "rate" and run["workers"] == workers]
        rates = [run["pairs_per_s_of_a_worker"] for run in mine]
        (line,) = left.plot(rates, [run["pairs_per_s"] for run in mine], marker="o", label=f"{workers} workers")
        left.plot(rates, [workers * rate for rate in rates], ":", color=line.get_color())
    left.set(xscale="log", yscale="log", xlabel="pairs/s of one worker", ylabel="pairs/s of the run")
    left.set_title("Where the driver saturates (dotted: workers alone)")
    left.legend()
    names = list(dict.fromkeys(run["scenario"] for run in runs if run["scenario"] != "rate"))
    for place, workers in enumerate(SIZES):
        found = {run["scenario"]: run["efficiency"] for run in runs if run["workers"] == workers}
        places = [index + 0.4 * place - 0.2 for index in range(len(names))]
        right.barh(places, [found[name] for name in names], height=0.38, label=f"{workers} workers")
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlim=(0, 1), xlabel="ideal time / simulated time")
    right.set_title(f"{RATE} pairs/s a worker, {LEASES_A_WORKER} full leases each")
    right.legend(loc="lower left")
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path.name}")
