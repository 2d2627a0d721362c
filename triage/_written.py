"""What values have in common that are written in code and printed as they are written."""

from __future__ import annotations


class Written:
    """Base of frozen dataclasses: compared by their fields, and printed as they are written.

    One `__eq__`, `__hash__` and `__repr__` for all: generating them for each would double the time
    it takes to import them.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"
