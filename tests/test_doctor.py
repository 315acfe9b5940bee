import pathlib
import subprocess
import sys

import commands
import pytest
import tiny_run

import specjax
from specjax import doctor
from specjax.models.load import fetch
from specjax.training.drafts import small
from specjax.training.export import export

CONFIG = f"--config={tiny_run.__file__}"
GOLDENS = pathlib.Path(__file__).parent / "goldens"


@pytest.fixture
def report(monkeypatch, capsys):
    """(exit code, lines) of the command."""

    def call(*args):
        code = 0
        try:
            commands.call(doctor, monkeypatch, *args)
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return code, (printed.out or printed.err).splitlines()

    return call


def faults(lines):
    return [line for line in lines if line.startswith("✗")]


def test_a_run_that_would_go_well(report):
    code, lines = report(CONFIG)
    text = "\n".join(lines)
    assert (code, faults(lines)) == (0, []) and lines[-1] == "✓ nothing found that would stop this run"
    assert "prompts     4 from " in text and "vocabulary  drafts and target agree" in text
    assert "S           128 slots: " in text
    assert "program     decode of match, one: rungs 1 3, cache 32.8 kB, the drafter's 8 B" in text
    assert text.count("program     prefill") == 3 and text.count("program     decode") == 6


def test_the_machine_alone(report):
    code, lines = report()
    assert code == 0 and lines[-1] == "✓ ready"
    assert any(line.startswith("settings    threefry_partitionable True, enable_x64 False") for line in lines)


def test_a_checkpoint_is_described_without_its_weights(report, monkeypatch):
    monkeypatch.setattr("specjax.models.load.names.build", lambda *_: pytest.fail("weights are read"))
    folder = GOLDENS / "llama_tied_grouped"
    code, lines = report(CONFIG, f"--config.target.source={folder}")
    text = "\n".join(lines)
    assert f"target      {folder}: " in text and "0.005456M parameters in tensors of type F32 (20)" in text
    assert "no tokenizer: prompts cannot be texts" in text
    assert code == 1 and faults(lines)[0] == "✗ arm 'draft model': draft vocabulary of 257 tokens, target's has 48: they must agree"


def test_every_fault_is_named(report, monkeypatch):
    code, lines = report(CONFIG, "--config.target.source=nowhere", "--config.prompts.source=nothing.txt")
    assert code == 1 and [line.split(":")[0] for line in faults(lines)] == ["✗ target", "✗ prompts", "✗ 2 things would stop this run"]
    code, lines = report(CONFIG, "--config.max_new_tokens=2000")
    assert code == 1 and "exceed the model's 1024 positions" in faults(lines)[0]
    monkeypatch.setattr(doctor, "free_memory", lambda device: 100_000)
    code, lines = report(CONFIG)
    assert code == 1 and faults(lines)[0].startswith("✗ this run needs ")


def test_what_is_not_here_is_not_fetched(report, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "_download", lambda *_: pytest.fail("downloads"))
    code, lines = report(CONFIG, f"--config.target.source={fetch.SMOLLM2}", "--config.prompts.source=humaneval")
    assert code == 0 and faults(lines) == []
    assert f"target      {fetch.SMOLLM2}: not on this machine yet, the run fetches it (or --load)" in lines
    assert "prompts     humaneval: not on this machine yet, the run fetches it (or --load)" in lines


OF_A_TRAINED_DRAFT = """
import tiny_run

def get_config():
    config = tiny_run.get_config()
    trained = dict(name="trained", path={path!r})
    config.arms = dict(name="a", drafter=trained), dict(name="b", drafter=dict(name="combined", second=trained))
    return config
"""


def test_a_trained_draft_is_looked_at(report, tmp_path):
    target, config = specjax.load("toy://tiny"), tmp_path / "config.py"
    kind = small.over(target, None, (0,), 3, False)
    folder = export(tmp_path / "draft", kind, kind.init(target, None, 0), None, target, card={})
    config.write_text(OF_A_TRAINED_DRAFT.format(path=str(folder)))
    code, lines = report(f"--config={config}")
    assert (code, faults(lines)) == (0, []) and sum(line.startswith(f"draft       {folder}: 1") for line in lines) == 1
    assert any("decode of b: rungs 1 4 8, cache " in line for line in lines)
    config.write_text(OF_A_TRAINED_DRAFT.format(path=str(tmp_path / "no")))
    code, lines = report(f"--config={config}")
    assert code == 1 and faults(lines)[0].startswith(f"✗ draft: '{tmp_path / 'no'}': no such file or folder")


def test_with_load_the_weights_are_read(report):
    code, lines = report(CONFIG, "--load")
    assert code == 0 and "target      toy://tiny: loaded" in lines


@pytest.mark.parametrize(
    ("bad", "text"), [("stray", "'stray' is not a flag"), ("--config.batch=0", "config.batch=0 must be at least 1"), ("--lod", "lod")]
)
def test_bad_flags_and_configs(report, bad, text):
    code, lines = report(CONFIG, bad)
    assert code == 2 and len(lines) == 1 and lines[0].startswith("error: ") and text in lines[0]


def test_nobody_reads_what_it_says(report, monkeypatch):
    def closed(line):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(doctor, "say", closed)
    assert report() == (2, ["error: [Errno 32] Broken pipe"])


def test_the_command_itself():
    done = subprocess.run(
        [sys.executable, "-m", "specjax.doctor"], capture_output=True, text=True, cwd=pathlib.Path(doctor.__file__).parents[1]
    )
    assert done.returncode == 0 and done.stdout.endswith("✓ ready\n") and done.stderr == ""
