"""Random and hostile inputs for the whole project: `make fuzz`.

`running` is the loop that every part shares. The parts: `op_cases` (the backends against the reference), `plugins` (requests
through the validation of each server), `histories` (batches of the server engines) and `texts` (the detectors). `fields`
makes the requests. Not collected by pytest; tests/core/test_fuzzing.py runs a few cases of each.
"""
