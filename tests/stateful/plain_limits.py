"""The plain model of what an operation may spend."""

from __future__ import annotations

from collections import Counter

from tests.stateful.plain_disk import Disk, Op


def limit_reached(disk: Disk, op: Op, time_ms: int, *, more: int = 0) -> bool:
    """Whether an operation may ask no more; ``more`` requests are about to be settled, of which nothing is known."""
    rows, _, tokens_in, tokens_out, cost = disk.totals(op.id)
    spent = {
        "max_turns": op.turn if op.at == "checkpoint" else 0,
        "max_requests": rows + more,
        "max_tokens": tokens_in + tokens_out,
        "max_cost_nanos": cost,
        "max_time_ms": time_ms,
    }
    if any(spent[name] >= bound for name, bound in op.limits.items() if name in spent):
        return True
    bound = op.limits.get("max_identical_calls")
    return bound is not None and any(
        count > bound for count in Counter(call for batch in op.asked_for for call in batch).values()
    )


def is_repeated(op: Op, index: int) -> bool:
    """Whether a call of the batch is beyond what the operation may ask for."""
    bound = op.limits.get("max_identical_calls")
    if bound is None:
        return False
    before = sum(batch.count(op.asked_for[-1][index]) for batch in op.asked_for[:-1])
    return before + op.asked_for[-1][: index + 1].count(op.asked_for[-1][index]) > bound


def asleep_until(op: Op, at: int, now: int, time_ms: int) -> int:
    """When a wait for a retry ends: by its time, or by that which the operation may spend."""
    bound = op.limits.get("max_time_ms")
    return at if bound is None else min(at, now + max(0, bound - time_ms))


def call_key(disk: Disk, op: Op, index: int) -> tuple[str, str, int]:
    """What the idempotency key of a call of the batch says: whose, and how many like it were before."""
    assert op.answer is not None
    path = disk.path(disk.tips[op.lane])
    since = [number for number in path[path.index(op.inputs[0]) :] if number in disk.batches]
    own = disk.batches[op.answer]
    before = [call for number in since if number != op.answer for call in disk.batches[number]]
    return (op.key_operation, own[index][0], [*before, *own[:index]].count(own[index]))
