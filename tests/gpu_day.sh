#!/usr/bin/env bash
# Everything that waits for a GPU, on a machine that has one: bash tests/gpu_day.sh
# Set-up aside it takes about ten minutes; what it finds lies in gpu_day/.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p gpu_day
nvidia-smi | tee gpu_day/machine.txt || { echo "no GPU here" >&2; exit 1; }
make setup
.venv/bin/uv pip install -q --python .venv/bin/python 'liger-kernel>=0.6' || echo "Liger's kernels cannot be had: their test is skipped"
.venv/bin/uv pip install -q --python .venv/bin/python --no-build-isolation flash-attn || echo "flash-attn cannot be had: its test is skipped"
timeout 900 .venv/bin/python -m pytest -m gpu -rs 2>&1 | tee gpu_day/tests.txt
status=$?
timeout 600 .venv/bin/python -m concisecli run pipelines/tiny.yaml 2>&1 | tee gpu_day/demo.txt
echo "look at gpu_day/; then write what was measured into tests/bench/RESULTS.md and README.md"
exit $status
