"""The typed addresses at which the library keeps its own values and lists, and those of applications."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from agentlane.data.writes import Address
from agentlane.errors import InvalidDefinition, InvalidName
from agentlane.names import check_name

T = TypeVar("T")

BRANCH_TIP = "branch.tip"
LANE_CONFIG = "lane.config"
LANE_STATE = "lane.state"
INBOX = "inbox"
OP_META = "op.meta"
OP_CONFIG = "op.config"
OP_STATE = "op.state"
OP_ARGS = "op.args"
OP_MEMO = "op.memo"
OP_ANSWER = "op.answer"
OP_DECISION = "op.decision"
PENDING_APPROVAL = "pending.approval"
OP_RETURNED = "op.returned"
OP_PREP = "op.prep"
PENDING_ENTRY = "pending.entry"
PENDING_OUTPUT = "pending.output"
PENDING_FRAMES = "pending.frames"
RESULT = "result"
RECEIPT = "receipt"
SESSION_NAME = "session.name"
SESSION_FEATURE = "session.feature"
LABEL = "label"

CURRENT = (
    *(BRANCH_TIP, LANE_CONFIG, LANE_STATE, SESSION_NAME, SESSION_FEATURE),
    *(OP_META, OP_CONFIG, OP_STATE, OP_ARGS, OP_MEMO, OP_ANSWER, OP_DECISION, OP_RETURNED, OP_PREP),
    *(INBOX, RECEIPT, PENDING_APPROVAL, PENDING_ENTRY, PENDING_OUTPUT),
)
"""Namespaces of values that say where a session stands now: replaced or removed as it goes on, and few but receipts."""


def branch_tip(branch: str) -> Address:
    return Address(BRANCH_TIP, branch)


def lane_config(lane: str) -> Address:
    return Address(LANE_CONFIG, lane)


def lane_state(lane: str) -> Address:
    return Address(LANE_STATE, lane)


def inbox(lane: str, entry: str) -> Address:
    return Address(INBOX, f"{lane}|{entry}")


def op_meta(operation: str) -> Address:
    return Address(OP_META, operation)


def op_config(operation: str) -> Address:
    return Address(OP_CONFIG, operation)


def op_state(operation: str) -> Address:
    return Address(OP_STATE, operation)


def op_args(operation: str, call: str) -> Address:
    return Address(OP_ARGS, f"{operation}|{call}")


def op_decision(operation: str, approval: str) -> Address:
    return Address(OP_DECISION, f"{operation}|{approval}")


def op_memo(operation: str, call: str, name: str) -> Address:
    return Address(OP_MEMO, f"{operation}|{call}|{name}")


def op_answer(operation: str, call: str, name: str) -> Address:
    return Address(OP_ANSWER, f"{operation}|{call}|{name}")


def pending_approval(approval: str) -> Address:
    return Address(PENDING_APPROVAL, approval)


def op_returned(operation: str) -> Address:
    return Address(OP_RETURNED, operation)


def op_prep(operation: str, task: str) -> Address:
    return Address(OP_PREP, f"{operation}|{task}")


def pending_entry(entry: str) -> Address:
    return Address(PENDING_ENTRY, entry)


def pending_output(operation: str, call: str) -> Address:
    return Address(PENDING_OUTPUT, f"{operation}|{call}")


def pending_frames(operation: str, response: str) -> Address:
    return Address(PENDING_FRAMES, f"{operation}|{response}")


def result(operation: str) -> Address:
    return Address(RESULT, operation)


def receipt(lane: str, request: str) -> Address:
    return Address(RECEIPT, f"{lane}|{request}")


SESSION_NAME_ADDRESS = Address(SESSION_NAME, "")


def session_feature(name: str) -> Address:
    return Address(SESSION_FEATURE, name)


def label(entry: str) -> Address:
    return Address(LABEL, entry)


class ValueAddress(Generic[T]):
    """Where an application keeps one value of type ``type``; the namespace begins with ``app.``.

    ``InvalidName`` for what is no namespace or key, ``InvalidDefinition`` for a ``type`` that msgspec cannot read.
    """

    __slots__ = ("address", "type")

    def __init__(self, namespace: str, key: str, type: type[T]) -> None:
        self.address = app_address(namespace, key)
        self.type = checked_type(type)


class ListAddress(Generic[T]):
    """Where an application keeps a list of elements of type ``type``; errors are those of ``ValueAddress``."""

    __slots__ = ("address", "type")

    def __init__(self, namespace: str, key: str, type: type[T]) -> None:
        self.address = app_address(namespace, key)
        self.type = checked_type(type)


def checked_type(kind: type[T]) -> type[T]:
    """``kind`` if values of it can be read from JSON, as far as that shows; ``InvalidDefinition`` otherwise."""
    try:
        msgspec.json.Decoder(kind)
    except Exception as error:  # a foreign type may raise anything while its fields are looked at
        raise InvalidDefinition(
            f"type {kind!r}: give the type of the values, as in dict[str, int] or a Struct: {error}"
        ) from error
    return kind


def app_address(namespace: str, key: str) -> Address:
    """A checked address of an application; raises ``InvalidName``."""
    namespace = check_name(namespace, "namespace")
    if not namespace.startswith("app."):
        raise InvalidName(f"namespace {namespace!r}: an application's namespaces begin with 'app.'", value=namespace)
    return Address(namespace, check_name(key, "key"))
