"""`model.generate(..., custom_generate=...)` with the LZ penalty. All of it is in the package `lz-penalty`."""

from lz_penalty.engines import transformers as lz


def generate(*args, model, **kwargs):
    """Call `generate` of the model with the LZ penalty.

    Args:
        args: as for `model.generate`.
        model: the model whose `generate` was called.
        kwargs: the arguments of `model.generate`, and `lz_*` fields. The default is the preset `guarded`.
    """
    return lz.generate(model, *args, **kwargs)
