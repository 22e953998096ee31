"""From a recipe to problems and examples."""

from __future__ import annotations

from concisecli import chains
from concisecli.config import ChainsSource, DataConfig
from concisecli.records import Example, Problem


def synthetic(config: DataConfig) -> tuple[list[Problem], list[Example]]:
    """The rows of the synthetic sources, problems without repeats."""
    problems: dict[str, Problem] = {}
    examples: list[Example] = []
    for source in config.sources.values():
        if isinstance(source, ChainsSource):
            if source.rows == "problems":
                problems |= {p.id: p for p in chains.problems(source, config.seed)}
            else:
                examples += chains.examples(source, config.seed)
    return list(problems.values()), examples
