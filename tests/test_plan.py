"""`concise plan`: what methods.md says of the papers stands in it with its source; its numbers are those of hand and of
measured peaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from concisecli.algo.metrics import break_even
from concisecli.checks import check_pipeline
from concisecli.config import (
    DeepSpeedConfig,
    NewModelConfig,
    SftConfig,
    TrainConfig,
    VllmConfig,
)
from concisecli.loading import load_pipeline_with_origins
from concisecli.planning import fitting, hardware, memory, objective, said, shapes, timing, work
from concisecli.planning.document import plan
from concisecli.records import UsageError

ROOT = Path(__file__).parent.parent
GIB = 2**30

# What methods.md gives for ConciseR (1.2, 1.5): the path in the pipeline, its value.
CONCISER = {
    "rl1.inputs.model": "hf:Qwen/Qwen2.5-Math-7B",
    "rl1.lr": 1e-6,
    "rl2.lr": 1e-6,
    "rl1.batch_problems": 128,
    "rl1.updates_per_batch": 1,
    "rl1.sampling.group_size": 32,
    "rl1.sampling.max_response_tokens": 3072,
    "rl1.sampling.temperature": 1.0,
    "rl1.loss.eps_low": 0.2,
    "rl1.loss.eps_high": 0.28,
    "rl1.loss.entropy_coef": 0.001,
    "rl1.steps": 5700,
    "rl2.steps": 110,
    "rl1.advantage.keep": "mixed",
    "rl1.advantage.std": "sample",
    "rl1.advantage.std_eps": 1e-6,
    "rl1.reward.correct": 1.0,
    "rl1.reward.wrong": 0.0,
    "rl2.reward.length": "remaining",
    "rl2.reward.lam": 2e-6,
    "rl2.loss.kl_coef": 0.01,
    "all.recipe": "data_recipes/conciser_59k.yaml",
    "hard.recipe": "data_recipes/math_l3_5.yaml",
    "rl2_aime24.samples": 32,
    "rl2_aime24.temperature": 0.6,
    "rl2_aime24.top_p": 0.95,
    "rl2_math500.samples": 32,
    "rl2_amc23.samples": 32,
    "rl2_minerva.samples": 32,
    "rl2_olympiadbench.samples": 32,
    "prompt.template": "conciser",
}
# And for GRPO-LEAD (2.1, 2.5, 2.6).
LEAD = {
    "examples.recipe": "data_recipes/lead_sft.yaml",
    "hard.recipe": "data_recipes/lead_stage1.yaml",
    "rl1.lr": 1e-6,
    "rl1.batch_problems": 32,
    "rl1.sampling.group_size": 8,
    "rl1.sampling.temperature": 0.8,
    "rl1.sampling.max_response_tokens": 14336,
    "rl1.clip_norm": 1.0,
    "rl1.updates_per_batch": 1,
    "rl1.reward.wrong": -1.0,
    "rl1.reward.length": "zscore",
    "rl1.reward.alpha": 0.05,
    "rl1.reward.std": "sample",
    "rl1.reward.std_eps": 1e-6,
    "rl1.advantage.difficulty.low": 0.4,
    "rl1.advantage.difficulty.high": 1.5,
    "rl1.advantage.difficulty.midpoint": 0.75,
    "rl1.advantage.difficulty.slope": 10.0,
    "rl1.loss.eps_low": 0.2,
    "rl1.loss.eps_high": 0.2,
    "rl1.loss.kl_coef": 0.0,
    "rl1.loss.entropy_coef": 0.0,
    "rl1.loss.reduce": "sequence",
    "rl1.steps": 100,
    "rl2.steps": 100,
    "rl3.steps": 140,
    "mined.max_pass_rate": 0.75,
    "mined.min_pass_rate": 0.0625,
    "mined.attempts": 16,
    "rl3.reward.length": "off",
    "rl3.reward.repetition": -1.5,
    "rl3.reward.wrong": -1.0,
    "rl3_aime24.samples": 32,
    "rl3_aime24.temperature": 0.6,
    "rl3_aime24.min_p": 0.01,
    "rl3_aime25.samples": 32,
}


def planned(name: str, gpu: str | None = None, sets: tuple[str, ...] = (), runs: Path = Path("/nowhere")) -> Any:
    pipeline, origins = load_pipeline_with_origins(ROOT / "pipelines" / f"{name}.yaml", sets)
    return plan(pipeline, origins, runs, hardware.parse_hardware(gpu) if gpu else None)


@pytest.mark.parametrize(("name", "table"), [("conciser", CONCISER), ("lead", LEAD)])
def test_every_hyper_parameter_of_the_papers_is_there_with_its_source(name: str, table: dict[str, Any]) -> None:
    found = {s["path"]: s for s in planned(name)["settings"]}
    # A setting said at the top counts for the stages: prompt.template is rl1's.
    values = {path: found.get(path) or found[f"rl1.{path}"] for path in table}
    assert {path: values[path]["value"] for path in table} == table
    assert {path for path, s in values.items() if not s["sources"]} == set()


def test_the_model_of_lead_is_that_of_the_paper() -> None:
    found = {s["path"]: s["value"] for s in planned("lead")["settings"]}
    assert found["sft.inputs.model"] == "hf:deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"


def test_a_hyper_parameter_is_printed_with_value_place_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    from concisecli.plan_page import show

    show(planned("lead"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("reward.alpha 0.05 ") and "lead.yaml:" in line and "[paper]" in line for line in lines)
    assert any("answering pays (against 0) from a chance of being right of 0.500" in line for line in lines)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_comment_is_read_beside_its_value_and_inherited_from_above(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        'a: "# no comment" # yes [paper]\n'
        "b: # of the part [ours]\n"
        "  c: 1\n"
        "  d: 2 # its own\n"
        "  e: {f: x#y, g: 'it''s # quoted'}   # behind [code, 3.1]\n"
        "# a line of its own\n"
        "h: 3\n"
        "i: |\n"
        "  text # not a comment\n"
    )
    expected = {1: "yes [paper]", 2: "of the part [ours]", 3: "of the part [ours]", 4: "its own"}
    expected |= {5: "behind [code, 3.1]", 7: "", 8: ""}
    assert {line: said.comment_at(f"{file}:{line}") for line in expected} == expected
    assert said.comment_at("default") == said.comment_at("--set a=1") == said.comment_at(f"{file}.gone:1") == ""
    assert said.Setting("a", 1, "x:1", "so [paper] and [ours]").sources == ("paper", "ours")


def test_each_setting_knows_who_said_it() -> None:
    pipeline, origins = load_pipeline_with_origins(ROOT / "pipelines/lead.yaml", ["rl1.reward.alpha=0.1", "seed=3"])
    found = {s.path: s for s in said.settings(pipeline, origins)}
    assert found["rl1.reward.alpha"].origin == "--set rl1.reward.alpha=0.1"
    assert "lead.yaml:" in found["rl2.reward.alpha"].origin
    assert found["rl1.adam_betas"].is_default
    assert found["seed"].origin == "--set seed=3"
    assert {s.path for s in found.values() if s.path.startswith("rl1.loss.")} >= {
        "rl1.loss.eps_low",
        "rl1.loss.eps_high",
        "rl1.loss.ratio",
    }


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_known_models_have_the_parameters_that_their_authors_count() -> None:
    counted = {name: shape.parameters for name, shape in shapes.KNOWN.items()}
    assert counted["Qwen/Qwen2.5-Math-7B"] == 7_615_616_512
    assert counted["Qwen/Qwen2.5-Math-1.5B"] == 1_543_714_304
    assert counted["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"] == 1_777_088_000
    assert counted["deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"] == 14_770_033_664
    assert shapes.KNOWN["Qwen/Qwen2.5-7B"].cache_per_token == 28_672  # 2 x 28 layers x 4 heads x 128


def test_a_folder_is_counted_in_its_files_and_a_new_model_by_its_settings(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tests.conftest import WORDS

    real = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tiny_model).parameters())
    of_folder = shapes.shape_of(str(tiny_model))
    assert of_folder is not None
    assert (of_folder.parameters, of_folder.source) == (real, str(tiny_model / "config.json"))
    config = NewModelConfig(words=WORDS, hidden_size=64, layers=2, heads=2, intermediate_size=64, max_positions=256)
    assert shapes.of_new(config).parameters == real


def test_an_unknown_name_is_a_guess_that_says_so() -> None:
    guessed = shapes.guessed("someone/Great-Math-8B-v1.5")
    assert guessed is not None
    assert guessed.parameters == 8_000_000_000
    assert guessed.source == "a guess from the 8B in its name, shaped like Qwen/Qwen2.5-7B"
    assert shapes.guessed("someone/nameless") is None


# --- hardware ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("8xH20", "8 x H20"),
        ("H100", "1 x H100"),
        ("4 * a100-80gb", "4 x A100-80"),
        ("2xRTX 4090", "2 x RTX-4090"),
        ("3090", "1 x RTX-3090"),
        ("8×H200", "8 x H200"),
        ("1xrtx 6000 ada", "1 x RTX-6000-Ada"),
        ("mi300x", "1 x MI300X"),
    ],
)
def test_hardware_is_read_as_people_write_it(text: str, name: str) -> None:
    assert hardware.parse_hardware(text).name == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8xA100", "did you mean A100-40 or A100-80?"),
        ("2xH10", "H100"),
        ("0xH100", "write it as 8xH100"),
        ("8xfoo", "known are"),
        ("", "write it as"),
    ],
)
def test_an_unknown_card_names_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=r"--gpu") as caught:
        hardware.parse_hardware(text)
    assert hint in str(caught.value)


def test_a_price_replaces_the_tables() -> None:
    assert hardware.parse_hardware("2xH20", "1.2-2").card.price == (1.2, 2.0)
    assert hardware.parse_hardware("2xH20", "3").card.price == (3.0, 3.0)
    for wrong in ("cheap", "3-2", "-1"):
        with pytest.raises(UsageError, match=r"--price"):
            hardware.parse_hardware("H20", wrong)


# --- memory -----------------------------------------------------------------------------------------------------------

SEVEN = shapes.KNOWN["Qwen/Qwen2.5-7B"]
N = SEVEN.parameters


def test_training_state_by_zero_stage() -> None:
    def state(stage: int, devices: int, **more: Any) -> tuple[float, float, float]:
        config = SftConfig(steps=1, backend=DeepSpeedConfig(zero_stage=stage, **more))
        found = memory.training_memory(SEVEN, config, devices)
        return found.weights, found.gradients, found.optimiser

    assert state(0, 8) == (4 * N, 4 * N, 8 * N)  # bf16 is autocast's: weights stay fp32
    assert state(1, 8) == (2 * N, 2 * N, 12 * N / 8)
    assert state(2, 8) == (2 * N, 2 * N / 8, 12 * N / 8)
    assert state(3, 8) == (2 * N / 8, 2 * N / 8, 12 * N / 8)
    assert state(3, 1, dtype="float32") == (4 * N, 4 * N, 12 * N)


def test_a_reference_is_counted_only_with_kl() -> None:
    def reference(kl: float) -> float:
        config = TrainConfig(steps=1, loss={"kl_coef": kl}, backend=DeepSpeedConfig(zero_stage=3))
        return memory.training_memory(SEVEN, config, 8).reference

    assert (reference(0.0), reference(0.01)) == (0.0, 2 * N)


def test_activations_grow_with_the_micro_batch_and_never_below_one_row() -> None:
    def activations(tokens: int, longest: int) -> float:
        config = SftConfig(steps=1, micro_batch_tokens=tokens, max_tokens=longest, backend=DeepSpeedConfig())
        return memory.activation_bytes(SEVEN, config)

    assert activations(8192, 2048) == 2 * activations(4096, 2048)
    assert activations(100, 4096) == activations(4096, 4096)
    # 28 layers x (2 norms x 8 bytes x 3584 + 2 x (4 x 3584 + 2 x 512) + 8 x 18944) bytes a token
    assert activations(1000, 10) == 1000 * 28 * (2 * 8 * 3584 + 2 * (4 * 3584 + 2 * 512) + 8 * 18944)


def test_a_cache_holds_what_its_share_leaves() -> None:
    engine = VllmConfig(gpu_memory_utilization=0.5, max_num_seqs=256)
    found = memory.engine_memory(SEVEN, engine, longest=4096, rollouts=64, device=80 * GIB)
    each = 2 * 28_672 * 4096
    assert (found.weights, found.running, found.each) == (2 * N, 64, each)
    assert found.held == 64  # of int((40 GiB - 2 N) / each) = 118
    assert memory.engine_memory(SEVEN, engine, longest=4096, rollouts=999, device=80 * GIB).held == 118


def test_what_does_not_fit_names_a_setting_that_helps() -> None:
    config = SftConfig(steps=1, micro_batch_tokens=65536, max_tokens=2048, backend=DeepSpeedConfig(zero_stage=2))
    eight = hardware.parse_hardware("8xH100")
    found = fitting.fit(SEVEN, config, work.sft_work(config, [1000]), eight)
    assert found.verdict == "too large"
    assert found.advice[0] == "set backend.zero_stage=3, micro_batch_tokens=2048"
    small = shapes.KNOWN["Qwen/Qwen2.5-0.5B"]
    assert (
        fitting.fit(small, config.model_copy(update={"micro_batch_tokens": 2048}), work.Work(), eight).verdict == "fits"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's own accounting of memory")
def test_the_estimate_holds_against_measured_peaks() -> None:
    """A random Qwen2 of 100 M parameters in fp32, two micro-batches a step: weights and optimiser within 10 %,
    activations (with logits) within 30 %."""
    rows, tokens = 4, 256
    command = [sys.executable, "-m", "tests.measure_memory", "768", "12", str(rows), str(tokens)]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    shape = shapes.of_config(measured | {"model_type": "qwen2"}, "measured", "measured")
    assert shape is not None
    assert shape.parameters == measured["parameters"] >= 100_000_000
    config = SftConfig(steps=2, micro_batch_tokens=rows * tokens, max_tokens=tokens)
    expected = memory.training_memory(shape, config, 1, on="cpu")
    assert measured["weights"] == pytest.approx(expected.weights, rel=0.1)
    assert measured["state"] == pytest.approx(expected.state, rel=0.1)
    activations = measured["peak"] - measured["state"] - expected.gradients
    assert activations == pytest.approx(expected.activations + expected.logits, rel=0.3)


# --- work, time, objective --------------------------------------------------------------------------------------------


def test_work_is_counted_by_hand() -> None:
    config = TrainConfig(
        steps=10,
        batch_problems=16,
        updates_per_batch=2,
        refill_rounds=2,
        sampling={"group_size": 8, "max_prompt_tokens": 100, "max_response_tokens": 1000},
    )
    found = work.train_work(config, 320, None)
    assert (found.steps, found.optimiser_steps, found.passes) == (10, 20, 0.5)
    assert (found.rollouts, found.worst_rollouts) == (1280, 3840)
    assert found.generated == pytest.approx((1280 * 300, 1280 * 650))
    assert found.worst_generated == 3840 * 1000


def test_a_reference_and_repeated_forward_passes_cost_time() -> None:
    plain = TrainConfig(steps=1)
    assert timing.passes_of(plain) == 3
    assert timing.passes_of(TrainConfig(steps=1, loss={"kl_coef": 0.01})) == 4
    assert timing.passes_of(TrainConfig(steps=1, updates_per_batch=4, loss={"old_logprobs": "trainer"})) == 4


def test_training_time_is_flops_over_speed() -> None:
    config = SftConfig(steps=100, mix={"examples": 10}, max_tokens=1000, backend=DeepSpeedConfig())
    done = work.sft_work(config, [500])
    low, high = timing.training_seconds(SEVEN, config, done, hardware.parse_hardware("2xH100"))
    tokens = 1000 * 0.3 * 1000
    flops = 3 * tokens * (2 * (N - SEVEN.embedding) + 4 * 28 * 3584 * 300 / 2)
    assert low == pytest.approx(flops / (2 * 989e12 * 0.45))
    assert high > low


def test_the_objective_in_numbers() -> None:
    assert objective.break_even(1, -1) == 0.5 == break_even(1.0)
    assert objective.break_even(1, -3) == 0.75 == break_even(3.0)
    assert objective.effective_scale(2e-6, 100, 1e-6) == pytest.approx(0.99502, abs=1e-5)
    assert objective.effective_scale(2e-6, 100, 1e-4) == pytest.approx(2 / 3)
    meaning = objective.meaning(TrainConfig(steps=1, reward={"wrong": -1, "unfinished": 0, "length": "zscore"}))
    assert "0.8836 to 1.1317 in a group of 8" in meaning["length reward"]  # methods.md 2.3: exp(±0.05 x 7/sqrt 8)
    assert "below a chance of 0.500 not to finish pays" in meaning["unfinished"]


# --- the command ------------------------------------------------------------------------------------------------------


def command(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "concisecli", *words], capture_output=True, text=True, cwd=cwd, env=env
    )


def test_plan_loads_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['concise', 'plan', 'pipelines/lead.yaml', '--gpu', '8xH20', '--json', 'processes=auto']\n"
        "from concisecli.cli import app\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'vllm', 'deepspeed'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    document = json.loads(done.stdout)
    assert document["hardware"]["count"] == 8
    rl1 = next(stage for stage in document["stages"] if stage["name"] == "rl1")
    low, high = (hours / 3600 for hours in rl1["seconds"]["total"])
    assert low < 24 < high  # what the paper reports for its first stage on 8 x H20


def test_plan_tells_all_faults_at_once_and_still_plans() -> None:
    words = ("--set", "rl1.updates_per_batch=5", "--set", "rl2.warmup_steps=999", "--set", "mined.min_pass_rate=0.9")
    done = command("plan", "pipelines/lead.yaml", *words)
    assert done.returncode == 2
    for part in ("cannot be split", "warmup_steps 999 is more than", "min_pass_rate is above max_pass_rate"):
        assert part in " ".join(done.stdout.split())
    assert "memory of one device" in done.stdout
    assert done.stderr == "concise: pipelines/lead.yaml cannot run as it is; see checks above\n"


def test_plan_of_what_is_not_there_is_wrong_usage() -> None:
    assert command("plan", "nowhere.yaml").returncode == 2
    assert command("plan", "pipelines/lead.yaml", "--price", "2").returncode == 2


def test_cards_that_no_process_uses_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    from concisecli.plan_page import show

    alone, all_of_them = (planned("lead", "8xH20", (f"processes={n}",)) for n in ("1", "auto"))
    one, eight = (next(s for s in plan["stages"] if s["name"] == "rl1") for plan in (alone, all_of_them))
    assert (one["cards"], eight["cards"]) == (1, 8)
    assert one["seconds"]["training"][0] == pytest.approx(8 * eight["seconds"]["training"][0], rel=1e-3)
    show(alone)
    assert "only 1 of 8 cards at work; set processes=auto" in " ".join(capsys.readouterr().out.split())


def test_finished_stages_cost_nothing_more(tmp_path: Path) -> None:
    text = (
        "run: t\nstages:\n  d: {uses: data, config: {recipe: "
        f"{ROOT}/data_recipes/tiny.yaml, sources: {{chains: {{split: pool, count: 3}}}}}}}}\n"
    )
    (tmp_path / "concise.yaml").write_text(text)
    assert command("run", cwd=tmp_path).returncode == 0
    done = json.loads(command("plan", "--json", cwd=tmp_path).stdout)
    assert [(s["action"], s["reason"]) for s in done["stages"]] == [("skip", "skip: same settings and inputs")]


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_pipeline_can_be_planned(path: Path) -> None:
    pipeline, origins = load_pipeline_with_origins(path)
    assert [f for f in check_pipeline(pipeline, origins) if f.level == "error"] == []
    document = plan(pipeline, origins, Path("/nowhere"), hardware.parse_hardware("8xH100"))
    json.dumps(document)
    trained = [s for s in document["stages"] if s["uses"] in ("train", "sft")]
    assert all("memory" in s and "seconds" in s for s in trained)
