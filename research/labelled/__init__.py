"""A labelled set of loops and legitimate repetition. The rates in docs/detection.md are measured on it."""
