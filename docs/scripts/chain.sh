#!/usr/bin/env bash
# A curriculum, stage by stage. Every line can be run alone, again, or on another machine with the same runs/ folder.
#   docs/scripts/chain.sh pipelines/tiny.yaml --set rl1.steps=20
set -euo pipefail
pipeline=${1:?usage: chain.sh PIPELINE [flags of every stage]}
shift

concise data build -p "$pipeline" "$@"
concise sft -p "$pipeline" "$@"
concise train --stage 1 -p "$pipeline" "$@"
concise mine -p "$pipeline" "$@"
concise train --stage 2 -p "$pipeline" "$@"
concise eval -p "$pipeline" "$@"
concise report -p "$pipeline" "$@"
