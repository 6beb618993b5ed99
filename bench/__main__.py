"""`python -m bench NAME ...`: run one measurement."""

from __future__ import annotations

import argparse

from bench import (
    ablation,
    accuracy,
    agreement,
    alignment,
    crashes,
    driver,
    flips,
    host,
    memory,
    plan,
    scaling,
    sharing,
    soak,
    tables,
    throughput,
    workers,
)

MEASUREMENTS = {
    "ablation": ablation,
    "accuracy": accuracy,
    "agreement": agreement,
    "alignment": alignment,
    "crashes": crashes,
    "driver": driver,
    "flips": flips,
    "host": host,
    "memory": memory,
    "plan": plan,
    "scaling": scaling,
    "sharing": sharing,
    "soak": soak,
    "tables": tables,
    "throughput": throughput,
    "workers": workers,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, module in MEASUREMENTS.items():
        command = commands.add_parser(name, help=module.__doc__, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(measure=module.measure)
    args = parser.parse_args()
    args.measure(args)


if __name__ == "__main__":
    main()
