"""Helpers for tests of agents. None is in this release."""
