"""OpenTelemetry spans that follow the conventions for GenAI: each trace is one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triage.failures import ErrorInfo
from triage.steps import Trajectory

from ._genai import Said, inputs, outputs
from ._nouns import Problem, Tell, Trace
from ._spans import Span, spans_of
from ._talk import Talk
from ._values import arguments, as_text, text_or_none, tools_of, usage_of

FORMAT = "otlp"
_MODEL = ("chat", "text_completion", "generate_content")
_TOOL = "execute_tool"
_NANO = 1e9


class OtlpReader:
    """Gathers spans by trace, over all exports of a file, and gives the traces at its end."""

    def __init__(self) -> None:
        self._traces: dict[str, list[Span]] = {}

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        """Take an export in."""
        problems: list[Problem] = []
        tell = _telling(problems, line)
        for span in spans_of(value, line, tell):
            self._traces.setdefault(span.trace, []).append(span)
        yield from problems

    def close(self) -> Iterator[Trace | Problem]:
        """One trajectory a trace, in the order they were first seen."""
        for trace, spans in self._traces.items():
            line = spans[0].line
            spans.sort(key=lambda span: span.start)
            if not any(_operation(span) for span in spans):
                told = f"trace {trace[:32] or 'without an id'} has no GenAI spans"
                yield Problem(line, told, "its spans need gen_ai.* attributes")
                continue
            trajectory = _Assembly(spans).trajectory()
            yield Trace(trajectory, FORMAT, line, trace)


def _telling(problems: list[Problem], line: int) -> Tell:
    return lambda text, remedy: problems.append(Problem(line, text, remedy))


def _operation(span: Span) -> str:
    """What a span is of: the name of the operation, `other` for a GenAI span of none, else empty."""
    given = span.attributes
    name = given.get("gen_ai.operation.name")
    if isinstance(name, str) and name:
        return name
    if "gen_ai.tool.name" in given:
        return _TOOL
    if any(
        key.startswith(("gen_ai.request.", "gen_ai.completion", "gen_ai.output")) for key in given
    ):
        return "chat"
    return "other" if any(key.startswith("gen_ai.") for key in given) else ""


class _Assembly:
    """One trace on its way to a trajectory."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._talk = Talk()
        tools = [span.attributes for span in spans if _operation(span) == _TOOL]
        # A call that has a span of its own is not taken from the messages as well.
        self._own_ids = {given.get("gen_ai.tool.call.id") for given in map(_hashable, tools)}
        self._own_names = {
            given.get("gen_ai.tool.name")
            for given in map(_hashable, tools)
            if given.get("gen_ai.tool.call.id") is None
        }

    def trajectory(self) -> Trajectory:
        for span in self._spans:
            operation = _operation(span)
            if operation:
                self._talk.tools.update(
                    tools_of(arguments(span.attributes.get("gen_ai.tool.definitions")))
                )
            if operation == _TOOL:
                self._tool(span)
            elif operation in _MODEL:
                self._model(span)
            elif operation:
                self._hear(inputs(span))
        made = self._talk.trajectory()
        root = self._root()
        if root.succeeded:
            return Trajectory(made.steps, task=made.task, tools=made.tools)
        error = _fuller(root.fault, made.error)
        return Trajectory(made.steps, error=error, task=made.task, tools=made.tools)

    def _root(self) -> Span:
        """The last span that no other span of the trace holds."""
        ids = {span.id for span in self._spans}
        tops = [span for span in self._spans if span.parent not in ids or span.parent == span.id]
        return tops[-1] if tops else self._spans[0]

    def _tool(self, span: Span) -> None:
        given, fault = span.attributes, span.fault
        result = given.get("gen_ai.tool.call.result", given.get("gen_ai.tool.message"))
        self._talk.add(
            action="call",
            tool_called=text_or_none(given.get("gen_ai.tool.name")) or span.name or "?",
            tool_input=arguments(given.get("gen_ai.tool.call.arguments")),
            tool_output=result,
            **_ending(span, fault),
        )

    def _model(self, span: Span) -> None:
        given, fault = span.attributes, span.fault
        self._hear(inputs(span))
        said = outputs(span)
        calls = [call for one in said for call in one.calls if not self._has_span(call)]
        words = "\n".join(one.text for one in said if one.text)
        endings = given.get("gen_ai.response.finish_reasons")
        reasons = [one.ended for one in said if one.ended]
        reasons += endings if isinstance(endings, list) else []
        model = given.get("gen_ai.response.model", given.get("gen_ai.request.model"))
        counts = {
            key.removeprefix("gen_ai.usage."): value
            for key, value in given.items()
            if key.startswith("gen_ai.usage.")
        }
        before = len(self._talk)
        self._talk.turn(
            words, calls, usage=usage_of(counts, model), ended=reasons[0] if reasons else None
        )
        if len(self._talk) == before:
            self._talk.add(action="model", usage=usage_of(counts, model))
        ending = _ending(span, fault)
        if fault is None:
            ending = {name: ending[name] for name in ("timestamp", "duration_s")}
        self._talk.last.update(ending)

    def _has_span(self, call: dict[str, Any]) -> bool:
        return call["name"] in self._own_names or (
            call["id"] is not None and as_text(call["id"]) in self._own_ids
        )

    def _hear(self, said: list[Said]) -> None:
        """What went to the model: the task, and results of calls that have no span."""
        for one in said:
            if one.role == "user" and self._talk.task is None:
                self._talk.task = one.text or None
            for call, output in one.results:
                if self._talk.awaits(call):
                    self._talk.result(call, output)


def _hashable(given: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: text_or_none(given.get(name)) for name in ("gen_ai.tool.call.id", "gen_ai.tool.name")
    }


def _ending(span: Span, fault: ErrorInfo | None) -> dict[str, Any]:
    return {
        "error": None if fault is None else fault.message,
        "exception_type": None if fault is None else fault.type_name,
        "timestamp": span.start / _NANO if span.start else None,
        "duration_s": (span.end - span.start) / _NANO if span.end > span.start > 0 else None,
    }


def _fuller(root: ErrorInfo | None, last: ErrorInfo | None) -> ErrorInfo | None:
    """The error of the whole, unless it says less than that of the last step."""
    if root is None or (last is not None and root.type_name == "Exception"):
        return last
    return root
