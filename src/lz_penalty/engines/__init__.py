"""Plug-ins: each turns one engine's history into (tokens, lengths, rows) for the op. No mathematics.

Only `engines.X` imports engine X, and importing this package imports none of them.
"""
