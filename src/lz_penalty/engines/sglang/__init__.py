"""SGLang: a plug-in that SGLang finds by itself, and a `CustomLogitProcessor` for servers that prefer those.

`plugin` is what SGLang loads, and `hooks` is what it registers. `checks` says which requests can be penalised, `history`
keeps their tokens on the device; `watched` follows requests with a policy on the host, `policy_rows` does what they need
on the device. `custom_processor` is the alternative. Importing this package imports neither SGLang nor
torch.
"""
