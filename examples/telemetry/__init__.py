"""An agent whose runs can be looked at in Jaeger."""
