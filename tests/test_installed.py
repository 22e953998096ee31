"""Optional libraries are looked for before anything runs."""

from concisecli import installed
from concisecli.config import DeepSpeedConfig, EvalConfig, TrainConfig, VllmConfig


def test_what_a_stage_asks_for_and_the_machine_lacks_is_told_with_the_setting(monkeypatch):
    monkeypatch.setattr(installed, "importable", lambda library: False)
    config = TrainConfig(steps=1, engine=VllmConfig(), backend=DeepSpeedConfig())
    found = dict(installed.missing(config))
    assert found["engine.type"].startswith("engine.type vllm is not installed on this machine; pip install")
    assert found["backend.type"].endswith("or set backend.type to torch")


def test_what_no_stage_asks_for_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(installed, "importable", lambda library: False)
    assert not list(installed.missing(TrainConfig(steps=1)))
    assert not list(installed.missing(EvalConfig()))


def test_a_library_is_found_without_being_imported():
    import subprocess
    import sys

    code = "import sys; from concisecli import installed; installed.importable('torch'); print('torch' in sys.modules)"
    assert installed.importable("json")
    assert not installed.importable("surely_not_installed")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
