"""The main demonstration: one agent, thirteen tasks, three ways to meet a failure."""
