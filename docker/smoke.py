# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Serves tiny_kimi with the installed TensorRT-LLM and compares it with the embedded engine.

For each pair `trtllm-serve` runs three times on the same prompts: without the draft, with it, and
with it but without the overlap scheduler, which launches one step more than a request needs. Three
things are compared: the tokens with the draft and without; the acceptance that the workers counted
in the third run with that of the embedded engine on the CPU, over the same text; and, for
information, the tokens without the draft with the embedded engine's. Exit code 0: all pass. 1: a
failure. 3: only the NVFP4 pair fails.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import smoke_report as report
from smoke_replay import replayed_acceptance
from smoke_server import Completion, Launch, Server, ServerError

from tensorrt_llm_ext.benchmarking.margins import Divergence, find_divergences
from tensorrt_llm_ext.benchmarking.problems import Problem, exact_match, load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats
from tensorrt_llm_ext.trtllm.stats import FOLDER, INTERVAL, read_folder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "tiny_kimi"
_FP4_ARCHITECTURES = (100, 103, 120, 121)
_KIMI = "KimiK25ForConditionalGeneration"
# Workers write what they counted this often, and once more when idle for a second.
_INTERVAL_S = 0.5
_SETTLE_S = 3.0
# In a process of its own: importing the host takes devices and threads.
_PROBE = """
import json
from tensorrt_llm_ext.trtllm.host import host, probe_host
facts = probe_host()
found = {"version": facts.version, "missing": facts.missing}
if facts.version is not None:
    installed = host()
    found["has_wrapper"] = installed.optional("KimiK25ForConditionalGeneration") is not None
    found["sm"] = installed.symbol("get_sm_version")()
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and a draft of tiny_kimi, and how the embedded engine runs them.

    Attributes:
        name: In options and in the report.
        target: Folder in tiny_kimi.
        draft: Folder in tiny_kimi.
        quant_mode: Of the embedded engine's target.
        draft_quant_mode: Of its draft.
        tolerance: Largest difference of the acceptance rates: about four times what rounding alone
            does to 64 prompts, which is more where activations are rounded to four bits.
        note: For the report.
    """

    name: str
    target: str
    draft: str
    quant_mode: str = "auto"
    draft_quant_mode: str = "auto"
    tolerance: float = 0.02
    note: str = ""


PAIRS = {
    "bf16": Pair(name="bf16", target="target", draft="draft"),
    "nvfp4": Pair(
        name="nvfp4",
        target="target-nvfp4",
        draft="draft-nvfp4",
        quant_mode="w4a4",
        draft_quant_mode="w4a4",
        tolerance=0.04,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The host, and what it runs on.

    Attributes:
        version: Of TensorRT-LLM.
        missing: Names that this package asks for and the host lacks.
        has_wrapper: Whether it has a class for the wrapper of Kimi-K2.5.
        gpu: Name of the first GPU; empty on a machine without one, where only a double serves.
        sm: Its compute capability, 100 for 10.0.
    """

    version: str
    missing: tuple[str, ...]
    has_wrapper: bool
    gpu: str
    sm: int

    @property
    def era(self) -> str:
        """The first two numbers of the version."""
        return ".".join(self.version.split(".")[:2])

    @property
    def knows_kimi(self) -> bool:
        """Whether it serves the wrapper of Kimi-K2.5, and hands drafting through."""
        return self.has_wrapper and not any(_KIMI in name for name in self.missing)

    def facts(self) -> dict[str, str]:
        """Returns what the report says of it."""
        import torch

        import tensorrt_llm_ext

        gpu = self.gpu or "none, this is a host double on the CPU that pretends"
        return {
            "TensorRT-LLM": self.version,
            "tensorrt_llm_ext": tensorrt_llm_ext.__version__,
            "GPU": f"{gpu}, SM {self.sm}",
            "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
            "Python": platform.python_version(),
            "names that the host lacks": ", ".join(self.missing) or "none",
        }


def probe_machine() -> Machine:
    """Looks at the installed host and the GPU.

    Raises:
        ServerError: If there is no TensorRT-LLM.
    """
    import torch

    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerError(f"The host cannot be probed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["version"] is None:
        raise ServerError("TensorRT-LLM is not installed here. Run this in its release image.")
    return Machine(
        version=found["version"],
        missing=tuple(found["missing"]),
        has_wrapper=found["has_wrapper"],
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        sm=found["sm"],
    )


def fitting(pair: Pair, machine: Machine) -> Pair:
    """Returns the pair as that GPU can run it: without FP4 the target stays bf16."""
    if pair.name != "nvfp4" or machine.sm in _FP4_ARCHITECTURES:
        return pair
    return replace(
        pair,
        target="target",
        quant_mode="auto",
        draft_quant_mode="dequantized",
        note=f"SM {machine.sm} has no FP4 products: the draft runs W4A16, the target is bf16",
    )


def serve_config(
    target: Path, draft: Path, machine: Machine, options: argparse.Namespace
) -> dict[str, Any]:
    """Returns the YAML's content with the draft; backends are named, nothing is left to chance."""
    from tensorrt_llm_ext.checkpoints.serving import read_serve_pair
    from tensorrt_llm_ext.planning.serve_config import ServeOptions, plan_serving

    plan = plan_serving(
        read_serve_pair(target, draft),
        ServeOptions(
            era=machine.era,
            gpus=1,
            max_draft_len=options.max_draft_len,
            max_batch_size=options.batch_size,
            max_seq_len=1024,
            max_num_tokens=2048,
            free_gpu_memory_fraction=0.3,
            enable_block_reuse=False,  # the second prompt of a run would find the first's blocks
        ),
    )
    backends = {
        "attn_backend": options.attn_backend,
        "moe_config": {"backend": options.moe_backend},
    }
    return {**plan.values, **backends}


def counted(before: AcceptanceStats, after: AcceptanceStats) -> report.Acceptance | None:
    """Returns what the counters say of the time between two readings; None when nothing."""
    steps = after.num_steps - before.num_steps
    if not steps:
        return None
    missing = len(after.steps_per_position) - len(before.steps_per_position)
    earlier = before.copy()
    earlier.steps_per_position += [0] * missing
    earlier.accepted_per_position += [0] * missing
    shares = zip(
        after.accepted_per_position,
        earlier.accepted_per_position,
        after.steps_per_position,
        earlier.steps_per_position,
        strict=True,
    )
    return report.Acceptance(
        steps=steps,
        drafted=after.num_drafted - before.num_drafted,
        accepted=after.num_accepted - before.num_accepted,
        per_position=tuple((a - b) / max(c - d, 1) for a, b, c, d in shares),
    )


def normalised(completion: Completion, eos: Sequence[int]) -> tuple[int, ...]:
    """Returns the tokens with exactly one end token where the text ended by itself."""
    tokens = completion.token_ids
    while tokens and tokens[-1] in eos:
        tokens = tokens[:-1]
    return (*tokens, eos[0]) if completion.finish_reason == "stop" else tokens


def sameness(num_prompts: int, found: Sequence[Divergence]) -> report.Sameness:
    """Counts divergences."""
    near = sum(item.is_near_tie for item in found)
    return report.Sameness(
        num_prompts=num_prompts,
        near_ties=near,
        different=len(found) - near,
        worst=max((item.margin for item in found), default=None),
    )


class Smoke:
    """Runs the pairs."""

    def __init__(self, machine: Machine, options: argparse.Namespace, folder: Path) -> None:
        self._machine, self._options, self._folder = machine, options, folder

    def run(self, pair: Pair) -> report.PairResult:
        """Runs one pair; what goes wrong is part of the result."""
        target, draft = self._target(pair), EXAMPLES / pair.draft
        options = self._options
        result = report.PairResult(
            name=pair.name,
            target=f"{pair.target} ({_architecture(target)})",
            draft=pair.draft + (f" ({pair.note})" if pair.note else ""),
            backends={"MoE": options.moe_backend, "attention": options.attn_backend},
            tolerance=pair.tolerance if options.tolerance is None else options.tolerance,
        )
        try:
            return self._measured(pair, target, draft, result)
        except (ServerError, ExtError) as error:
            return replace(result, error=str(error))

    def _measured(
        self, pair: Pair, target: Path, draft: Path, result: report.PairResult
    ) -> report.PairResult:
        problems = load_problems(EXAMPLES / "heldout.jsonl", self._options.problems)
        models = load_models(
            target,
            draft=draft,
            device="cpu",
            dtype="bfloat16",  # as the host runs it; it also decides what a near-tie is
            quant_mode=pair.quant_mode,
            draft_quant_mode=pair.draft_quant_mode,
        )
        workload = Workload(
            prompts=encode_all(models, [problem.prompt for problem in problems]),
            sampling=SamplingParams(max_tokens=self._options.max_tokens),
            batch_size=self._options.batch_size,
        )
        config = serve_config(target, draft, self._machine, self._options)
        without = {key: config[key] for key in config if key != "speculative_config"}
        in_turn = {**config, "disable_overlap_scheduler": True}
        plain, _ = self._serve(target, without, f"{pair.name}-without", workload)
        drafted, overlapped = self._serve(target, config, f"{pair.name}-with", workload)
        stepwise, host = self._serve(target, in_turn, f"{pair.name}-no-overlap", workload)
        _say("the same on the embedded engine, on the CPU")
        result = replace(result, host=host, overlapped=overlapped)
        return self._compared(models, workload, problems, (plain, drafted, stepwise), result)

    def _compared(
        self,
        models: LoadedModels,
        workload: Workload,
        problems: Sequence[Problem],
        runs: tuple[list[Completion], ...],
        result: report.PairResult,
    ) -> report.PairResult:
        eos = models.eos_token_ids
        plain, drafted, stepwise = ([normalised(c, eos) for c in run] for run in runs)
        core = make_core(models, workload, 0)
        own = measure(core, workload, eos)
        replay = replayed_acceptance(models, workload, stepwise, self._options.max_draft_len)
        own_tokens = [_ended(tokens, eos) for tokens in own.token_ids]
        assert models.tokenizer is not None
        texts = [[models.tokenizer.decode(list(t)) for t in run] for run in (plain, drafted)]

        def compared(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> Any:
            found = find_divergences(models, workload, left, right, core=core)
            return sameness(len(workload.prompts), found)

        return replace(
            result,
            exactness=compared(plain, drafted),
            stepwise=compared(plain, stepwise),
            reference=compared(own_tokens, plain),
            embedded=counted(AcceptanceStats(), replay),
            per_iteration=_per_iteration(runs[1]),
            scores=(exact_match(problems, texts[0]), exact_match(problems, texts[1])),
        )

    def _serve(
        self,
        target: Path,
        config: Mapping[str, Any],
        name: str,
        workload: Workload,
    ) -> tuple[list[Completion], report.Acceptance | None]:
        """Returns the answers, and what was counted while they were made."""
        options = self._options
        _say(f"trtllm-serve, {name}")
        stats = self._folder / f"{name}-acceptance"
        stats.mkdir(exist_ok=True)
        variables = {FOLDER: str(stats), INTERVAL: str(_INTERVAL_S)}
        is_old = self._machine.era == "1.2"
        launch = Launch(
            model=target,
            config={**config, "env_overrides": variables},
            config_option="--extra_llm_api_options" if is_old else "--config",
            port=options.port,
            folder=self._folder,
            name=name,
        )
        with Server(launch, start_timeout_s=options.start_timeout) as server:
            before = _settled(stats)  # a server warms up with requests of its own
            answers = server.complete(
                workload.prompts, max_tokens=options.max_tokens, concurrency=options.batch_size
            )
            return answers, counted(before, _settled(stats))

    def _target(self, pair: Pair) -> Path:
        folder = EXAMPLES / pair.target
        if self._machine.knows_kimi and not self._options.unwrap:
            return folder
        sys.path.append(str(EXAMPLES))  # its scripts import one another by bare names
        from unwrap import unwrap

        out = self._folder / f"{pair.target}-unwrapped"
        unwrap(folder, out)
        return out


def _settled(stats: Path) -> AcceptanceStats:
    """Returns the counters as they are once idle workers have written them."""
    time.sleep(_SETTLE_S)
    return read_folder(stats)


def _ended(tokens: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    reason = "stop" if tokens and tokens[-1] in eos else "length"
    return normalised(Completion(token_ids=tuple(tokens), finish_reason=reason), eos)


def _per_iteration(run: Sequence[Completion]) -> float | None:
    """Tokens per iteration over all answers, by the host's own averages."""
    known = [(len(c.token_ids), c.tokens_per_iteration) for c in run if c.tokens_per_iteration]
    iterations = sum(tokens / average for tokens, average in known)
    return sum(tokens for tokens, _ in known) / iterations if iterations else None


def _architecture(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return str(config["architectures"][0])


def _say(text: str) -> None:
    sys.stderr.write(f"smoke: {text}\n")
    sys.stderr.flush()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        prog="smoke.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pairs", nargs="+", choices=tuple(PAIRS), default=list(PAIRS))
    add("--problems", type=int, default=64, help="held-out problems to ask (64)")
    add("--max-tokens", type=int, default=192, help="of each answer (192)")
    add("--max-draft-len", type=int, default=3, help="draft tokens per step (3)")
    add("--batch-size", type=int, default=8, help="requests at once (8)")
    add("--moe-backend", default="CUTLASS", help="moe_config.backend (CUTLASS)")
    add("--attn-backend", default="TRTLLM", help="attn_backend (TRTLLM)")
    add("--unwrap", action="store_true", help="as on 1.2: the target without Kimi-K2.5's wrapper")
    add("--tolerance", type=float, help="of the acceptance rate (0.02; NVFP4 0.04)")
    add("--start-timeout", type=float, default=900, help="seconds for a server to start (900)")
    add("--port", type=int, default=8321, help="where the server listens (8321)")
    add("--out", type=Path, help="keep configs, logs, counters and report.json in this folder")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the pairs that were asked for, bf16 first, and prints the report."""
    options = parse(arguments)
    try:
        machine = probe_machine()
    except ServerError as error:
        sys.stderr.write(f"smoke: {error}\n")
        return report.EXIT_FAILED
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.out is None else options.out
        folder.mkdir(parents=True, exist_ok=True)
        smoke = Smoke(machine, options, folder.resolve())
        names = [name for name in PAIRS if name in options.pairs]
        results = [smoke.run(fitting(PAIRS[name], machine)) for name in names]
        text = report.render(machine.facts(), results)
        if options.out is not None:
            data = report.to_dict(machine.facts(), results)
            (folder / "report.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            (folder / "report.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return report.exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
