"""Claim: what must hold among the records of a session is looked at record by record: each kind of fault is seen where
it is, and a session in the middle of everything has none."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from agentlane import Agent, Prompt, Tool, ToolContext, open_session
from agentlane.data import addresses, codec
from agentlane.data.entries import Compaction, Custom
from agentlane.data.inbox import QueuedInput, QueuedItem
from agentlane.data.messages import AssistantMessage, TextPart, ToolCallPart, ToolResultMessage, user
from agentlane.data.operations import Generating, LaneState, Navigating, Placed, Summarizing, SummaryPrep, Tools
from agentlane.data.records.check import RecordCheck
from agentlane.data.records.faults import KINDS, Fault
from agentlane.data.records.mending import Mending, StandIn
from agentlane.data.requests import Navigate
from agentlane.data.usage import Stats, Usage, UsageRow
from agentlane.data.writes import Address
from agentlane.ids import call_id, usage_id
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, ValueRow
from agentlane.testing import ManualClock, ScriptedModel, call
from agentlane.testing.clock import CountingIds

GHOST = CountingIds(series=99).new()
TASK = CountingIds(series=96).new()


class Records:
    """All rows of a session, to be damaged: a batch with a call placed, one running, one staged, one that asks."""

    def __init__(self, rows: list[Row], stats: Stats, op: str) -> None:
        self.entries = [row for row in rows if isinstance(row, EntryRow)]
        self.ledger = [row for row in rows if isinstance(row, LedgerRow)]
        self.elements = [row for row in rows if isinstance(row, ElementRow)]
        self.values = {row.address: row.payload for row in rows if isinstance(row, ValueRow)}
        self.stats = stats
        self.op = op
        state = codec.STATE.decode(self.values[addresses.op_state(op)], "state")
        assert isinstance(state, Tools)
        self.state = state

    def faults(self) -> list[Fault]:
        check = RecordCheck()
        for row in self.entries:
            check.entry(row.id, row.parent_id, row.seq, row.kind, row.payload)
        for ledger in self.ledger:
            check.usage(ledger.row)
        for element in self.elements:
            check.element(element.address, element.payload)
        for address, payload in self.values.items():
            check.value(address, payload)
        return list(check.finish(self.stats))

    def call(self, index: int) -> str:
        return call_id(self.state.answer, index)

    def set(self, address: Address, record: Any) -> None:
        self.values[address] = codec.encode(record)

    def add(self, parent: str | None, body: Any, kind: str, id: str = GHOST) -> None:
        self.entries.append(EntryRow(id, parent, 10_000, 1, kind, codec.encode(body)))
        self.stats = replace(self.stats, entries=self.stats.entries + 1)

    def drop_entry(self, id: str) -> None:
        self.entries = [row for row in self.entries if row.id != id]
        self.stats = replace(self.stats, entries=self.stats.entries - 1)

    def change(self, id: str, payload: bytes) -> None:
        self.entries = [row._replace(payload=payload) if row.id == id else row for row in self.entries]

    @property
    def queued(self) -> Address:
        return next(address for address in self.values if address.namespace == addresses.INBOX)


@pytest.fixture
async def records() -> AsyncIterator[Records]:
    release, staged = asyncio.Event(), asyncio.Event()

    async def quick(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "quick"

    async def slow(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.set_memo("step", 1)
        await ctx.progress("half")
        staged.set()
        await release.wait()
        return "slow"

    calls = [call("quick"), call("slow"), call("quick"), call("asks")]
    agent: Agent[Any, Any] = Agent(
        model=ScriptedModel(["hello", calls, "done"]),
        tools=[Tool("quick", quick), Tool("slow", slow, replay="safe"), Tool("asks", quick, approval=True)],
    )
    async with open_session(":memory:", clock=ManualClock(), ids=CountingIds()) as session:
        lane = await session.lane("main", agent)
        await lane.run("hi")
        await session.set_label(str(lane.tip()), "first")
        admitted = await lane.accept(Prompt("go"))
        driving = asyncio.create_task(lane.drive())
        await staged.wait()
        await lane.follow_up("and then", request_id="r")
        while [each.status for each in lane.inspect().operation.calls][2:] != ["outcome_ready", "waiting_approval"]:
            await asyncio.sleep(0)
        snapshot = await session._runtime.storage.snapshot()
        rows = [row async for page in snapshot.pages() for row in page]
        await snapshot.close()
        yield Records(rows, session.stats(), admitted.operation_id)
        driving.cancel()


async def test_a_session_in_the_middle_of_everything_has_none(records: Records) -> None:
    kinds = [type(each).__name__ for each in records.state.calls]

    assert kinds == ["Placed", "EffectPending", "OutcomeReady", "WaitingApproval"]
    assert records.faults() == []


class Damage(NamedTuple):
    """Something done to the records, and the places at which a fault must be told of for it."""

    code: str
    places: Callable[[Records], set[str]]
    do: Callable[[Records], None]
    operation: bool = False
    """Whether the open operation can no longer be trusted."""


def _answer(at: Records) -> set[str]:
    return {f"entry {at.state.answer}"}


def _result(at: Records, index: int) -> ToolResultMessage:
    return ToolResultMessage(call_id=f"call_2_{index + 1}", name="quick", content=(TextPart(text="x"),))


def _first(at: Records) -> str:
    return at.entries[0].id


DAMAGES: dict[str, Damage] = {
    "an open question of nobody": Damage(
        "approval",
        lambda at: {f"pending.approval/{GHOST}"},
        lambda at: at.values.update(
            {
                addresses.pending_approval(GHOST): codec.encode(
                    replace(_question(at), approval_id=GHOST, call_id=at.call(1))
                )
            }
        ),
        operation=True,
    ),
    "a question under another's id": Damage(
        "approval",
        lambda at: {f"pending.approval/{_question(at).approval_id}"},
        lambda at: at.set(
            addresses.pending_approval(_question(at).approval_id), replace(_question(at), approval_id=GHOST)
        ),
        operation=True,
    ),
    "a question of another lane": Damage(
        "approval",
        lambda at: {f"pending.approval/{_question(at).approval_id}"},
        lambda at: at.set(addresses.pending_approval(_question(at).approval_id), replace(_question(at), lane="side")),
        operation=True,
    ),
    "a question that is gone": Damage(
        "approval",
        lambda at: {f"pending.approval/{at.state.calls[3].approval}"},  # type: ignore[union-attr]
        lambda at: _forget(at, addresses.PENDING_APPROVAL),
        operation=True,
    ),
    "a result that ends nowhere": Damage(
        "bad_result",
        lambda at: {str.join("/", each) for each in at.values if each.namespace == addresses.RESULT},
        lambda at: _change_result(at, to_tip=GHOST),
    ),
    "a record of another operation": Damage(
        "bad_result",
        lambda at: {str.join("/", each) for each in at.values if each.namespace == addresses.RESULT},
        lambda at: _change_result(at, operation_id="other"),
    ),
    "a state with a call too few": Damage(
        "batch",
        _answer,
        lambda at: at.set(addresses.op_state(at.op), replace(at.state, calls=at.state.calls[:-1])),
        operation=True,
    ),
    "calls of what is no answer": Damage(
        "batch",
        lambda at: {f"op.state/{at.op}"},
        lambda at: at.change(at.state.answer, b"{}"),
        operation=True,
    ),
    "placed calls that are no prefix": Damage(
        "batch",
        _answer,
        lambda at: at.set(addresses.op_state(at.op), replace(at.state, calls=(*at.state.calls[:3], Placed()))),
        operation=True,
    ),
    "an operation of a call that does not wait for it": Damage(
        "child_run",
        lambda at: {f"op.meta/{at.op}"},
        lambda at: _change_meta(at, parent_call={"lane": "main", "operation_id": "other"}),
        operation=True,
    ),
    "an entry that comes twice": Damage(
        "duplicate_id", lambda at: {f"entry {_first(at)}"}, lambda at: at.add(None, user("x"), "user", _first(at))
    ),
    "a ledger row with the id of an entry": Damage(
        "duplicate_id",
        lambda at: {f"usage row {_first(at)}"},
        lambda at: _charge(at, UsageRow(id=_first(at), kind="adjustment", usage=Usage())),
    ),
    "a lane without its configuration": Damage(
        "half_lane", lambda at: {"lane.state/main"}, lambda at: _forget(at, addresses.LANE_CONFIG)
    ),
    "a lane without a tip": Damage(
        "half_lane", lambda at: {"lane.state/main"}, lambda at: _forget(at, addresses.BRANCH_TIP)
    ),
    "an operation without its configuration": Damage(
        "half_operation", lambda at: {f"op.meta/{at.op}"}, lambda at: _forget(at, addresses.OP_CONFIG), operation=True
    ),
    "an operation without its state": Damage(
        "half_operation", lambda at: {f"op.meta/{at.op}"}, lambda at: _forget(at, addresses.OP_STATE), operation=True
    ),
    "a state without its operation": Damage(
        "half_operation",
        lambda at: {f"op.state/{at.op}", f"op.config/{at.op}"},
        lambda at: _forget(at, addresses.OP_META),
        operation=True,
    ),
    "a queued item with a place that is taken": Damage(
        "inbox",
        lambda at: {f"inbox/main|{GHOST}"},
        lambda at: at.values.update(
            {
                addresses.inbox("main", GHOST): codec.encode(
                    QueuedItem(kind="steer", entries=(GHOST,), order=_item(at).order)
                ),
                addresses.pending_entry(GHOST): codec.encode(user("x")),
            }
        ),
    ),
    "a queued item on a lane that is not there": Damage(
        "inbox",
        lambda at: {f"inbox/other|{GHOST}"},
        lambda at: at.values.update(
            {
                addresses.inbox("other", GHOST): codec.encode(QueuedItem(kind="steer", entries=(GHOST,), order=1)),
                addresses.pending_entry(GHOST): codec.encode(user("x")),
            }
        ),
    ),
    "queued items that share an entry": Damage(
        "inbox",
        lambda at: {f"inbox/main|{GHOST}"},
        lambda at: at.values.update(
            {
                addresses.inbox("main", GHOST): codec.encode(
                    QueuedItem(kind="steer", entries=(GHOST, _item(at).entries[0]), order=99)
                ),
                addresses.pending_entry(GHOST): codec.encode(user("x")),
            }
        ),
    ),
    "a queued message that cannot be read": Damage(
        "inbox",
        lambda at: {str.join("/", at.queued)},
        lambda at: at.values.update({addresses.pending_entry(_item(at).entries[0]): b"{"}),
    ),
    "what an abort gave back, without the abort": Damage(
        "left_over",
        lambda at: {f"op.returned/{at.op}"},
        lambda at: at.set(addresses.op_returned(at.op), []),
        operation=True,
    ),
    "what an abort gave back and waits still": Damage(
        "reserved_id",
        lambda at: {f"op.returned/{at.op}"},
        lambda at: at.set(
            addresses.op_returned(at.op),
            [QueuedInput(id=_item(at).entries[0], kind="follow_up", content=(user("x"),))],
        ),
        operation=True,
    ),
    "a receipt under another request's id": Damage(
        "receipt",
        lambda at: {"receipt/main|q"},
        lambda at: at.values.update({addresses.receipt("main", "q"): _receipt(at)}),
    ),
    "a receipt of another item": Damage(
        "receipt", lambda at: {"receipt/main|r"}, lambda at: _change_receipt(at, kind="steer")
    ),
    "a request that waits without a receipt": Damage(
        "receipt", lambda at: {"receipt/main|r"}, lambda at: _forget(at, addresses.RECEIPT)
    ),
    "one result too many": Damage("stray_result", lambda at: {f"entry {GHOST}"}, lambda at: _one_too_many(at)),
    "a count of entries that is another": Damage(
        "stats", lambda at: {"stats"}, lambda at: setattr(at, "stats", replace(at.stats, entries=1))
    ),
    "a queued item that names other entries": Damage(
        "inbox",
        lambda at: {str.join("/", at.queued)},
        lambda at: at.set(at.queued, replace(_item(at), entries=())),
    ),
    "a queued item that would be placed as a result": Damage(
        "inbox",
        lambda at: {str.join("/", at.queued)},
        lambda at: at.set(addresses.pending_entry(_item(at).entries[0]), _result(at, 0)),
    ),
    "content of nobody": Damage(
        "left_over",
        lambda at: {f"pending.entry/{GHOST}"},
        lambda at: at.set(addresses.pending_entry(GHOST), user("x")),
    ),
    "frames of no request": Damage(
        "left_over",
        lambda at: {f"pending.frames/{at.op}|{GHOST}"},
        lambda at: at.elements.append(ElementRow(addresses.pending_frames(at.op, GHOST), 9, b"[]")),
        operation=True,
    ),
    "a memo of a call that is done": Damage(
        "left_over",
        lambda at: {f"op.memo/{at.op}|{at.call(0)}|step"},
        lambda at: at.set(addresses.op_memo(at.op, at.call(0), "step"), 1),
        operation=True,
    ),
    "a staged result that is gone": Damage(
        "missing_content",
        lambda at: {f"pending.entry/{at.call(2)}"},
        lambda at: _delete(at, addresses.pending_entry(at.call(2))),
        operation=True,
    ),
    "a staged result that is none": Damage(
        "missing_content",
        lambda at: {f"pending.entry/{at.call(2)}"},
        lambda at: at.set(addresses.pending_entry(at.call(2)), user("x")),
        operation=True,
    ),
    "a queued message that is gone": Damage(
        "missing_content",
        lambda at: {f"pending.entry/{_item(at).entries[0]}"},
        lambda at: _delete(at, addresses.pending_entry(_item(at).entries[0])),
    ),
    "a tip that is no entry": Damage(
        "missing_entry", lambda at: {"branch.tip/side"}, lambda at: at.set(addresses.branch_tip("side"), GHOST)
    ),
    "a label of no entry": Damage(
        "missing_entry", lambda at: {f"label/{GHOST}"}, lambda at: at.set(addresses.label(GHOST), "x")
    ),
    "an input that is not on the path": Damage(
        "missing_input",
        lambda at: {f"op.meta/{at.op}"},
        lambda at: _change_meta(at, inputs=[GHOST]),
        operation=True,
    ),
    "an answer that is not on the path": Damage(
        "missing_input",
        lambda at: {f"op.state/{at.op}"},
        lambda at: at.set(addresses.branch_tip("main"), at.entries[1].id),
        operation=True,
    ),
    "a parent that is not there": Damage(
        "missing_parent", lambda at: {f"entry {at.entries[1].id}"}, lambda at: at.drop_entry(_first(at))
    ),
    "parents in a circle": Damage(
        "missing_parent",
        lambda at: {f"entry {_first(at)}"},
        lambda at: at.entries.__setitem__(0, at.entries[0]._replace(parent_id=at.entries[1].id)),
    ),
    "a batch that is left": Damage("missing_result", _answer, lambda at: _settle(at)),
    "an entry of a kind that is not known": Damage(
        "newer_record", lambda at: {f"entry {_first(at)}"}, lambda at: at.change(_first(at), b'{"role":"wizard"}')
    ),
    "a value in a namespace that is not known": Damage(
        "newer_record", lambda at: {"op.plan/x"}, lambda at: at.set(Address("op.plan", "x"), 1)
    ),
    "a list in a namespace that is not known": Damage(
        "newer_record",
        lambda at: {"pending.words/x"},
        lambda at: at.elements.append(ElementRow(Address("pending.words", "x"), 1, b"1")),
    ),
    "a memo that outlived its operation": Damage(
        "outlived",
        lambda at: {f"op.memo/gone|{at.call(0)}|step"},
        lambda at: at.set(addresses.op_memo("gone", at.call(0), "step"), 1),
    ),
    "a receipt of what waits that says it does not": Damage(
        "receipt", lambda at: {"receipt/main|r"}, lambda at: _change_receipt(at, state="cancelled")
    ),
    "a receipt of entries that are not there": Damage(
        "receipt",
        lambda at: {"receipt/main|q"},
        lambda at: at.values.update({addresses.receipt("main", "q"): _receipt(at, request_id="q", state="placed")}),
    ),
    "a result before its call has one": Damage(
        "reserved_id",
        lambda at: {f"entry {at.call(1)}"},
        lambda at: at.add(at.call(0), _result(at, 1), "tool_result", at.call(1)),
        operation=True,
    ),
    "a reserved answer that is there": Damage(
        "reserved_id",
        _answer,
        lambda at: at.set(addresses.op_state(at.op), Generating(response_id=at.state.answer, attempt=1)),
        operation=True,
    ),
    "content that is placed": Damage(
        "reserved_id",
        lambda at: {f"pending.entry/{_first(at)}"},
        lambda at: at.set(addresses.pending_entry(_first(at)), user("x")),
    ),
    "a result where another call has its own": Damage(
        "result_order", lambda at: {f"entry {GHOST}"}, lambda at: at.add(at.call(0), _result(at, 3), "tool_result")
    ),
    "an operation that is open and has ended": Damage(
        "settled_twice",
        lambda at: {f"result/{at.op}"},
        lambda at: at.values.update({addresses.result(at.op): _change_result(at)}),
        operation=True,
    ),
    "a lane that says of its open operation that it has ended": Damage(
        "settled_twice",
        lambda at: {"lane.state/main"},
        lambda at: at.set(addresses.lane_state("main"), LaneState(current=at.op, last=at.op)),
        operation=True,
    ),
    "a receipt of what is said to wait": Damage(
        "stale_receipt",
        lambda at: {"receipt/main|q"},
        lambda at: at.values.update({addresses.receipt("main", "q"): _receipt(at, request_id="q")}),
    ),
    "a kept tail of another branch": Damage(
        "kept_tail", lambda at: {f"entry {GHOST}"}, lambda at: _compact(at, _first(at), kept_from=at.state.answer)
    ),
    "a kept tail that begins nowhere": Damage(
        "kept_tail", lambda at: {f"entry {GHOST}"}, lambda at: _compact(at, at.state.answer, kept_from="nowhere")
    ),
    "a kept tail that begins with itself": Damage(
        "kept_tail", lambda at: {f"entry {GHOST}"}, lambda at: _compact(at, at.state.answer, kept_from=GHOST)
    ),
    "a kept tail that begins among results": Damage(
        "kept_tail", lambda at: {f"entry {GHOST}"}, lambda at: _compact(at, at.call(0), kept_from=at.call(0))
    ),
    "a summary that would be queued": Damage(
        "inbox",
        lambda at: {str.join("/", at.queued)},
        lambda at: at.set(
            addresses.pending_entry(_item(at).entries[0]), Compaction(summary="s", kept_from=None, tokens_before=1)
        ),
    ),
    "a summary that is made of nothing": Damage(
        "half_operation", lambda at: {f"op.meta/{at.op}"}, lambda at: _summarize(at, prepared=GHOST), operation=True
    ),
    "a preparation of another summary": Damage(
        "left_over",
        lambda at: {f"op.prep/{at.op}|{GHOST}"},
        lambda at: _summarize(at, prepared=GHOST),
        operation=True,
    ),
    "a preparation that cannot be read": Damage(
        "undecodable",
        lambda at: {f"op.prep/{at.op}|{TASK}"},
        lambda at: _summarize(at) or at.values.update({addresses.op_prep(at.op, TASK): b"1"}),
        operation=True,
    ),
    "a preparation that outlived its operation": Damage(
        "outlived",
        lambda at: {f"op.prep/gone|{TASK}"},
        lambda at: at.set(addresses.op_prep("gone", TASK), SummaryPrep(tip=_first(at))),
    ),
    "a summary under an id that is used": Damage(
        "reserved_id", lambda at: {f"entry {_first(at)}"}, lambda at: _summarize(at, _first(at)), operation=True
    ),
    "a request for a summary that is charged already": Damage(
        "reserved_id",
        lambda at: {f"entry {TASK}"},
        lambda at: (
            _summarize(at) or _charge(at, UsageRow(id=usage_id(GHOST), kind="summary", usage=Usage(input_tokens=1)))
        ),
        operation=True,
    ),
    "a summary of a path that the lane is not on": Damage(
        "missing_input", lambda at: {f"op.prep/{at.op}|{TASK}"}, lambda at: _summarize(at, tip=GHOST), operation=True
    ),
    "a tail to be kept that the lane is not on": Damage(
        "missing_input",
        lambda at: {f"op.prep/{at.op}|{TASK}"},
        lambda at: _summarize(at, kept_from=GHOST),
        operation=True,
    ),
    "a navigation with a summary to nowhere": Damage(
        "missing_input", lambda at: {f"op.prep/{at.op}|{TASK}"}, lambda at: _summarize(at, target=GHOST), operation=True
    ),
    "a navigation to nowhere": Damage(
        "missing_input",
        lambda at: {f"op.state/{at.op}"},
        lambda at: at.set(addresses.op_state(at.op), Navigating(target=GHOST)),
        operation=True,
    ),
    "a request to navigate to nowhere": Damage(
        "missing_input",
        lambda at: {f"op.meta/{at.op}"},
        lambda at: _change_meta(at, navigate=Navigate(GHOST)),
        operation=True,
    ),
    "sums that are not those of the ledger": Damage("stats", lambda at: {"stats"}, lambda at: at.ledger.pop() and None),
    "a result behind no answer": Damage(
        "stray_result", lambda at: {f"entry {GHOST}"}, lambda at: at.add(_first(at), _result(at, 0), "tool_result")
    ),
    "a message before the batch is complete": Damage(
        "unanswered_call", _answer, lambda at: at.add(at.call(0), user("too soon"), "user")
    ),
    "an entry that is cut off": Damage(
        "undecodable", lambda at: {f"entry {_first(at)}"}, lambda at: at.change(_first(at), b'{"role":"us')
    ),
    "an entry of another kind than it is stored as": Damage(
        "wrong_kind",
        lambda at: {f"entry {_first(at)}"},
        lambda at: at.change(_first(at), codec.encode(Custom(type="x"))),
    ),
    "frames that cannot be read": Damage(
        "undecodable",
        lambda at: {f"pending.frames/{at.op}|{GHOST}"},
        lambda at: at.elements.append(ElementRow(addresses.pending_frames(at.op, GHOST), 9, b"{")),
        operation=True,
    ),
    "a state that cannot be read": Damage(
        "undecodable",
        lambda at: {f"op.state/{at.op}"},
        lambda at: at.values.update({addresses.op_state(at.op): b'{"at":"tools","answer":1}'}),
        operation=True,
    ),
    "a lane that names the operation of another": Damage(
        "wrong_lane",
        lambda at: {"lane.state/aside"},
        lambda at: at.set(addresses.lane_state("aside"), LaneState(current=at.op)),
    ),
    "a lane that does not know of its operation": Damage(
        "unheld_operation",
        lambda at: {f"op.meta/{at.op}"},
        lambda at: at.set(addresses.lane_state("main"), LaneState()),
        operation=True,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_each_fault_is_told_of_where_it_is(records: Records, name: str) -> None:
    damage = DAMAGES[name]
    places = damage.places(records)

    damage.do(records)

    found = records.faults()
    told = {each.place for each in found if each.code == damage.code}
    assert places <= told, found
    distrusted = {each.operation for each in found if each.code == damage.code} - {None}
    assert distrusted == ({records.op} if damage.operation else set()), found


def test_every_kind_of_fault_is_shown() -> None:
    assert {damage.code for damage in DAMAGES.values()} == set(KINDS)


def test_what_stands_for_a_lost_entry_takes_a_number_that_nothing_has() -> None:
    """Below that of the entry that names it; where there is none, that entry becomes a root."""
    check, body = RecordCheck(), codec.encode(user("x"))
    for id, parent, seq in (("a", None, 1), ("b", None, 4), ("c", "lost", 5), ("d", "gone", 6)):
        check.entry(id, parent, seq, "user", body)
    check.finish()

    mending = Mending(check, last_seq=9, trusted_from=0, ledger_seqs=array("q", [3]))

    assert mending.stand_ins == {"lost": StandIn("lost", None, 2)}
    assert mending.rooted == {"d"}
    assert [mending.parent_of(id) for id in "abcd"] == [None, None, "lost", None]
    assert sorted(mending.branches.values()) == ["a", "b", "c", "d"]


class Repaired(NamedTuple):
    """A path ``a`` to ``e``, the last of which is a compaction that keeps ``b`` and what follows, with entries lost."""

    lost: str
    kept_from: str | None
    begins: str | None
    """Where its kept tail begins in the copy; ``same`` is where it always did."""


REPAIRED = (
    Repaired("", "b", "same"),
    Repaired("a", "b", "same"),
    Repaired("b", "b", "same"),  # what stands for it is at its place
    Repaired("c", "b", "c"),
    Repaired("d", "b", "d"),
    Repaired("bc", "b", "c"),
    Repaired("", None, "same"),
    Repaired("c", None, "same"),
    Repaired("", "z", "a"),
    Repaired("", "e", "a"),
)


@pytest.mark.parametrize("case", REPAIRED, ids=str)
def test_a_kept_tail_begins_in_a_copy_with_what_is_left_of_it(case: Repaired) -> None:
    check = RecordCheck()
    compaction = Compaction(summary="s", kept_from=case.kept_from, tokens_before=1)
    for seq, id in enumerate("abcde", start=1):
        if id not in case.lost:
            body = codec.encode(compaction if id == "e" else user(id))
            parent = None if id == "a" else chr(ord(id) - 1)
            check.entry(id, parent, 10 * seq, "compaction" if id == "e" else "user", body)
    check.entry("z", None, 100, "user", codec.encode(user("elsewhere")))
    check.finish()

    mending = Mending(check, last_seq=100, trusted_from=101 if case.lost else 0, ledger_seqs=array("q"))

    assert mending.tails == ({} if case.begins == "same" else {"e": case.begins})


def test_a_kept_tail_that_begins_among_results_begins_with_their_answer() -> None:
    check, ids = RecordCheck(), CountingIds(series=5)
    asked, answer, result, compaction = (ids.new() for _ in range(4))
    calls = AssistantMessage(content=(ToolCallPart(id="c", name="quick", arguments={}),), stop_reason="tool_calls")
    said = ToolResultMessage(call_id="c", name="quick", content=())
    check.entry(asked, None, 1, "user", codec.encode(user("a")))
    check.entry(answer, asked, 2, "assistant", codec.encode(calls))
    check.entry(result, answer, 3, "tool_result", codec.encode(said))
    summary = Compaction(summary="s", kept_from=result, tokens_before=1)
    check.entry(compaction, result, 4, "compaction", codec.encode(summary))
    check.finish()

    assert Mending(check, last_seq=4, trusted_from=0, ledger_seqs=array("q")).tails == {compaction: answer}


def _delete(at: Records, address: Address) -> None:
    del at.values[address]


def _forget(at: Records, namespace: str) -> None:
    for address in [each for each in at.values if each.namespace == namespace]:
        del at.values[address]


def _question(at: Records) -> Any:
    payload = next(each for address, each in at.values.items() if address.namespace == addresses.PENDING_APPROVAL)
    return codec.APPROVAL.decode(payload, "approval")


def _item(at: Records) -> QueuedItem:
    return codec.QUEUED.decode(at.values[at.queued], "item")


def _changed(payload: bytes, **changes: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(payload), **changes})


def _change_result(at: Records, **changes: Any) -> bytes:
    address = next(each for each in at.values if each.namespace == addresses.RESULT)
    at.values[address] = _changed(at.values[address], **changes)
    return _changed(at.values[address], operation_id=at.op)


def _change_meta(at: Records, **changes: Any) -> None:
    address = addresses.op_meta(at.op)
    at.values[address] = _changed(at.values[address], **changes)


def _receipt(at: Records, **changes: Any) -> bytes:
    return _changed(at.values[addresses.receipt("main", "r")], **changes)


def _change_receipt(at: Records, **changes: Any) -> None:
    at.values[addresses.receipt("main", "r")] = _receipt(at, **changes)


def _charge(at: Records, row: UsageRow) -> None:
    at.ledger.append(LedgerRow(20_000, 1, row))
    at.stats = replace(at.stats, usage=at.stats.usage.plus(row))


def _one_too_many(at: Records) -> None:
    """An answer with one call, its result, and another one."""
    answer, result = CountingIds(series=98).new(), CountingIds(series=97).new()
    calls = AssistantMessage(content=(ToolCallPart(id="c", name="quick"),), stop_reason="tool_calls")
    at.add(None, calls, "assistant", answer)
    at.add(answer, ToolResultMessage(call_id="c", name="quick", content=()), "tool_result", result)
    at.add(result, ToolResultMessage(call_id="c", name="quick", content=()), "tool_result")


def _settle(at: Records) -> None:
    """The operation is over without a word."""
    for namespace in (*addresses.CURRENT, addresses.RESULT):
        if namespace.startswith(("op.", "pending.")):
            _forget(at, namespace)
    at.elements.clear()
    at.set(addresses.lane_state("main"), LaneState())


def _compact(at: Records, parent: str, *, kept_from: str) -> None:
    at.add(parent, Compaction(summary="s", kept_from=kept_from, tokens_before=1), "compaction")


def _summarize(
    at: Records,
    task: str = TASK,
    *,
    prepared: str | None = None,
    tip: str | None = None,
    kept_from: str | None = None,
    target: str | None = None,
) -> None:
    """The operation asks for a summary."""
    state = Summarizing(task=task, reason="threshold", response_id=GHOST, attempt=1, trigger=_first(at))
    at.set(addresses.op_state(at.op), state)
    prep = SummaryPrep(tip=tip or _first(at), kept_from=kept_from, target=target)
    at.set(addresses.op_prep(at.op, prepared or task), prep)
