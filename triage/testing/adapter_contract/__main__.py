"""Run the contract from the command line."""

import sys

from .matrices import main

sys.exit(main())
