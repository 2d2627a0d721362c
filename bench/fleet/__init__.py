"""A fleet in a storm: `python -m bench.fleet`."""
