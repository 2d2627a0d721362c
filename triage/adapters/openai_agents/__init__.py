"""The OpenAI Agents SDK: any agent, with its handoffs, its agents as tools, its approvals and sessions.

    agent = triage.wrap(agents.Agent(name="clerk", tools=[charge]), effects={"charge": "once"})
    result = await agent.run("Pay the bill.", session=session)
    print(result.final_output)

Each attempt runs the agent once from its input; earlier calls are answered from the journal.

The runner's choice of a model and its settings, `get_all_tools` of an agent and `run` of guardrails, whose
models judge, are replaced once per process, and so is what a tool does when it is called, the first time
that a wrapped agent has it; hooks and models still see the user's own tools. Outside a wrapped agent the
replacements call the originals.

Models that ask over HTTP are recorded where their requests leave. Of others, as over a WebSocket, calls are
recorded and hints told; their requests are not made shorter, and they begin anew after a Replan.
"""

from .adapter import OpenAIAgentsAdapter, agents_of

__all__ = ["OpenAIAgentsAdapter", "agents_of"]
