"""Comparing penalties: the same model and prompts, with different penalties, measured in the same way."""
