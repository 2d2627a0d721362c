"""Calls matched by position: a retry pays for none of the model calls before, whatever its hint changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import Killed, in_turn, in_two_processes, recovers
from tables import table

import triage
from triage import (
    Agent,
    FailurePolicy,
    Guidance,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
)

pytestmark = pytest.mark.anyio


class Model:
    """A model that notes what it was asked. Where `breaks` says so it raises."""

    def __init__(self, breaks: Callable[[str], bool] = lambda _prompt: False) -> None:
        self.asked: list[str] = []
        self.breaks = breaks
        self.ask = triage.tool(effect="read", match="position", ignore=("client",))(self._ask)

    async def _ask(self, prompt: str, client: object = None) -> str:
        self.asked.append(prompt)
        if self.breaks(prompt):
            raise ConnectionError("overloaded")
        return f"answer {len(self.asked)}"


def told(hint: str | None) -> str:
    return "" if hint is None else f" ({hint})"


async def test_a_retry_at_step_50_pays_for_none_of_the_49_before_although_the_hint_is_in_the_prompt() -> (
    None
):
    model = Model(lambda prompt: prompt == "prompt 49")

    async def works(task: str, *, _triage_hint: str | None = None) -> list[str]:
        return [await model.ask(f"prompt {n}{told(_triage_hint)}") for n in range(52)]

    answers = await Agent(works, **recovers(Retry(hint="be brief"))).run("t")
    assert model.asked[50:] == [f"prompt {n} (be brief)" for n in (49, 50, 51)]
    assert answers[:49] == [f"answer {n}" for n in range(1, 50)]


@table("action", [Retry(hint="h"), Rollback(hint="h")])
async def test_from_the_critical_step_on_the_calls_run(action: Any) -> None:
    model = Model()

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> None:
        for n in range(4):
            await model.ask(f"prompt {n}{told(_triage_hint)}")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(action, critical_step=2)).run("t")
    assert model.asked[4:] == ["prompt 2 (h)", "prompt 3 (h)"]


@table(("action", "again"), [(Replan("h"), 3), (Resume("go", "h"), 0), (Rollback(hint="h"), 0)])
async def test_what_is_given_again_follows_the_action(action: Any, again: int) -> None:
    model = Model()

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> int:
        for n in range(3):
            await model.ask(f"prompt {n}{told(_triage_hint)}")
        if run.attempt == 1:
            raise ConnectionError("late")
        return len(run.trajectory)

    assert await Agent(works, **recovers(action)).run("t") == 3
    assert len(model.asked) == 3 + again


async def test_it_holds_over_several_attempts() -> None:
    model = Model()

    async def works(task: str, *, run: Run) -> None:
        for n in range(run.attempt + 2):
            await model.ask(f"prompt {n} of attempt {run.attempt}")
        if run.attempt < 4:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert model.asked[3:] == [f"prompt {n + 1} of attempt {n}" for n in (2, 3, 4)]


async def test_once_a_call_has_run_the_course_is_another_one() -> None:
    model = Model()
    temperature: list[int] = []

    @triage.tool(effect="read")
    async def measure(n: int) -> int:
        temperature.append(n)
        if len(temperature) == 1:
            raise ConnectionError("sensor")
        return n

    async def works(task: str, *, run: Run) -> None:
        await model.ask(f"begin {run.attempt}")
        try:
            found = await measure(7)
        except ConnectionError:
            found = -1
        await model.ask(f"what about {found}?")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert model.asked == ["begin 1", "what about -1?", "what about 7?"]


async def test_equal_arguments_find_their_call_at_any_position() -> None:
    model = Model()

    async def works(task: str, *, run: Run) -> list[str]:
        prompts = ["a", "b", "c"] if run.attempt == 1 else ["c", "a", "b"]
        answers = [await model.ask(prompt) for prompt in prompts]
        if run.attempt == 1:
            raise ConnectionError("late")
        return answers

    assert await Agent(works, **recovers(Retry())).run("t") == ["answer 3", "answer 1", "answer 2"]
    assert len(model.asked) == 3


@table("waits", [True, False])
async def test_calls_side_by_side_are_never_matched_by_who_came_first(waits: bool) -> None:  # noqa: FBT001 - a case
    asked: list[str] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        if waits:
            await anyio.lowlevel.checkpoint()
        return prompt.partition(" ")[0]

    async def works(task: str, *, run: Run) -> dict[str, str]:
        answers: dict[str, str] = {}

        async def one(name: str) -> None:
            answers[name] = await ask(f"{name} in attempt {run.attempt}")

        names = ["a", "b", "c"] if run.attempt == 1 else ["c", "b", "a"]
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)
        if run.attempt == 1:
            raise ConnectionError("late")
        return answers

    answers = await Agent(works, **recovers(Retry())).run("t")
    assert answers == {"a": "a", "b": "b", "c": "c"}
    assert len(asked) == 6


async def test_calls_of_a_group_that_broke_off_are_in_no_order() -> None:
    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        return prompt.partition(" ")[0]

    async def works(task: str, *, run: Run) -> dict[str, str]:
        answers: dict[str, str] = {}

        async def one(name: str) -> None:
            answers[name] = await ask(f"{name} in attempt {run.attempt}")
            if run.attempt == 1:
                raise ConnectionError("cancels its neighbour")

        async with anyio.create_task_group() as group:
            for name in ["a", "b"] if run.attempt == 1 else ["b", "a"]:
                group.start_soon(one, name)
        return answers

    assert await Agent(works, **recovers(Retry())).run("t") == {"a": "a", "b": "b"}


@table("hint", [None, "be brief"])
async def test_a_call_that_failed_is_not_given_the_answer_of_the_next(hint: str | None) -> None:
    model = Model(lambda prompt: prompt == "b" and model.asked.count("b") == 1)

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> list[str | None]:
        answers: list[str | None] = []
        for prompt in "abc":
            try:
                answers.append(await model.ask(f"{prompt}{told(_triage_hint)}"))
            except ConnectionError:
                answers.append(None)
        if run.attempt == 1:
            raise ConnectionError("late")
        return answers

    answers = await Agent(works, **recovers(Retry(hint=hint))).run("t")
    if hint is None:
        assert answers == ["answer 1", "answer 4", "answer 3"]
    else:
        assert answers == ["answer 1", "answer 4", "answer 5"]
        assert model.asked[3:] == ["b (be brief)", "c (be brief)"]


@table("hint", [None, "be brief"])
async def test_an_agents_own_second_try_is_given_again(hint: str | None) -> None:
    model = Model(lambda prompt: prompt == "b" and model.asked.count("b") < 3)

    async def tries(prompt: str) -> str:
        while True:
            try:
                return await model.ask(prompt)
            except ConnectionError:
                pass

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> list[str]:
        answers = [await tries(f"{prompt}{told(_triage_hint)}") for prompt in "abc"]
        if run.attempt == 1:
            raise ConnectionError("late")
        return answers

    answers = await Agent(works, **recovers(Retry(hint=hint))).run("t")
    assert answers == ["answer 1", "answer 4", "answer 5"]
    assert len(model.asked) == 5


@table("hint", [None, "be brief"])
@table("breaks", ["a", "b"])
async def test_a_call_that_failed_beside_others_is_not_given_their_answers(
    breaks: str, hint: str | None
) -> None:
    asked: list[str] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        if asked.count(breaks) == 1 and prompt == breaks:
            await anyio.lowlevel.checkpoint()
            raise ConnectionError("overloaded")
        return prompt.partition(" ")[0]

    async def works(task: str, *, _triage_hint: str | None = None) -> dict[str, str]:
        answers: dict[str, str] = {}

        async def one(name: str) -> None:
            answers[name] = await ask(f"{name}{told(_triage_hint)}")

        async with anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(one, name)
        return answers

    assert await Agent(works, **recovers(Retry(hint=hint))).run("t") == {"a": "a", "b": "b"}


async def test_a_call_that_was_cut_off_is_not_given_the_answer_of_another(tmp_path: Path) -> None:
    processes: list[int] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        if prompt == "a" and len(processes) == 1:
            await anyio.sleep_forever()
        return prompt

    async def works(task: str) -> dict[str, str]:
        answers: dict[str, str] = {}
        processes.append(len(processes) + 1)

        async def one(name: str) -> None:
            answers[name] = await ask(name)
            if len(processes) == 1:
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(one, name)
        if len(processes) == 1:
            raise Killed
        return answers

    answers = await in_two_processes(works, tmp_path, **recovers(Retry()))
    assert answers == {"a": "a", "b": "b"}


@table("hint", [None, "be brief"])
async def test_a_call_is_not_given_the_answer_of_a_task_that_was_ahead_of_it(
    hint: str | None,
) -> None:
    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        return prompt.partition(" ")[0]

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> dict[str, str]:
        answers: dict[str, str] = {}
        turn = {name: anyio.Event() for name in "ab"}
        first, second = "ab" if run.attempt == 1 else "ba"

        async def one(name: str) -> None:
            if name == second:
                await turn[name].wait()
            answers[name] = await ask(f"{name}{told(_triage_hint)}")
            if run.attempt == 1:
                raise ConnectionError("lost")
            turn["a" if name == "b" else "b"].set()

        async with anyio.create_task_group() as group:
            group.start_soon(one, first)
            group.start_soon(one, second)
        return answers

    assert await Agent(works, **recovers(Retry(hint=hint))).run("t") == {"a": "a", "b": "b"}


async def test_an_answer_from_before_the_hint_takes_the_place_of_the_one_with_it() -> None:
    @triage.model
    async def ask(prompt: str) -> str:
        return prompt.partition(" ")[0]

    @triage.tool(effect="read")
    async def look(hint: str) -> None:
        pass

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> list[str]:
        await look(told(_triage_hint))  # another read with the hint, so all behind it is asked anew
        answers = [await ask(f"{prompt}{told(_triage_hint)}") for prompt in "abc"]
        if run.attempt == 1:
            raise ValueError("unreadable")
        if run.attempt == 2:
            raise ConnectionError("late")
        return answers

    policy = FailurePolicy(default=in_turn(Retry(hint="be brief"), Retry()))
    assert await Agent(works, policy).run("t") == ["a", "b", "c"]


async def test_a_call_that_is_made_for_the_first_time_is_given_no_answer_of_an_earlier_attempt() -> (
    None
):
    @triage.model
    async def ask(prompt: str) -> str:
        return prompt.partition(" ")[0]

    @triage.tool(effect="read")
    async def look() -> None:
        pass

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> list[str]:
        if run.attempt == 2:
            await look()
        answers = [await ask(f"{prompt}{told(_triage_hint)}") for prompt in "ab"]
        if run.attempt == 1:
            raise ValueError("unreadable")
        if run.attempt == 2:
            raise ConnectionError("late")
        return [*answers, *[await ask(f"{prompt}{told(_triage_hint)}") for prompt in "cd"]]

    policy = FailurePolicy(default=in_turn(Retry(hint="one"), Retry(hint="two")))
    assert await Agent(works, policy).run("t") == ["a", "b", "c", "d"]


async def test_a_client_or_any_other_object_needs_no_exact_form() -> None:
    model: list[object] = []

    @triage.tool(effect="read", match="position")
    async def ask(client: object, prompt: str) -> str:
        model.append(client)
        return prompt

    async def works(task: str, *, run: Run) -> str:
        answer = await ask(object(), f"attempt {run.attempt}")
        if run.attempt == 1:
            raise ConnectionError("late")
        return answer

    assert await Agent(works, **recovers(Retry())).run("t") == "attempt 1"
    assert len(model) == 1


async def test_a_replay_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    model = Model()

    async def works(task: str, *, run: Run) -> list[str]:
        answers: list[str] = []
        for n in range(5):
            answers.append(await model.ask(f"{n}, asked after {len(model.asked)}"))
            if n == 2 and run.attempt == 2 and "cut" not in model.asked:
                model.asked.append("cut")
                raise Killed
        if run.attempt == 1:
            raise ConnectionError("late")
        return answers

    answers = await in_two_processes(works, tmp_path, **recovers(Retry()))
    assert answers == [f"answer {n}" for n in range(1, 6)]
    assert len(model.asked) == 6


@table("ends", [Retry(), Retry(hint="be brief"), None])
async def test_an_agent_that_takes_another_course_is_not_given_the_answer_to_another_question(
    ends: Any, tmp_path: Path
) -> None:
    model = Model()
    ended: list[int] = []

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> list[str]:
        asks = ["what is the capital?", "how many live there?"]
        if not ended:
            asks = asks[1:]  # what it does by itself failed this time, and it went on without
        answers = [f"{ask} {await model.ask(ask + told(_triage_hint))}" for ask in asks]
        if not ended:
            ended.append(1)
            await run.flush()
            raise ConnectionError("late") if ends else Killed
        return answers

    if ends is None:
        found = await in_two_processes(works, tmp_path, name="works", **recovers(Retry()))
    else:
        found = await Agent(works, **recovers(ends)).run("t")
    assert found[0] == "what is the capital? answer 2"
    assert found[1] in ("how many live there? answer 1", "how many live there? answer 3")


async def test_a_prompt_may_differ_in_numbers_and_in_words_around_the_hint() -> None:
    model = Model()

    async def works(task: str, *, run: Run, _triage_hint: str | None = None) -> None:
        note = (
            "" if _triage_hint is None else f"\nNote from the last try: {_triage_hint}\nDo better!"
        )
        for n in range(3):
            await model.ask(f"At 12:0{run.attempt}, answer number {n}.{note}")
        if run.attempt < 4:
            raise ConnectionError(f"late {run.attempt}")

    back = in_turn(Retry(hint="be brief"), Retry(), Retry(hint="be exact"))
    await Agent(works, **recovers(back)).run("t")
    assert len(model.asked) == 3


def reads_parameter(run: Run, state: Any, context: Any) -> Any:
    return state


def reads_context(run: Run, state: Any, context: Any) -> Any:
    return None if context is None else context.state


def reads_run(run: Run, state: Any, context: Any) -> Any:
    return run.state


@table("reads", [reads_parameter, reads_context, reads_run])
@table("ends", [Rollback(), Resume("go on"), None])
async def test_an_agent_that_goes_on_from_its_state_is_not_given_answers_from_its_beginning(
    ends: Any, reads: Any, tmp_path: Path
) -> None:
    model = Model()
    ended: list[int] = []

    async def asks(task: str, *, run: Run, state: Any, context: Any) -> list[str]:
        found = list((reads(run, state, context) or {}).get("found", []))
        for n in range(len(found), 4):
            if n == 2 and not ended:
                ended.append(n)
                raise ConnectionError("late") if ends else Killed
            found.append(f"{n}: {await model.ask(f'prompt {n}')}")
            run.update_state({"found": found})
            await run.flush()
        return found

    async def by_parameter(task: str, *, run: Run, _triage_state: Any = None) -> list[str]:
        return await asks(task, run=run, state=_triage_state, context=None)

    async def by_context(task: str, *, run: Run, _triage_context: Any = None) -> list[str]:
        return await asks(task, run=run, state=None, context=_triage_context)

    async def by_run(task: str, *, run: Run) -> list[str]:
        return await asks(task, run=run, state=None, context=None)

    works = {reads_parameter: by_parameter, reads_context: by_context, reads_run: by_run}[reads]
    if ends is None and reads is reads_context:
        return  # a first attempt has no context, though another process makes it once more
    if ends is None:
        path = tmp_path / reads.__name__
        path.mkdir()
        found = await in_two_processes(works, path, name="works", **recovers(Retry()))
    else:
        found = await Agent(works, **recovers(ends)).run("t")
    assert found == [f"{n}: answer {n + 1}" for n in range(4)]
    assert model.asked == [f"prompt {n}" for n in range(4)]


async def test_what_a_reused_call_did_inside_is_not_given_to_whoever_asks_next() -> None:
    model = Model()

    @triage.tool(effect="read")
    async def ann() -> list[str]:
        return [await model.ask("inner 1"), await model.ask("inner 2")]

    async def works(task: str, *, run: Run) -> list[Any]:
        answers = [await model.ask("outer 1"), await ann()]
        if run.attempt == 1:
            raise ConnectionError("late")
        said = [step.metadata or {} for step in run.history[0].trajectory.steps]
        owners = [str(about.get("within", "")).partition(" ")[0] for about in said]
        return [*answers, await model.ask("outer 2"), owners]

    answers = await Agent(works, **recovers(Retry())).run("t")
    assert model.asked == ["outer 1", "inner 1", "inner 2", "outer 2"]
    assert answers == ["answer 1", ["answer 2", "answer 3"], "answer 4", ["", "ann", "ann", ""]]


# The hint of an attempt stays out of its prompts until the replayed calls are done ----------------
async def test_guidance_is_empty_until_the_last_replayed_call() -> None:
    asked: list[str] = []
    hints: list[str | None] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) == 4:
            raise ConnectionError("overloaded")
        return prompt

    async def works(task: str, *, run: Run) -> None:
        for n in range(5):
            hint = run.guidance.hint
            hints.append(hint)
            await ask(f"prompt {n}{'' if hint is None else f' ({hint})'}")

    await Agent(works, **recovers(Retry(hint="be brief"))).run("t")
    assert hints == [None] * 4 + [None] * 3 + ["be brief"] * 2
    assert asked == [
        *(f"prompt {n}" for n in range(4)),
        "prompt 3 (be brief)",
        "prompt 4 (be brief)",
    ]


async def test_each_attempt_is_told_again_what_was_told_before_a_replayed_call() -> None:
    asked: list[str] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) in (2, 4, 6):
            raise ConnectionError("overloaded")
        return prompt

    async def works(task: str, *, run: Run) -> list[str]:
        said = []
        for n in range(4):
            told = run.guidance
            said.append(await ask(f"{n} for {told.model}, {told.keep_last}: {told.hint}"))
        return said

    actions = Retry(hint="be brief", model="small"), Retry(hint="be sure", keep_last=4), Retry()
    assert await Agent(works, **recovers(in_turn(*actions))).run("t") == [
        "0 for None, None: None",
        "1 for small, None: be brief",
        "2 for small, 4: be sure",
        "3 for small, 4: None",
    ]
    assert len(asked) == 7


async def test_equal_prompts_of_a_task_group_are_found_and_then_the_hint_is_told() -> None:
    asked: list[str] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        await anyio.lowlevel.checkpoint()
        return prompt

    async def works(task: str, *, run: Run) -> str | None:
        async def one(name: str) -> None:
            await ask(f"{name} {run.guidance.hint}")

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
        if run.attempt == 1:
            raise ConnectionError("late")
        return run.guidance.hint

    assert await Agent(works, **recovers(Retry(hint="h"))).run("t") == "h"
    assert sorted(asked) == ["a None", "b None", "c None"]


async def test_guidance_is_told_at_once_where_nothing_is_matched_by_position() -> None:
    @triage.tool(effect="read")
    async def look() -> int:
        return 1

    told: list[Guidance] = []

    async def works(task: str, *, run: Run) -> None:
        told.append(run.guidance)
        await look()
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Replan("another way"))).run("t")
    assert [guidance.hint for guidance in told] == [None, "another way"]
