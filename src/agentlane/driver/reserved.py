"""What the library names itself: an application cannot use the ids of calls, nor the lanes of runs that calls are."""

from __future__ import annotations

from agentlane.data.operations import Generating, Tools
from agentlane.driver.lane_core import LaneCore
from agentlane.errors import InvalidName, RequestConflict
from agentlane.ids import call_index

CHILD_PREFIX = "child:"
_ID_LENGTH = 36


def child_lane(operation_id: str) -> str:
    """The name of the lane on which the run of another agent goes, whose operation has this id."""
    return f"{CHILD_PREFIX}{operation_id}"


def check_free_name(name: str, what: str) -> None:
    """Raise for a name under which only a call makes a lane."""
    if name.startswith(CHILD_PREFIX):
        raise InvalidName(
            f"{what} {name!r}: names that begin with {CHILD_PREFIX!r} are those of runs that calls make; it is there "
            "once the call has started, which session.watch() tells; choose another name for one of your own",
            value=name,
        )


async def check_free_id(lane: LaneCore, operation_id: str) -> None:
    """Raise for an operation id that is the id of a call of an answer that is here."""
    answer = _answer_of(operation_id)
    if answer is not None and (await lane.runtime.storage.entries([answer]))[0] is not None:
        raise _taken(operation_id)


def check_no_open_call(lane: LaneCore, operation_id: str) -> None:
    """The same for calls of answers that are under way on any lane, at the head of a line."""
    if _answer_of(operation_id) is None:
        return
    for core in lane.lanes.values():
        state = None if core.operation is None else core.operation.state
        answer = state.answer if isinstance(state, Tools) else None
        answer = state.response_id if isinstance(state, Generating) else answer
        if answer is not None and call_index(answer, operation_id) is not None:
            raise _taken(operation_id)


def _answer_of(operation_id: str) -> str | None:
    """The answer whose call would have this id, if it has the form of one."""
    answer = f"{operation_id[:-4]}0000"
    fits = len(operation_id) == _ID_LENGTH and call_index(answer, operation_id) is not None
    return answer if fits else None


def _taken(operation_id: str) -> RequestConflict:
    return RequestConflict(
        f"operation id {operation_id!r} is the id of a call of this session; use a new id", operation_id=operation_id
    )
