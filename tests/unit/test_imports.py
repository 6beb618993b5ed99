"""Imports go one way, as docs/ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "batchfact"

LAYERS: list[set[str]] = [
    {"records", "errors", "durable", "durations", "toml_text", "object_stores"},
    {"calibration", "config", "gold", "sharding"},
    {"text", "engines.base", "prompts", "progress", "metadata", "cost"},
    {"paradigms"},
    {"models", "spill", "input_files", "run_file", "run_log", "journal_parts", "journal_merging"},
    {"source", "grouping", "assembly", "admission", "shared_prefixes", "engines", "journal", "settings"},
    {"disk_space", "output_files"},
    {"sink", "committing", "stopping", "demonstrations", "supervision", "lending", "metrics"},
    {"scheduler", "preparation"},
    {"executors"},
    {"pipeline", "planning", "token_rates", "prediction", "explaining", "reducing", "merging", "watching", "diagnosis"},
    {"api", "ray", "evaluate", "report", "distill"},
    {"scored_file"},
    {"reporting", "reporting_metrics", "compare"},
    {"comparing"},
    {"", "cli", "__main__"},
]
"""From the bottom up. A module may import its own layer and those above in this list."""

ONLY_IN = {
    "vllm": {"engines"},
    "torch": {"engines", "distill", "cost"},
    "accelerate": {"distill"},
    "peft": {"distill"},
    "xgrammar": {"engines"},
    "openai": {"engines"},
    "ray": {"executors", "ray"},
    "typer": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"metrics"},
}
"""Packages that only these of our packages may import."""


def name_of(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix("__init__").rstrip(".")


def layer_of(module: str) -> int:
    """The layer of the longest name in LAYERS that is the module or a package of it."""
    names = [".".join(module.split(".")[:n]) for n in range(module.count(".") + 1, 0, -1)]
    for name in names:
        for number, layer in enumerate(LAYERS):
            if name in layer:
                return number
    raise AssertionError(f"batchfact.{module} has no layer: add it where it belongs")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


def known(module: str) -> bool:
    return (PACKAGE / Path(*module.split("."))).with_suffix(".py").exists() or (
        PACKAGE / Path(*module.split(".")) / "__init__.py"
    ).exists()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down_the_layers_only(path: Path) -> None:
    own = layer_of(name_of(path))
    ours = {name.removeprefix("batchfact.") for name in imports_of(path) if name.startswith("batchfact.")}
    wrong = {name for name in ours if known(name) and layer_of(name) > own}

    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_some_packages_are_imported_in_their_homes_only(path: Path) -> None:
    own = name_of(path).split(".")[0]
    wrong = {
        name
        for name in imports_of(path)
        for package, homes in ONLY_IN.items()
        if name.split(".")[0] == package and own not in homes
    }

    assert not wrong
