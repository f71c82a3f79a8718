"""Repeat the paper's study with inspect-ai: tasks, scorers, sweeps in TOML files, and the report. Needs the extra `study`."""
