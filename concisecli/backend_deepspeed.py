"""DeepSpeed: ZeRO 0-3 under torchrun, the deepspeed launcher or alone, with offload to host memory or a disk."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from concisecli import adapters, collectives, kernels, policy
from concisecli.backends import Dtype, Scores, adamw, read_state, score, write_state
from concisecli.batching import TrainBatch
from concisecli.config import DeepSpeedConfig, OptimiserConfig
from concisecli.logprobs import Slopes, output_head, packs
from concisecli.records import ConciseError

TAG = "deepspeed"
UNIVERSAL = "universal"


class DeepSpeedBackend:
    """One optimiser step is one `engine.step()` after any number of `backward`s with gradient accumulation left to us:
    DeepSpeed's own divides by a fixed number of micro-batches, which is wrong when their token counts differ.
    """

    def __init__(self, config: DeepSpeedConfig, module: torch.nn.Module, optimiser: OptimiserConfig) -> None:
        self._deepspeed = _started()
        self.device = collectives.device()
        self.rank, self.world = collectives.rank(), collectives.world()
        self.module = module.eval()
        self._zero_stage = config.zero_stage
        self._norm = math.nan  # ZeRO-0 only
        self._spread = torch.zeros((), dtype=torch.float64, device=self.device)
        sharded = _is_sharded(module)
        if not sharded:
            module.to(self.device)
        for _, param in adapters.trainable(module):
            param.register_hook(self._watch)
        self.packed = packs(module, optimiser.packing)
        steps = adamw(module, optimiser)
        if config.zero_stage == 0:
            # It gives no norm, and sums gradients over ranks only within its own step: clip there.
            steps.register_step_pre_hook(lambda *_: self._clip_unsharded(optimiser.clip_norm))
        self.engine, *_ = self._deepspeed.initialize(
            model=_Scorer(module, config),
            optimizer=steps,
            config=_json(config, clip_norm=optimiser.clip_norm),
            dist_init_required=False,
        )
        if sharded:  # it could not be looked at before it had an engine
            with torch.no_grad():
                self.engine(None)

    def score(
        self, batch: TrainBatch, *, temperature: float, with_entropy: bool, slopes: Slopes | None = None
    ) -> Scores:
        settings = {"temperature": temperature, "with_entropy": with_entropy, "slopes": slopes, "packed": self.packed}
        return self.engine(batch, **settings)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.world)  # DeepSpeed divides the sum over ranks by their number

    def finite(self) -> bool:
        (spread,) = collectives.reduce([self._spread.item()])
        return math.isfinite(spread)

    def step(self) -> float:
        self.engine.step()
        self._spread.zero_()
        return self._norm if self._zero_stage == 0 else float(self.engine.get_global_grad_norm())

    def set_lr(self, lr: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return adapters.merged_weights(self.module, self._whole)

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        return adapters.adapter_weights(self.module, self._whole)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        write_state(folder, state)
        self.engine.save_checkpoint(
            str(folder),
            tag=TAG,
            client_state={"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}},
            save_latest=False,
            exclude_frozen_parameters=adapters.attached(self.module),
        )
        collectives.barrier()

    def load(self, folder: Path) -> dict[str, Any]:
        state = read_state(folder)
        world = state.get("world", self.world)
        if world == self.world or self._zero_stage == 0:
            self._take_up(folder, TAG)
        else:
            with _universal(folder, world):
                self._take_up(folder, UNIVERSAL)
        return state

    def _take_up(self, folder: Path, tag: str) -> None:
        config = self.engine._config
        config.load_universal_checkpoint = tag == UNIVERSAL  # else a setting of the whole engine, known too early
        try:
            path, _ = self.engine.load_checkpoint(
                str(folder), tag=tag, load_module_strict=not adapters.attached(self.module)
            )
        finally:
            config.load_universal_checkpoint = False
        if path is None:
            raise ConciseError(f"{folder} holds no DeepSpeed checkpoint of ZeRO stage {self._zero_stage}")
        if tag == UNIVERSAL:
            for held in self.engine.optimizer.optimizer.state.values():
                held["step"] = held["step"].clone()  # loaded as one tensor for all groups, which each would count up

    def _whole(self, params: list[torch.nn.Parameter]) -> list[Tensor]:
        if self._zero_stage < 3:
            return [param.detach() for param in params]
        with self._deepspeed.zero.GatheredParameters(params, modifier_rank=None):
            return [param.detach().clone() for param in params]  # what was gathered is freed when the block ends

    def _watch(self, grad: Tensor) -> None:
        """Remember whether a gradient was ever not finite: fp32 ZeRO does not look, and shards are out of reach."""
        low, high = torch.aminmax(grad)
        self._spread += high.double() - low.double()

    def _clip_unsharded(self, clip_norm: float) -> None:
        params = [param for _, param in adapters.trainable(self.module)]
        self._norm = torch.nn.utils.clip_grad_norm_(params, clip_norm).item()


class ShardedReference:
    """A frozen model that lies in shards on all ranks and is gathered a layer at a time."""

    def __init__(self, config: DeepSpeedConfig, model: Path, *, packed: bool = False) -> None:
        self._settings = {"with_entropy": False, "packed": packed}
        deepspeed = _started()
        module = load_model(config, model).eval().requires_grad_(False)
        if packed:
            kernels.use_flash_attention(module, config.dtype)
        if not _is_sharded(module):
            module.to(collectives.device())
        settings = _json(config.model_copy(update={"offload_optimiser": None}), clip_norm=0.0)
        self.engine, *_ = deepspeed.initialize(model=_Scorer(module, config), config=settings, dist_init_required=False)

    @torch.no_grad()
    def score(self, batch: TrainBatch, *, temperature: float) -> Tensor:
        return self.engine(batch, temperature=temperature, **self._settings)[0]


class _Scorer(torch.nn.Module):
    """The policy as DeepSpeed sees it: its hooks gather and free weights around one forward call, ours."""

    def __init__(self, module: torch.nn.Module, config: DeepSpeedConfig) -> None:
        super().__init__()
        self.policy = module
        self._dtype: Dtype = config.dtype if config.zero_stage == 0 else "float32"  # else the weights have the dtype
        if config.zero_stage == 3:
            from deepspeed.runtime.zero import register_external_parameter

            # The output embedding may be called a chunk of tokens at a time, and ranks have different numbers of
            # chunks: it is gathered once for the whole call, or they would wait for each other for ever.
            for param in output_head(module).parameters():
                register_external_parameter(self, param)

    def forward(self, batch: TrainBatch | None, **settings: Any) -> Any:
        if batch is None:
            return policy.check_head(self.policy)
        return score(self.policy, batch, dtype=self._dtype, **settings)


def load_model(config: DeepSpeedConfig, folder: Path) -> torch.nn.Module:
    """The model of a Hugging Face folder for `config`. With ZeRO-3 it is made in shards (`zero.Init` by transformers'
    integration), the files mapped into memory that ranks share, so that no rank ever holds all of it."""
    deepspeed = _started()
    if config.zero_stage < 3 or not config.load_sharded:
        return policy.load_model(folder)
    from transformers.integrations import deepspeed as integration

    settings = integration.HfDeepSpeedConfig(_json(config, clip_norm=0.0))  # alive as long as transformers looks at it
    try:
        module = policy.load_model(folder, config.dtype, check=False)
    finally:
        integration.unset_hf_deepspeed_config()
        del settings
    deepspeed.comm.barrier()
    return module


def _is_sharded(module: torch.nn.Module) -> bool:
    return any(hasattr(param, "ds_id") for param in module.parameters())


@contextmanager
def _universal(folder: Path, world: int) -> Iterator[None]:
    """The checkpoint in `folder`, made by `world` processes, in DeepSpeed's universal form beside it, which any number
    of processes can load. Raises ConciseError when it cannot be converted."""
    from deepspeed.checkpoint import ds_to_universal

    failed = None
    if collectives.rank() == 0:
        arguments = SimpleNamespace(
            input_folder=str(folder / TAG),
            output_folder=str(folder / UNIVERSAL),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=False,
        )
        try:
            with redirect_stdout(sys.stderr):
                ds_to_universal.main(arguments)
        except Exception as error:  # whatever it is, all ranks must hear of it
            failed = f"{type(error).__name__}: {error}"
    failed = next((f for f in collectives.gather(failed) if f), None)
    try:
        if failed:
            raise ConciseError(
                f"the checkpoint {folder} was made by {world} processes and cannot be converted for "
                f"{collectives.world()} ({failed}); go on with {world} processes, or start the stage again with --force"
            )
        yield
    finally:
        collectives.barrier()
        if collectives.rank() == 0:
            shutil.rmtree(folder / UNIVERSAL, ignore_errors=True)
            (folder / "latest_universal").unlink(missing_ok=True)
        collectives.barrier()


def _started() -> Any:
    """DeepSpeed, imported and with the process group of `collectives`."""
    deepspeed = _imported()
    collectives.init(alone=True)
    deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False)
    return deepspeed


def _imported() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", str(collectives.local_rank()))  # it insists, also without a launcher
    try:
        import deepspeed
        from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder
    except ImportError as error:
        raise ConciseError("backend 'deepspeed' is not installed; pip install 'concise[gpu]', or use torch") from error
    # Else the first init on a CPU compiles a C++ op: 30-80 s, and fatal without g++ and ninja. Plain gloo does.
    ShareMemCommBuilder.is_compatible = lambda self, verbose=False: False
    for handler in deepspeed.utils.logger.handlers:
        handler.setStream(sys.stderr)  # stdout is for results
    deepspeed.utils.logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.c10d_logger")  # its own calls
    return deepspeed


def _json(config: DeepSpeedConfig, *, clip_norm: float) -> dict[str, Any]:
    """DeepSpeed's JSON: ours, and `config.raw` for what is not ours."""
    sharded = config.zero_stage > 0
    zero: dict[str, Any] = {"stage": config.zero_stage, "overlap_comm": False}
    for key, device in (("offload_optimizer", config.offload_optimiser), ("offload_param", config.offload_params)):
        if device:
            zero[key] = {"device": device, "pin_memory": torch.cuda.is_available()}
            if device == "nvme":
                zero[key]["nvme_path"] = str(config.nvme_path)
    ours = {
        "train_micro_batch_size_per_gpu": 1,  # only counted, never used: we form the micro-batches
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": clip_norm if sharded else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # torch's AdamW: its resume is bit-exact, DeepSpeed's CPU Adam is not
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": sharded and config.dtype == "bfloat16"},
        "steps_per_print": None,
    }
    return _merged(ours, config.raw)


def _merged(ours: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    both = dict(ours)
    for key, value in raw.items():
        inner = both.get(key)
        both[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both
