"""Write requirements/cpu.txt: all packages of `.[cpu,openai,eval,distill,ray,dev]`, pinned: Linux, x86-64, Python 3.11.

Run by `make lock`. pip resolves (nothing is installed), and what scoring never imports is left out, so the lock is
installed with `pip install --no-deps`. With `--check NAME...` it only tells whether other packages could join the lock.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cpu", "openai", "eval", "distill", "ray", "dev")
# PyTorch's public index of CPU builds, asked only where pip's own configuration has no such build.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

# Why a package that vLLM declares is not in the lock; each was shown to be unneeded by running vLLM without it.
LEFT_OUT = {
    "images, sound and video: scoring reads text": ("torchvision torchaudio torchcodec opencv-python-headless"),
    "kernels for GPUs, 1 GB; vLLM turns it off on a CPU": "triton",
    "speculative decoding by n-grams": "numba llvmlite",
    "what vLLM's HTTP server starts without (the openai engine is tested against it), and cloud tools": (
        "agent-detector detect-installer email-validator dnspython fastapi-cli fastapi-cloud-cli fastar httptools "
        "ijson python-dotenv python-json-logger rich-toolkit rignore sentry-sdk websockets"
    ),
    "clients and protocols of other services": (
        "anthropic docstring-parser mcp mcp-types pydantic-settings pyjwt sse-starlette"
    ),
    "a backend of structured output that batchfact does not choose": "outlines-core",
}

HEAD = f"""\
# Every package of batchfact's CPU environment, pinned: Linux, x86-64, Python 3.11. Made by `make lock`; do not edit.
# Install with: pip install --no-deps -r requirements/cpu.txt
# Where pip finds no CPU build of torch, add: --extra-index-url {TORCH_INDEX}
"""


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--check"]:
        pins = resolve([*read_pins(), *arguments[1:]])
        print("\n".join(sorted(f"{name}=={version}" for name, version in pins.items())))
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    # The editable install builds batchfact with the lock's own setuptools.
    pins = resolve([*wanted, "setuptools"])
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}
    if unknown := left_out - pins.keys():
        print(f"no longer resolved, remove from LEFT_OUT: {', '.join(sorted(unknown))}", file=sys.stderr)
    kept = sorted(f"{name}=={version}\n" for name, version in pins.items() if name not in left_out)
    (ROOT / "requirements" / "cpu.txt").write_text(HEAD + "".join(kept))
    print(f"requirements/cpu.txt: {len(kept)} packages, {len(left_out)} left out")


def read_pins() -> list[str]:
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def resolve(wanted: list[str]) -> dict[str, str]:
    """The versions that pip would install for `wanted` in an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), *wanted]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
            subprocess.run([*command, "--extra-index-url", TORCH_INDEX], check=True)
        found = json.loads(report.read_text())["install"]
    return {normalised(each["metadata"]["name"]): each["metadata"]["version"] for each in found}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(sys.argv[1:])
