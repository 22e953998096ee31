"""Everything that can be known to be wrong with a pipeline before anything runs: its graph and its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from concisecli import installed
from concisecli.config import (
    DataConfig,
    EvalConfig,
    MineConfig,
    NewModel,
    OptimiserConfig,
    Pipeline,
    ReportConfig,
    SftConfig,
    StageSpec,
    TrainConfig,
    VllmConfig,
)
from concisecli.did_you_mean import nearest
from concisecli.faults import Fault, merged
from concisecli.named_inputs import custom_functions, module_file
from concisecli.records import UsageError
from concisecli.stages import STAGES

# What a role takes; a role that is not listed takes examples (the inputs of sft have names of the user's choice).
TAKES = {
    "model": ("model", "best"),
    "problems": ("problems",),
    "evaluation": ("problems",),
    "extra": ("problems",),
    "pass_rates": ("pass_rates",),
    "scores": ("scores",),
    "metrics": ("metrics",),
}
EVALUATED = ("best", "evaluations")  # what a train stage makes when it evaluates
ONE_ONLY = ("model",)


def references(given: Any) -> tuple[str | NewModel, ...]:
    return given if isinstance(given, tuple) else (given,)


def maker(pipeline: Pipeline, reference: str | NewModel) -> str | None:
    """The stage that a reference names; None for a path, a hub model or a new one."""
    stage = reference.partition(".")[0] if isinstance(reference, str) else ""
    return stage if stage in pipeline.stages else None


def upstream(pipeline: Pipeline, spec: StageSpec) -> set[str]:
    """The stages whose outputs a stage reads."""
    found = (maker(pipeline, one) for given in spec.inputs.values() for one in references(given))
    return {name for name in found if name}


def order(pipeline: Pipeline) -> list[str]:
    """The stages, each after those it reads from, otherwise as they are written. Raises UsageError on a cycle."""
    done: list[str] = []
    waiting = list(pipeline.stages)
    while waiting:
        ready = [n for n in waiting if upstream(pipeline, pipeline.stages[n]) <= set(done)]
        if not ready:
            raise UsageError(f"{pipeline.path}: the stages {', '.join(waiting)} wait for each other in a circle")
        done.append(ready[0])
        waiting.remove(ready[0])
    return done


def check_pipeline(pipeline: Pipeline, origins: Mapping[str, str] | None = None) -> list[Fault]:
    """All faults at once, with the place in the file where `origins` knows it. Imports nothing heavy."""
    faults: list[Fault] = []
    for spec in pipeline.stages.values():
        found = [*graph_faults(pipeline, spec), *setting_faults(pipeline, spec)]
        faults += [Fault(level, place(origins or {}, spec.name, at), text) for level, at, text in found]
    if not any(f.level == "error" for f in faults):
        try:
            order(pipeline)
        except UsageError as error:
            faults.append(Fault("error", "", str(error)))
    return merged(faults)


Found = Iterator[tuple[Literal["error", "warning"], str, str]]  # level, dotted path below the stage, message


def place(origins: Mapping[str, str], stage: str, path: str) -> str:
    """Where a value, or the nearest thing around it that somebody said, stands in the file."""
    parts = [stage, *path.split(".")] if path else [stage]
    while parts:
        origin = origins.get(".".join(parts))
        if origin and origin != "default":
            return origin
        parts.pop()
    return origins.get(stage, "")


# --- the graph --------------------------------------------------------------------------------------------------------


def graph_faults(pipeline: Pipeline, spec: StageSpec) -> Found:
    stage = STAGES[spec.uses]
    allowed = (*stage.inputs, *stage.optional)
    for role in stage.inputs:
        if not spec.inputs.get(role):
            yield "error", "inputs", f"stage '{spec.name}' ({spec.uses}) needs the input '{role}'"
    for role, given in spec.inputs.items():
        at = f"inputs.{role}"
        if role not in allowed and "*" not in allowed:
            near = nearest(role, allowed)
            hint = f"did you mean '{near}'?" if near else f"it takes {', '.join(allowed) or 'no inputs'}"
            yield "error", at, f"stage '{spec.name}': {spec.uses} has no input '{role}'; {hint}"
            continue
        if role in ONE_ONLY and len(references(given)) != 1:
            yield "error", at, f"stage '{spec.name}': the input '{role}' takes exactly one"
        for reference in references(given):
            yield from (
                (level, at, f"stage '{spec.name}': {text}")
                for level, text in reference_faults(pipeline, role, reference)
            )


def reference_faults(
    pipeline: Pipeline, role: str, reference: str | NewModel
) -> Iterator[tuple[Literal["error", "warning"], str]]:
    if isinstance(reference, NewModel) or reference.startswith("hf:"):
        if role != "model":
            yield "error", f"the input '{role}' is no model; give STAGE.OUTPUT or a path"
        return
    name = maker(pipeline, reference)
    if name is None:
        yield from outside_faults(pipeline, role, reference)
        return
    output = reference.partition(".")[2]
    made = possible_outputs(pipeline.stages[name])
    if output in EVALUATED and pipeline.stages[name].uses == "train" and output not in made:
        yield (
            "error",
            f"'{reference}': stage '{name}' makes no '{output}' as it evaluates nothing; give it evaluate_every and "
            f"the input 'evaluation', or use '{name}.model'",
        )
    elif output not in made:
        near = nearest(output, made)
        hint = f"did you mean '{name}.{near}'?" if near else f"it makes {', '.join(made)}"
        yield "error", f"'{reference}': stage '{name}' makes no '{output}'; {hint}"
    elif output not in TAKES.get(role, ("examples",)):
        yield "error", f"'{reference}' is no {role if role in TAKES else 'examples'}"


def outside_faults(pipeline: Pipeline, role: str, reference: str) -> Iterator[tuple[Literal["error"], str]]:
    if Path(reference).exists():
        return
    stage, dot, output = reference.partition(".")
    if Path(reference).is_absolute() or not dot:
        yield "error", f"the input '{role}': there is no file or folder {reference}"
        return
    near = nearest(stage, pipeline.stages)
    hint = f"did you mean '{near}.{output}'?" if near else f"the stages are {', '.join(pipeline.stages)}"
    yield "error", f"'{reference}' names no stage of this pipeline, and there is no such file; {hint}"


def possible_outputs(spec: StageSpec) -> tuple[str, ...]:
    """What a stage can make under its settings."""
    outputs = STAGES[spec.uses].outputs
    absent: set[str] = set()
    if isinstance(spec.config, DataConfig):
        kinds = {s.rows for s in spec.config.sources.values() if getattr(s, "role", "rows") == "rows"}
        absent |= set() if "problems" in kinds else {"problems"}
        absent |= set() if kinds - {"problems"} else {"examples"}
    if isinstance(spec.config, TrainConfig) and not spec.config.evaluate_every:
        absent |= set(EVALUATED)
    if isinstance(spec.config, OptimiserConfig) and not spec.config.adapter:
        absent.add("adapter")
    return tuple(o for o in outputs if o not in absent)


# --- settings that must fit each other --------------------------------------------------------------------------------


def setting_faults(pipeline: Pipeline, spec: StageSpec) -> Found:
    config = spec.config
    if isinstance(config, TrainConfig):
        yield from train_faults(spec, config)
    elif isinstance(config, SftConfig):
        yield from sft_faults(spec, config)
    elif isinstance(config, MineConfig):
        yield from mine_faults(spec, config)
    elif isinstance(config, EvalConfig):
        if not config.budgets or min(config.budgets) < 1:
            yield "error", "budgets", f"stage '{spec.name}': budgets are token counts, at least one"
    elif isinstance(config, ReportConfig):
        for name in ("before", "after"):
            stage = getattr(config, name)
            if stage is not None and (stage not in pipeline.stages or pipeline.stages[stage].uses != "eval"):
                yield "error", name, f"stage '{spec.name}': {name} names an eval stage, and '{stage}' is none"
    yield from custom_faults(spec)
    yield from length_faults(pipeline, spec)
    for at, text in installed.missing(config):  # a warning: a plan, or what is finished, needs none of it
        yield "warning", at, f"stage '{spec.name}': {text}"
    engine = getattr(config, "engine", None)
    if isinstance(engine, VllmConfig) and engine.devices and engine.placement == "colocated":
        yield "error", "engine.devices", f"stage '{spec.name}': engine.devices are for placement: split"


def train_faults(spec: StageSpec, config: TrainConfig) -> Found:
    name, reward, advantage = f"stage '{spec.name}'", config.reward, config.advantage
    if config.batch_problems % config.updates_per_batch:
        yield (
            "error",
            "updates_per_batch",
            f"{name}: batch_problems {config.batch_problems} cannot be split into updates_per_batch "
            f"{config.updates_per_batch} equal parts",
        )
    yield from evaluation_faults(spec, config)
    yield from warmup_faults(spec, config, config.steps * config.updates_per_batch * config.epochs)
    if reward.overlong == "soft" and not 0 < reward.overlong_window <= config.sampling.max_response_tokens:
        yield (
            "error",
            "reward.overlong_window",
            f"{name}: overlong soft needs an overlong_window from 1 to max_response_tokens",
        )
    if config.refill_rounds and advantage.keep == "all":
        yield "warning", "refill_rounds", f"{name}: refill_rounds does nothing while advantage.keep is all"
    if config.oversample != 1 and advantage.keep == "all":
        yield "warning", "oversample", f"{name}: oversample only wastes rollouts while advantage.keep is all"
    if config.sampling.top_p < 1 or config.sampling.min_p > 0:
        yield (
            "warning",
            "sampling",
            f"{name}: top_p or min_p cuts the distribution that the policy is trained on; the papers use neither",
        )
    if config.loss.correction != "none" and config.loss.old_logprobs == "sampler":
        yield (
            "error",
            "loss.correction",
            f"{name}: loss.correction {config.loss.correction} weighs the trainer's log-probs against the sampler's; "
            "set loss.old_logprobs: trainer",
        )
    yield from async_faults(name, config)
    yield from length_reward_faults(name, config)


def async_faults(name: str, config: TrainConfig) -> Found:
    if not config.async_steps:
        return
    if config.loss.correction == "none":
        yield (
            "error",
            "async_steps",
            f"{name}: with async_steps 1 rollouts are one update old when they train; set loss.correction: token (or "
            "sequence) and loss.old_logprobs: trainer",
        )
    if not (isinstance(config.engine, VllmConfig) and config.engine.placement == "split"):
        yield (
            "warning",
            "async_steps",
            f"{name}: async_steps 1 saves no time with an engine that shares the trainer's device; set engine.type: "
            "vllm and engine.placement: split, or async_steps: 0",
        )


def evaluation_faults(spec: StageSpec, config: TrainConfig) -> Found:
    name, given = f"stage '{spec.name}'", bool(references(spec.inputs.get("evaluation", ())))
    if config.evaluate_every and not given:
        yield "error", "evaluate_every", f"{name}: evaluate_every needs the input 'evaluation'"
    if given and not config.evaluate_every:
        yield "error", "inputs.evaluation", f"{name}: the input 'evaluation' is unused; set evaluate_every"
    if config.on_alarm == "rollback" and not config.evaluate_every:
        yield (
            "error",
            "on_alarm",
            f"{name}: on_alarm rollback goes back to the best evaluated weights; set evaluate_every and the input "
            "'evaluation'",
        )
    if config.evaluation.budgets and min(config.evaluation.budgets) < 1:
        yield "error", "evaluation.budgets", f"{name}: budgets are token counts, at least 1"


STANDS_ON = {"shorterbetter": ("correct", 2.0), "cosine": ("wrong", -1.0)}  # the base reward of their authors


def length_reward_faults(name: str, config: TrainConfig) -> Found:
    """What a length reward needs. L-GRPO's differ by lam times the tokens: what is left of that in the advantage?"""
    reward, advantage = config.reward, config.advantage
    if reward.length in ("l1-exact", "l1-max", "thinkprune") and not reward.target_tokens:
        yield "error", "reward.length", f"{name}: length {reward.length} needs reward.target_tokens, a number of tokens"
    field, value = STANDS_ON.get(reward.length, ("", 0.0))
    if field and getattr(reward, field) != value:
        yield "warning", "reward.length", f"{name}: length {reward.length} was published with reward.{field}: {value:g}"
    if reward.length != "remaining":
        return
    spread = reward.lam * config.sampling.max_response_tokens / 10
    if advantage.normalize == "mean":
        yield (
            "warning",
            "reward.lam",
            f"{name}: with normalize mean, advantages of an all-right group are about lam x tokens = {spread:.1e}; "
            "raise lam or use normalize std",
        )
    elif advantage.std_eps > 0.1 * spread:
        yield (
            "warning",
            "advantage.std_eps",
            f"{name}: std_eps {advantage.std_eps:g} is not small against the spread of the length rewards (about "
            f"{spread:.1e}) and damps them; lower std_eps or raise lam",
        )


def custom_faults(spec: StageSpec) -> Found:
    for setting, function in custom_functions(spec.config).items():
        module, _, name = function.partition(":")
        if not module or not name:
            yield "error", setting, f"stage '{spec.name}': {setting} must be module:function, not '{function}'"
        elif module_file(function) is None:
            yield (
                "error",
                setting,
                f"stage '{spec.name}': {setting}: there is no module '{module}' here or on PYTHONPATH; put "
                f"{module.replace('.', '/')}.py into the folder that concise is called in",
            )


def sft_faults(spec: StageSpec, config: SftConfig) -> Found:
    given = set(spec.inputs) - {"model"}
    for name in config.mix:
        if name not in given:
            near = nearest(name, given)
            hint = f"did you mean '{near}'?" if near else f"the inputs are {', '.join(sorted(given)) or 'none'}"
            yield "error", "mix", f"stage '{spec.name}': mix names '{name}', which is no input; {hint}"
        elif config.mix[name] < 1:
            yield "error", "mix", f"stage '{spec.name}': mix.{name} is a number of rows, at least 1"
    for name in sorted(given - set(config.mix)):
        yield (
            "error",
            f"inputs.{name}",
            f"stage '{spec.name}': the input '{name}' is not in mix: say how many rows a batch",
        )
    yield from warmup_faults(spec, config, config.steps)


def warmup_faults(spec: StageSpec, config: OptimiserConfig, optimiser_steps: int) -> Found:
    if config.warmup_steps > optimiser_steps:
        yield (
            "error",
            "warmup_steps",
            f"stage '{spec.name}': warmup_steps {config.warmup_steps} is more than its {optimiser_steps} optimiser "
            f"steps; a tenth of them: --set {spec.name}.warmup_steps={optimiser_steps // 10}",
        )


def mine_faults(spec: StageSpec, config: MineConfig) -> Found:
    needed = "model" if config.source == "resample" else "pass_rates"
    if needed not in spec.inputs:
        yield "error", "inputs", f"stage '{spec.name}': source {config.source} needs the input '{needed}'"
    if config.min_pass_rate is not None and config.min_pass_rate > config.max_pass_rate:
        yield "error", "min_pass_rate", f"stage '{spec.name}': min_pass_rate is above max_pass_rate, so nothing is left"


def length_faults(pipeline: Pipeline, spec: StageSpec) -> Found:
    """Prompt and response must fit the context."""
    config = spec.config
    if isinstance(config, EvalConfig) and config.budgets:
        prompt, response, field = config.max_prompt_tokens, max(config.budgets), "budgets"
    elif isinstance(config, TrainConfig | MineConfig):
        sampling = config.sampling
        prompt, response, field = (
            sampling.max_prompt_tokens,
            sampling.max_response_tokens,
            "sampling.max_response_tokens",
        )
        longest = max(config.evaluation.budgets, default=0) if isinstance(config, TrainConfig) else 0
        if longest > response:
            response, field = longest, "evaluation.budgets"
    else:
        return
    limit = config.engine.max_model_len if isinstance(config.engine, VllmConfig) else None
    if limit is not None and prompt + response > limit:
        yield (
            "error",
            "engine.max_model_len",
            f"stage '{spec.name}': max_prompt_tokens {prompt} + {field} {response} = {prompt + response} "
            f"is more than engine.max_model_len {limit}",
        )
    positions = new_model_positions(pipeline, spec)
    if positions is not None and response >= positions:
        yield (
            "error",
            field,
            f"stage '{spec.name}': {field} {response} does not fit the model's max_positions {positions}",
        )


def new_model_positions(pipeline: Pipeline, spec: StageSpec) -> int | None:
    """`max_positions` where the model, through all stages before, was made from nothing."""
    seen: set[str] = set()
    while spec.name not in seen:
        seen.add(spec.name)
        given = spec.inputs.get("model")
        if isinstance(given, NewModel):
            return given.new.max_positions
        name = maker(pipeline, given) if isinstance(given, str) else None
        if name is None:
            return None
        spec = pipeline.stages[name]
    return None
