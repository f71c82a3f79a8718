"""The paper's study on inspect-ai: tasks, scorers, a declarative sweep, and the report. Needs the extra `study`."""
