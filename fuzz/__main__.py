"""`python -m fuzz TARGET`: libFuzzer, through atheris, on one target for some seconds.

What it finds beside the corpus stays in `build/fuzz/TARGET`; an input that breaks a promise is kept there as `crash-*`.
`python -m fuzz all` runs every target, each in a process of its own, and writes how long and how often to
`bench/results/fuzz.json`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.facts import ROOT, command_line, write_result

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 4096
DONE = re.compile(r"^Done (\d+) runs in", re.MULTILINE)
COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    args = parser.parse_args()
    if args.target == "all":
        run_all(args.seconds)
    else:
        fuzz(args.target, args.seconds)


def fuzz(name: str, seconds: int) -> None:
    """Ends the process."""
    import atheris

    with atheris.instrument_imports(include=["batchfact"]):
        from fuzz.targets import TARGETS

    found = ROOT / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    words = [str(found), str(CORPUS / name), f"-max_len={MAX_BYTES}", f"-max_total_time={seconds}", "-timeout=20"]
    atheris.Setup([sys.argv[0], *words, f"-artifact_prefix={found}/", "-rss_limit_mb=4096"], TARGETS[name])
    atheris.Fuzz()


def run_all(seconds: int) -> None:
    from fuzz.targets import TARGETS

    results = {name: run_apart(name, seconds) for name in TARGETS}
    write_result("fuzz", {"command": command_line("fuzz", sys.argv[1:]), "targets": results})
    if any(result["exit_code"] for result in results.values()):
        sys.exit(1)


def run_apart(name: str, seconds: int) -> dict[str, Any]:
    started = time.monotonic()
    command = [sys.executable, "-m", "fuzz", name, "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    runs, covered = DONE.search(done.stderr), COVERAGE.findall(done.stderr)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    return {
        "seconds": round(time.monotonic() - started, 1),
        "executions": int(runs[1]) if runs else None,
        "covered_edges": int(covered[-1][0]) if covered else None,
        "exit_code": done.returncode,
    }


if __name__ == "__main__":
    main()
