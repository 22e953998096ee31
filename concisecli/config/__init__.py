"""Every setting of the project, one class per noun. A value keeps its name from YAML to formula to metric.

All classes are frozen and refuse unknown keys. A field marked `runtime` changes speed or comfort only and stays out of
a stage's key. Reading YAML, `--set` and errors with file and line live in `loading`.
"""

from concisecli.config.base import Config, StageConfig, runtime
from concisecli.config.data import (
    SUITES,
    AgreementConfig,
    ChainsSource,
    CleaningConfig,
    DataConfig,
    DecontaminateConfig,
    DedupConfig,
    FileSource,
    HubSource,
    RowSource,
    SelectConfig,
    SourceConfig,
)
from concisecli.config.objective import (
    AdvantageConfig,
    DifficultyConfig,
    LogisticDifficulty,
    LossConfig,
    RewardConfig,
    StdKind,
    StepDifficulty,
)
from concisecli.config.pipeline import KINDS, SHARED, NewModel, Pipeline, Reference, StageSpec
from concisecli.config.rollouts import EngineConfig, GraderConfig, HfConfig, PromptConfig, SamplingConfig, VllmConfig
from concisecli.config.stages import (
    AlarmConfig,
    DistillConfig,
    EvalConfig,
    HeldOutConfig,
    MineConfig,
    ReportConfig,
    SftConfig,
    TrainConfig,
    Variant,
)
from concisecli.config.training import (
    AdapterConfig,
    BackendConfig,
    DeepSpeedConfig,
    NewModelConfig,
    OptimiserConfig,
    TorchConfig,
)

__all__ = [
    "KINDS",
    "SHARED",
    "SUITES",
    "AdapterConfig",
    "AdvantageConfig",
    "AgreementConfig",
    "AlarmConfig",
    "BackendConfig",
    "ChainsSource",
    "CleaningConfig",
    "Config",
    "DataConfig",
    "DecontaminateConfig",
    "DedupConfig",
    "DeepSpeedConfig",
    "DifficultyConfig",
    "DistillConfig",
    "EngineConfig",
    "EvalConfig",
    "FileSource",
    "GraderConfig",
    "HeldOutConfig",
    "HfConfig",
    "HubSource",
    "LogisticDifficulty",
    "LossConfig",
    "MineConfig",
    "NewModel",
    "NewModelConfig",
    "OptimiserConfig",
    "Pipeline",
    "PromptConfig",
    "Reference",
    "ReportConfig",
    "RewardConfig",
    "RowSource",
    "SamplingConfig",
    "SelectConfig",
    "SftConfig",
    "SourceConfig",
    "StageConfig",
    "StageSpec",
    "StdKind",
    "StepDifficulty",
    "TorchConfig",
    "TrainConfig",
    "Variant",
    "VllmConfig",
    "runtime",
]
