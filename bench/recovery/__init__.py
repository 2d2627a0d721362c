"""A lab of failing tasks: who recovers, who repeats what was paid for, and what it costs.

python -m bench.recovery
"""
