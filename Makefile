# surf2vec: `make demo` and `make test` need only Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo quick quick-tests test test-slow test-long test-all card-versions sbom hashes mutants checks lint docs kernel bench

# The demo needs only what a person who installs surf2vec gets.
demo: $(VENV)/.base
	$(BIN)/python -m surf2vec.flows.demo

# What a developer runs every few minutes: the checks without mypy, and the tests that need no heavy package and no other process.
quick: setup
	$(MAKE) --no-print-directory --jobs 2 checks quick-tests

quick-tests:
	$(BIN)/python -m tests.quick

# At least one test of each promise, in minutes. A file's tests run in one process, but for benchmark programs (tests/conftest.py);
# in this order the long ones do not come last.
# The slow ones have four processes, as many wait for servers and for what they killed; for the others two are quicker, since
# each process trains the models that its tests share. Bytecode is written, whatever the machine says: tests start hundreds of
# processes, which read it.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
test test-slow test-long: export PYTHONDONTWRITEBYTECODE =
test: setup
	$(MAKE) --no-print-directory --jobs 2 lint kernel
	$(PYTEST) -n 2 -m "not slow and not long"

# What else CI runs: kills, browsers, PostgreSQL, Ray, several workers, whole nights.
test-slow: setup
	$(PYTEST) -n 4 -m "slow and not long"

# Before a release: the same faults in more commands, stores and nights than CI has time for.
test-long: setup
	$(PYTEST) -n 4 -m long

test-all: test test-slow test-long

# Both calls of the acceptance of a card (docs/card.md), rehearsed under the versions of the first machine that is to have one:
# make card-versions PYTHON=python3.12. 5 GB. With numpy 2.4 and newer one line of Triton 3.6's interpreter fails, which a card
# does not meet: it is changed here.
CARD := build/card-versions
CALLS ?= 1 2
card-versions: $(CARD)/.installed
	for call in $(CALLS); do OUT=$(CARD)/call-$$call $(CARD)/bin/python -m tests.benchmarks.gpu_acceptance --call $$call --seconds 900 \
		--rehearse --work $(CARD)/work || exit 1; done

$(CARD)/.installed:
	$(PYTHON) -m venv $(CARD)
	$(CARD)/bin/pip install -qq --disable-pip-version-check uv==0.13.9
	$(CARD)/bin/uv pip install -q --python $(CARD)/bin/python torch==2.11.0 triton==3.6.0 numpy==2.5.5 numba==0.68.1 pyarrow==26.0.1 \
		pytest==9.2.0 hypothesis==6.170.17
	sed -i 's/int(self.handle.data))/int(self.handle.data.squeeze()))/' $(CARD)/lib/python3*/site-packages/triton/runtime/interpreter.py
	mkdir -p $(CARD)/call-1 $(CARD)/call-2
	touch $@

# A software bill of materials (CycloneDX) of what is installed in .venv; in a new one after `make demo` that is what a user gets.
# The tool has an environment of its own: its packages are no part of ours.
SBOM := build/sbom
sbom: $(VENV)/.base
	$(PYTHON) -m venv $(SBOM)
	$(SBOM)/bin/pip install -qq --disable-pip-version-check cyclonedx-bom==7.5.0
	$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json $(BIN)/python
	@echo "build/sbom.json"

# What a base install and the extra `stack` need, with the digests of their files. uv has an environment of its own, too.
UV := build/uv
hashes:
	$(PYTHON) -m venv $(UV)
	$(UV)/bin/pip install -qq --disable-pip-version-check uv==0.13.9
	$(UV)/bin/uv pip compile --quiet pyproject.toml --extra stack --universal --python-version 3.11 -c constraints.txt --no-config \
		--default-index https://pypi.org/simple --generate-hashes --no-annotate --custom-compile-command "make hashes" \
		-o infra/requirements.txt
	@echo "infra/requirements.txt"

# Changes the code in many small ways, one at a time, and counts those that no test notices (the score: CONTRIBUTING.md).
mutants: setup
	$(BIN)/mutmut run
	$(BIN)/mutmut export-cicd-stats

lint: checks
	$(BIN)/mypy

checks: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.code_limits

# The pages that are made from the code, then the site. Strict: a link that leads nowhere fails (with --quiet it would not).
docs: export NO_MKDOCS_2_WARNING = 1
docs: setup
	$(BIN)/python -m tests.reference_pages
	$(BIN)/mkdocs build --strict
	@echo "site/index.html; with search: python3 -m http.server --bind 127.0.0.1 --directory site 8000"

# Compiled once, half a minute, while the checks run: each of the four processes would do it, all at the same time.
kernel: setup
	$(BIN)/python -c "from surf2vec.trainer.config import TrainConfig; from surf2vec.trainer.kernels import pick_kernel; \
	from surf2vec.trainer.training.warm_up import warm_up; warm_up(pick_kernel('cpu', TrainConfig()), TrainConfig())"

# All benchmark programs in tests/benchmarks; hours.
bench: setup
	failed=0; for name in $$($(BIN)/python -m tests.benchmarks.harness); do \
		$(BIN)/python -m tests.benchmarks.$$name || failed=1; \
	done; exit $$failed

setup: $(VENV)/.installed

# The constraints name no "+cpu" build of torch, so a CPU machine and a GPU machine each get theirs.
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e
$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/.installed: $(VENV)/.base
	$(INSTALL) '.[dev,stack,ray]'
	touch $@
