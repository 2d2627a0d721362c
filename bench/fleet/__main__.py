"""Run the storm: `python -m bench.fleet`."""

import sys

from .storm import main

sys.exit(main())
