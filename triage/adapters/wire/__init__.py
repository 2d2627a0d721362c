"""Model calls as they leave the process: what an agent does is seen on the wire, in any framework or client.

A request to a model that is made in an attempt is a recorded call, whatever library sends it. All other
requests, and all requests outside of a run, pass untouched.
"""

from .endpoints import Endpoint, endpoint
from .installing import install

__all__ = ["Endpoint", "endpoint", "install"]
