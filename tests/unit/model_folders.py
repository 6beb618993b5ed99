"""Folders that look like a model's, with a few bytes for weights."""

from __future__ import annotations

import json
from pathlib import Path


def write_folder(folder: Path, *, without: str = "", **config: object) -> Path:
    """A complete folder, less the file named `without`."""
    folder.mkdir(parents=True)
    files = {
        "config.json": json.dumps({"model_type": "llama"} | config),
        "model.safetensors": "weights",
        "tokenizer.json": "{}",
    }
    for name, text in files.items():
        if name != without:
            (folder / name).write_text(text)
    return folder
