"""A function with a plan's faults around its calls, async, sync or streaming."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from triage._drivers import call_async, call_sync
from triage._options import misuse
from triage._tool import TOOL_ATTRIBUTE, Tool, calling
from triage.errors import UsageError

from ._plan import Repeat
from ._site import Site, here
from ._time import VirtualTime
from .faults import Fault

if TYPE_CHECKING:
    from ._plan import FaultPlan

Kind = Literal["tool", "client", "agent"]


class Wrapping:
    """What is the same for all calls of one wrapped function.

    client: the package whose errors are raised. timeout: the tool's own, in seconds. ended: called
    when the function itself has come to its end.
    """

    def __init__(
        self,
        plan: FaultPlan,
        name: str,
        kind: Kind,
        *,
        client: str | None = None,
        timeout: float | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._plan = plan
        self._name = name
        self._kind: Kind = kind
        self._client = client
        self._timeout = timeout
        self._ended = ended

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Call an async function as planned."""
        met = self.meet()
        if isinstance(met, Repeat):
            return met.answer
        if met is None:
            answer = await function()
            self._over()
            return answer
        site = self.site()
        await pass_time(site, met.wait())
        answer = None
        if met.lets_run(site):
            answer = await function()
            self._over()
        return met.end(site, answer)

    def call_sync(self, function: Callable[[], Any]) -> Any:
        """Call a sync function as planned."""
        met = self.meet()
        if isinstance(met, Repeat):
            return met.answer
        if met is None:
            answer = function()
            self._over()
            return answer
        site = self.site()
        _pass_sync(site, met.wait())
        answer = None
        if met.lets_run(site):
            answer = function()
            self._over()
        return met.end(site, answer)

    async def stream(self, function: Callable[[], Any]) -> AsyncIterator[Any]:
        """Call an async generator as planned: what comes after the call comes after its last item."""
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
        """A call begins: what is to happen to it."""
        return self._plan.meet(here(), self._name)

    def site(self) -> Site:
        """The place of this call."""
        run = here()
        repeat = self._plan.repeater(run, self._name)
        return Site(self._name, self._kind, run, self._client, self._timeout, repeat)

    def _over(self) -> None:
        if self._ended is not None:
            self._ended()


def wrap_tool(plan: FaultPlan, tool: Any) -> Any:
    """A tool or plain function with the plan's faults."""
    if isinstance(tool, staticmethod | classmethod) or not callable(tool):
        raise misuse(
            "wrap_tool(tool)", tool, "a function or a @triage.tool", "give the function itself"
        )
    bound_to, plain = getattr(tool, "__self__", None), getattr(tool, "__func__", tool)
    known = getattr(plain, TOOL_ATTRIBUTE, None)
    if not isinstance(known, Tool):
        return _around(plan, tool, _name(tool), timeout=None, ended=None)

    def ended() -> None:
        call = calling.get()
        # Not by its public name, which would tell the engine that the tool has used the key.
        key = None if call is None else call._key  # noqa: SLF001 - see above
        plan.done(here(), known.name, known.effect.value, key)

    faulty = _around(plan, known.function, known.name, timeout=known.timeout, ended=ended)
    # A copy, so that every option of the tool is kept, whichever there are.
    copied = copy.copy(known)
    copied.function = faulty
    made = _recorded(copied)
    return made if bound_to is None else made.__get__(bound_to)


def _recorded(known: Tool) -> Any:
    """What `@triage.tool` makes of a function, from what is known of the tool."""

    async def recorded(*args: Any, **kwargs: Any) -> Any:
        return await call_async(known, args, kwargs)

    def recorded_sync(*args: Any, **kwargs: Any) -> Any:
        return call_sync(known, args, kwargs)

    made = functools.wraps(known.function)(recorded if known.is_async else recorded_sync)
    setattr(made, TOOL_ATTRIBUTE, known)
    return made


def _around(
    plan: FaultPlan,
    function: Any,
    name: str,
    *,
    timeout: float | None,
    ended: Callable[[], None] | None,
) -> Any:
    wrapping = Wrapping(plan, name, "tool", timeout=timeout, ended=ended)
    return around(wrapping, function)


def around(wrapping: Wrapping, function: Any) -> Any:
    """The function with faults around its calls; of the same kind, name and signature."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    kinds = (target, getattr(target, "__call__", None))  # noqa: B004 - also objects that are called
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
    made = functools.update_wrapper(wrapper, function, updated=())
    made.__name__ = _name(function)
    made.__qualname__ = getattr(function, "__qualname__", made.__name__)
    return made


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


# Passing time -------------------------------------------------------------------------------------


async def pass_time(site: Site, seconds: float) -> None:
    """Let a fault's seconds pass, on the clock of the run that it is in."""
    if not seconds:
        return
    import anyio

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
