"""README.md of an exported model: base, lineage, settings, data with licences, evaluations, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from concisecli.artifacts import read_json
from concisecli.store import MANIFEST, RunManifest
from concisecli.upkeep.lineage import Made, lines
from concisecli.wording import percent, tokens

TOLD = (
    "steps",
    "lr",
    "batch_problems",
    "sampling.group_size",
    "sampling.max_response_tokens",
    "reward.wrong",
    "reward.length",
    "advantage.keep",
    "loss.eps_high",
    "loss.kl_coef",
    "loss.entropy_coef",
    "max_pass_rate",
)


def card(
    run: str,
    manifest: RunManifest,
    tree: Made,
    stages: Mapping[str, Made],
    evaluations: Sequence[tuple[str, dict[str, Any]]],
) -> str:
    """`tree` and `stages` are what the model goes back to, the first stage first."""
    base = base_model(tree)
    manifests = {name: read_json(Path(made.folder or "") / MANIFEST) for name, made in stages.items()}
    parts = [
        front_matter(base, manifests),
        f"# {run}: {manifest.stage}\n",
        f"Trained by concise from {base or 'a model made from nothing'}: "
        f"{' → '.join(name for name, m in manifests.items() if m['kind'] in ('sft', 'train', 'mine'))}.\n",
        "## How it was trained\n",
        *training(manifests),
        "## What it was trained on\n",
        *data(manifests),
        "## Evaluation\n",
        *evaluation(evaluations),
        "## Use\n",
        use(manifest),
        "## Lineage\n",
        "Hashes are those of the content of each artifact, of a stage its key.\n",
        "```",
        *lines(_without_folders(tree)),
        "```\n",
        "## Every setting\n",
        "<details><summary>of all stages, as JSON</summary>\n",
        "```json",
        json.dumps({name: m["config"] for name, m in manifests.items()}, indent=1, ensure_ascii=False, sort_keys=True),
        "```\n",
        "</details>\n",
        "## Limits\n",
        "The numbers above are for the problems, prompt and sampling named beside them and say nothing of others. The "
        "licences of the base model and of the data go for this model too; check them before you use it.\n",
    ]
    return "\n".join(parts)


def _without_folders(made: Made) -> Made:
    """Paths of the machine it was trained on say nothing elsewhere."""
    sources = tuple(_without_folders(source) for source in made.sources)
    name = Path(made.name).name if made.name.startswith("/") else made.name
    return Made(name, made.digest, made.role, made.kind, None, made.note, sources)


def base_model(made: Made) -> str | None:
    """What the first stage was given: hf:org/name@commit as org/name, the name of a folder, None for a new model."""
    for source in made.sources:
        if source.role == "model":
            if source.kind:
                return base_model(source)
            if source.name == "new":
                return None
            outside = source.name.removeprefix("hf:").partition("@")[0]
            return outside if source.name.startswith("hf:") else Path(outside).name
    return None


def front_matter(base: str | None, manifests: Mapping[str, Mapping[str, Any]]) -> str:
    facts: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["concise", "grpo", "reasoning", "math"],
    }
    if base and "/" in base:
        facts["base_model"] = base
    sets = sorted({s["name"] for _, s in sources(manifests) if s.get("type") == "hub"})
    if sets:
        facts["datasets"] = sets
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n"


def sources(manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(stage and source, its settings) of all data stages."""
    for name, manifest in manifests.items():
        if manifest["kind"] == "data":
            for source, settings in manifest["config"].get("sources", {}).items():
                yield f"{name}.{source}", settings


def training(manifests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = ["| stage | kind | key | settings |", "|---|---|---|---|"]
    for name, manifest in manifests.items():
        if manifest["kind"] == "data":
            continue
        told = [f"{path} {value}" for path, value in _told(manifest["config"])]
        rows.append(f"| {name} | {manifest['kind']} | `{manifest['key'][:12]}` | {', '.join(told)} |")
    return [*rows, ""]


def _told(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path in TOLD:
        value: Any = config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            yield path, value


def data(manifests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = ["| source | from | licence |", "|---|---|---|"]
    for name, settings in sources(manifests):
        origin = {"hub": settings.get("name"), "chains": "made by concise"}.get(
            settings.get("type", ""), "a local file"
        )
        licence = settings.get("licence") or ("Apache-2.0" if settings.get("type") == "chains" else "not stated")
        rows.append(f"| {name} | {origin} | {licence} |")
    kept = [
        f"{name}: {output['rows']:,} {kind}"
        for name, m in manifests.items()
        if m["kind"] == "data"
        for kind, output in m["outputs"].items()
        if kind in ("problems", "examples") and output.get("rows") is not None
    ]
    return [*rows, "", "; ".join(kept) + "." if kept else "No data stage is among what it was made from.", ""]


def evaluation(found: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    if not found:
        return ["Not evaluated in this run.\n"]
    budgets = sorted({int(b) for _, scores in found for b in scores["overall"]["budgets"]})
    heads = ["evaluation", "problems", "samples", "T", "pass@1, %", "cons@k, %", "length", "cut off, %"]
    heads += [f"≤ {budget:,} tokens, %" for budget in budgets]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, scores in found:
        overall, settings = scores["overall"], scores["settings"]
        first = overall["pass_at_1"]
        cells = [
            name,
            f"{overall['problems']:,}",
            str(overall["samples"]),
            f"{settings['temperature']:g}",
            f"{percent(first['value'])} [{percent(first['low'])}, {percent(first['high'])}]",
            percent(overall["cons_at_k"]["value"]),
            tokens(overall["length"]["value"]),
            percent(overall["truncated"]),
            *(percent(overall["budgets"].get(str(budget), {}).get("value")) for budget in budgets),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, "", "In brackets: 95 % intervals, a bootstrap over problems.", ""]


def use(manifest: RunManifest) -> str:
    prompt = manifest.config.get("prompt", {})
    chat = "inside the tokenizer's chat template" if prompt.get("chat", True) else "as plain text, no chat template"
    return (
        f"It was trained with the prompt template `{prompt.get('template', 'math')}` {chat}; asked otherwise it looks "
        "worse than it is.\n\n"
        "```sh\nconcise eval --model THIS_FOLDER --data math500 "
        f"--set prompt.template={prompt.get('template', 'math')} "
        f"--set prompt.chat={str(prompt.get('chat', True)).lower()}"
        "\n```\n"
    )
