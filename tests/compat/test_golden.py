"""Claim: what each stored record looks like does not change unnoticed, and old records are read for ever.

The files are frozen byte for byte and only ever added to. A test that fails here says that the format has changed:
give a new field a default (so that old files still read), add a sample beside the old one, and say so in CHANGELOG
under *On-disk format*.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentlane.data import (
    addresses,
    approvals,
    codec,
    entries,
    features,
    inbox,
    messages,
    operations,
    requests,
    results,
    usage,
)
from agentlane.data.addresses import (
    branch_tip,
    label,
    lane_config,
    lane_state,
    op_args,
    op_config,
    op_decision,
    op_memo,
    op_meta,
    op_state,
    pending_approval,
    pending_entry,
    pending_frames,
    pending_output,
    result,
)
from tests.compat.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_record_is_written_byte_for_byte_as_it_always_was(name: str) -> None:
    frozen = (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")

    assert codec.encode(SAMPLES[name].record) == frozen


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_of_any_time_is_read(path: Path) -> None:
    sample = SAMPLES[path.stem]

    assert sample.kind.decode(path.read_bytes(), path.name) == sample.record


def test_every_kind_of_stored_record_has_a_sample() -> None:
    """Each tagged or untagged record type that is stored appears in at least one golden file's record."""
    shown: set[type] = set()
    for sample in SAMPLES.values():
        shown |= set(_types(sample.record))
    stored = {
        kind
        for module in (approvals, messages, entries, features, inbox, operations, requests, results, usage)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
    }
    exchanged_only = {
        entries.Entry,
        inbox.Queued,
        requests.Prompt,
        requests.Skill,
        requests.Template,
        results.Admitted,
        results.Settled,
        results.RetryReason,
        results.ApprovalReason,
        results.ChildReason,
        results.ExternalReason,
        results.QuestionReason,
        results.Waiting,
        results.AbortReceipt,
        usage.Stats,
    }

    assert stored - exchanged_only <= shown


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_nothing_stored_names_python(name: str) -> None:
    """Only plain JSON and our own words: no module, class or pickle (R115)."""
    text = (GOLDEN / f"{name}.json").read_text()

    json.loads(text)
    assert not re.search(r"agentlane|__|py/|msgspec|Struct|<class", text)


def test_addresses_are_what_they_always_were() -> None:
    assert [
        tuple(each)
        for each in (
            branch_tip("b"),
            lane_config("l"),
            lane_state("l"),
            op_meta("o"),
            op_config("o"),
            op_state("o"),
            op_memo("o", "c", "n"),
            pending_entry("e"),
            pending_output("o", "c"),
            pending_frames("o", "r"),
            result("o"),
            label("e"),
            op_args("o", "c"),
            op_decision("o", "a"),
            pending_approval("a"),
            addresses.inbox("l", "e"),
            addresses.receipt("l", "r"),
            addresses.op_returned("o"),
            addresses.op_answer("o", "c", "n"),
            addresses.session_feature("f"),
            addresses.op_prep("o", "t"),
        )
    ] == [
        ("branch.tip", "b"),
        ("lane.config", "l"),
        ("lane.state", "l"),
        ("op.meta", "o"),
        ("op.config", "o"),
        ("op.state", "o"),
        ("op.memo", "o|c|n"),
        ("pending.entry", "e"),
        ("pending.output", "o|c"),
        ("pending.frames", "o|r"),
        ("result", "o"),
        ("label", "e"),
        ("op.args", "o|c"),
        ("op.decision", "o|a"),
        ("pending.approval", "a"),
        ("inbox", "l|e"),
        ("receipt", "l|r"),
        ("op.returned", "o"),
        ("op.answer", "o|c|n"),
        ("session.feature", "f"),
        ("op.prep", "o|t"),
    ]


def _types(value: Any) -> list[type]:
    if isinstance(value, msgspec.Struct):
        inner = [getattr(value, name) for name in value.__struct_fields__]
        return [type(value), *_types(inner)]
    if isinstance(value, list | tuple):
        return [each for item in value for each in _types(item)]
    return []
