"""What can only be seen on a GPU: `make test-gpu`."""

import json

import pytest
import torch

from concisecli import artifacts, policy
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource, HfConfig, TrainConfig, VllmConfig
from concisecli.logprobs import sequence_logprobs
from concisecli.records import StageRun
from concisecli.rollout import Sampling, make_engine
from concisecli.stages import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_rollouts_on_the_gpu_carry_the_log_probs_of_a_plain_forward(tiny_model):
    engine = make_engine(HfConfig(), tiny_model)
    prompt = policy.load_tokenizer(tiny_model).encode("20A-6B+4=")
    ((completion,),) = engine.generate([prompt], Sampling(1.0, 1.0, 0.0, 40), [[7]])
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    with torch.no_grad():
        logprobs = policy.load_model(tiny_model)(ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    expected = logprobs.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_stage_runs_on_the_gpu(tiny_model, tmp_path, dtype):
    problems = arithmetic_chains.problems(ChainsSource(count=8, operations=(2, 3), split="pool"), 0)
    artifacts.write_problems(tmp_path / "problems.parquet", problems)
    config = TrainConfig.model_validate(
        {
            "steps": 3,
            "batch_problems": 4,
            "sampling": {"group_size": 4, "max_response_tokens": 120},
            "reward": {"length": "relative"},
            "prompt": {"template": "raw", "chat": False},
            "backend": {"type": "torch", "dtype": dtype},
        }
    )
    inputs = {"model": (tiny_model,), "problems": (tmp_path / "problems.parquet",)}
    result = train.run(StageRun("gpu", tmp_path, config, inputs))
    assert result.outputs["model"] == "model"


@pytest.fixture
def vllm_engine(tiny_model):
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    config = VllmConfig(dtype="float32", max_num_seqs=16, gpu_memory_utilization=0.2, enforce_eager=True)
    engine = make_engine(config, tiny_model, longest=96)
    yield engine
    engine.close()


def test_vllm_sleeps_wakes_and_holds_the_new_weights(tiny_model, vllm_engine):
    prompt, module = [20, 30, 40, 50], policy.load_model(tiny_model).cuda()
    torch.cuda.synchronize()
    awake = torch.cuda.mem_get_info()[0]
    vllm_engine.sleep()
    asleep = torch.cuda.mem_get_info()[0]
    assert asleep - awake > 2**30  # the cache of keys and values alone was a fifth of the card
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.02)
    vllm_engine.wake("weights")
    assert torch.cuda.mem_get_info()[0] > awake + 2**30  # the cache sleeps on while the weights come
    vllm_engine.sync_weights(module.named_parameters())
    vllm_engine.wake("kv_cache")
    assert vllm_engine.probe(prompt) == pytest.approx(sequence_logprobs(module, prompt), abs=1e-3)
    ((first,), (again,)) = (vllm_engine.generate([prompt], Sampling(max_response_tokens=20), [[7]]) for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in again]


def test_training_with_vllm_on_the_same_card_keeps_the_ratio_at_one(tiny_model, tmp_path):
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    problems = arithmetic_chains.problems(ChainsSource(count=8, operations=(2, 3), split="pool"), 0)
    artifacts.write_problems(tmp_path / "problems.parquet", problems)
    engine = {"type": "vllm", "dtype": "float32", "gpu_memory_utilization": 0.2, "enforce_eager": True}
    config = TrainConfig.model_validate(
        {
            "steps": 3,
            "batch_problems": 4,
            "sampling": {"group_size": 4, "max_response_tokens": 120, "temperature": 0.6},
            "reward": {"length": "relative"},
            "prompt": {"template": "raw", "chat": False},
            "engine": engine,
        }
    )
    inputs = {"model": (tiny_model,), "problems": (tmp_path / "problems.parquet",)}
    train.run(StageRun("gpu", tmp_path, config, inputs))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["mismatch_max"] < 1e-3 for row in rows)


@pytest.mark.parametrize(
    "backend", [{"zero_stage": 2, "offload_optimiser": "cpu"}, {"zero_stage": 3, "offload_params": "cpu"}]
)
def test_zero_in_bfloat16_with_offload_and_recomputation_trains_near_torch(tiny_model, backend):
    from concisecli.backends import make_backend
    from concisecli.config import LossConfig
    from concisecli.trainer import Trainer
    from tests.test_trainer import rollouts, train_config

    def norms(**fields):
        config = train_config(**fields)
        trainer = Trainer(make_backend(config.backend, tiny_model, config), config, 0, loss=LossConfig())
        return [trainer.update(rollouts(seed=step), step)["grad_norm"] for step in range(3)]

    plain = norms(backend={"type": "torch", "dtype": "bfloat16"})
    found = norms(backend={"type": "deepspeed", "dtype": "bfloat16", **backend}, gradient_checkpointing=True)
    assert found == pytest.approx(plain, rel=0.1)
