"""The packages that are measured, each by a module that offers the same named measurements."""
