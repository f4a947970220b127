"""Checks of what comes back: payload bytes, write-once rows, values and lists, the ledger and its sums (S11-S14)."""

from __future__ import annotations

from functools import partial
from typing import Any

from agentlane.data.usage import NOTHING_SENT, Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, DeleteList, DeleteValue, InsertUsage, SetValue, Write
from agentlane.storage.contract import EntryRow, SessionStorage
from agentlane.testing.conformance.bench import (
    NAMESPACE,
    Bench,
    append,
    at,
    check,
    commit,
    equal,
    put,
    read_and_compare,
    refused,
    same_as,
    true,
)
from agentlane.testing.conformance.model import ReferenceSession

PAYLOADS: tuple[bytes, ...] = (
    b"null",
    b'""',
    b"[]",
    b'{ "b" : 1,\t"a" : [ 1.0, 1e5, -0, 1E+2 ] , "b" : 2 }',  # spaces, spellings of numbers, a key twice
    b"123456789012345678901234567890",
    rb'"NUL \u0000 and \u0001, newline \n, return \r, both \r\n, escaped \/ \" \\"',
    '"line separators \u2028 \u2029, next line \x85, form feed \\f, DEL \x7f, BOM \ufeff"'.encode(),
    '"emoji 🧵👩‍👩‍👧 beyond 16 bits, combining e\u0301, right to left שלום, \ufffd, \uffff"'.encode(),
    rb'"escaped \ud83e\uddf5 pair"',
    b'"' + b"x" * 1_000_000 + b'"',
    b'"' + "ß🧵".encode() * 30_000 + b'"',
    b"[" * 60 + b"]" * 60,
)
KEYS: tuple[str, ...] = (
    *(
        "",
        "a",
        "A",
        "a|",
        "a|b",
        "a|b|c",
        "a|bb",
        "a||b",
        "|a",
        "ab",
        "aB",
        "b",
        "a%",
        "a%b",
        "axb",
        "a_b",
        "a__b",
        "_",
    ),
    *(
        "%",
        "%%",
        "a*",
        "a*b",
        "a?b",
        "a[b]",
        "a\\b",
        "a\\%",
        "a'b",
        'a"b',
        "a b",
        " a",
        "a;b",
        "0",
        "00",
        "1",
        "1.0",
        "~",
    ),
    *("é", "e\u0301", "ä|b", "\U0001f9f5", "\U0001f9f5|x", "\uffff", "\ue000", "a\U0001f9f5", "a\uffff"),
)


@check("S11", "S12", "S13")
async def s11_payloads_come_back_byte_for_byte(bench: Bench) -> None:
    """As entries, values and elements, at once and after reopening, alone and all in one commit."""
    storage, model = await bench.session(), ReferenceSession()
    for number, payload in enumerate(PAYLOADS):
        entry = bench.entry(None, "user", payload)
        await commit(storage, model, entry, put(str(number), payload), append("l", payload))
        equal(await storage.value(at(str(number))), payload, "S11", "value")
        equal((await storage.path(entry.id))[0].payload, payload, "S11", "payload of an entry by path")
        equal(await storage.entries([entry.id]), model.entries([entry.id]), "S11", "an entry by id")
        await same_as(storage, model, "S11", f"with payload {payload[:80]!r}")
    await commit(storage, model, *(append("all", payload) for payload in PAYLOADS))
    await same_as(storage, model, "S11", "with all payloads in one commit")
    await same_as(await bench.reopen(storage), model, "S11", "after reopening")


@check("S11", "S2")
async def s11_payloads_on_several_lines_are_refused(bench: Bench) -> None:
    """Wherever a payload may stand, and wherever in it the newline does; a lone return is no newline."""
    storage, model = await bench.session(), ReferenceSession()
    await commit(storage, model, put("kept"), append("kept"))
    for payload in (b"1\n", b"\n1", b'{"a":1,\n"b":2}', b'"a\nb"', b"1\r\n"):
        for write in (bench.entry(None, "user", payload), put("a", payload), append("l", payload)):
            await refused(storage, [put("kept", b"2"), write], f"payload {payload!r} in {type(write).__name__}")
    await commit(storage, model, put("returned", b'{"a":1,\r"b":2}'))
    await same_as(storage, model, "S11", "after payloads with newlines were refused")
    await same_as(await bench.reopen(storage), model, "S11", "after payloads with newlines were refused, and reopening")


@check("S11")
async def s11_what_is_handed_in_is_copied(bench: Bench) -> None:
    """A list of writes changed after submit changes nothing, nor does a dictionary that was handed out."""
    storage, model = await bench.session(), ReferenceSession()
    first = bench.entry()
    writes: list[Write] = [first, put("a")]
    pending = storage.submit(writes)
    writes[:] = [put("a", b'"other"'), put("b")]
    model.commit([first, put("a")], await pending)
    (await storage.values(NAMESPACE)).clear()
    (await storage.elements(at("a"))).clear()
    (await storage.scan()).clear()
    await same_as(storage, model, "S11", "after its writes and its answers were changed by the caller")


@check("S12")
async def s12_entries_come_back_as_written(bench: Bench) -> None:
    """Id, parent, kind, payload; seq and time of the commit; and nothing changes them later."""
    storage = await bench.session()
    root = bench.entry(None, "user", b'{"text":"root"}')
    done = await storage.submit([put("a"), root, bench.entry(root, "x.y-z", b"[1]")])
    child = (await storage.scan())[1]
    want = EntryRow(root.id, None, done.first_seq + 1, done.at, "user", b'{"text":"root"}')
    equal((await storage.scan())[0], want, "S12", "the root")
    equal((child.parent_id, child.kind, child.payload), (root.id, "x.y-z", b"[1]"), "S12", "the child")
    equal((child.seq, child.at), (done.first_seq + 2, done.at), "S12", "seq and time of the child")
    later = await storage.submit([bench.entry(child.id), put("a"), DeleteValue(at("a")), DeleteList(at("a"))])
    true(later.at >= done.at, "S12", f"the time of a later commit, {later.at}, is before {done.at}")
    equal((await storage.scan())[:2], [want, child], "S12", "entries after later commits")
    equal((await storage.scan())[2].at, later.at, "S12", "time of a later entry")
    storage = await bench.reopen(storage)
    equal((await storage.scan())[:2], [want, child], "S12", "entries after reopening")


@check("S13")
async def s13_writes_of_a_commit_apply_in_order(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    await commit(storage, model, put("kept"), append("kept"), put("gone"), append("gone"))
    steps: list[list[Write]] = [
        [put("v", b"1"), DeleteValue(at("v")), put("v", b"2")],
        [DeleteValue(at("v")), put("v", b"3"), put("v", b"4")],
        [put("v", b"5"), DeleteValue(at("v"))],
        [DeleteValue(at("never")), DeleteList(at("never"))],
        [append("l", b"1"), append("l", b"2"), DeleteList(at("l")), append("l", b"3"), append("l", b"4")],
        [DeleteList(at("l")), append("l", b"5"), append("l", b"6")],
        [append("l", b"7"), append("m", b"8"), append("l", b"9")],
        [append("m", b"10"), DeleteList(at("m"))],
        [DeleteValue(at("gone")), DeleteList(at("gone"))],
        [put("l", b"11"), append("v", b"12"), DeleteList(at("v"))],  # a value and a list at one address are two things
        [append("kept", b"13"), DeleteValue(at("kept"))],
        [SetValue(Address("app.other", "kept"), b"14"), AppendElement(Address("app.other", "kept"), b"15")],
    ]
    for writes in steps:
        await commit(storage, model, *writes)
        equal(await storage.value(at("v")), model.value(at("v")), "S13", f"value v after {writes}")
        await same_as(storage, model, "S13", f"after {writes}")
    storage = await bench.reopen(storage)
    await same_as(storage, model, "S13", "after reopening")
    for address in (at("gone"), at("never"), Address("app.never", "v"), Address(NAMESPACE, "")):
        equal(
            (await storage.value(address), await storage.elements(address)), (None, []), "S13", f"nothing at {address}"
        )
    await commit(storage, model, append("gone", b'"new"'), append("l", b'"new"'))
    await same_as(storage, model, "S13", "after appending to a list that was deleted before reopening")
    await same_as(await bench.reopen(storage), model, "S13", "after reopening again")


@check("S13")
async def s13_prefixes_are_taken_literally(bench: Bench) -> None:
    """Keys with ``|``, with what other languages take as wildcards, and beyond ASCII; keys come in order."""
    storage, model = await bench.session(), ReferenceSession()
    await commit(storage, model, *(put(key, b"%d" % n) for n, key in enumerate(KEYS)))
    await commit(storage, model, *(append(key, b"%d" % n) for n, key in enumerate(reversed(KEYS))))
    await commit(
        storage, model, SetValue(Address(NAMESPACE + ".more", "a"), b"1"), AppendElement(Address("app", "a"), b"1")
    )
    for _ in range(2):
        for prefix in (*KEYS, "a|b|", "zzz", "a%%", "\U0001f9f5|"):
            got, want = await storage.values(NAMESPACE, prefix), model.values(NAMESPACE, prefix)
            equal(got, want, "S13", f"values that begin with {prefix!r}")
            got_keys, want_keys = await storage.lists(NAMESPACE, prefix), model.lists(NAMESPACE, prefix)
            equal(got_keys, want_keys, "S13", f"lists that begin with {prefix!r}")
        for namespace in ("app", "app.", NAMESPACE + "%", "app_check", "APP.CHECK", ""):
            got, want = await storage.values(namespace), model.values(namespace)
            equal(got, want, "S13", f"values of namespace {namespace!r}")
        for key in KEYS:
            equal(await storage.value(at(key)), model.value(at(key)), "S13", f"value at {key!r}")
        storage = await bench.reopen(storage)


@check("S17")
async def s17_values_are_paged_by_key(bench: Bench) -> None:
    """Every cursor, one that is no key and one of another prefix among them, every page size, with each prefix: half of
    the sizes of each while it is open, the other half when it is opened again."""
    storage, model = await bench.session(), ReferenceSession()
    await commit(storage, model, *(put(key, b"%d" % n) for n, key in enumerate(reversed(KEYS))))
    await commit(storage, model, SetValue(Address(NAMESPACE + ".more", "a"), b"1"), DeleteValue(at(KEYS[3])))
    cursors = (None, "", *KEYS, KEYS[-1] + "\0", "zzz", "\U0010ffff")
    asked = [
        (prefix, after, list(model.values(NAMESPACE, prefix, after=after).items()))
        for prefix in ("", *KEYS)
        for after in cursors
    ]
    sizes = (None, 0, 1, 2, len(KEYS), len(KEYS) + 1)
    for again in range(2):

        async def read(prefix: str, after: str | None, limit: int | None, of: SessionStorage = storage) -> list[Any]:
            return list((await of.values(NAMESPACE, prefix, after=after, limit=limit)).items())

        reads = [
            (partial(read, prefix, after, limit), found[:limit], f"values({prefix=}, {after=}, {limit=})")
            for number, (prefix, after, found) in enumerate(asked)
            for limit in sizes[(number + again) % 2 :: 2]
        ]
        await read_and_compare(reads, "S17")
        storage = await bench.reopen(storage)


@check("S13")
async def s13_elements_are_paged_both_ways(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    for number in range(6):  # two lists that grow by turns, so that neither has its seqs for itself
        await commit(
            storage, model, append("l", b"%d" % number), append("m"), bench.entry(), append("l", b"[%d]" % number)
        )
    seqs = [each.seq for each in model.elements(at("l"))]
    for _ in range(2):
        for reverse in (False, True):
            for after in (None, 0, seqs[0] - 1, *seqs, seqs[3] + 1, seqs[-1] + 100):
                for limit in (None, 0, 1, 2, 5, 12, 13):
                    got = await storage.elements(at("l"), after=after, limit=limit, reverse=reverse)
                    want = model.elements(at("l"), after=after, limit=limit, reverse=reverse)
                    equal(got, want, "S13", f"elements(after={after}, limit={limit}, reverse={reverse})")
        storage = await bench.reopen(storage)


@check("S14", "S12", "S17", "S3")
async def s14_stats_are_the_sum_of_the_ledger(bench: Bench) -> None:
    """Known, unknown, zero, huge and negative counts, of every kind of row; every field of a row comes back."""
    storage, model = await bench.session(), ReferenceSession()
    entry = bench.entry()
    big = 2**52 + 1
    rows: list[UsageRow] = [
        UsageRow(id=bench.ids.new(), kind="attempt", usage=Usage()),
        UsageRow(id=bench.ids.new(), kind="attempt", usage=NOTHING_SENT, model="maker:model"),
        UsageRow(id=bench.ids.new(), kind="attempt", usage=Usage(input_tokens=3), entry_id=entry.id),
        UsageRow(id=bench.ids.new(), kind="attempt", usage=Usage(input_tokens=big, output_tokens=big, cost_nanos=big)),
        UsageRow(id=bench.ids.new(), kind="attempt", usage=Usage(input_tokens=0, output_tokens=2, cache_read_tokens=7)),
        UsageRow(id=bench.ids.new(), kind="summary", usage=Usage(), operation_id="op-1", model="maker:model"),
        UsageRow(id=bench.ids.new(), kind="summary", usage=Usage(input_tokens=90, output_tokens=4), entry_id=entry.id),
        UsageRow(id=bench.ids.new(), kind="adjustment", usage=Usage(cost_nanos=-5), note="refund | ünïcode \u2028 'q'"),
        UsageRow(
            id=bench.ids.new(),
            kind="adjustment",
            usage=Usage(
                input_tokens=1,
                output_tokens=2,
                cache_read_tokens=3,
                cache_write_tokens=4,
                reasoning_tokens=5,
                cost_nanos=6,
            ),
            entry_id=entry.id,
            operation_id="op-1",
            model="other:model",
            note="all fields",
        ),
    ]
    done = await commit(storage, model, entry)
    equal(done.stats, model.stats(), "S14", "stats of a commit without usage")
    for row in rows:
        done = await commit(storage, model, bench.entry(entry), InsertUsage(row), put("a"))
        equal(done.stats, model.stats(), "S14", f"stats of the commit with {row}")
        equal(storage.stats(), model.stats(), "S14", f"stats() after {row}")
    done = await commit(storage, model, *(bench.usage(n) for n in range(5)))
    equal(done.stats, model.stats(), "S14", "stats of a commit with five rows")
    for _ in range(2):
        await same_as(storage, model, "S12", "ledger and stats")
        for after_seq in range(model.next_seq + 1):
            for limit in (None, 0, 1, 3, 100):
                got = await storage.usage(after_seq=after_seq, limit=limit)
                equal(got, model.usage(after_seq=after_seq, limit=limit), "S17", f"usage({after_seq=}, {limit=})")
        storage = await bench.reopen(storage)
