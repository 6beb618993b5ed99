"""What a run over an input will cost on a device: `plan`'s arithmetic, with the model's own shape and tokenizer.

Only config.json and the tokenizer are read; weights are neither needed nor fetched from a hub.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from batchfact.config import RunConfig
from batchfact.cost.devices import Device, find_device
from batchfact.cost.roofline import Prediction, predict
from batchfact.cost.shape import read_shape
from batchfact.engines.model_facts import DEFAULT_MAX_MODEL_LEN, cpu_has_bfloat16, read_model
from batchfact.models import ModelEntry, find_model, locate_config
from batchfact.planning import InputPlan, TokenRates, plan_input
from batchfact.settings import reasons
from batchfact.source import Source
from batchfact.token_rates import measure_rates


def find_planned_device(name: str, measured: Path | None = None) -> Device:
    """As `find_device`; a CPU is measured in the data type that an engine takes there."""
    return find_device(name, measured, cpu_dtype="bfloat16" if cpu_has_bfloat16() else "float32")


def count_tokens(source: Source, config: RunConfig, device: Device | None, *, has_model: bool) -> InputPlan:
    """The input's plan: by the model's tokenizer where a model is meant, else by guesses for English.

    Raises: UsageError where the model cannot be had.
    """
    block = device.block_tokens if device else TokenRates().block
    if not has_model:
        return plan_input(source, config, TokenRates(block=block))
    entry = find_model(config.identity.model)
    folder = locate_config(entry)
    config = _as_run(config, entry, folder)
    return plan_input(source, config, measure_rates(source, config, entry, folder, block=block))


def _as_run(config: RunConfig, entry: ModelEntry, folder: Path) -> RunConfig:
    """The settings with what a run takes from the model where nothing is given: its context, and whether it reasons."""
    identity = config.identity
    context = min(read_model(folder).max_tokens or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)
    resolved = msgspec.structs.replace(
        identity, max_model_len=identity.max_model_len or context, reasoning=reasons(identity, entry)
    )
    return msgspec.structs.replace(config, identity=resolved)


def predict_run(plan: InputPlan, config: RunConfig, device: Device, *, devices: int = 1) -> Prediction:
    """Time and memory of a run, without the engine's start.

    Raises: UsageError for a model whose cost is not known.
    """
    return predict(read_shape(locate_config(find_model(config.identity.model))), plan.work, device, devices=devices)
