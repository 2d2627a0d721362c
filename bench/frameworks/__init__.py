"""One module for each framework that has an adapter: what it costs to wrap, and its own ways to recover."""
