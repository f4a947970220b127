"""Which pairs of steps race, and which test plays which order of which pair.

A test says with ``plays`` what it plays; ``test_pairs.py`` holds what is said against the table, so that a pair, an
order or a backend that nobody plays is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tests.races.stage import BACKENDS, Backend

PAIRS: dict[str, tuple[str, str]] = {
    "abort/abort": ("one", "other"),
    "abort/accept": ("abort", "accept"),
    "abort/child's abort": ("abort", "child's abort"),
    "abort/child's settlement": ("abort", "child's settlement"),
    "abort/close": ("abort", "close"),
    "abort/configure": ("abort", "configure"),
    "abort/intent": ("abort", "intent"),
    "abort/outcome": ("abort", "outcome"),
    "abort/queue": ("abort", "queue"),
    "abort/retry wake": ("abort", "retry wake"),
    "abort/settlement": ("abort", "settlement"),
    "abort/summary": ("abort", "summary"),
    "abort/summary intent": ("abort", "summary intent"),
    "accept/accept": ("one", "other"),
    "accept/configure": ("accept", "configure"),
    "accept/reopen": ("accept", "reopen"),
    "accept/settlement": ("accept", "settlement"),
    "answer/abort": ("answer", "abort"),
    "answer/answer": ("one", "other"),
    "append/accept": ("append", "accept"),
    "append/summary": ("append", "summary"),
    "branch/lane": ("branch", "lane"),
    "close/answer": ("close", "answer"),
    "close/decide": ("close", "decide"),
    "decide/abort": ("decide", "abort"),
    "decide/decide": ("one", "other"),
    "decide/expiry": ("decide", "expiry"),
    "cancel_queued/consumption": ("cancel_queued", "consumption"),
    "close/append": ("close", "append"),
    "close/close": ("one", "other"),
    "close/commit": ("close", "commit"),
    "close/intent": ("close", "intent"),
    "close/label": ("close", "label"),
    "close/list": ("close", "list"),
    "close/name": ("close", "name"),
    "close/outcome": ("close", "outcome"),
    "close/settlement": ("close", "settlement"),
    "close/summary": ("close", "summary"),
    "close/usage": ("close", "usage"),
    "close/value": ("close", "value"),
    "compact/accept": ("compact", "accept"),
    "compact/append": ("compact", "append"),
    "compact/compact": ("one", "other"),
    "configure/intent": ("configure", "intent"),
    "configure/outcome": ("configure", "outcome"),
    "configure/summary intent": ("configure", "summary intent"),
    "delete/accept": ("delete", "accept"),
    "deliver/abort": ("deliver", "abort"),
    "deliver/deliver": ("one", "other"),
    "drive/drive": ("one", "other"),
    "drive/settlement": ("drive", "settlement"),
    "frames/settlement": ("frames", "settlement"),
    "lane/lane": ("one", "other"),
    "memo/outcome": ("memo", "outcome"),
    "navigate/accept": ("navigate", "accept"),
    "navigate/append": ("navigate", "append"),
    "navigate/close": ("navigate", "close"),
    "navigate/navigate": ("one", "other"),
    "next_run/accept": ("next_run", "accept"),
    "outcome/outcome": ("one", "other"),
    "progress/outcome": ("progress", "outcome"),
    "navigation/accept": ("navigation", "accept"),
    "navigation/append": ("navigation", "append"),
    "rename/accept": ("rename", "accept"),
    "rename/branch": ("rename", "branch"),
    "reopen/drive": ("reopen", "drive"),
    "submit/summary": ("submit", "summary"),
    "submit/terminal": ("submit", "terminal"),
    "takeover/commit": ("takeover", "commit"),
}
"""Each pair of what exists, and its two orders, each by the step that comes first."""

F = TypeVar("F", bound=Callable[..., Any])


class Played(NamedTuple):
    """A test plays an order of a pair on these backends."""

    pair: str
    first: str
    backends: tuple[Backend, ...]
    test: str
    function: Callable[..., Any]


PLAYED: list[Played] = []


def plays(pair: str, *, first: str, backends: tuple[Backend, ...] = BACKENDS) -> Callable[[F], F]:
    """The decorated test plays the order of ``pair`` in which ``first`` comes first."""

    def decorate(function: F) -> F:
        PLAYED.append(Played(pair, first, backends, f"{function.__module__}::{function.__name__}", function))
        return function

    return decorate
