"""Conversations with a model: one form, and how each provider writes it."""
