"""Which models there are, where their weights come from, and how they get onto this machine.

A model's name flows in; a local folder with config.json, safetensors weights and a tokenizer flows out. The package
knows nothing of engines, prompts or pairs, and imports no model library until it has to fetch something.
"""

from batchfact.models.digest import model_digest
from batchfact.models.fetch import is_local, locate, locate_config, pull
from batchfact.models.registry import (
    ModelEntry,
    TrainedMode,
    add_model,
    find_model,
    known_entry,
    list_models,
    registered,
)

__all__ = [
    "ModelEntry",
    "TrainedMode",
    "add_model",
    "find_model",
    "is_local",
    "known_entry",
    "list_models",
    "locate",
    "locate_config",
    "model_digest",
    "pull",
    "registered",
]
