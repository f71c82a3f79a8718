"""A sampler `lz` for llama.cpp: `build` builds it, `compare` compares it with the reference and with DRY."""
