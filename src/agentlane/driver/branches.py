"""Taking a branch away and giving it another name: one commit each, with all that is kept under its name.

Entries are not touched. What was accepted keeps the name that the lane had then in its record.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from msgspec.structs import replace

from agentlane.data import addresses, codec
from agentlane.data.writes import Address, DeleteValue, SetValue, Write
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision
from agentlane.driver.runtime import Runtime
from agentlane.driver.together import Together
from agentlane.errors import InvalidName, LaneBusy, UnknownBranch
from agentlane.storage.contract import Commit


async def delete_branch(core: LaneCore, cores: MutableMapping[str, LaneCore]) -> None:
    """See ``Session.delete_branch``."""
    runtime = core.runtime
    with Together(runtime) as heads:
        await heads.hold(core.line)
        _check(core)
        kept = await _kept(runtime, core.name)

        def decide() -> Decision[None]:
            name = core.name
            writes: list[Write] = [DeleteValue(address) for address in (*_own(core), *kept)]
            for address, payload in kept.items():
                if address.namespace == addresses.INBOX:
                    item = codec.QUEUED.decode(payload, f"inbox {address.key}")
                    writes += [DeleteValue(addresses.pending_entry(entry)) for entry in item.entries]

            def publish(_commit: Commit) -> None:
                core.exists = False
                core.reset(None, None, None, None)
                core.line.close(UnknownBranch(f"branch {name!r} was deleted", name=name))
                cores.pop(name, None)

            return Decision(writes, "delete_branch", publish)

        await heads.commit(decide)


async def rename_branch(core: LaneCore, place: LaneCore, cores: MutableMapping[str, LaneCore]) -> None:
    """See ``Session.rename_branch``. ``place`` stands for the new name: no branch, if it is free."""
    runtime = core.runtime
    if core is place:
        core.check()
        return
    with Together(runtime) as heads:
        for each in sorted((core, place), key=lambda each: each.name):
            await heads.hold(each.line)
        _check(core)
        new = place.name
        if place.exists or cores.get(new) is not place:
            raise InvalidName(f"branch {new!r} exists already; choose another name", value=new)
        kept = await _kept(runtime, core.name)

        def decide() -> Decision[None]:
            old = core.name
            writes: list[Write] = [DeleteValue(address) for address in (*_own(core), *kept)]
            writes.append(SetValue(addresses.branch_tip(new), codec.encode(core.tip)))
            if core.config is not None and core.state is not None:
                writes.append(SetValue(addresses.lane_config(new), codec.encode(core.config)))
                writes.append(SetValue(addresses.lane_state(new), codec.encode(core.state)))
            for address, payload in kept.items():
                if address.namespace == addresses.RECEIPT:
                    receipt = codec.RECEIPT.decode(payload, f"receipt {address.key}")
                    payload = codec.encode(replace(receipt, lane=new))
                writes.append(SetValue(Address(address.namespace, f"{new}|{address.key.split('|', 1)[1]}"), payload))

            def publish(_commit: Commit) -> None:
                place.line.close(InvalidName(f"branch {new!r} exists already: {old!r} has that name now", value=new))
                core.name = new
                cores.pop(old, None)
                cores[new] = core

            return Decision(writes, "rename_branch", publish)

        await heads.commit(decide)


def _check(core: LaneCore) -> None:
    core.check()
    if core.operation is not None:
        raise LaneBusy(
            f"lane {core.name!r} has the open operation {core.operation.id}; drive or abort it first",
            operation_id=core.operation.id,
        )


def _own(core: LaneCore) -> tuple[Address, ...]:
    lane = () if core.config is None else (addresses.lane_config(core.name), addresses.lane_state(core.name))
    return (addresses.branch_tip(core.name), *lane)


async def _kept(runtime: Runtime, name: str) -> Mapping[Address, bytes]:
    """What waits in a lane's inbox, and the receipts of what was sent to it."""
    found: dict[Address, bytes] = {}
    for namespace in (addresses.INBOX, addresses.RECEIPT):
        for key, payload in (await runtime.storage.values(namespace, f"{name}|")).items():
            found[Address(namespace, key)] = payload
    return found
