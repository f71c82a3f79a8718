"""Let SGLang run on a CPU build of torch, for which torchvision declares operators that it does not have."""

import torch.library

_register_fake = torch.library.register_fake


def _register_fake_if_there(op, *args, **kwargs):
    """Register like torch does, but skip operators of torchvision that do not exist."""
    if isinstance(op, str) and op.startswith("torchvision::"):
        return lambda function: function
    return _register_fake(op, *args, **kwargs)


torch.library.register_fake = _register_fake_if_there
