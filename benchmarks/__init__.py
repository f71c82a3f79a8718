"""What the penalty costs, on a CPU (`cpu.py`) and on a CUDA device (`cuda.py`), next to what else there is."""
