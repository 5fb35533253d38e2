# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make book     make test
PYTHON  ?= python3
PROFILE ?= quick
LIVE    ?= canary,leakage_report
JOBS    ?= 2
BIN     := .venv/bin
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps
# What lock.txt has for an environment, each file by its hash, and nothing that it does not name.
LOCKED   = grep -E '\# (.* )?$(1)( |$$)' lock.txt > .venv/$(1).txt && $(PIP) --require-hashes -r .venv/$(1).txt

.DEFAULT_GOAL := help
# Without bytecode on disk, each of some hundred processes compiles the library and the tests anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install book published reference publish lab page slides instructor pdf teaching test quick nightly faults mutants lint house lock release clean kills fuzz neighbours modes

help: ## show this list
	@echo "crtlib: train language models on text that holds secrets, without learning the secrets"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1   \2/p' $(MAKEFILE_LIST)
	@echo
	@echo "  PROFILE=quick|laptop|paper chooses the size of the runs, JOBS=N the processes of the tests,"
	@echo "  PYTHON=python3.12 the interpreter that makes .venv."

install: .venv/.installed ## set up .venv with the pinned packages (once; the others do it by themselves)

# Three steps, each when it is needed: what renders the recorded book (no PyTorch), what runs its
# chapters, what tests and checks the library.
.venv/.renderer: lock.txt pyproject.toml book/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) must be Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	  echo "make: $(PYTHON) cannot make a virtual environment (Debian, Ubuntu: install python3-venv)" >&2; exit 1; }
	@echo "installing what renders the book into .venv (once)"
	@$(call LOCKED,renderer)
	@touch $@

# PyTorch without CUDA where no GPU is found: its other build takes gigabytes more. Its index is
# another for each system, and may be a mirror: this one file is pinned by its version alone.
TORCH_CPU := $(shell command -v nvidia-smi >/dev/null 2>&1 || test "$$(uname)" != Linux || sed -n 's/^\(torch==[^ ]*\) .*/\1/p' lock.txt)

.venv/.book: .venv/.renderer
	@echo "installing PyTorch and what runs the chapters into .venv (once, a minute or two)"
ifdef TORCH_CPU
	@$(PIP) -q --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu $(TORCH_CPU)
else
	@$(call LOCKED,gpu)
endif
	@$(call LOCKED,book)
	@$(PIP) -e . -e book
	@touch $@

.venv/.installed: .venv/.book
	@echo "installing what tests and checks the library into .venv (once)"
	@$(call LOCKED,test)
	@touch $@

book: .venv/.renderer ## the recorded book at once, then LIVE=canary,leakage_report (all, none) run here: _build/html/index.html
	@$(BIN)/python book/build.py --first --live "$(LIVE)" --profile $(PROFILE)
ifneq ($(filter-out none,$(LIVE)),)
	@$(MAKE) --no-print-directory .venv/.book
	@$(BIN)/python book/build.py --live "$(LIVE)" --profile $(PROFILE)
endif

published: ## the recorded book, nothing is run: make book LIVE=none
	@$(MAKE) --no-print-directory book LIVE=none

reference: .venv/.installed ## the library, module by module: _build/reference/html/autoapi/index.html
	@mkdir -p _build/reference/source
	@$(BIN)/sphinx-build --quiet -W --keep-going -c book/reference _build/reference/source _build/reference/html
	@echo "$(CURDIR)/_build/reference/html/autoapi/index.html"

publish: .venv/.book ## (maintainers) run the notebooks at PROFILE and record them in book/chapters
	@$(BIN)/python book/build.py --publish $(PROFILE)

lab: .venv/.lab ## open JupyterLab with every chapter as a notebook that reads well there
	@$(BIN)/python book/plain.py

page: .venv/.book ## make one chapter a page, recorded or with other parameters: make page NB=canary ARGS="-p gammas [0.07]"
	@$(BIN)/python book/forms.py page $(NB) $(ARGS)

slides: .venv/.book ## make the slides of the ten hours: _build/slides/index.html
	@$(BIN)/python book/forms.py slides

instructor: .venv/.book ## notes, answers, and with KEY=class.key an exam for each student: _build/instructor/index.html
	@$(BIN)/python book/forms.py instructor $(KEY)

pdf: .venv/.book ## make the book a PDF (with Chromium): _build/print
	@$(BIN)/python book/forms.py pdf

teaching: .venv/.installed ## (maintainers) write the glossary and the pages for lecturers anew
	@$(BIN)/python book/teaching.py

.venv/.lab: .venv/.book
	@$(call LOCKED,lab)
	@touch $@

# A file's tests in one process: what they share (trained models, simulated corpora) is made once.
# With byte code, else each worker compiles every file.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: .venv/.installed ## run the tests of the library and of its guarantees
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m tests.shares --jobs $(JOBS) -m "not nightly" --durations 10

quick: .venv/.installed ## call every command, with --json and without, and plant the quick faults
	@$(PYTEST) tests/test_commands.py
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --quick --jobs $(JOBS)

nightly: .venv/.installed ## run all tests, the examples, every planted fault, 40 kills, 900 bad inputs and 500 pairs
	@$(PYTEST) --durations 30
	@$(MAKE) faults kills fuzz neighbours

faults: .venv/.installed ## plant mistakes that would void a guarantee; each must fail a test
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --jobs $(JOBS)

mutants: .venv/.installed ## change MODULES=odometer (or all) in every small way, or in SAMPLE=50; list what its tests let pass
	@$(BIN)/python tests/mutants.py $(MODULES) --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE))

kills: .venv/.installed ## kill commands at 40 random moments; what they made must be the same
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.kills

fuzz: .venv/.installed ## give every command, parameter and file what nobody should; 900 cases of the day's seed (SEED=N)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED))

neighbours: .venv/.installed ## train on PAIRS=500 pairs of corpora that differ in one unit; nothing may differ that is not declared
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.neighbours --pairs $(or $(PAIRS),500) --planted --jobs $(JOBS)

modes: .venv/.installed ## (maintainers) write the table of all files and their modes into SECURITY.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.modes

lint: .venv/.installed ## check style, the arrows between the rooms, and types
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(MAKE) --no-print-directory house
	@$(BIN)/mypy

house: .venv/.installed ## print tokens by package; refuse imports upward or in a circle
	@$(BIN)/python benchmarks/house.py
	@$(BIN)/lint-imports

lock: .venv/.installed ## (maintainers) write lock.txt anew; needs uv, and keeps every version that it has
	@$(BIN)/python -m tests.lock

release: .venv/.installed ## (maintainers) sdist and wheel in _build/dist, checked
	@$(BIN)/python benchmarks/release.py

clean: ## remove what was built; .venv and the store of finished runs stay
	rm -rf _build .pytest_cache .ruff_cache .hypothesis
