# Everything runs in a virtual environment of its own in .venv, made on first use. Needs Python 3.11 or newer and make.
#
#   make demo        a federation on this machine: a server and six clients, trained over gRPC
#   make test        lint, types, docs and all tests
#   make check       the loop of work: lint, types, and the unit tests of the rooms that a change touches (SINCE=main)
#   make docs        the pages of docs/ as a site, in build/docs
#   make bench       benchmarks, some minutes; docs/performance.md says what they measure
#   make test-containers, make test-arm64   the images and compose.yaml; need Docker with compose
#   make test-flower            with the oldest Flower and the newest that installs, a minute or two
#   make test-install           the wheel with the newest and with the oldest of every dependency; several GB
#   make lock        the hashes of what images and deploy/install-client.sh install, after a change of a version
#
# PyTorch: by default pip's own choice for this machine. On x86-64 without a GPU, its CPU build saves several GB:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
UNIT := not federation and not containers and not installation
PACKAGES := bouquet client common experiments server strategies
# What tests write is on no disk, where memory has room for it and programs may be run there: the states of devices
# wait for each of their writes.
ROOM := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print $$6}')
MEMORY := $(shell grep -sq ' $(ROOM) tmpfs [^ ]*noexec' /proc/mounts || echo $(ROOM))
TESTED := OMP_NUM_THREADS=1 $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest

.PHONY: demo bench test check lint types docs unit federation malformed fuzz faults test-containers test-arm64 test-flower test-install lock install clean

demo: $(VENV)/installed
	$(BIN)/bouquet demo

install: $(VENV)/installed

# Two at a time: the tests with real processes wait a good part of their time, and what else there is goes on meanwhile.
test: lint
	rm -rf build/lines
	$(MAKE) --jobs 2 --output-sync=line types docs unit federation
	$(BIN)/python -m tests.helpers.lines_run 90

# The rooms of what differs from SINCE; tests mirror the rooms.
SINCE ?= main
check: lint types
	$(TESTED) -n 2 -m "$(UNIT)" $$($(BIN)/python tests/helpers/touched.py $(SINCE))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases benchmarks

docs: $(VENV)/installed-dev
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

unit: $(VENV)/installed-dev
	$(TESTED) -p tests.helpers.lines_run -n 2 -m "$(UNIT)"

# A file without such a test is not imported. With more cores more at a time: each takes a gigabyte.
FEDERATIONS ?= 2
federation: $(VENV)/installed-dev
	$(TESTED) -p tests.helpers.lines_run -n $(FEDERATIONS) --dist worksteal -m federation \
		$$(grep -rl --include='test_*.py' mark.federation tests)

# Malformed replies, 2,000 against every method: some minutes.
malformed: $(VENV)/installed-dev
	BOUQUET_MALFORMED=2000 $(TESTED) tests/strategies/base/test_malformed.py --timeout 3600

# An hour of conversations that Hypothesis makes up; what fails stays in .hypothesis, and is tried first from then on.
fuzz: $(VENV)/installed-dev
	BOUQUET_FUZZ=10000000 timeout -k 60 -s INT 3600 $(BIN)/python -m pytest -n 0 --timeout 0 \
		tests/server/service/test_fuzz.py; case $$? in 124 | 137) ;; *) exit 1 ;; esac

# Two hundred schedules of faults, an hour and a half with JOBS=2, two fleets side by side; as root, also with cut links
# and full disks. SEEDS=17 replays one.
SEEDS ?= 0-199
JOBS ?= 1
faults: $(VENV)/installed-dev
	mkdir -p runs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults --seeds $(SEEDS) --jobs $(JOBS) \
		--results runs/faults.jsonl --keep runs/faults

test-containers: $(VENV)/installed-dev
	$(BIN)/pytest -m "containers and not arm64" tests/containers

test-flower: $(VENV)/installed-dev
	$(BIN)/pytest -rP -m installation tests/installation/test_flower_versions.py

test-install: $(VENV)/installed-dev
	$(BIN)/pytest -rP -m installation tests/installation/test_wheel.py

# The cheap benchmarks, into runs/bench; BOUQUET_DATA_DIR names a folder with FashionMNIST.
bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py

# Emulates the processor of a Raspberry Pi, where binfmt_misc has QEMU for it.
test-arm64: $(VENV)/installed-dev
	$(BIN)/pytest -m arm64 tests/containers

# Hashes for every processor, system and Python from 3.11 on, of the versions in constraints.txt. Not of PyTorch and
# torchvision: the wheels of one version differ between indexes (CPU, CUDA, NVIDIA's for a Jetson), so that only their
# versions are pinned. What PyTorch needs is named here; CUDA's libraries come with a PyTorch that has CUDA.
TORCH_NEEDS := filelock fsspec jinja2 networkx sympy typing-extensions
LOCK = $(BIN)/uv pip compile - -c constraints.txt --universal --python-version 3.11 --generate-hashes --no-annotate \
	--upgrade --custom-compile-command "make lock" --quiet --output-file
lock: $(VENV)/installed
	$(BIN)/python -c "import re, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	print(*(name for name in project['dependencies'] + project['optional-dependencies']['server'] if not re.match('torch|matplotlib', name)), 'setuptools>=77', \
	*'$(TORCH_NEEDS)'.split(), sep='\n')" | $(LOCK) requirements.lock
	echo matplotlib | $(LOCK) requirements-report.lock

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[simulation]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[simulation,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
