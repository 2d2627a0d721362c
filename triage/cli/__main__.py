"""`python -m triage.cli`."""

from __future__ import annotations

import sys

from triage.cli import main

sys.exit(main())
