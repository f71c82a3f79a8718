"""Load the scripts of `examples/`, which are no package."""

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.support import EXAMPLES


def example(name: str) -> ModuleType:
    """Return `examples/NAME.py` as a new module."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
