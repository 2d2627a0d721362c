"""`FaultPlan`: which call fails and how, for wrapped tools, clients and agents."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

import anyio
from msgspec.structs import replace

from triage.core.environment import Environment
from triage.core.errors import UsageError, check_count, check_number, misuse
from triage.core.observers import Observer
from triage.engine.agents import Agent
from triage.engine.calls import call_async, call_sync
from triage.engine.run import Recorder, current
from triage.engine.tools import TOOL_ATTRIBUTE, Tool, calling, read_function

from .faults import CLIENTS, Fault, Site, as_fault
from .time import VirtualTime, root_of

W = TypeVar("W")


class At(NamedTuple):
    """The key of a plan made by `at`."""

    name: str
    call: int | None = None
    attempt: int | None = None

    def __repr__(self) -> str:
        if self.attempt is None:
            return repr(self.name) if self.call is None else f"({self.name!r}, {self.call})"
        call = "" if self.call is None else f", call={self.call}"
        return f"at({self.name!r}{call}, attempt={self.attempt})"

    def __str__(self) -> str:
        call = "every call" if self.call is None else f"call {self.call}"
        within = "" if self.attempt is None else f" in attempt {self.attempt}"
        return f"{self.name}, {call}{within}"


def at(name: str, *, call: int | None = None, attempt: int | None = None) -> At:
    """Make a key of a `FaultPlan`: calls of one tool, client method or agent.

    call: the number of the call, from 1, in the run, or in the attempt if that is given; None for every
    call. attempt: its number, from 1; None for any. Raises UsageError for other values.
    """
    if not isinstance(name, str) or not name:
        raise misuse("at(name)", name, "the name of a tool, of a client's method or of an agent")
    for field, value in (("call", call), ("attempt", attempt)):
        if value is not None:
            check_count(f"at({field}=…)", value, 1, "they are counted from 1")
    return At(name, call, attempt)


class Injected(NamedTuple):
    """An injected fault. run_id: the outermost run's, None outside of one. call, attempt: from 1."""

    run_id: str | None
    name: str
    call: int
    attempt: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.name}, call {self.call} (attempt {self.attempt}): {self.fault!r}"


class Performed(NamedTuple):
    """A completed execution of a wrapped tool's body.

    run_id: the outermost run's. call: its idempotency key. Both are None outside of a run.
    """

    run_id: str | None
    tool: str
    effect: str
    call: str | None


class Repeat(NamedTuple):
    """An answer given again instead of making a call."""

    answer: Any


class FaultPlan:
    """Which calls fail and how. Apply it with `wrap_tool`, `wrap_client` and `wrap`.

    `FaultPlan({("charge", 1): faults.timeout()})` names calls. A key is a name (every call), a name with
    the number of a call, or `at(name, call=…, attempt=…)`; a value is a fault or an exception. The most
    specific key wins.

    `FaultPlan(7, faults=[…], rate=0.2)` draws faults at random. Only the seed (a number or text), the name
    and the number of a call decide, so the same seed gives the same faults in any order of calls. rate:
    the share of calls that fail, 0 to 1, 0.1 by default. only: names that may fail; None for all wrapped
    ones. most: faults in one run, None for any number.

    Calls are counted per run, through all its attempts, inner runs included. A call that reuses a
    recorded result does not run and does not count. A plan may serve many runs at once, from any thread.
    Raises UsageError naming what is wrong.
    """

    def __init__(
        self,
        plan: int | str | Mapping[Any, Fault | BaseException],
        *,
        faults: Iterable[Fault | BaseException] | None = None,
        rate: float | None = None,
        only: Iterable[str] | None = None,
        most: int | None = None,
    ) -> None:
        self._named: dict[At, Fault] = {}
        self._seed: int | str | None = None
        self._faults: tuple[Fault, ...] = ()
        self._rate = 0.1 if rate is None else rate
        self._only = None if only is None else _names(only)
        self._most = most
        if isinstance(plan, Mapping):
            given = {"faults": faults, "rate": rate, "only": only, "most": most}
            wrong = [name for name, value in given.items() if value is not None]
            if wrong:
                raise UsageError(
                    f"FaultPlan({{…}}) names its calls and takes no {wrong[0]}=…; a plan that draws "
                    "begins with a seed: FaultPlan(7, faults=[…])"
                )
            for key, fault in cast("Mapping[Any, Any]", plan).items():
                place = _key(key)
                self._named[place] = as_fault(f"FaultPlan[{place!r}]", fault)
        else:
            self._draws(plan, faults)
        self._lock = threading.Lock()
        self.reset()

    def _draws(self, seed: object, faults: object) -> None:
        if not isinstance(seed, int | str) or isinstance(seed, bool):
            raise misuse(
                "FaultPlan", seed, "a mapping of calls to faults, or a seed (a number or text)"
            )
        if faults is None or isinstance(faults, str | Mapping | Fault):
            raise misuse("FaultPlan(faults=…)", faults, "a list of faults", "those to draw from")
        found = tuple(cast("Iterable[Any]", faults))
        self._faults = tuple(as_fault(f"FaultPlan(faults[{i}])", x) for i, x in enumerate(found))
        if not self._faults:
            raise UsageError("FaultPlan(faults=…) is empty; give at least one fault to draw from")
        check_number("FaultPlan(rate=…)", self._rate, "", remedy="it is a part, from 0 to 1")
        if self._rate > 1:
            raise misuse("FaultPlan(rate=…)", self._rate, "a part from 0 to 1")
        if self._most is not None:
            check_count("FaultPlan(most=…)", self._most, 0, "None for any number")
        self._seed = seed

    def reset(self) -> None:
        """Forget everything that happened, so that the plan can be used again."""
        with self._lock:
            self._injected: list[Injected] = []
            self._performed: list[Performed] = []
            self._reached: set[At] = set()
            self._calls: Counter[tuple[Any, ...]] = Counter()
            self._repeats: dict[tuple[str | None, str], list[Any]] = {}

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The injected faults, in order."""
        return tuple(self._injected)

    @property
    def performed(self) -> tuple[Performed, ...]:
        """The completed executions of wrapped tools, in order; reused calls are not among them."""
        return tuple(self._performed)

    @property
    def unreached(self) -> tuple[At, ...]:
        """The named calls that never happened; empty for a random plan."""
        return tuple(place for place in self._named if place not in self._reached)

    def calls(self, name: str) -> int:
        """Return how often a tool, client method or agent was called, over all runs."""
        return sum(n for key, n in self._calls.items() if len(key) == 2 and key[1] == name)

    def names(self, name: str) -> bool:
        """Whether the plan has a key with this name."""
        return any(place.name == name for place in self._named)

    def report(self) -> str:
        """List injected faults and named calls that never happened, one a line."""
        lines = [str(done) for done in self.injected] or ["no fault was injected"]
        lines += [f"never came: {self.missed(place)}" for place in self.unreached]
        return "\n".join(lines)

    def missed(self, place: At) -> str:
        """Describe a named call that never happened, with how often its name was called."""
        times = self.calls(place.name)
        if times:
            return f"{place} ({place.name} was called {times} time{'s' * (times > 1)})"
        seen = sorted({key[1] for key in self._calls if len(key) == 2})
        others = f"called were: {', '.join(seen)}" if seen else "nothing that the plan wraps was"
        return f"{place} ({place.name} was never called; {others})"

    def __repr__(self) -> str:
        if self._seed is None:
            inner = ", ".join(f"{place!r}: {fault!r}" for place, fault in self._named.items())
            return f"FaultPlan({{{inner}}})"
        faults = ", ".join(map(repr, self._faults))
        only = "" if self._only is None else f", only={sorted(self._only)!r}"
        most = "" if self._most is None else f", most={self._most}"
        return f"FaultPlan({self._seed!r}, faults=[{faults}], rate={self._rate!r}{only}{most})"

    def wrap_tool(self, tool: W) -> W:
        """Wrap a tool or plain function, sync or async, in the plan's faults.

        A `@triage.tool` stays one, with its options. Raises UsageError for anything but a function.
        """
        return cast("W", wrap_tool(self, tool))

    def wrap_client(self, client: W, *, is_async: bool | None = None) -> W:
        """Wrap a client whose methods fail as planned: `"chat.completions.create"` is a name.

        The errors are the package's own for openai and anthropic. is_async: whether its methods are
        awaited; None finds out.
        """
        return cast("W", wrap_client(self, client, is_async=is_async))

    def wrap(self, agent: W) -> W:
        """Wrap an `Agent` or agent function whose attempts fail as planned: call n is attempt n.

        It is named like the agent. Raises UsageError for anything else.
        """
        return cast("W", wrap(self, agent))

    def meet(self, run: Recorder | None, name: str) -> Fault | Repeat | None:
        """Begin a call, and return its fault or None."""
        root = root_of(run)
        attempt = 1 if run is None else run.number
        with self._lock:
            self._calls[root, name] += 1
            self._calls[root, name, attempt] += 1
            call, within = self._calls[root, name], self._calls[root, name, attempt]
            waiting = self._repeats.get((root, name))
            if waiting:
                return Repeat(waiting.pop())
            fault = self._drawn(root, name, call) if self._faults else None
            for place in (
                At(name, within, attempt), At(name, call), At(name, None, attempt), At(name),
            ):  # fmt: skip
                if place in self._named:
                    fault = self._named[place]
                    self._reached.add(place)
                    break
            if fault is not None:
                self._injected.append(Injected(root, name, call, attempt, fault))
            return fault

    def _drawn(self, root: str | None, name: str, call: int) -> Fault | None:
        if self._only is not None and name not in self._only:
            return None
        if self._most is not None:
            so_far = sum(1 for done in self._injected if done.run_id == root)
            if so_far >= self._most:
                return None
        source = random.Random(f"{self._seed}:{name}:{call}")
        return source.choice(self._faults) if source.random() < self._rate else None

    def repeater(self, run: Recorder | None, name: str) -> Callable[[Any, int], None]:
        """Return a function that gives an answer to a number of next calls of a name in a run."""
        key = (root_of(run), name)

        def repeat(answer: Any, times: int) -> None:
            with self._lock:
                self._repeats[key] = [answer] * times

        return repeat

    def done(self, run: Recorder | None, tool: str, effect: str, call: str | None) -> None:
        """Note that a wrapped tool's body has completed."""
        with self._lock:
            self._performed.append(Performed(root_of(run), tool, effect, call))


def _key(key: object) -> At:
    if isinstance(key, At):
        return at(key.name, call=key.call, attempt=key.attempt)
    if isinstance(key, str) and key:
        return At(key)
    parts: tuple[Any, ...] = key if isinstance(key, tuple) else ()
    if len(parts) == 2 and isinstance(parts[0], str) and parts[0]:
        check_count(f"FaultPlan key {parts!r}", parts[1], 1, "calls are counted from 1")
        return At(parts[0], parts[1])
    wanted = 'a name, ("name", number of the call) or at("name", call=…, attempt=…)'
    raise misuse("FaultPlan key", key, wanted)


def _names(only: object) -> frozenset[str]:
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise misuse("FaultPlan(only=…)", only, "a list of names", 'write only=["charge"]')
    found = frozenset(only)
    if not all(isinstance(name, str) for name in found):
        raise misuse("FaultPlan(only=…)", only, "a list of names that are text")
    return found


Kind = Literal["tool", "client", "agent"]


class Wrapping:
    """The faults around the calls of one wrapped function.

    client: the package whose errors to raise. timeout: the tool's, in seconds. ended: called when the
    function itself has returned.
    """

    def __init__(
        self,
        plan: FaultPlan,
        name: str,
        kind: Kind,
        *,
        client: str | None = None,
        timeout: float | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._name = name
        self._kind: Kind = kind
        self._client = client
        self._timeout = timeout
        self._ended = ended

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        fault = self.meet()
        if isinstance(fault, Repeat):
            return fault.answer
        site, answer = self.site(), None
        if fault is not None:
            await pass_time(site, fault.wait())
        if fault is None or fault.lets_run(site):
            answer = await function()
            self._ended()
        return answer if fault is None else fault.end(site, answer)

    def call_sync(self, function: Callable[[], Any]) -> Any:
        fault = self.meet()
        if isinstance(fault, Repeat):
            return fault.answer
        site, answer = self.site(), None
        if fault is not None:
            _pass_sync(site, fault.wait())
        if fault is None or fault.lets_run(site):
            answer = function()
            self._ended()
        return answer if fault is None else fault.end(site, answer)

    async def stream(self, function: Callable[[], Any]) -> AsyncIterator[Any]:
        """Iterate over an async generator as planned; a fault `after` comes behind the last item."""
        met = self.meet()
        site = self.site()
        fault = met if isinstance(met, Fault) else None
        if fault is not None:
            await pass_time(site, fault.wait())
        if fault is None or fault.lets_run(site):
            async for item in function():
                yield item
        if fault is not None:
            fault.end(site, None)

    def meet(self) -> Fault | Repeat | None:
        return self._plan.meet(current.get(), self._name)

    def site(self) -> Site:
        run = current.get()
        repeat = self._plan.repeater(run, self._name)
        return Site(self._name, self._kind, run, self._client, self._timeout, repeat)


def wrap_tool(plan: FaultPlan, tool: Any) -> Any:
    """Wrap a tool or plain function in the plan's faults."""
    if isinstance(tool, staticmethod | classmethod) or not callable(tool):
        raise misuse(
            "wrap_tool(tool)", tool, "a function or a @triage.tool", "give the function itself"
        )
    bound_to, plain = getattr(tool, "__self__", None), getattr(tool, "__func__", tool)
    known = getattr(plain, TOOL_ATTRIBUTE, None)
    if not isinstance(known, Tool):
        return around(Wrapping(plan, _name(tool), "tool"), tool)

    def ended() -> None:
        call = calling.get()
        # The public name would tell the engine that the tool has used the key.
        key = None if call is None else call._key
        plan.done(current.get(), known.name, known.effect.value, key)

    wrapping = Wrapping(plan, known.name, "tool", timeout=known.timeout, ended=ended)
    # A copy keeps every option of the tool.
    faulty = copy.copy(known)
    faulty.function = around(wrapping, known.function)

    async def recorded(*args: Any, **kwargs: Any) -> Any:
        return await call_async(faulty, args, kwargs)

    def recorded_sync(*args: Any, **kwargs: Any) -> Any:
        return call_sync(faulty, args, kwargs)

    function: Any = functools.wraps(faulty.function)(recorded if known.is_async else recorded_sync)
    setattr(function, TOOL_ATTRIBUTE, faulty)
    return function if bound_to is None else function.__get__(bound_to)


def around(wrapping: Wrapping, function: Any) -> Any:
    """Wrap a function in faults, keeping its kind, name and signature."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    kinds = (target, getattr(target, "__call__", None))
    if any(inspect.isasyncgenfunction(kind) for kind in kinds):

        async def streaming(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async for item in wrapping.stream(lambda: function(*args, **kwargs)):
                yield item

        return _named_as(function, streaming)
    if any(inspect.iscoroutinefunction(kind) for kind in kinds):

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            return await wrapping.call(lambda: function(*args, **kwargs))

        return _named_as(function, faulty)

    def faulty_sync(*args: Any, **kwargs: Any) -> Any:
        return wrapping.call_sync(lambda: function(*args, **kwargs))

    return _named_as(function, faulty_sync)


def _named_as(function: Any, wrapper: Any) -> Any:
    named = functools.update_wrapper(wrapper, function, updated=())
    named.__name__ = _name(function)
    named.__qualname__ = getattr(function, "__qualname__", named.__name__)
    return named


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


async def pass_time(site: Site, seconds: float) -> None:
    """Wait for a fault's seconds on the clock of its run."""
    if not seconds:
        return
    env = None if site.run is None else site.run.session.config.env
    if isinstance(env, VirtualTime):
        if site.timeout is not None and site.timeout <= seconds:
            # The tool's own timeout would cut this off; it counts real time.
            await env.sleep(site.timeout)
            raise TimeoutError(f"{site.name} took longer than {site.timeout} s")
        await env.sleep(seconds)
    elif seconds == math.inf or env is None:
        await anyio.sleep(seconds)
    else:
        await env.sleep(seconds)


def _pass_sync(site: Site, seconds: float) -> None:
    if not seconds:
        return
    env = None if site.run is None else site.run.session.config.env
    cut = site.timeout is not None and site.timeout <= seconds
    nap = site.timeout if cut and site.timeout is not None else seconds
    if nap == math.inf:
        raise UsageError(
            f"{site.name} is sync and was to hang: nothing could ever end that, in a test or in "
            "production. Give the tool a timeout=…, or make it async and set Limits(attempt_seconds=…)"
        )
    if isinstance(env, VirtualTime):
        env.advance(nap)
    else:
        time.sleep(nap)
    if cut:
        raise TimeoutError(f"{site.name} took longer than {site.timeout} s")


_WRAPPED = "__triage_faults__"


def wrap(plan: FaultPlan, agent: Any) -> Any:
    if not isinstance(agent, Agent):
        if isinstance(agent, staticmethod | classmethod) or not callable(agent):
            raise misuse("wrap(agent)", agent, "an Agent or an agent function")
        read_function(agent, bound=False)
        return _faulty(plan, agent, getattr(agent, "__name__", type(agent).__name__))
    copied = copy.copy(agent)
    copied._wrapped = _faulty(plan, agent._function.function, agent.name)
    copied._function = replace(agent._function, function=copied._wrapped)
    return copied


def _faulty(plan: FaultPlan, function: Any, name: str) -> Any:
    made = around(Wrapping(plan, name, "agent"), function)
    setattr(made, _WRAPPED, (*getattr(function, _WRAPPED, ()), plan))
    return made


def has_faults_of(agent: Agent[Any], plan: FaultPlan) -> bool:
    """Whether an agent is already wrapped by a plan."""
    return plan in getattr(agent._function.function, _WRAPPED, ())


def observed(agent: Agent[Any], env: Environment, observer: Observer) -> Agent[Any]:
    """Copy an agent with another environment and one more observer."""
    copied = agent.observed_by(observer)
    copied._config = replace(copied._config, env=env)
    return copied


_DATA = (str, bytes, int, float, complex, bool, list, tuple, dict, set, frozenset, type, type(None))
_NEVER = frozenset({"close", "aclose"})
"""Methods that do not call the other side."""


def wrap_client(plan: FaultPlan, client: Any, *, is_async: bool | None) -> Any:
    if isinstance(client, _DATA):
        raise misuse(
            "wrap_client(client)", client, "an object whose methods are called", "make one first"
        )
    if is_async is not None and not isinstance(is_async, bool):
        raise misuse("wrap_client(is_async=…)", is_async, "True, False or None")
    packages = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    package = next((package for package in packages if package in CLIENTS), None)
    if is_async is None and hasattr(type(client), "__aenter__"):
        is_async = True
    return _Client(_Held(client, plan, "", package, is_async))


class _Held(NamedTuple):
    """An object of a client. path: where it is in the client. package, is_async: as for `wrap_client`."""

    target: Any
    plan: FaultPlan
    path: str
    package: str | None
    is_async: bool | None


class _Client:
    """Wraps an object of a client; all other attributes are the object's."""

    __slots__ = ("_triage_held",)

    def __init__(self, held: _Held) -> None:
        object.__setattr__(self, "_triage_held", held)

    def __getattr__(self, name: str) -> Any:
        held = self._triage_held
        value = getattr(held.target, name)
        if isinstance(value, _DATA) or name.startswith("_"):
            return value
        path = f"{held.path}.{name}" if held.path else name
        if inspect.isroutine(value):
            return value if name in _NEVER else self._triage_method(value, path)
        if callable(value) and not _has_parts(value):
            return self._triage_method(value, path)
        return _Client(held._replace(target=value, path=path))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._triage_held.target, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._triage_method(self._triage_held.target, self._triage_held.path or "call")
        return method(*args, **kwargs)

    async def __aenter__(self) -> Any:
        await self._triage_held.target.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._triage_held.target.__aexit__(*error)

    def __enter__(self) -> Any:
        self._triage_held.target.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._triage_held.target.__exit__(*error)

    def __repr__(self) -> str:
        return f"<{self._triage_held.target!r} with faults>"

    def _triage_method(self, method: Any, path: str) -> Any:
        """Call the method with faults; if it returns a copy of the client, that has them too."""
        held = self._triage_held
        wrapping = Wrapping(held.plan, path, "client", client=held.package)

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            return await wrapping.call(lambda: method(*args, **kwargs))

        def faulty_sync(*args: Any, **kwargs: Any) -> Any:
            return wrapping.call_sync(lambda: method(*args, **kwargs))

        def copying(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            own = type(made) is type(held.target)
            return _Client(held._replace(target=made)) if own else made

        if path.rpartition(".")[2] in _COPIES:
            return copying
        return faulty if _is_async(method, said=held.is_async) else faulty_sync


_COPIES = frozenset({"with_options", "copy"})
"""Methods that return a copy of the client with other settings."""


def _has_parts(value: Any) -> bool:
    """Whether a callable object has methods of its own, like the parts of a client."""
    return any(
        inspect.isfunction(found) and not name.startswith("_")
        for kind in type(value).__mro__
        for name, found in vars(kind).items()
    )


def _is_async(method: Any, *, said: bool | None) -> bool:
    """Whether a method is async, by its code or else as stated for its client."""
    inner = inspect.unwrap(method)
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
        return True
    return bool(said)
