"""Who waits for whom in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Edge = tuple[str, str]
"""(who waits, what for)."""


def cycles(edges: Iterable[Edge]) -> list[tuple[str, ...]]:
    """The knots among what waits for what: sets in which each waits, over others, for itself.

    Each as a path along which they wait, beginning with its least name; sorted. Linear in the edges, and
    without recursion, so that no chain is too long.
    """
    graph: dict[str, list[str]] = {}
    for waits, what in sorted(set(edges)):
        graph.setdefault(waits, []).append(what)
        graph.setdefault(what, [])
    found = [
        knot
        for knot in _knots(graph)
        if len(knot) > 1 or next(iter(knot)) in graph[next(iter(knot))]
    ]
    return sorted(_path(graph, knot) for knot in found)


def _knots(graph: dict[str, list[str]]) -> Iterator[set[str]]:
    """Strongly connected parts, by Tarjan's algorithm with a stack of its own."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}
    for root, first in graph.items():
        if root in index:
            continue
        work = [(root, iter(first))]
        index[root] = low[root] = len(index)
        open_[root] = None
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_[other] = None
                    work.append((other, iter(graph[other])))
                    break
                if other in open_:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    knot: set[str] = set()
                    while node not in knot:
                        knot.add(open_.popitem()[0])
                    yield knot


def _path(graph: dict[str, list[str]], knot: set[str]) -> tuple[str, ...]:
    """A shortest circle through the least name of a knot."""
    start = min(knot)
    came: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for other in graph[node]:
            if other == start:
                path = [node]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return tuple(reversed(path))
            if other in knot and other not in came:
                came[other] = node
                queue.append(other)
    return tuple(sorted(knot))  # pragma: no cover - a knot has a circle through each of its names
