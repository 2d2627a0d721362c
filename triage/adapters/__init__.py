"""Adapters to model clients and frameworks: one file each, imported only when used.

`triage.wrap` finds the one for an agent of a framework; `triage.adapters.openai` and
`triage.adapters.anthropic` record a client's calls; `triage.adapters.base` is what adapters are made of.
"""
