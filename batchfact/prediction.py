"""What a run over an input will cost on a device: `plan`'s arithmetic, with the model's own shape and tokenizer.

Only config.json and the tokenizer are read; weights are neither needed nor fetched from a hub.
"""

from __future__ import annotations

from pathlib import Path

from batchfact.config import RunConfig
from batchfact.cost.devices import Device, find_device
from batchfact.cost.roofline import Prediction, predict
from batchfact.cost.shape import read_shape
from batchfact.engines.model_facts import cpu_has_bfloat16
from batchfact.models import find_model, locate_config
from batchfact.planning import InputPlan, TokenRates, plan_input
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
    return plan_input(source, config, measure_rates(source, config, entry, locate_config(entry), block=block))


def predict_run(plan: InputPlan, config: RunConfig, device: Device, *, devices: int = 1) -> Prediction:
    """Time and memory of a run, without the engine's start.

    Raises: UsageError for a model whose cost is not known.
    """
    return predict(read_shape(locate_config(find_model(config.identity.model))), plan.work, device, devices=devices)
