"""Conversations with a model: one form, how each provider writes it, and an answer in any of these."""
