"""The base model as it is trained: with an adapter or with all its weights, attending over trees.

A model's folder and the recipe's settings flow in; a model of transformers, or of PEFT, flows out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from batchfact.distill.merged_lora import merge_while_training
from batchfact.distill.recipe import Lora, Train
from batchfact.distill.tree import use_trees
from batchfact.errors import UsageError


def load_model(base: Path, settings: Train, start: Path | None) -> Any:
    """The base ready for trees: with an adapter in float32 on weights in bfloat16, or all weights in float32.

    Raises: UsageError for an architecture whose attention cannot be exchanged, an adapter of another shape, or layers
        that cannot be trained as merged ones.
    """
    logging.disable_progress_bar()

    dtype = torch.bfloat16 if settings.lora and settings.bf16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True, trust_remote_code=False)
    try:
        use_trees(model)
    except ValueError as error:
        raise UsageError(f"{base} cannot be trained in document trees ({error})") from error
    if settings.lora is None:
        if start is not None:
            raise UsageError("--start begins from an adapter, so the recipe needs [train.lora]")
        return model
    tuned = _with_adapter(model, settings.lora, start)
    if settings.lora.merged:
        try:
            merge_while_training(tuned)
        except ValueError as error:
            raise UsageError(f"train.lora.merged: {error}; set it to false") from error
    return tuned


def _with_adapter(model: Any, lora: Lora, start: Path | None) -> Any:
    if start is not None:
        try:
            return PeftModel.from_pretrained(model, start, is_trainable=True)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"--start {start} does not fit this base ({str(error).splitlines()[0]})") from error
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
