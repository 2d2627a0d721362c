"""Test a fleet whose workers are killed at random instants: `python -m bench.fleet`."""
