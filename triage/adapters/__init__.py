"""Adapters to frameworks: one file each, imported only when used. None is in this release."""
