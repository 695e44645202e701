# `make demo` and `make test` do all set-up themselves; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/ready

.PHONY: demo test lint bench clean

demo: $(READY)
	$(RUN) -m metastep demo

test: lint
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2

lint: $(READY)
	$(RUN) -m ruff check src tests benchmarks examples
	$(RUN) -m ruff format --check src tests benchmarks examples
	$(RUN) -m mypy

bench: $(READY)
	$(RUN) -m metastep bench --quick
	$(RUN) -m benchmarks.sweep_memory
	$(RUN) -m benchmarks.other_modules
	$(RUN) -m benchmarks.compare_conv4
	$(RUN) -m benchmarks.short_runs $(if $(METASTEP_DATA),--data $(METASTEP_DATA))
	$(RUN) -m benchmarks.same_path $(if $(METASTEP_DATA),--data $(METASTEP_DATA))
	$(RUN) -m benchmarks.transfer_digits
	$(RUN) -m benchmarks.tables

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
# for the tests of GPU kernels, in its interpreter; there is no Triton for every platform
	-$(RUN) -m pip install --quiet --constraint constraints.txt triton
	touch $(READY)

clean:
	rm -rf $(VENV) demo dist .pytest_cache .mypy_cache .ruff_cache
