"""The capabilities of one orchestrator. There is no other place where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from triage.errors import UsageError

from ._capability import Capability, capability_of
from ._given import takes
from ._plan import PlannedStep
from ._words import closest, quoted, suggested


class Registry:
    """Capabilities by name. Names are told apart whatever their case, and found so.

    capabilities: to add at once. Raises UsageError as `add` does.
    """

    def __init__(self, capabilities: Iterable[Capability | Callable[..., Any]] = ()) -> None:
        self._known: dict[str, Capability] = {}
        self.add(*capabilities)

    def add(self, *capabilities: Capability | Callable[..., Any]) -> None:
        """Add capabilities, or functions decorated as such. All are added, or none.

        Raises UsageError for anything else and for a name that is there already, whatever its case.
        """
        known = dict(self._known)
        for given in capabilities:
            found = capability_of(given)
            before = known.get(found.name.casefold())
            if before is not None:
                other = "" if before.name == found.name else f", as {quoted(before.name)}"
                raise UsageError(
                    f"the capability {quoted(found.name)} is registered already{other}; give one of "
                    "them another name"
                )
            known[found.name.casefold()] = found
        self._known = known

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of registration."""
        return tuple(known.name for known in self)

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __repr__(self) -> str:
        return f"Registry({', '.join(self.names)})"

    def get(self, name: str) -> Capability | None:
        """The capability of this name, whatever its case and the spaces around it; None: there is none."""
        return self._known.get(name.strip().casefold())

    def nearest(self, name: str) -> str | None:
        """The registered name that is most like this one; None if none is close."""
        return closest(name, self.names)

    def subset(self, names: Iterable[str], *, providers: bool = False) -> Registry:
        """A registry of these capabilities and all that respond, in the order of registration.

        providers: with every capability that provides what those require, and what these require in
        turn. Raises UsageError naming the unknown name and the nearest.
        """
        wanted: dict[str, Capability] = {}
        for name in [names] if isinstance(names, str) else names:
            found = self.get(name) if isinstance(name, str) else None
            if found is None:
                near = self.nearest(name) if isinstance(name, str) else None
                raise UsageError(f"there is no capability {quoted(name)}{suggested(near)}")
            wanted[found.name] = found
        wanted |= {known.name: known for known in self if known.responds}
        queue = list(wanted.values()) if providers else []
        while queue:
            needed = {kind for known in queue for kind in known.requires}
            queue = [known for kind in needed for known in self.providers(kind)]
            queue = [known for known in queue if known.name not in wanted]
            wanted |= {known.name: known for known in queue}
        return Registry(known for known in self if known.name in wanted)

    def providers(self, kind: str) -> tuple[Capability, ...]:
        """The capabilities that provide results of this type."""
        return tuple(known for known in self if kind in known.provides)

    @property
    def responder(self) -> Capability | None:
        """What answers the user where a plan forgot to: `respond`, else the first one that responds."""
        named = self.get("respond")
        if named is not None and named.responds:
            return named
        return next((known for known in self if known.responds), None)

    def manifest(self) -> list[dict[str, Any]]:
        """What a planner or a selector is told of each capability, as JSON values."""
        return [
            {
                "name": known.name,
                "description": known.description,
                "requires": list(known.requires),
                "provides": list(known.provides),
                "effect": str(known.effect),
                **_parameters(known),
                **({"ends_the_plan": True} if known.responds else {}),
            }
            for known in self
        ]


def _parameters(known: Capability) -> dict[str, dict[str, str]]:
    """The parameters a plan fills, with what the function says of them; nothing where it takes any.

    Its inputs come by themselves.
    """
    found = takes(known.function)
    inputs = {kind.lower() for kind in known.requires}
    told = {name: text for name, text in found.told.items() if name not in inputs}
    return {} if found.open else {"parameters": told}


def output_of(step: PlannedStep | None, found: Capability | None) -> str | None:
    """The type of a step's result: as planned, else the only one its capability provides."""
    if step is not None and step.expected_output is not None:
        return step.expected_output
    provided = () if found is None else found.provides
    return provided[0] if len(provided) == 1 else None
