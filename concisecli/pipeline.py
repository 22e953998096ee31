"""The graph of stages: order it, decide for each whether to skip, resume or run it, say why, and do it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concisecli import checkpoints, limits
from concisecli.artifacts import canonical_json
from concisecli.checks import check_pipeline, maker, order, references, upstream
from concisecli.chosen_stages import EVERYTHING, Selection, select
from concisecli.config import NewModel, Pipeline, StageSpec
from concisecli.decisions import FIRST, Decision, Outcome, beginning
from concisecli.explain import difference, flat
from concisecli.launch import carry_out, processes_of, stdout_on_stderr, threads_of_each
from concisecli.marked import DEFAULT
from concisecli.named_inputs import named_commits, named_files, pin_sets, pinned_sets
from concisecli.records import ConciseError, Preempted, StageResult, StageRun, UsageError
from concisecli.references import bring, look_up
from concisecli.stages import STAGES
from concisecli.stopping import sigterm_as_preempted
from concisecli.store import Output, RunManifest, Store, code_state, environment, key_of, said, split_config


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a stage: its hash, its path once it is there, and the manifest it came with."""

    label: str
    digest: str | None
    path: Path | None
    manifest: RunManifest | None = None


def execute(
    pipeline: Pipeline,
    runs: Path,
    selection: Selection = EVERYTHING,
    dry_run: bool = False,
    *,
    origins: Mapping[str, str] | None = None,
    flags: str = "",
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the selected stages in the order of the graph and return one outcome each; `tell` hears of each at once.

    A finished stage with the same key is skipped, an unfinished one goes on from its last checkpoint. With `dry_run`
    nothing is written. `flags` (such as " --set seed=1") is repeated in the commands that messages propose.
    Raises UsageError when the pipeline cannot run, ConciseError when a stage cannot, Preempted after SIGTERM.
    """
    refuse_faults(pipeline, origins or {})
    runner = Runner(pipeline, Store(runs / pipeline.run), dry_run, flags, select(pipeline, selection), origins or {})
    with sigterm_as_preempted():
        outcomes = list(runner.walk(selection.force, tell))
    if not dry_run:
        runner.store.hashes.save()
    return outcomes


def foresee(
    pipeline: Pipeline, runs: Path, origins: Mapping[str, str], flags: str = ""
) -> tuple[list[Outcome], dict[str, RunManifest]]:
    """What `execute` would do with the whole of a sound pipeline, and the manifests of what is finished."""
    runner = Runner(pipeline, Store(runs / pipeline.run), True, flags, set(pipeline.stages), origins)
    outcomes = list(runner.walk((), lambda outcome: None))
    return outcomes, runner.finished


def refuse_faults(pipeline: Pipeline, origins: Mapping[str, str]) -> None:
    faults = check_pipeline(pipeline, origins)
    for fault in faults:
        if fault.level == "warning":
            print(f"warning: {fault}", file=sys.stderr)
    errors = [str(fault) for fault in faults if fault.level == "error"]
    if errors:
        raise UsageError("\n".join(errors))


# --- one stage --------------------------------------------------------------------------------------------------------


class Runner:
    """Goes through the stages in order and remembers the manifests of those that are finished."""

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        dry_run: bool,
        flags: str,
        chosen: set[str],
        origins: Mapping[str, str],
    ) -> None:
        self.pipeline, self.store, self.dry_run, self.flags = pipeline, store, dry_run, flags
        self.chosen, self.origins = chosen, origins
        self.finished: dict[str, RunManifest] = {}
        self.blocked: set[str] = set()
        self.verified: set[str] = set()
        self.troubled: dict[str, ConciseError] = {}

    def walk(self, force: Sequence[str], tell: Callable[[Outcome], None]) -> Iterator[Outcome]:
        """The chosen stages in order, each told as soon as it is decided (dry run) or done."""
        for name in order(self.pipeline):
            spec = self.pipeline.stages[name]
            if name not in self.chosen:
                self.look(spec)
                continue
            with stdout_on_stderr():
                outcome = self.foreseen(spec, name in force) if self.dry_run else self.visit(spec, force=name in force)
            tell(outcome)
            yield outcome

    def foreseen(self, spec: StageSpec, force: bool) -> Outcome:
        """What `visit` would do; a stage that cannot run does not keep the others from being looked at."""
        try:
            return self.visit(spec, force=force)
        except ConciseError as error:
            self.blocked.add(spec.name)
            return Outcome(spec.name, spec.uses, "blocked", str(error))

    def look(self, spec: StageSpec) -> None:
        """A stage that is not selected: note whether it is finished. What is wrong with it matters only to those that
        need it."""
        try:
            spec, unknown = pinned_sets(spec, self.store)
            inputs = self.inputs(spec, fetch=False)
            if not unknown and all(i.digest for group in inputs.values() for i in group):
                manifest = self.store.find(spec.name, self.key(spec, inputs))
                if manifest is not None:
                    self.finished[spec.name] = manifest
        except ConciseError as error:
            self.troubled[spec.name] = error

    def visit(self, spec: StageSpec, *, force: bool) -> Outcome:
        """A selected stage: decide, and unless this is a dry run, do it."""
        missing = [s for s in self.pipeline.stages if s in upstream(self.pipeline, spec) and s not in self.finished]
        if missing and self.dry_run and self.chosen.issuperset(missing):
            blocked = [s for s in missing if s in self.blocked]
            if blocked:
                raise ConciseError(f"needs {', '.join(blocked)}, which cannot run")
            return Outcome(spec.name, spec.uses, "waits", f"runs after {', '.join(missing)}")
        if missing:
            makers = [s for s in missing if s not in self.chosen] or missing
            raise self.troubled.get(makers[0]) or self.not_made_yet(spec, makers)
        spec, unknown = pinned_sets(spec, self.store)
        inputs = self.inputs(spec, fetch=False)
        unknown += [i.label for group in inputs.values() for i in group if i.digest is None]
        if unknown and self.dry_run:
            self.files(spec)  # a local file that is missing is told now
            return Outcome(spec.name, spec.uses, "run", f"{unknown[0]} has not been fetched yet")
        if unknown:
            inputs = self.inputs(spec, fetch=True)
            spec = pin_sets(spec, self.store)
        decision = self.decide(spec, inputs, force)
        if decision.action == "skip" or self.dry_run:
            return self.outcome(decision)
        return self.run(decision, self.inputs(spec, fetch=True))

    def not_made_yet(self, spec: StageSpec, makers: Sequence[str]) -> ConciseError:
        """Names every input that is missing and the one command that makes them all."""
        roles = [
            role
            for role, given in spec.inputs.items()
            if any(maker(self.pipeline, one) in makers for one in references(given))
        ]
        made_by = ("stage " if len(makers) == 1 else "stages ") + " and ".join(f"'{name}'" for name in makers)
        run = self.command(f"--until {makers[0] if len(makers) == 1 else spec.name}")
        return ConciseError(f"stage '{spec.name}' needs {' and '.join(roles)}, made by {made_by}; run: {run}")

    def command(self, words: str) -> str:
        """A command that the user can copy; a pipeline made by a command has no file to name."""
        if not self.pipeline.path.is_file():
            return f"the same command, with {words[words.find('--force') :]}"
        return f"concise run {shlex.quote(str(self.pipeline.path))} {words}{self.flags}"

    # --- what goes in -------------------------------------------------------------------------------------------------

    def inputs(self, spec: StageSpec, *, fetch: bool) -> dict[str, tuple[Input, ...]]:
        return {role: tuple(self.input(one, fetch) for one in references(given)) for role, given in spec.inputs.items()}

    def input(self, reference: str | NewModel, fetch: bool) -> Input:
        if isinstance(reference, str):
            stage, _, output = reference.partition(".")
            if stage in self.pipeline.stages:
                return self.made_input(reference, stage, output)
        found = bring(reference, self.store) if fetch else look_up(reference, self.store)
        return Input(found.label, found.digest, found.path)

    def made_input(self, reference: str, stage: str, output: str) -> Input:
        manifest = self.finished.get(stage)
        if manifest is None:
            return Input(reference, None, None)
        made = manifest.outputs.get(output)
        if made is None:
            raise ConciseError(
                f"'{reference}': stage '{stage}' made no {output}; it made {', '.join(manifest.outputs)}"
            )
        self.refuse_changed(manifest)
        return Input(reference, made.sha256, self.store.folder(stage, manifest.key) / made.path, manifest)

    def refuse_changed(self, manifest: RunManifest) -> None:
        """A finished stage whose files are no longer what they were would poison all that is made from it."""
        if manifest.stage in self.verified:
            return
        changed = self.store.changed_outputs(manifest)
        if changed:
            folder = self.store.folder(manifest.stage, manifest.key)
            paths = [folder / manifest.outputs[name].path for name in changed]
            gone = [path for path in paths if not path.exists()]
            what = "is gone, which" if gone else "was changed since"
            named = ", ".join(map(str, gone or paths))
            raise ConciseError(
                f"{named} {what} stage '{manifest.stage}' made{'' if gone else ' it'}; put it back, or make it anew: "
                f"{self.command(f'--only {manifest.stage} --force {manifest.stage}')}"
            )
        self.verified.add(manifest.stage)

    def files(self, spec: StageSpec) -> dict[str, str]:
        """Hashes of the local files that a config names, and the commits of the hub's data sets."""
        hashes = {name: self.file_hash(spec, path) for name, path in named_files(spec.config).items()}
        return dict(sorted((hashes | named_commits(spec.config)).items()))

    def file_hash(self, spec: StageSpec, path: Path) -> str:
        if not path.exists():
            raise ConciseError(f"stage '{spec.name}': there is no file {path}")
        return self.store.hashes.of(path)

    def key(self, spec: StageSpec, inputs: Mapping[str, tuple[Input, ...]]) -> str:
        hashes = {role: [i.digest or "" for i in group] for role, group in inputs.items()}
        if spec.uses == "report":  # shows its inputs under the names of their stages
            hashes |= {f"{role} names": [i.label for i in group] for role, group in inputs.items()}
            # It also tells their settings, which may differ where the results do not.
            hashes |= {
                f"{role} keys": [i.manifest.key if i.manifest else "" for i in group] for role, group in inputs.items()
            }
        return key_of(spec.uses, STAGES[spec.uses].version, said(spec.config), hashes, self.files(spec))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, spec: StageSpec, inputs: Mapping[str, tuple[Input, ...]], force: bool) -> Decision:
        key = self.key(spec, inputs)
        if force:
            return Decision(spec, "run", "forced", key)
        manifest = self.store.find(spec.name, key)
        if manifest is not None:
            self.refuse_changed(manifest)
            self.finished[spec.name] = manifest
            return Decision(spec, "skip", "same settings and inputs", key, manifest)
        folder = self.store.folder(spec.name, key)
        if folder.is_dir():
            found = checkpoints.latest(folder / "checkpoints")
            at = f"at step {checkpoints.step_of(found)}" if found else "what was begun"
            return Decision(spec, "resume", at, key)
        older = self.store.newest(spec.name)
        reason = FIRST if older is None else difference(older, self.described(spec, inputs), said(spec.config))
        return Decision(spec, "run", reason, key)

    def described(self, spec: StageSpec, inputs: Mapping[str, tuple[Input, ...]]) -> dict[str, Any]:
        """What of a manifest is known before the stage has run."""
        keyed, runtime = split_config(spec.config)
        return {
            "stage": spec.name,
            "kind": spec.uses,
            "version": STAGES[spec.uses].version,
            "key": self.key(spec, inputs),
            "config": keyed,
            "runtime": runtime,
            "inputs": {role: [i.digest for i in group] for role, group in inputs.items()},
            "sources": {role: [i.label for i in group] for role, group in inputs.items()},
            "input_keys": {
                role: [i.manifest.key if i.manifest else "" for i in group] for role, group in inputs.items()
            },
            "files": self.files(spec),
            "seed": spec.config.seed,
        }

    def outcome(self, decision: Decision, seconds: float = 0.0) -> Outcome:
        spec, manifest = decision.spec, decision.manifest
        folder = self.store.folder(spec.name, decision.key) if decision.key else None
        outputs = {n: folder / o.path for n, o in manifest.outputs.items()} if manifest and folder else {}
        metrics = manifest.metrics if manifest else {}
        return Outcome(spec.name, spec.uses, decision.action, decision.reason, folder, outputs, metrics, seconds)

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, decision: Decision, inputs: Mapping[str, tuple[Input, ...]]) -> Outcome:
        spec, key = decision.spec, decision.key or ""
        began = time.monotonic()
        with self.store.lock(self.store.folder(spec.name, key).name):
            meanwhile = None if decision.reason == "forced" else self.store.find(spec.name, key)
            if meanwhile is not None:  # another process finished it between our look and our lock
                self.finished[spec.name] = meanwhile
                return self.outcome(Decision(spec, "skip", "finished meanwhile by another process", key, meanwhile))
            if limits.reached():
                raise Preempted(limits.stopped(f"before stage '{spec.name}'"))
            print(f"{spec.name}: {beginning(decision)}", file=sys.stderr, flush=True)
            folder = self.store.begin(spec.name, key, anew=decision.reason == "forced")
            processes = processes_of(spec.config, spec.uses)
            result = carry_out(self.stage_run(spec, folder, inputs), spec.uses, self.pipeline.threads, processes)
            manifest = self.manifest(spec, folder, inputs, result, processes)
            self.store.commit(folder, manifest)
        self.finished[spec.name] = manifest
        self.verified.add(spec.name)
        done = Decision(spec, decision.action, decision.reason, key, manifest)
        return self.outcome(done, time.monotonic() - began)

    def stage_run(self, spec: StageSpec, folder: Path, inputs: Mapping[str, tuple[Input, ...]]) -> StageRun:
        paths = {role: tuple(i.path for i in group if i.path) for role, group in inputs.items()}
        sources = {
            # As it is read back from disk, keys in order: what a stage writes must not depend on who ran before it.
            role: tuple(
                json.loads(canonical_json(i.manifest.model_dump(mode="json"))) if i.manifest else None for i in group
            )
            for role, group in inputs.items()
        }
        return StageRun(spec.name, folder, spec.config, paths, sources)

    def manifest(
        self,
        spec: StageSpec,
        folder: Path,
        inputs: Mapping[str, tuple[Input, ...]],
        result: StageResult,
        processes: int,
    ) -> RunManifest:
        outputs = {
            name: Output(path=path, sha256=self.store.hashes.of(folder / path), rows=result.rows.get(name))
            for name, path in sorted(result.outputs.items())
        }
        return RunManifest(
            **self.described(spec, inputs),
            origins=origins_of(spec, self.origins),
            outputs=outputs,
            metrics=dict(sorted(result.metrics.items())),
            code=code_state(),
            env=environment(threads_of_each(self.pipeline.threads, processes), processes),
        )


def origins_of(spec: StageSpec, origins: Mapping[str, str]) -> dict[str, str]:
    """Where the settings of a stage were said, those that somebody said: {"reward.alpha": "lead.yaml:12"}."""
    said = {name: origins.get(f"{spec.name}.{name}", DEFAULT) for name in flat(spec.config.model_dump())}
    # A file by its name alone: equal runs leave equal manifests wherever their file lies.
    return {
        name: origin if origin.startswith("--") else os.path.basename(origin)
        for name, origin in sorted(said.items())
        if origin != DEFAULT
    }
