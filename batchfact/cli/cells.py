"""What `batchfact compare` starts for the cells of one engine: `python -m batchfact.cli.cells`.

A `Series` comes in as JSON on standard input. Events go out on standard output, one a line; all else goes to standard
error.
"""

from __future__ import annotations

import os
import sys

import anyio
import msgspec

from batchfact.cli.display import shown
from batchfact.compare.series import Event, Series, run_series
from batchfact.stopping import EXIT_CODE, InterruptedRunError


def main() -> None:
    """Exit codes: 0 every run has ended, 130 stopped."""
    series = msgspec.json.decode(sys.stdin.buffer.read(), type=Series)
    # Nothing but events may be read as one, whatever the engine's libraries print.
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(event: Event) -> None:
        events.write(msgspec.json.encode(event) + b"\n")

    try:
        anyio.run(lambda: run_series(series, tell=tell, display=shown))
    except (InterruptedRunError, KeyboardInterrupt):
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
