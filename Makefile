# setup · demo · test · test-full · check · bench · test-gpu · setup-browser
GPU  := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
BASE := $(if $(GPU),-e .,-e . --group torch-cpu)
ALL  := $(if $(GPU),-e '.[gpu]' --group dev,-e . --group cpu --group dev)
# One source of the CPU torch: a folder of wheels where pip is configured with one, else the index that fits the machine.
FROM := $(if $(strip $(PIP_FIND_LINKS)),$(foreach d,$(PIP_FIND_LINKS),--find-links $(d)),--torch-backend=auto)
PY   := .venv/bin/python
# Where Python may not keep what it compiled, every start would compile torch anew: compile once.
KEPT := $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
OWN  := $(if $(PYTHONDONTWRITEBYTECODE),@$(PY) -m compileall -q concisecli tests)
UV   := .venv/bin/uv pip install -q --python $(PY) $(KEPT) $(FROM)

.PHONY: setup setup-browser demo test test-full check bench test-gpu clean

setup: .venv/.ready

.venv/bin/uv:
	python3 -m venv .venv || { echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }
	$(PY) -m pip install -q 'uv>=0.9,<1'

.venv/.base: pyproject.toml | .venv/bin/uv
	$(UV) $(BASE)
	touch $@

.venv/.ready: pyproject.toml | .venv/bin/uv
	$(UV) $(ALL)
	touch .venv/.base $@

demo: .venv/.base
	$(PY) -m concisecli run pipelines/tiny.yaml
	@ls -t runs/tiny/report-*/report.html | sed -n '1s/^/open /p'

# For the test that opens the report in a browser; without one it is skipped.
setup-browser: .venv/.ready
	@command -v chromedriver >/dev/null || { apt-get update -q && apt-get install -q -y chromium chromium-driver; }
	$(UV) --group browser

test: .venv/.ready
	$(OWN)
	$(PY) -m pytest -m 'not slow and not gpu'

test-full: .venv/.ready
	$(OWN)
	$(PY) -m pytest -m 'slow and not gpu'

check: .venv/.ready
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

# The peer that `step` is measured against, in an environment of its own.
.venv-trl/.ready: | .venv/.ready
	.venv/bin/uv venv -q --clear --python $(PY) .venv-trl
	.venv/bin/uv pip install -q --python .venv-trl/bin/python $(FROM) trl==1.16.0 transformers==5.19.0 torch==2.13.0
	touch $@

bench: .venv/.ready .venv-trl/.ready
	$(PY) -m tests.bench

test-gpu: .venv/.ready  # tests/gpu_day.sh does the rest of a day with a GPU
	$(PY) -m pytest -m gpu

clean:
	rm -rf runs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
