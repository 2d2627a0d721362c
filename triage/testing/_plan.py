"""Which call fails how: `FaultPlan`."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from triage._options import check_count, check_number, misuse
from triage.errors import UsageError

from ._site import root_of
from .faults import Fault, as_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from triage._recorder import Recorder

W = TypeVar("W")


class At(NamedTuple):
    """Which call of a plan is meant; made by `at`."""

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
    """A key of a `FaultPlan`: the calls of one tool, client method or agent.

    call: from 1; counted in the run, or in the attempt where one is given. None: every call. attempt:
    from 1; None: whichever it is. Raises UsageError for anything else.
    """
    if not isinstance(name, str) or not name:
        raise misuse("at(name)", name, "the name of a tool, of a client's method or of an agent")
    for field, value in (("call", call), ("attempt", attempt)):
        if value is not None:
            check_count(f"at({field}=…)", value, 1, "they are counted from 1")
    return At(name, call, attempt)


class Injected(NamedTuple):
    """A fault that happened. run_id: of the outermost run, None outside of one; call, attempt: from 1."""

    run_id: str | None
    name: str
    call: int
    attempt: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.name}, call {self.call} (attempt {self.attempt}): {self.fault!r}"


class Performed(NamedTuple):
    """A wrapped tool whose body has run to its end.

    run_id: of the outermost run. call: its idempotency key; None outside of a run.
    """

    run_id: str | None
    tool: str
    effect: str
    call: str | None


class Repeat(NamedTuple):
    """An answer that is given again, in place of a call."""

    answer: Any


class FaultPlan:
    """Which call of which tool, client or agent fails how. Put it there with `wrap_tool`,
    `wrap_client` and `wrap`.

    `FaultPlan({("charge", 1): faults.timeout()})` names the calls. A key is a name (every call), a
    name and the number of the call, or `at(name, call=…, attempt=…)`; the value is a fault or an
    exception. The more exact key wins.

    `FaultPlan(7, faults=[…], rate=0.2)` draws: the seed (a number or text), the name and the call's
    number alone decide, so the same seed gives the same faults, in whatever order calls come. rate:
    the part of calls that fail, 0 to 1, 0.1 by default. only: names of those that may fail; None: all
    that are wrapped. most: faults in one run, None for any number.

    Calls are counted in each run by itself, through all its attempts, and a run inside another counts as
    a part of it. A call whose recorded result is reused does not run, and does not count. A plan may
    serve many runs at once, from any thread. Raises UsageError, which names what is wrong.
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

    # What happened ----------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all that happened, so that the plan can be used once more."""
        with self._lock:
            self._injected: list[Injected] = []
            self._performed: list[Performed] = []
            self._reached: set[At] = set()
            self._calls: Counter[tuple[Any, ...]] = Counter()
            self._repeats: dict[tuple[str | None, str], list[Any]] = {}

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The faults that happened, in order."""
        return tuple(self._injected)

    @property
    def performed(self) -> tuple[Performed, ...]:
        """The wrapped tools whose bodies have run to their end, in order; reused calls are none."""
        return tuple(self._performed)

    @property
    def unreached(self) -> tuple[At, ...]:
        """The named calls that never came; empty for a plan that draws."""
        return tuple(place for place in self._named if place not in self._reached)

    def calls(self, name: str) -> int:
        """How often this tool, client method or agent was called, all runs together."""
        return sum(n for key, n in self._calls.items() if len(key) == 2 and key[1] == name)

    def names(self, name: str) -> bool:
        """Whether a key of the plan has this name."""
        return any(place.name == name for place in self._named)

    def report(self) -> str:
        """What was injected, and what was named and never came, one thing a line."""
        lines = [str(done) for done in self.injected] or ["no fault was injected"]
        lines += [f"never came: {self.missed(place)}" for place in self.unreached]
        return "\n".join(lines)

    def missed(self, place: At) -> str:
        """A named call that never came, and how often its name was called instead."""
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

    # Putting it there ---------------------------------------------------------------------------

    def wrap_tool(self, tool: W) -> W:
        """The same tool, sync or async, with the plan's faults; a `@triage.tool` stays one, with its
        options. A plain function works, too. Raises UsageError for what is no function.
        """
        from ._wrap import wrap_tool

        return cast("W", wrap_tool(self, tool))

    def wrap_client(self, client: W, *, is_async: bool | None = None) -> W:
        """The same client, whose methods fail as planned: `"chat.completions.create"` is a name.

        The errors are those of the client's own package where it is openai or anthropic. is_async:
        whether its methods are awaited; None finds out.
        """
        from ._client import wrap_client

        return cast("W", wrap_client(self, client, is_async))

    def wrap(self, agent: W) -> W:
        """The same `Agent`, or agent function, whose attempts fail as planned: call n is attempt n.

        Its name is the agent's. Raises UsageError for what is no agent.
        """
        from ._agents import wrap

        return cast("W", wrap(self, agent))

    # Machinery ----------------------------------------------------------------------------------

    def meet(self, run: Recorder | None, name: str) -> Fault | Repeat | None:
        """A call begins: what is to happen to it, None for nothing."""
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
        source = random.Random(f"{self._seed}:{name}:{call}")  # noqa: S311 - chance of tests
        return source.choice(self._faults) if source.random() < self._rate else None

    def repeater(self, run: Recorder | None, name: str) -> Callable[[Any, int], None]:
        """What has the next calls of this name in this run given an answer, so often."""
        key = (root_of(run), name)

        def repeat(answer: Any, times: int) -> None:
            with self._lock:
                self._repeats[key] = [answer] * times

        return repeat

    def done(self, run: Recorder | None, tool: str, effect: str, call: str | None) -> None:
        """A wrapped tool's body has run to its end."""
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
