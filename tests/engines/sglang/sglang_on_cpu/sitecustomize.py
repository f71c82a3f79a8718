"""Lets SGLang run on a CPU build of torch: torchvision has none, and declares operators that it then lacks."""

import torch.library

_register_fake = torch.library.register_fake


def _register_fake_if_there(op, *args, **kwargs):
    """As torch's own, but an operator of torchvision that does not exist is passed over."""
    if isinstance(op, str) and op.startswith("torchvision::"):
        return lambda function: function
    return _register_fake(op, *args, **kwargs)


torch.library.register_fake = _register_fake_if_there
