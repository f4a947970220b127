"""What the exploration holds the machine to: a name for each promise, and the error that says which one was broken."""

from __future__ import annotations

from typing import Literal, NoReturn, TypeAlias

Promise: TypeAlias = Literal[
    "legal",
    "progress",
    "questions",
    "I3 open",
    "I4 ids",
    "I5 results",
    "I6 intents",
    "I7 never",
    "I8 end",
    "I10 pairs",
    "abort",
    "alone",
    "bounds",
    "counts",
    "held",
    "inbox",
    "liveness",
    "moves",
    "needs",
    "policies",
    "summaries",
    "truth",
    "waits",
    "yes",
]

MEANING: dict[Promise, str] = {
    "legal": "what the planning asks for is a step that the table has and takes",
    "progress": "a step changes the state or writes something",
    "questions": "a call that asks starts again by the answer to its own question, used once, and that is no replay",
    "I3 open": "when an operation ends, nothing of it runs and nothing of it stays staged",
    "I4 ids": "a reserved id appears only with what its intent named, and names one thing",
    "I5 results": "each call gets exactly one result, in source order, before anything goes on past its batch",
    "I6 intents": "an effect starts only with the commit that holds its intent",
    "I7 never": "what began under `never` does not start again",
    "I8 end": "there is one terminal record, it says what happened, and under an abort it says aborted",
    "I10 pairs": "a request is never intended inside a batch",
    "abort": "an abort is asked for by whoever asks, is never forgotten, and nothing starts under it",
    "alone": "a barrier runs alone and in its place, replays go one at a time, and no more run than may",
    "bounds": "restarts, replays and attempts end at their bounds, and not before",
    "counts": "the state counts turns, attempts, retries and restarts as they happened",
    "held": "an outcome that is held is not placed, and one that is next and not held is",
    "inbox": "what waits is placed at the first boundary that may take it, whole and once, no more at a time than may",
    "liveness": "left alone, every state goes on to an end",
    "moves": "a lane moves once, in the step that ends its navigation as completed",
    "needs": "a request that is too long is summarized for once, and one that would be once; no summary fails a run",
    "policies": "a begun call runs again if, and only if, stored and current policy, tool and bound allow it",
    "summaries": "an attempt has one row of usage, a summary one entry, and what it is made of is kept till it is over",
    "truth": "a result that no tool gave says what is known, and is given only where the tool could not give one",
    "waits": "a wait comes where one is due, and nothing is asked before its time",
    "yes": "what a person must allow starts only by a yes of its own, which is used once; others go on meanwhile",
}


class Violation(AssertionError):
    """A promise was broken; ``told`` says how."""

    def __init__(self, promise: Promise, told: str) -> None:
        super().__init__(f"{promise} ({MEANING[promise]}): {told}")
        self.promise = promise
        self.told = told


def broken(promise: Promise, told: object) -> NoReturn:
    raise Violation(promise, str(told))


def hold(promise: Promise, holds: bool, told: object) -> None:
    """Raise unless it holds."""
    if not holds:
        raise Violation(promise, str(told))
