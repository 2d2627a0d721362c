"""The names in the table of tools in which looking one up raised a KeyError."""

from __future__ import annotations

from .foreign import frames_of, instance_dict

NAMES_THERE_ARE = "names there are: "
"""The beginning of the note that lists them, separated by commas."""
_MOST_NAMES = 64
_LONGEST_NAME = 80
_MOST_PLACES = 200


def note_on_table(error: BaseException) -> str | None:
    """Return a note with the names in the table that raised a KeyError; None for any other error.

    A table is a dict of names to functions that the code of the lookup can reach: a variable, a global
    of the module, or an attribute of an object there. Nothing of the application runs.
    """
    if type(error) is not KeyError or len(error.args) != 1 or type(error.args[0]) is not str:
        return None
    frames = frames_of(error)
    if not frames:
        return None
    frame, missing = frames[-1], error.args[0]
    named = frame.f_code.co_names
    places = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in named)]
    for place in places[:_MOST_PLACES]:
        held = instance_dict(place)
        for table in (place, *(held[name] for name in named if name in held)):
            if (
                type(table) is dict
                and table
                and all(type(name) is str and len(name) <= _LONGEST_NAME for name in table)
                and missing not in table
                and all(map(callable, table.values()))
            ):
                return NAMES_THERE_ARE + ", ".join(list(table)[:_MOST_NAMES])
    return None
