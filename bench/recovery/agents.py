"""The agent most people have: thirty lines around a model, and what they do with the last answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from .script import Model
from .tasks import Task
from .tools import Kit

SYSTEM = "You work with the tools you are given. Answer in the form you are asked for."

WANTS = {
    "price": "Find {item} in {place} and answer its id and price.",
    "code": "Find {item} in {place}, read its note and answer its id and the code.",
    "cheapest": "Look at every {noun} in {place}, one by one, and answer the cheapest.",
    "compare": "Look at all {noun}s in {place} at once and answer the cheapest.",
    "audit": "Add up what the {noun}s of {all} cost.",
    "trip": "Say how many {noun}s there are in each of {all}.",
    "buy": "Buy {item} in {place} and answer receipt and price.",
    "buy_then_read": "Buy {item} in {place}, then read its note; answer receipt, price and code.",
    "two": "Buy {item} and {other} in {place}; answer receipts and what both cost.",
    "batch": "Take every {noun} in {place} and answer how many were ordered, and which failed.",
    "poll": "Wait until job-1 is done and answer its value.",
    "twice": "Look at {item} in {place}, at {other}, and at {item} again; answer its price.",
    "handled": "Look at the {noun} of yesterday, and if it is gone at {item} in {place}.",
    "nobody": "Find {item} in {place} and answer its id and price.",
}
FORMS = {
    "text": "Answer in a sentence.",
    "none": "Say nothing if there is nothing to say.",
    "int": "Answer with the number alone.",
    "choice": "Answer with one of the prices listed.",
    "label": "Answer urgent or later.",
}


def prompt(task: Task) -> str:
    """What the user says."""
    model = Model(task)
    words = {
        "item": model.wanted().name,
        "other": model.wanted(1).name,
        "place": model.place(),
        "noun": model.domain.noun,
        "all": ", ".join(model.place(n) for n in range(3)),
    }
    limit = f" Spend at most {task.options['budget']}." if "budget" in task.options else ""
    form = FORMS.get(task.finish, "Answer as JSON.")
    return f"{WANTS[task.shape].format(**words)}{limit} {form}"


class Quote(BaseModel):
    """An answer with a price."""

    id: str
    price: int


def finish(task: Task, text: str, results: Sequence[Any]) -> Any:  # noqa: C901, PLR0911 - a table of ways
    """What the agent makes of the model's last words; raises as such code does when they are wrong."""
    if task.options.get("bug"):
        return reciept  # type: ignore[name-defined]  # noqa: F821 - the bug of this agent
    match task.finish:
        case "text" | "label":
            return text
        case "none":
            return None if text.strip() == "nothing" else text
        case "int":
            return int(text)
        case "json":
            data = json.loads(text)
            return {key: data[key] for key in expected_keys(task)}
        case "pydantic":
            return Quote.model_validate_json(text).model_dump()
        case "choice":
            prices = {str(row["price"]): row["id"] for row in results if "price" in row}
            return prices[text.strip()]
        case "grounded":
            data = json.loads(text)
            seen = json.dumps(list(results))
            for key, value in data.items():
                if str(value) not in seen:
                    raise ValueError(f"{key} {value} is in none of the results")
            return data
        case "budget":
            data = json.loads(text)
            assert data["price"] <= task.options["budget"], (
                f"price {data['price']} is over the budget of {task.options['budget']}"
            )
            return data
        case "complete":
            counts = json.loads(text)
            model = Model(task)
            missing = [place for place in map(model.place, range(3)) if place not in counts]
            if missing:
                raise RuntimeError(f"the answer says nothing about {', '.join(missing)}")
            return counts
        case "place":
            data = json.loads(text)
            ids = [row["id"] for rows in results if isinstance(rows, list) for row in rows]
            assert data["id"] in ids, f"{data['id']} is not in {Model(task).place()}"
            return data
    raise AssertionError(task.finish)


def expected_keys(task: Task) -> tuple[str, ...]:
    """The keys that the agent takes out of an answer."""
    return {
        "code": ("id", "code"),
        "buy": ("receipt", "price"),
        "two": ("receipt", "price"),
        "batch": ("ordered", "failed"),
        "buy_then_read": ("receipt", "price", "code"),
        "audit": ("items", "price"),
    }.get(task.shape, ("id", "price"))


Ask = Callable[..., Awaitable[Any]]


async def loop(
    task: Task, name: str, ask: Ask, tools: Mapping[str, Any], kits: Sequence[Kit], hint: str | None
) -> Any:
    """Ask, run the tools, ask again, until the model has an answer. `ask` creates a completion."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": prompt(task)},
    ]
    if hint:
        messages.append({"role": "user", "content": hint})
    results: list[Any] = []
    schemas = [kit.schema() for kit in kits]
    turns = turns_of(task)
    for _ in range(turns):
        answer = await ask(model=name, messages=messages, tools=schemas, **options_of(task))
        said = answer.choices[0].message
        if not said.tool_calls:
            return finish(task, said.content, results)
        asked = [call.model_dump() for call in said.tool_calls]
        messages.append({"role": "assistant", "content": said.content, "tool_calls": asked})
        for call in said.tool_calls:
            tool = tools[call.function.name]
            arguments = json.loads(call.function.arguments)
            try:
                result = await tool(**arguments)
            except Exception as error:
                if not task.options.get("catches"):
                    raise
                result = None
                content = f"error: {error}"
            else:
                results.append(result)
                content = json.dumps(result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    raise RuntimeError(f"no answer after {turns} turns")


def turns_of(task: Task) -> int:
    """How often the agent asks its model at most."""
    return int(task.options.get("turns", 12))


def options_of(task: Task) -> dict[str, Any]:
    """What is sent to the provider besides."""
    return {"max_tokens": task.options["max_tokens"]} if "max_tokens" in task.options else {}
