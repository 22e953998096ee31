"""What can only be seen on a GPU: `make test-gpu`."""

import pytest
import torch

from concisecli import artifacts, policy
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource, HfConfig, TrainConfig
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
