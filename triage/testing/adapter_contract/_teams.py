"""The scenarios of several agents in one run."""

from __future__ import annotations

from typing import Any

from ._bench import Bench
from ._play import Played, play
from ._scenarios import CHARGE, RETRY
from ._script import After, Fails, Helper, Rule, Script, asks, call, says
from ._wire import results_in

OVERLOADED = Fails(503, "Overloaded")
PAYS = (Rule(says("ann paid"), "receipt 5"), Rule(CHARGE))


async def sub_agent(bench: Bench) -> None:
    """An agent in a tool fails, and later the one around it: what was paid is not paid again."""
    rules = (Rule(says("done"), "ann paid"), Rule(asks(call("ann", input="Pay."))))
    helpers = {"ann": Helper(PAYS, faults={2: OVERLOADED})}
    script = Script(rules, faults={2: OVERLOADED}, helpers=helpers)
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert done.world.deeds == ["charge(300)"], done.world.deeds
    asked = [request.who for request in done.world.requests]
    assert sorted(asked) == ["", "", "", "ann", "ann", "ann"], f"the requests were of {asked}"
    assert _models(done, "ann") == [_asked("charge", cents=300), "error", "ann paid"]
    assert _models(done, "") == [_asked("ann", input="Pay."), "error", "done"]
    assert _tools(done) == [("ann", "charge", "receipt 5"), ("", "ann", "ann paid")]
    assert done.usage.calls == 4, f"the usage is {done.usage}"


async def parallel_agents(bench: Bench) -> None:
    """Two agents in tools of one turn: each has its own steps and results, also when they are reused."""
    both = asks(call("ann", input="Pay 300."), call("bob", input="Pay 500."))
    helpers = {name: _payer(name, cents) for name, cents in (("ann", 300), ("bob", 500))}
    meet = {300: After("charge(500)", "receipt 300"), 500: After("charge(300)", "receipt 500")}
    script = Script(
        (Rule(says("done"), "bob paid 500"), Rule(both)),
        faults={2: OVERLOADED},
        tools={"charge": (meet.__getitem__,)},
        helpers=helpers,
    )
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert sorted(done.world.deeds) == ["charge(300)", "charge(500)"], done.world.deeds
    asked = sorted(request.who for request in done.world.requests)
    assert asked == ["", "", "", "ann", "ann", "bob", "bob"], f"the requests were of {asked}"
    for name, cents in (("ann", 300), ("bob", 500)):
        wanted = [_asked("charge", cents=cents), f"{name} paid {cents}"]
        assert _models(done, name) == wanted, f"{name}'s model said {_models(done, name)}"
    found = sorted(_tools(done))
    assert found == [
        ("", "ann", "ann paid 300"),
        ("", "bob", "bob paid 500"),
        ("ann", "charge", "receipt 300"),
        ("bob", "charge", "receipt 500"),
    ], f"the steps of the tools are {found}"
    told = sorted(results_in(done.world.requests[-1]))
    assert told == [("ann", "ann paid 300"), ("bob", "bob paid 500")], f"the model was told {told}"


async def handoff(bench: Bench) -> None:
    """The agent hands over to another one, which fails: it goes on, and nothing is paid twice."""
    helpers = {"ann": Helper(PAYS, faults={2: OVERLOADED})}
    script = Script((Rule(asks(call("transfer_to_ann"))),), helpers=helpers, handoffs=True)
    done = await play(bench, script, policy=RETRY)
    done.check_done("ann paid")
    assert done.world.deeds == ["charge(300)"], done.world.deeds
    asked = [request.who for request in done.world.requests]
    assert asked == ["", "ann", "ann", "ann"], f"the requests were of {asked}"
    assert _models(done, "") == [_asked("transfer_to_ann")]
    assert _models(done, "ann") == [_asked("charge", cents=300), "error", "ann paid"]
    paid = [step for step in _tools(done) if step[1] == "charge"]
    assert paid == [("ann", "charge", "receipt 5")], f"the steps of the tools are {_tools(done)}"


def _payer(name: str, cents: int) -> Helper:
    done = Rule(says(f"{name} paid {cents}"), f"receipt {cents}")
    return Helper((done, Rule(asks(call("charge", cents=cents)))))


def _asked(tool: str, **arguments: Any) -> Any:
    return [{"tool": tool, "arguments": arguments}]


def _models(done: Played, who: str) -> list[Any]:
    """What the model of one agent said, in order."""
    return [
        "error" if step.error else step.llm_output or step.tool_output
        for step in done.models
        if done.owner(step) == who
    ]


def _tools(done: Played) -> list[tuple[str, Any, Any]]:
    """The tool calls that succeeded: whose, which, what they gave."""
    return [
        (done.owner(step), step.tool_called, step.tool_output)
        for step in done.tools
        if not step.error
    ]
