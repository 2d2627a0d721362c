"""Conversations with a model in a neutral form, the forms of providers, and answers in any of them."""
