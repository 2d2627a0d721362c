"""A fleet of one agent, for compose."""
