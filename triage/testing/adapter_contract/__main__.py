"""Run the contract from the command line."""

import sys

from .matrix import main

sys.exit(main())
