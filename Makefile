# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make book     make test
PYTHON  ?= python3
PROFILE ?= quick
JOBS    ?= 2
BIN     := .venv/bin
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install book published publish lab page slides pdf teaching test faults mutants lint house release clean kills fuzz modes

help: ## show this list
	@echo "crtlib: train language models on text that holds secrets, without learning the secrets"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1   \2/p' $(MAKEFILE_LIST)
	@echo
	@echo "  PROFILE=quick|laptop|paper chooses the size of the runs, JOBS=N the processes of the tests,"
	@echo "  PYTHON=python3.12 the interpreter that makes .venv."

install: .venv/.installed ## set up .venv with the pinned packages (once; the others do it by themselves)

.venv/.installed: constraints.txt pyproject.toml book/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) must be Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	  echo "make: $(PYTHON) cannot make a virtual environment (Debian, Ubuntu: install python3-venv)" >&2; exit 1; }
	@echo "installing the pinned packages into .venv (once, some minutes)"
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[book,test,dev]' -e book
	@touch $@

book: .venv/.installed ## run the notebooks here and build your edition: _build/PROFILE/html/index.html
	@$(BIN)/python book/build.py --profile $(PROFILE)

published: .venv/.installed ## build the published edition from the recorded runs: _build/html/index.html
	@$(BIN)/jupyter-book build --quiet -W --keep-going book/
	@echo "$(CURDIR)/_build/html/index.html"

publish: .venv/.installed ## (maintainers) run the notebooks at PROFILE and record them in book/chapters
	@$(BIN)/python book/build.py --publish $(PROFILE)

lab: .venv/.lab ## open JupyterLab with every chapter as a notebook that reads well there
	@$(BIN)/python book/lab.py

page: .venv/.installed ## make one notebook a page: make page NB=canary
	@$(BIN)/python book/render.py $(NB)

slides: .venv/.installed ## make the slides of the ten hours: _build/slides/index.html
	@$(BIN)/python book/slides.py

pdf: .venv/.installed ## make the book a PDF (with Chromium) and an EPUB: _build/print
	@$(BIN)/python book/bind.py

teaching: .venv/.installed ## (maintainers) write the glossary and the pages for lecturers anew
	@$(BIN)/python book/teaching.py

.venv/.lab: .venv/.installed
	@$(PIP) -e '.[lab]'
	@touch $@

# A file's tests in one process: what they share (trained models, simulated corpora) is made once.
test: .venv/.installed ## run the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 20

faults: .venv/.installed ## plant mistakes that would void a guarantee; each must fail a test
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --jobs $(JOBS)

mutants: .venv/.installed ## change MODULES=odometer (or all) in every small way, or in SAMPLE=50; list what its tests let pass
	@$(BIN)/python tests/mutants.py $(MODULES) --jobs $(JOBS) $(if $(SAMPLE),--sample $(SAMPLE))

kills: .venv/.installed ## kill commands at 40 random moments; what they made must be the same
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.kills

fuzz: .venv/.installed ## give every command and parameter what nobody should; 900 cases
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

modes: .venv/.installed ## (maintainers) write the table of all files and their modes into SECURITY.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.modes

lint: .venv/.installed ## check style, the arrows between the rooms, and types
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

house: .venv/.installed ## count tokens by package against their budgets, and imports upward or in a circle
	@$(BIN)/python benchmarks/house.py

release: .venv/.installed ## (maintainers) sdist and wheel in _build/dist, checked
	@$(BIN)/python benchmarks/release.py

clean: ## remove what was built; .venv and the store of finished runs stay
	rm -rf _build book/autoapi .pytest_cache .ruff_cache .hypothesis
