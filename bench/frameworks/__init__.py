"""One module for each framework that has an adapter: how to make its agent, and its own ways to recover."""
