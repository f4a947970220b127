"""The crash matrix: a scenario is stopped at every boundary, in every way, again inside its recovery, on every store.

A *scenario* is an agent and what a process does with it; a *history* is one way it went: processes one after the other,
each but the last killed, closed or aborted at one named boundary (``commit.<name>.before | inside | after``,
``effect.model | tool.start | end``). Every history that can be told of a scenario is played::

    scenario = Scenario("mail", agent=make_agent, prompt="write to Ada", world=list, check=check)
    print(await crash_matrix(scenario))

and after each of them it must hold that

- every invariant of ``check_invariants`` and ``check_trace`` does, and nothing is left open
- the conversation is one that an uninterrupted run makes, given the same outcomes and the same interruptions; each
  model request was shown what that run shows (``oracle``)
- a result is what the call's tool gave, or says that the outcome is not known; the latter exactly where a process found
  the call under way and was not allowed to run it again. No tool was started more often than policies and stops allow
- an answer is interrupted exactly where a process found its request under way, and its charge is unknown
- a recovery with nothing to do writes nothing; one that was itself stopped ends as one that was not, but for the calls
  that the second stop interrupted
- the world is as the scenario's own ``check`` wants it

``python -m agentlane.testing.matrix`` plays the library's own scenarios. Files: ``scenario`` what is played, ``stops``
where it is stopped, ``runner`` the loops, ``lives`` one process, ``history`` what outlives it, ``witness`` and
``found`` what happened outside of the store, ``checks``, ``oracle`` and ``compare`` what must hold, ``report``.
"""

from agentlane.testing.matrix.boundaries import library_boundaries
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.report import CrashFailure, CrashMatrixError, CrashReport
from agentlane.testing.matrix.runner import Depth, crash_matrix
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.matrix.stops import Stop

__all__ = [
    "CrashFailure",
    "CrashMatrixError",
    "CrashReport",
    "Depth",
    "History",
    "Life",
    "Scenario",
    "Stop",
    "crash_matrix",
    "library_boundaries",
]
