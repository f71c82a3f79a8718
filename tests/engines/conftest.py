"""Leave out the tests of engines that this environment does not have."""

from importlib.util import find_spec

ENGINES = {"llama_cpp": "llama_cpp", "mlx": "mlx_lm", "sglang": "sglang", "vllm": "vllm"}

collect_ignore = [folder for folder, package in ENGINES.items() if find_spec(package) is None]
