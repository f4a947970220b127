"""Usage of model requests: counts that may be unknown, ledger rows, and the sums over a ledger."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from agentlane.errors import InvalidMessage


class Usage(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Tokens and cost of one attempt. None is unknown and never means zero; cost is in billionths of the currency."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_nanos: int | None = None

    @property
    def unknown(self) -> bool:
        """Whether what was charged is not known: input or output tokens are missing."""
        return self.input_tokens is None or self.output_tokens is None


NOTHING_SENT = Usage(
    input_tokens=0,
    output_tokens=0,
    cache_read_tokens=0,
    cache_write_tokens=0,
    reasoning_tokens=0,
    cost_nanos=0,
)
"""Usage of an attempt of which this pass knows that no request was sent."""


def checked_usage(usage: object, path: str = "usage") -> Usage:
    """``usage`` if it is one of whole numbers that fit in 64 bits, or unknown; ``InvalidMessage`` names the path."""
    if not isinstance(usage, Usage):
        raise InvalidMessage(f"{path}: a Usage is needed here, not {type(usage).__name__}", path=path)
    for name in usage.__struct_fields__:
        value = getattr(usage, name)
        if value is not None and (type(value) is not int or not -COUNT_MAX <= value <= COUNT_MAX):
            found = "one beyond that" if type(value) is int else type(value).__name__
            raise InvalidMessage(
                f"{path}.{name}: a whole number that fits in 64 bits is needed here, not {found}", path=f"{path}.{name}"
            )
    return usage


COUNT_MAX = 2**63 - 1


def reported_usage(usage: object, path: str = "usage") -> Usage:
    """``checked_usage`` of what a model says it charged; a count below zero is unknown, since totals never fall."""
    known = checked_usage(usage, path)
    below = [name for name in known.__struct_fields__ if (getattr(known, name) or 0) < 0]
    return replace(known, **dict.fromkeys(below)) if below else known


UsageKind: TypeAlias = Literal["attempt", "adjustment", "summary"]
USAGE_KINDS: frozenset[str] = frozenset(get_args(UsageKind))
"""What a row of the ledger may be."""


class UsageRow(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One row of the ledger: one attempt (``entry_id`` is its answer), or one adjustment made by the caller.

    An attempt at a summary is one of kind ``summary``; ``entry_id`` is the entry that holds the summary, if it came.
    """

    id: str
    kind: UsageKind
    usage: Usage
    entry_id: str | None = None
    operation_id: str | None = None
    model: str | None = None
    note: str | None = None


class UsageTotals(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Sums over ledger rows; an unknown count adds nothing and makes its row one of ``unknown_rows``."""

    rows: int = 0
    unknown_rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nanos: int = 0

    def plus(self, row: UsageRow) -> UsageTotals:
        """The totals with ``row`` added. An adjustment is never counted as unknown."""
        usage = row.usage
        return UsageTotals(
            rows=self.rows + 1,
            unknown_rows=self.unknown_rows + (row.kind != "adjustment" and usage.unknown),
            input_tokens=self.input_tokens + (usage.input_tokens or 0),
            output_tokens=self.output_tokens + (usage.output_tokens or 0),
            cache_read_tokens=self.cache_read_tokens + (usage.cache_read_tokens or 0),
            cache_write_tokens=self.cache_write_tokens + (usage.cache_write_tokens or 0),
            reasoning_tokens=self.reasoning_tokens + (usage.reasoning_tokens or 0),
            cost_nanos=self.cost_nanos + (usage.cost_nanos or 0),
        )


class Stats(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a session holds: number of entries, and the totals of its usage ledger."""

    entries: int = 0
    usage: UsageTotals = UsageTotals()
