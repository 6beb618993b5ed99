"""What a run was told to do, in the three parts that decide what a change of it costs.

`Identity` decides the answers: a change needs new ones. `FoldPolicy` and `OutputOptions` decide how answers become
rows: a change only merges again. `Runtime` decides speed and display: it is free. The command line and `--config`
files are decoded into these once; inside, their values are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from batchfact.calibration import Calibration
from batchfact.errors import UsageError
from batchfact.records import PairStatus
from batchfact.sharding import JobShard

DEFAULT_MODEL = "smollm2-135m-factual"
BASE_MODEL = "smollm2-135m"
"""What DEFAULT_MODEL was tuned from: the default for methods that it was not tuned for (`settings.default_model`)."""
CHEN: frozenset[str] = frozenset({"vanilla", "cot", "sbs"})
"""The paradigms of Chen 2023: the others are of Xu 2024."""

Paradigm = Literal["summ-nli", "sent-nli", "qg-qa", "vanilla", "cot", "sbs"]
LabelMode = Literal["probability", "parse"]
WindowContext = Literal["none", "preceding", "summary"]
LongDocuments = Literal["auto", "align", "chunk", "fail"]
AlignObjective = Literal["greedy", "independent"]
Grouping = Literal["window", "global", "none"]
Aggregation = Literal["any", "mean", "share"]
CompileMode = Literal["auto", "on", "off"]
ExecutorName = Literal["local", "ray"]


def require(holds: bool, rule: str, got: object) -> None:
    """Raises: UsageError with the rule and the value that broke it."""
    if not holds:
        raise UsageError(f"{rule}, got {got}")


class Identity(Struct, frozen=True, kw_only=True):
    """What decides the answers. `reasoning` None means the model's registry entry decides.

    Reasoning longer than `reasoning_tokens` is cut at its last complete sentence; 200 hold five or six. `temperature`
    is of written text; probabilities are read as they are. `demonstrations` is the file that `shots` of them are drawn
    from.
    """

    model: str = DEFAULT_MODEL
    paradigm: Paradigm = "sent-nli"
    document_column: str = "document"
    summary_column: str = "summary"
    reasoning: bool | None = None
    reasoning_tokens: int = 200
    window_sentences: int = 1
    window_context: WindowContext = "none"
    long_documents: LongDocuments = "auto"
    context_tokens: int = 1024
    align_sentences: int = 5
    align_objective: AlignObjective = "greedy"
    label_mode: LabelMode = "probability"
    rating: bool = False
    instruction: int = 1
    shots: int = 0
    demonstrations: str | None = None
    seed: int = 0
    temperature: float = 0.0
    max_model_len: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        require(self.window_sentences >= 1, "--window-sentences must be at least 1", self.window_sentences)
        require(self.context_tokens >= 1, "--context-tokens must be at least 1", self.context_tokens)
        require(self.align_sentences >= 1, "--align-sentences must be at least 1", self.align_sentences)
        require(
            self.by_window or self.paradigm == "sbs" or self.window_sentences == 1,
            f"--window-sentences has no meaning with --paradigm {self.paradigm}, which takes the whole summary",
            self.window_sentences,
        )
        require(
            self.paradigm == "sent-nli" or self.window_context == "none",
            "--window-context is for --paradigm sent-nli",
            self.window_context,
        )
        require(self.reasoning_tokens >= 16, "--reasoning-tokens must be at least 16", self.reasoning_tokens)
        require(
            self.max_model_len is None or self.max_model_len >= 256,
            "--max-model-len must be at least 256 tokens",
            self.max_model_len,
        )
        self._check_method()

    def _check_method(self) -> None:
        """The settings of single methods, which must fit the paradigm."""
        is_chen = self.paradigm in CHEN
        require(1 <= self.instruction <= 3, "--instruction is 1, 2 or 3", self.instruction)
        require(self.instruction == 1 or is_chen, "--instruction is for --paradigm vanilla, cot and sbs", self.paradigm)
        require(self.shots >= 0, "--shots must be at least 0", self.shots)
        require(
            self.shots == 0 or is_chen,
            "--shots is for --paradigm vanilla, cot and sbs (Xu 2024 asks zero-shot)",
            self.paradigm,
        )
        require(
            (self.shots > 0) == (self.demonstrations is not None),
            "--shots and --demonstrations go together",
            f"{self.shots} and {self.demonstrations or 'no file'}",
        )
        require(
            self.reasoning is None or not is_chen or self.reasoning == (self.paradigm == "cot"),
            "--reasoning and --label-only are for Xu's paradigms: here cot reasons, vanilla and sbs do not",
            f"--paradigm {self.paradigm}",
        )
        require(not self.rating or not is_chen, "--rating is for summ-nli, sent-nli and qg-qa", self.paradigm)
        require(
            not self.rating or self.label_mode == "probability" or self.paradigm == "qg-qa",
            "--rating reads the ratings' probabilities: leave it out, or use --label-mode probability",
            self.label_mode,
        )
        require(0 <= self.temperature <= 2, "--temperature must lie between 0 and 2", self.temperature)
        require(0 <= self.seed < 2**63, "--seed must be a whole number from 0 on", self.seed)

    @property
    def by_window(self) -> bool:
        """Whether each window has a prompt of its own; otherwise one prompt holds the whole summary."""
        return self.paradigm in ("sent-nli", "qg-qa")

    @property
    def rates(self) -> bool:
        """Whether the model is asked for ratings: for qg-qa `--rating` only changes the fold."""
        return self.rating and self.paradigm != "qg-qa"


class FoldPolicy(Struct, frozen=True, kw_only=True):
    """How findings become a verdict.

    A score at or above `threshold` counts as consistent: of a finding, and of the pair. `aggregation`: any inconsistent
    finding decides; the mean of the findings' scores; the share of findings that are consistent. A finding whose labels
    hold less than `min_label_mass` of the full vocabulary's probability is unknown: the model did not want to answer.
    With a `calibration`, scores are compared with the threshold after it, over as many findings as the pair has.
    """

    threshold: float = 0.5
    aggregation: Aggregation = "any"
    min_label_mass: float = 0.01
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        require(0 < self.threshold < 1, "--threshold must lie between 0 and 1", self.threshold)
        require(0 <= self.min_label_mass < 1, "--min-label-mass must lie in [0, 1)", self.min_label_mass)
        require(
            self.calibration is None or self.aggregation != "share",
            "--calibration is for scores, and --aggregation share counts labels: leave one of them out",
            f"--aggregation {self.aggregation}",
        )


class OutputOptions(Struct, frozen=True, kw_only=True):
    """Which columns the output has: None keeps all input columns."""

    column_prefix: str = "batchfact_"
    keep_columns: tuple[str, ...] | None = None
    drop_document: bool = False


class Runtime(Struct, frozen=True, kw_only=True):
    """Speed, display and recovery: free to change between runs on one journal."""

    group: Grouping = "window"
    look_ahead_rows: int = 65_536
    look_ahead_bytes: int = 256 << 20
    early_exit: bool = False
    engine: str = "auto"
    engine_args: Mapping[str, str] = {}
    base_url: str | None = None
    api_key_env: str | None = None
    compile: CompileMode = "auto"
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    kv_cache_bytes: int | None = None
    journal: Path | None = None
    shard: JobShard | None = None
    restart: bool = False
    retry_status: tuple[PairStatus, ...] = ()
    limit: int | None = None
    max_unscored: float | None = None
    part_rows: int = 4096
    part_seconds: float = 30.0
    max_restarts: int = 10
    stall_seconds: float = 300.0
    executor: ExecutorName = "local"
    ray_address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    worker_wait_seconds: float = 300.0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        require(self.limit is None or self.limit >= 1, "--limit must be at least 1", self.limit)
        require(
            self.max_unscored is None or 0 <= self.max_unscored <= 1,
            "--max-unscored is a share between 0 and 1",
            self.max_unscored,
        )
        require(
            (self.engine == "openai") == (self.base_url is not None),
            "--engine openai and --base-url go together",
            f"--engine {self.engine} {'with' if self.base_url else 'without'} --base-url",
        )
        require(
            self.base_url is None or self.tensor_parallel_size == self.data_parallel_size == 1,
            "with --engine openai, --tensor-parallel-size and --data-parallel-size are the server's: leave them out",
            f"{self.tensor_parallel_size} and {self.data_parallel_size}",
        )
        require(
            self.api_key_env is None or self.base_url is not None,
            "--api-key-env goes with --base-url",
            "no --base-url",
        )
        require(self.tensor_parallel_size >= 1, "--tensor-parallel-size must be at least 1", self.tensor_parallel_size)
        require(self.data_parallel_size >= 1, "--data-parallel-size must be at least 1", self.data_parallel_size)
        require(
            self.gpu_memory_utilization is None or 0 < self.gpu_memory_utilization <= 1,
            "--gpu-memory-utilization is a share above 0, at most 1",
            self.gpu_memory_utilization,
        )
        require(self.kv_cache_bytes is None or self.kv_cache_bytes > 0, "--kv-cache-memory must be above 0", 0)
        require(self.part_rows >= 1, "part-rows must be at least 1", self.part_rows)
        require(self.part_seconds > 0, "part-seconds must be above 0", self.part_seconds)
        require(
            self.metrics_port is None or 1 <= self.metrics_port <= 65535,
            "--metrics-port lies between 1 and 65535",
            self.metrics_port,
        )
        require(self.max_restarts >= 0, "max-restarts must be at least 0", self.max_restarts)
        require(self.stall_seconds > 0, "stall-seconds must be above 0", self.stall_seconds)
        require(self.look_ahead_bytes >= 1, "look-ahead-bytes must be at least 1", self.look_ahead_bytes)
        require(self.look_ahead_rows >= 1, "--look-ahead-rows must be at least 1", self.look_ahead_rows)
        self._check_executor()

    def _check_executor(self) -> None:
        """The settings of workers on a cluster; None of them means one worker, and as many GPUs as its engine needs."""
        for name in ("ray_address", "workers", "gpus_per_worker"):
            value = getattr(self, name)
            require(
                value is None or self.executor == "ray",
                f"--{name.replace('_', '-')} is for --executor ray",
                f"--executor {self.executor}",
            )
        require(self.workers is None or self.workers >= 1, "--workers must be at least 1", self.workers)
        gpus = self.gpus_per_worker
        require(
            gpus is None or 0 <= gpus < 1 or gpus == int(gpus),
            "--gpus-per-worker is a whole number, or a share of one GPU",
            gpus,
        )
        require(
            not gpus or gpus >= self.tensor_parallel_size or self.tensor_parallel_size == 1,
            "--gpus-per-worker must be at least --tensor-parallel-size",
            f"{gpus:g} and {self.tensor_parallel_size}" if gpus else gpus,
        )
        require(
            self.executor == "local" or self.data_parallel_size == 1,
            "--executor ray has --workers instead of --data-parallel-size",
            self.data_parallel_size,
        )
        require(self.worker_wait_seconds > 0, "worker-wait-seconds must be above 0", self.worker_wait_seconds)
        require(
            self.ray_address in (None, "auto") or re.fullmatch(r"[^/]+:\d+", str(self.ray_address)) is not None,
            "--ray-address is auto or HOST:PORT of the cluster's head, and the command runs on one of its machines",
            self.ray_address,
        )


class RunConfig(Struct, frozen=True, kw_only=True):
    """One whole run: `inputs` are paths, folders, globs or URIs; `output` is a file, or a folder for many shards."""

    inputs: tuple[str, ...]
    output: str
    identity: Identity = Identity()
    fold: FoldPolicy = FoldPolicy()
    columns: OutputOptions = OutputOptions()
    runtime: Runtime = Runtime()
