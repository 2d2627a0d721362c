"""What the steps of an attempt show: loops, unknown tools, failed results and more."""

from ._finding import Finding
from ._watch import Watch

__all__ = ["Finding", "Watch"]
