"""Random operations on the engine core, far more than a test run can afford.

    python benchmarks/soak_random_operations.py [--operations 1000000] [--seed 1] [--overlap]

See tests/support/random_operations.py for what is done and checked. Prints what happened; a
violation ends in an AssertionError. Runs that were made are listed in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from random_operations import Driver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--overlap", action="store_true", help="launch steps before the last one is read"
    )
    arguments = parser.parse_args()

    driver = Driver(arguments.seed, overlaps=arguments.overlap)
    started_s = time.perf_counter()
    driver.run(arguments.operations)
    print(f"{arguments.operations:,} operations, seed {arguments.seed}: no violation")
    print(f"  {time.perf_counter() - started_s:.0f} s")
    print(f"  {dict(driver.counts)}")
    print(f"  {driver.kv.statistics()}")
    found = driver.core.statistics()
    print(f"  {found.scheduler}")
    if arguments.overlap:
        steps = found.steps
        print(f"  {steps.num_ahead:,} steps ahead, {steps.discarded_rows:,} rows thrown away")


if __name__ == "__main__":
    main()
