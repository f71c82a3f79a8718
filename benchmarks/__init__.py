"""Benchmarks, run as `python -m benchmarks.NAME` from the root of the repository; README.md lists them."""
