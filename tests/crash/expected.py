"""What the conversation of each of the library's scenarios is when nothing stops it, written by hand."""

from __future__ import annotations

from agentlane.testing.matrix.builtin import bounds, changed, history, plain, writes

_CUT = (
    "result! The answer was cut off at its length limit, so none of its calls was run. Ask again with a shorter "
    "answer, or in smaller steps."
)

EXPECTED: dict[str, list[str]] = {
    plain.PARALLEL.name: [
        "user first",
        "assistant[tool_calls] look (safe,never,key,never)",
        "result safe:1 done",
        "result never:2 done",
        "result key:3 done",
        "result never:4 done",
        "assistant[stop] so it is",
        "user second",
        "assistant[tool_calls]  (never)",
        "result never:5 done",
        "assistant[stop] bye",
    ],
    plain.BARRIER.name: [
        "user go",
        "assistant[tool_calls]  (safe,never,alone,key,never)",
        "result safe:1 done",
        "result never:2 done",
        "result alone:3 done",
        "result key:4 done",
        "result never:5 done",
        "assistant[stop] done",
    ],
    plain.SLOTS.name: [
        "user go",
        "assistant[tool_calls]  (never,never,never,never,never)",
        *(f"result never:{i} done" for i in range(5)),
        "assistant[stop] done",
    ],
    plain.RETRY.name: [
        "user go",
        "assistant[tool_calls]  (never)",
        "result never:1 done",
        "assistant[error/overloaded] Hel",
        "assistant[error/overloaded] ",
        "assistant[stop] hello",
    ],
    plain.BAD_CALLS.name: [
        "user go",
        "assistant[tool_calls]  (safe,unknown,never,raises,picky,never)",
        "result safe:1 done",
        "result! The tool 'unknown' is not available here. Available: safe, key, never, alone, raises, picky.",
        "result! The arguments of 'never' are not a JSON object: '{not json'. Send one object.",
        "result! The tool 'raises' failed: ValueError: no",
        "result! The arguments of 'picky' are not valid: not this one",
        "result never:6 done",
        "assistant[stop] done",
    ],
    plain.TERMINATE.name: [
        "user first",
        "assistant[tool_calls]  (stop,stop)",
        "result end",
        "result end",
        "user second",
        "assistant[tool_calls]  (stop,never)",
        "result end",
        "result never:4 done",
        "assistant[stop] one did not",
    ],
    plain.CUT.name: [
        "user go",
        "assistant[length] long (never,safe)",
        _CUT,
        _CUT,
        "assistant[stop] short",
    ],
    plain.MEMO.name: [
        "user go",
        "assistant[tool_calls]  (long,never,long)",
        "result memo 1",
        "result never:2 done",
        "result memo 3",
        "assistant[stop] done",
    ],
    plain.THREADS.name: [
        "user go",
        "assistant[tool_calls]  (plain,plain)",
        "result plain:1 done",
        "result plain:2 done",
        "assistant[stop] done",
    ],
    plain.STREAM.name: ["user go", "assistant[stop] a long answer"],
    bounds.FAILED.name: [
        "user first",
        "assistant[tool_calls]  (safe)",
        "result safe:1 done",
        "assistant[error/refused] ",
        "user second",
        "assistant[stop] well",
    ],
    writes.APPLICATION.name: [
        "user before",
        "user go",
        "assistant[tool_calls]  (never)",
        "result never:1 done",
        "assistant[stop] done",
    ],
    changed.MODEL_GONE.name: [
        "user go",
        "assistant[tool_calls]  (look)",
        "result look:1 done",
        "assistant[stop] done",
    ],
    history.REWOUND.name: [
        "user first",
        "assistant[tool_calls]  (never)",
        "result never:1 done",
        "assistant[stop] one",
        "user second",
        "assistant[tool_calls]  (safe)",
        "result safe:2 done",
        "assistant[stop] two",
        "user after all",
        "assistant[stop] three",
    ],
}
