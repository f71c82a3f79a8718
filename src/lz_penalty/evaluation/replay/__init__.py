"""Send stored requests again, without and with the penalty, and count what the penalty changes.

`log` reads requests, `sending` sends them, `results` stores the answers, `pairs` counts, and `running` does all of it.
"""
