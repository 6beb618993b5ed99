"""Runs arms in processes of their own, one after the other, and keeps what they did.

A run that has finished is not done again, so a measurement of hours can be stopped and gone on with.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec
import psutil
from msgspec import Struct

from batchfact.metadata import versions
from bench.facts import ROOT, without_folders
from bench.throughput.task import ArmRecord, Result, Task, encode_task

SAMPLE_S = 1.0
END_S = 30.0
"""How long a process that ran too long may take to end by itself."""

Status = Literal["ok", "failed", "not run"]


class Done(Struct, kw_only=True):
    """One arm's run. `started_at` is of the same clock as the record's times; `peak_bytes` of all its processes."""

    status: Status
    reason: str | None = None
    started_at: float = 0.0
    wall_s: float = 0.0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    record: ArmRecord | None = None


class RunKey(Struct, frozen=True, kw_only=True):
    """What a kept run was made from: another state of the code, setting or input makes another key."""

    task: Task
    environment: dict[str, str]
    turn: int
    code: str
    input_digest: str

    def name(self) -> str:
        task = msgspec.structs.replace(self.task, folder=Path(), input=Path(self.task.input.name))
        digest = hashlib.sha256(encode_task(msgspec.structs.replace(self, task=task)))
        return f"{task.input.stem}-{task.arm}-{self.turn}-{digest.hexdigest()[:10]}"


def code_digest() -> str:
    """A digest of what runs in an arm's process: batchfact with its prompts, the arms, and the packages' versions."""
    digest = hashlib.sha256(repr(sorted(versions().items())).encode())
    here = ROOT / "bench" / "throughput"
    shared = [here / name for name in ("prompts.py", "inputs.py", "task.py", "worker.py")]
    files = [file for folder in (ROOT / "batchfact", here / "arms") for file in folder.rglob("*") if file.is_file()]
    for file in sorted(each for each in (*files, *shared) if each.suffix != ".pyc"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def run_once(key: RunKey, work: Path, limit_s: float) -> Done:
    """The arm's run, from the work folder where it is finished there; a failure is a result too, but is not kept."""
    kept = work / "runs" / f"{key.name()}.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Done)
    folder = work / "runs" / key.name()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Compiled modules are kept with the runs, so that no arm's start pays for compiling them but the first one's.
    warm = {"PYTHONPYCACHEPREFIX": str((work / "pycache").resolve()), "PYTHONDONTWRITEBYTECODE": ""}
    done = _run(msgspec.structs.replace(key.task, folder=folder.resolve()), key.environment | warm, limit_s)
    if done.status == "ok":
        kept.write_bytes(msgspec.json.encode(done))
    return done


def _run(task: Task, environment: dict[str, str], limit_s: float) -> Done:
    task_file, result_file, log_file = (task.folder / name for name in ("task.json", "result.json", "log.txt"))
    task_file.write_bytes(encode_task(task))
    command = [sys.executable, "-m", "bench.throughput.worker", str(task_file), str(result_file)]
    started_at = time.monotonic()
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, cwd=ROOT
        )
        peak_bytes, cpu_s, in_time = _watch(process, started_at + limit_s)
    done = Done(
        status="failed",
        started_at=started_at,
        wall_s=time.monotonic() - started_at,
        peak_bytes=peak_bytes,
        cpu_s=cpu_s,
    )
    if not in_time:
        done.reason = f"took longer than {limit_s:,.0f} s"
    elif process.returncode or not result_file.exists():
        done.reason = _last_line(log_file) or f"exit code {process.returncode}"
    else:
        result = msgspec.json.decode(result_file.read_bytes(), type=Result)
        done.record, done.reason = result.record, result.not_run
        done.status = "not run" if result.record is None else "ok"
    return done


def _watch(process: subprocess.Popen[bytes], until: float) -> tuple[int, float, bool]:
    """Peak memory (bytes) and CPU time (s) of a process and its children, and whether it ended in time."""
    peak, cpu_s = 0, 0.0
    seen: dict[int, float] = {}
    while process.poll() is None:
        if time.monotonic() > until:
            _end(process)
            return peak, sum(seen.values()), False
        used = 0
        for each in _family(process.pid):
            try:
                used += _memory(each)
                times = each.cpu_times()
                seen[each.pid] = times.user + times.system
            except psutil.Error:
                continue  # it has ended meanwhile
        peak = max(peak, used)
        cpu_s = sum(seen.values())
        time.sleep(SAMPLE_S)
    return peak, cpu_s, True


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _memory(process: psutil.Process) -> int:
    """Bytes of its own: what it shares with others is divided among them, where the system can tell."""
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children: politely first, so that shared memory is freed."""
    family = _family(process.pid)
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=END_S)
    for each in alive:
        each.kill()
    process.wait()


def _last_line(log_file: Path) -> str:
    lines = [line.strip() for line in log_file.read_text(encoding="utf-8", errors="replace").splitlines()]
    return without_folders(next((line for line in reversed(lines) if line), ""))[:300]
