# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.benchmarking import compare
from tensorrt_llm_ext.cli import prompts as cli_prompts
from tests.support.cycling_models import write_cycling_checkpoints
from tests.support.quantized import write_quantized_draft, write_quantized_target
from tests.support.tiny_tokenizers import VOCAB_SIZE, byte_level_tokenizer

TEXT = "Tom has 3 apples. "
CYCLE = byte_level_tokenizer().encode(TEXT)
QUICK = ["--max-tokens", "10", "--pairs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the repository: examples/tiny_kimi with a target, a draft and problems."""
    root = tmp_path_factory.mktemp("repository")
    folder = root / "examples" / "tiny_kimi"
    write_cycling_checkpoints(folder, CYCLE)
    rows = [{"question": f"{i}?", "answer": "#### 3", "final": str(i)} for i in range(4)]
    (folder / "heldout.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return root


@pytest.fixture
def run(run_cli: Any, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command; returns exit code, standard output and standard error."""
    monkeypatch.setattr(cli_prompts, "_REPOSITORY", repository)
    return run_cli


def test_json_has_what_a_script_asks_for(run: Any) -> None:
    code, out, _ = run("generate", "--prompt", TEXT, "--max-draft-len", "2", "--json", *QUICK)
    assert code == 0
    result = json.loads(out)
    assert result["identical"] is True
    assert result["verdict"] == "identical"
    assert result["baseline"]["tokens_per_s"] > 0
    speculative = result["speculative"]
    assert speculative["tokens_per_s"] > 0
    assert speculative["acceptance_length"] == 2.0
    assert speculative["acceptance_rate"] == 0.5
    assert speculative["per_position"] == [1.0, 0.0]
    assert result["speedup"] == pytest.approx(
        speculative["tokens_per_s"] / result["baseline"]["tokens_per_s"]
    )
    assert "exact_match" not in result
    assert "first_divergence" not in result
    (output,) = result["outputs"]
    tokens = [CYCLE[i % len(CYCLE)] for i in range(10)]
    assert output == {
        "prompt": TEXT,
        "text": byte_level_tokenizer().decode(tokens),
        "num_tokens": 10,
    }
    setting = result["setting"]
    assert (setting["dtype"], setting["threads"]) == ("float32", torch.get_num_threads())
    assert (setting["batch_size"], setting["max_draft_len"]) == (1, 2)


def test_tables_for_people(run: Any) -> None:
    code, out, _ = run("generate", "--prompt", TEXT, "--prompt", TEXT + "Tom", *QUICK)
    assert code == 0
    assert TEXT + "Tom has 3 apples. Tom has" in out
    assert re.search(r"with and without the draft: identical", out)
    assert re.search(r"length +rate +position 1 +position 2 +position 3 +verify steps", out)
    assert re.search(r"2\.000 +0\.333 +1\.000 +0\.000 +0\.000", out)
    assert re.search(r"without draft +with draft +speed-up", out)
    assert re.search(r"\d+\.\d\dx", out)
    assert "thread(s), batch 1, 2 prompt(s)" in out


def test_problems_are_scored(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorrt_llm_ext.cli import report

    texts = ["#### 0", "#### 1", "#### 7"]
    monkeypatch.setattr(report.Setting, "texts", lambda self, run: texts)
    code, out, _ = run("generate", "--problems", "3", "--json", *QUICK)
    assert code == 0
    result = json.loads(out)
    assert result["exact_match"] == pytest.approx(2 / 3)
    assert result["baseline"]["exact_match"] == result["speculative"]["exact_match"]
    assert [row["prompt"] for row in result["outputs"]] == [
        f"Question: {i}?\nAnswer:" for i in range(3)
    ]
    code, out, _ = run("generate", "--problems", "3", *QUICK)
    assert "Exact match on 3 problem(s): 0.667" in out
    assert out.count("right") == 2
    assert "wrong, expected 2" in out


def test_without_prompts_the_example_answers_problems(run: Any) -> None:
    code, out, _ = run("generate", *QUICK)
    assert code == 0
    assert out.count("Question: ") == 3


def test_no_compare_and_no_draft(run: Any, repository: Path) -> None:
    code, out, _ = run("generate", "--prompt", TEXT, "--no-compare", "--json", *QUICK)
    result = json.loads(out)
    assert code == 0
    assert result["acceptance_length"] == 2.0
    assert "baseline" not in result
    target = str(repository / "examples/tiny_kimi/target")
    code, out, _ = run("generate", "--model", target, "--prompt", TEXT, "--json", *QUICK)
    result = json.loads(out)
    assert code == 0
    assert result["acceptance_length"] is None
    assert result["setting"]["max_draft_len"] == 0
    code, out, _ = run("generate", "--model", target, "--prompt", TEXT, *QUICK)
    assert "tokens/s" in out
    assert "Acceptance" not in out


def test_a_difference_exits_with_1_and_says_where(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = compare.measure

    def measure(core: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(core, *args, **kwargs)
        if core.config.max_draft_len == 0:
            return result
        changed = tuple((*ids[:4], 40, *ids[5:]) for ids in result.token_ids)
        return replace(result, token_ids=changed)

    monkeypatch.setattr(compare, "measure", measure)
    code, out, _ = run("generate", "--prompt", TEXT, "--json", *QUICK)
    assert code == 1
    result = json.loads(out)
    assert result["identical"] is False
    assert result["verdict"] == "different"
    where = result["first_divergence"]
    assert (where["prompt_index"], where["position"]) == (0, 4)
    assert (where["baseline_token"], where["speculative_token"]) == (CYCLE[4], 40)
    assert where["margin"] > where["tolerance"] == pytest.approx(2e-4)
    code, out, _ = run("generate", "--prompt", TEXT, *QUICK)
    assert code == 1
    assert "They part in prompt 0, token 4: ' 3' without, 'G' with the draft" in out

    monkeypatch.setattr(
        compare,
        "find_divergences",
        lambda *a, **k: (
            compare.Divergence(
                prompt_index=0,
                position=4,
                baseline_token=1,
                speculative_token=None,
                margin=1e-6,
                tolerance=2e-4,
            ),
        ),
    )
    code, out, _ = run("generate", "--prompt", TEXT, "--json", *QUICK)
    assert (code, json.loads(out)["verdict"]) == (0, "near_tie")


def test_prompts_files(run: Any, tmp_path: Path) -> None:
    contents = {
        "p.txt": f"{TEXT}\n\nTom has\n",
        "p.jsonl": f'"{TEXT}"\n{{"prompt": "Tom has"}}\n',
        "p.json": json.dumps([TEXT, {"prompt": "Tom has"}]),
    }
    for name, text in contents.items():
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        code, out, _ = run("generate", "--prompts-file", str(file), "--json", *QUICK)
        assert code == 0
        prompts = [row["prompt"].strip() for row in json.loads(out)["outputs"]]
        assert prompts == [TEXT.strip(), "Tom has"], name


def test_sampled_text_depends_on_the_seed_and_not_on_the_draft(run: Any) -> None:
    def sampled(*more: str) -> Any:
        arguments = ["--temperature", "30", "--top-k", "20", *more, *QUICK]
        code, out, _ = run("generate", "--prompt", TEXT, "--json", *arguments)
        assert code == 0
        return json.loads(out)

    first = sampled("--seed", "1")
    assert first["identical"] is True
    assert first["outputs"] == sampled("--seed", "1", "--no-compare")["outputs"]
    assert first["outputs"] != sampled("--seed", "2")["outputs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{none}", "--prompt", "a"], "does not exist"),
        (["--draft", "{none}", "--prompt", "a"], "{none}"),
        (["--model", "{target}"], "There is no prompt"),
        (["--model", "{target}", "--prompt", "a", "--compare"], "--compare needs a draft"),
        (["--prompt", "a", "--problems", "2"], "cannot be mixed"),
        (["--problems", "5"], "holds 4 problems, 5 were asked for"),
        (["--prompts-file", "{none}"], "cannot be read"),
        (["--prompt", "a", "--dtype", "int8"], "dtype is 'int8'"),
        (["--prompt", "a", "--device", "tpu"], "device"),
        (["--prompt", "Tom " * 200], "tokens"),
        (["--prompt", ""], "no tokens"),
        (["--prompt", "a", "--max-draft-len", "9"], "max-draft-len"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--promt", "a"], "--promt"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Any, repository: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    places = {
        "none": str(tmp_path / "none.json"),
        "target": str(repository / "examples/tiny_kimi/target"),
    }
    code, out, err = run("generate", "--device", "cpu", *(a.format(**places) for a in arguments))
    assert code == 2
    assert out == ""
    assert message.format(**places) in err
    assert "Traceback" not in err
    if err.startswith("error:"):
        assert len(err.strip().splitlines()) == 1


def test_an_installed_wheel_has_no_example(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_prompts, "_REPOSITORY", tmp_path)
    code, _, err = run("generate")
    assert code == 2
    assert "Pass --model" in err


def test_version_and_help(run: Any) -> None:
    assert run("--version") == (0, f"trtllm-ext {__version__}\n", "")
    code, out, _ = run("generate", "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "acceptance length = 1 + accepted / verify steps" in text
    assert "near_tie" in text
    for option in ("--model", "--max-draft-len", "--problems", "--no-compare", "--json"):
        assert option in text


def test_help_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; sys.argv = ['trtllm-ext', 'generate', '--help']\n"
        "from tensorrt_llm_ext.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_quantized_models_run_in_the_mode_that_is_asked_for(run: Any, tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCAB_SIZE, "draft_vocab_size": VOCAB_SIZE}
    write_quantized_target(tmp_path / "t", "experts", config={"vocab_size": VOCAB_SIZE})
    write_quantized_draft(tmp_path / "d", "layer_fc_head", config=sizes)
    byte_level_tokenizer().hf_tokenizer.save_pretrained(tmp_path / "t")
    pair = ["generate", "--model", str(tmp_path / "t"), "--draft", str(tmp_path / "d")]
    options = ["--prompt", TEXT, "--dtype", "float64", "--json", *QUICK]
    texts = []
    for modes in (["--quant-mode", "packed"], ["--draft-quant-mode", "w4a4"]):
        code, out, err = run(*pair, *options, *modes)
        assert code == 0, err
        assert json.loads(out)["verdict"] == "identical"
        texts.append(json.loads(out)["outputs"][0]["text"])
    assert texts[0] == texts[1]
    code, _, err = run(*pair, *options, "--quant-mode", "int4")
    assert code == 2
    assert "quant_mode is 'int4', expected one of auto, packed, dequantized, w4a4" in err
