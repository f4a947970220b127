"""The command: plays the library's own scenarios on every store, and prints how many processes it killed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any

from agentlane.testing.matrix.boundaries import library_boundaries
from agentlane.testing.matrix.builtin import SCENARIOS
from agentlane.testing.matrix.builtin.reach import reach_everywhere, reach_pairs_in_parallel, reach_pairs_one_by_one
from agentlane.testing.matrix.report import CrashMatrixError, CrashReport
from agentlane.testing.matrix.runner import Depth, crash_matrix
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.matrix.stores import STORES

QUICK_EVERY = 12
"""Without ``--whole`` each scenario is stopped at every twelfth boundary, at others on each store. What that sample
leaves out of boundaries, states and policies is reached by histories of its own first."""
QUICK_AGAIN = 40


def main() -> int:
    """Run the command; 1 if any history did not end as it must, or a boundary was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m agentlane.testing.matrix",
        description="Stop the library's own scenarios at every boundary and show that each ends as it must.",
    )
    parser.add_argument("--whole", action="store_true", help="every boundary, every second stop in memory")
    parser.add_argument("--store", choices=sorted(STORES), action="append", help="only this store; may be repeated")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="only scenarios with this text in their name")
    parser.add_argument("--only", metavar="STOPS", help="only this history, as a failure names it")
    given = parser.parse_args()
    logging.getLogger("agentlane").setLevel(logging.CRITICAL)  # findings of processes that are killed on purpose
    chosen = [each for each in SCENARIOS if given.scenario in each.name]
    if not chosen:
        parser.error(f"no scenario has {given.scenario!r} in its name; there are {[each.name for each in SCENARIOS]}")
    depth = Depth() if given.whole else Depth(every=QUICK_EVERY, again=QUICK_AGAIN)
    report = asyncio.run(_play(chosen, given.store or list(STORES), depth, given.only))
    if not (given.only or given.scenario):
        report.missed = sorted(library_boundaries() - report.killed_rows())
    _say(report.summary())
    return 0 if report.passed else 1


async def _play(
    scenarios: Sequence[Scenario[Any]], stores: Sequence[str], depth: Depth, only: str | None
) -> CrashReport:
    report = CrashReport()
    try:
        if only is None and len(scenarios) == len(SCENARIOS):
            for reach in (reach_everywhere, reach_pairs_in_parallel, reach_pairs_one_by_one):
                report.merge(await reach())
            killed = f"{report.kills} kills, at {len(report.killed_rows())} of {len(library_boundaries())} boundaries"
            _say(f"everywhere once: {killed}, with each pair of stored and current policies\n")
        report.merge(await crash_matrix(scenarios, stores=stores, depth=depth, only=only, progress=_say))
    except CrashMatrixError as error:
        report.merge(error.report)
    return report


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
