"""Stored requests sent again, without and with the penalty: what it would have changed in one's own traffic.

`log` reads requests, `sending` sends them, `answers` says whether an answer is right, `pairs` counts, `running` does it all.
"""
