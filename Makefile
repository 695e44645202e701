# `make demo` and `make test` do all set-up themselves; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/ready

.PHONY: demo test budget lint bench docs clean

demo: $(READY)
	$(RUN) -m metastep demo

test: lint
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2

# what each group of tests takes of CI's budget
budget: $(READY)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 -p tests.budget

lint: $(READY)
	$(RUN) -m ruff check src study tests examples
	$(RUN) -m ruff format --check src study tests examples
	$(RUN) -m mypy
	PYTHONPATH=. $(VENV)/bin/lint-imports

bench: $(READY)
	$(RUN) -m study bench --quick
	$(RUN) -m study run sweep_memory
	$(RUN) -m study run other_modules
	$(RUN) -m study run compare_conv4
	$(RUN) -m study run short_runs $(if $(METASTEP_DATA),--data $(METASTEP_DATA))
	$(RUN) -m study run same_path $(if $(METASTEP_DATA),--data $(METASTEP_DATA))
	$(RUN) -m study run transfer_digits
	$(RUN) -m study tables

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a few minutes, most of them for PyTorch."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
# for the tests of GPU kernels, in its interpreter; there is no Triton for every platform
	-$(RUN) -m pip install --quiet --constraint constraints.txt triton
	touch $(READY)

# the site, in site/: open site/index.html
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

clean:
	rm -rf $(VENV) demo dist site .pytest_cache .mypy_cache .ruff_cache
