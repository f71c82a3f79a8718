"""Plug-ins for inference engines. Each passes its engine's token history to the op; the formulas are not here.

Only `engines.X` imports engine X. Importing this package imports no engine.
"""
