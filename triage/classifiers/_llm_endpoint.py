"""Where a model is asked: what was given, else what the environment says."""

from __future__ import annotations

import os
from typing import Any

from triage._options import misuse
from triage.errors import UsageError
from triage.redact import redact

from ._llm_clients import Endpoint, Provider


def endpoint_of(
    owner: str, protocol: Provider, client: Any, model: object, base_url: object, api_key: object
) -> Endpoint:
    """Where to ask, from the arguments of `owner` or else from the environment.

    Raises UsageError for what is missing or cannot be used, naming the argument and the variable.
    """
    if client is not None and (base_url is not None or api_key is not None):
        raise UsageError(
            f"{owner}.base_url and api_key are the client's own where one is given; leave them out"
        )
    prefix = protocol.name.upper()
    found_model = _setting(f"{owner}.model", model, f"{prefix}_MODEL")
    if found_model is None:
        raise UsageError(f"{owner}.model is not given, and {prefix}_MODEL is not set; name a model")
    if client is not None:
        return Endpoint(found_model, None, None, client)
    key = _setting(f"{owner}.api_key", api_key, f"{prefix}_API_KEY")
    if key is None:
        raise UsageError(
            f"{owner}.api_key is not given, and {prefix}_API_KEY is not set; give any text to "
            "an endpoint that needs no key"
        )
    url = _setting(f"{owner}.base_url", base_url, f"{prefix}_BASE_URL")
    if url is not None and not url.startswith(("http://", "https://")):
        raise misuse(f"{owner}.base_url", redact(url), "a URL with http:// or https://")
    return Endpoint(found_model, url, key)


def _setting(field: str, value: object, variable: str) -> str | None:
    if value is None:
        return os.environ.get(variable, "").strip() or None
    if not isinstance(value, str) or not value.strip():
        # Of a key not even a part is shown.
        raise UsageError(
            f"{field} must be text that is not empty, or None for {variable}, not "
            f"{'empty text' if isinstance(value, str) else type(value).__name__}"
        )
    return value.strip()
