"""Model calls as they leave the process, in whatever framework or client they are made.

A request to a model that is made in an attempt is a recorded call, whatever library sends it. All other
requests, and all requests outside of a run, pass untouched.
"""

from .endpoints import Endpoint, endpoint

__all__ = ["Endpoint", "endpoint"]
