"""The public tests of the OpenAI Agents SDK, run twice: as they are, and with every run wrapped."""
