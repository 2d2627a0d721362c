"""`triage export`: a run of a store as an OpenTelemetry trace."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from triage.adapters.otel.content import wants_content
from triage.adapters.otel.exporting import check_target, export_run
from triage.adapters.otel.names import names_of
from triage.core.quoting import counted
from triage.stores.base import Store

from .options import Run, StoreText, epilogue, run_of, store_of, with_store
from .output import note

DONE = 0
_CODES = """\
exit codes:
  0    it is exported
  1    the store failed, or the file or the collector did not take it
  2    it was never begun: no such run or store, bad arguments
"""

app = App(
    name="export",
    help_epilogue=epilogue(
        _CODES,
        "export trip-1 --otlp trace.jsonl",
        "export trip-1 --otlp http://127.0.0.1:4318 --content",
    ),
)


@app.default
def export(
    run: Run,
    /,
    *,
    otlp: Annotated[
        str,
        Parameter(
            metavar="FILE|URL",
            help="A file of OTLP JSON, or a collector that takes OTLP over HTTP.",
        ),
    ],
    content: Annotated[
        bool,
        Parameter(
            help="With prompts, outputs, arguments and results, redacted (as the environment's "
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says)."
        ),
    ] = False,
    conventions: Annotated[
        str | None,
        Parameter(metavar="VERSION", help="Of the GenAI conventions (the newest known)."),
    ] = None,
    store: StoreText = None,
) -> int:
    """Export a run and the runs inside it as a trace, whether anybody traced it or not."""
    check_target(otlp)
    names = names_of(conventions)
    told = wants_content(True if content else None)

    async def work(opened: Store) -> None:
        info = await run_of(opened, run, store)
        spans, logs = await export_run(opened, info.run_id, otlp, content=told, names=names)
        said = f"{counted(spans, 'span')} and {counted(logs, 'log event')}"
        note(f"run {info.run_id}: {said} are exported")

    with_store(store_of(store), work)
    return DONE
