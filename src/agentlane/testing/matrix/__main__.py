"""The command: plays the library's own scenarios on every store, and prints how many processes it killed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from agentlane.testing.matrix.builtin import SCENARIOS
from agentlane.testing.matrix.report import CrashMatrixError
from agentlane.testing.matrix.runner import Depth, crash_matrix
from agentlane.testing.matrix.stores import STORES

QUICK_EVERY = 5
"""Without ``--whole`` each scenario is stopped at every fifth boundary, a different fifth on each store."""
QUICK_AGAIN = 23


def main() -> int:
    """Run the command; 1 if any history did not end as it must."""
    parser = argparse.ArgumentParser(
        prog="python -m agentlane.testing.matrix",
        description="Stop the library's own scenarios at every boundary and show that each ends as it must.",
    )
    parser.add_argument(
        "--whole", action="store_true", help="every boundary, and every second stop in memory (minutes)"
    )
    parser.add_argument("--store", choices=sorted(STORES), action="append", help="only this store; may be repeated")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="only scenarios with this text in their name")
    parser.add_argument("--only", metavar="STOPS", help="only this history, as a failure names it")
    given = parser.parse_args()
    logging.getLogger("agentlane").setLevel(logging.CRITICAL)  # findings of processes that are killed on purpose
    chosen = [each for each in SCENARIOS if given.scenario in each.name]
    if not chosen:
        parser.error(f"no scenario has {given.scenario!r} in its name; there are {[each.name for each in SCENARIOS]}")
    stores = given.store or sorted(STORES)
    depth = Depth() if given.whole else Depth(every=QUICK_EVERY, again=QUICK_AGAIN)
    try:
        report = asyncio.run(
            crash_matrix(
                chosen,
                stores=stores,
                depth=depth,
                only=given.only,
                every_boundary=given.only is None and not given.scenario,
                progress=lambda line: _say(line),
            )
        )
    except CrashMatrixError as error:
        _say(error.report.summary())
        return 1
    _say(report.summary())
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
