"""Your own agent under the crash matrix: killed, closed and aborted at every boundary, on every store.

The agent sends invitations. `send` is declared `never`, and the matrix shows that no crash makes it send one twice.
Then the same tool is declared `safe`, which is a lie, and the matrix names the crash that gives it away.
"""

import asyncio
import logging
from collections import Counter

from agentlane import Agent, ReplayPolicy, tool
from agentlane.testing import CrashMatrixError, Depth, History, Life, Scenario, ScriptedModel, call, crash_matrix


def invitations(policy: ReplayPolicy) -> Scenario[list[str]]:
    """The agent with its tool declared so, and what must be true of the outbox after any crash."""

    def make_agent(life: Life[list[str]]) -> Agent:
        @tool(replay=policy)
        async def send(to: str) -> str:
            """Send an invitation."""
            life.world.append(to)
            return "sent"

        return Agent(model=ScriptedModel([[call("send", to="Ada"), call("send", to="Bob")], "Both."]), tools=[send])

    def check(history: History[list[str]]) -> None:
        outbox = Counter(history.world)
        assert max(outbox.values(), default=0) <= 1, f"sent twice: {outbox}"
        assert len(outbox) >= history.done["send"], "it claims more than it sent"

    return Scenario(f"send is {policy}", agent=make_agent, prompt="Invite them.", world=list, check=check)


async def main() -> None:
    print(await crash_matrix(invitations("never"), depth=Depth(every=3, again=10)))
    try:
        await crash_matrix(invitations("safe"), stores=["memory"], failures_max=1)
    except CrashMatrixError as error:
        failure = error.report.failures[0]
        print(f"\nDeclared safe, which it is not:\n  {failure.complaints[0]}\n  after {failure.only}")


if __name__ == "__main__":
    logging.getLogger("agentlane").setLevel(logging.CRITICAL)  # what killed processes leave behind is expected here
    asyncio.run(main())
