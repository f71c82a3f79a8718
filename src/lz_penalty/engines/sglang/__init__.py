"""SGLang: a plug-in that SGLang finds by itself.

    plugin.py      what SGLang loads: `register` is the entry point
    _hooks.py      the hooks that it registers
    _checks.py     which requests can be penalised, and which are refused
    _history.py    the tokens of penalised requests on the device, and a step
    _policies.py   what a step does for requests with a policy
    _following.py  reads the output of a request on the host, ends it for the ladder, and counts it

Importing this package imports neither SGLang nor torch.
"""
