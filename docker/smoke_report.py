# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the smoke test found, when that is a pass, and the text to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EXIT_PASS = 0
EXIT_FAILED = 1
EXIT_ONLY_NVFP4_FAILED = 3


@dataclass(frozen=True, kw_only=True)
class Sameness:
    """Two runs of the same prompts, compared token by token.

    Attributes:
        num_prompts: How many were compared.
        near_ties: Prompts that part where the two most likely tokens are nearly tied.
        different: Prompts that part elsewhere.
        worst: The widest margin in log-probability at which two runs part; None without one.
    """

    num_prompts: int
    near_ties: int = 0
    different: int = 0
    worst: float | None = None

    @property
    def verdict(self) -> str:
        """As in `trtllm-ext generate`: identical, near_tie or different."""
        if self.different:
            return "different"
        return "near_tie" if self.near_ties else "identical"

    def line(self) -> str:
        """Returns the counts for people."""
        same = self.num_prompts - self.near_ties - self.different
        text = f"{self.verdict}: {same} of {self.num_prompts} equal"
        if self.near_ties or self.different:
            text += f", {self.near_ties} near-ties, {self.different} different"
            text += f" (widest margin {self.worst:.3g})" if self.worst is not None else ""
        return text


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Counted verify steps.

    Attributes:
        steps: With at least one draft token.
        drafted: Draft tokens in them.
        accepted: Of these.
        per_position: Share of steps whose first i drafts were all accepted.
    """

    steps: int
    drafted: int
    accepted: int
    per_position: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Share of drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def length(self) -> float:
        """Tokens per verify step, the target's own included."""
        return 1 + self.accepted / self.steps if self.steps else 1.0

    def line(self) -> str:
        """Returns the numbers for people."""
        positions = " / ".join(f"{share:.3f}" for share in self.per_position)
        return f"length {self.length:.3f}, rate {self.rate:.3f}, positions {positions or '-'}"


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """What one pair of target and draft did.

    Attributes:
        name: "bf16" or "nvfp4".
        target: Folder and architecture.
        draft: Folder.
        backends: MoE and attention backends as the config names them.
        error: Why it could not be run to the end; empty when it was.
        skipped: Why it was not tried; empty when it was.
        exactness: With speculation against without, both on the host.
        stepwise: The same without the overlap scheduler.
        reference: Without speculation against the embedded engine; reported, decides nothing.
        host: Acceptance as counted in the host's workers by this package, without the overlap
            scheduler; None without counters.
        overlapped: The same with it, which counts one step more for each request; decides nothing.
        embedded: The embedded engine's, on the CPU, over the text of the same run.
        per_iteration: Tokens per iteration as the host reports them, for comparison.
        scores: Share of right answers without and with the draft.
        tolerance: Largest difference of the two acceptance rates.
    """

    name: str
    target: str
    draft: str
    backends: Mapping[str, str]
    error: str = ""
    skipped: str = ""
    exactness: Sameness | None = None
    stepwise: Sameness | None = None
    reference: Sameness | None = None
    host: Acceptance | None = None
    overlapped: Acceptance | None = None
    embedded: Acceptance | None = None
    per_iteration: float | None = None
    scores: tuple[float, float] | None = None
    tolerance: float = 0.02

    def failures(self) -> list[str]:
        """Says what is wrong; empty when the pair passes or was skipped."""
        if self.skipped:
            return []
        if self.error:
            return [self.error]
        found = []
        if any(
            run is None or run.verdict == "different" for run in (self.exactness, self.stepwise)
        ):
            found.append("the draft changed the text")
        if self.host is None or not self.host.drafted:
            found.append(
                "the workers wrote no acceptance counters: this package was not registered in "
                "them, or nothing was drafted"
            )
        elif self.embedded is not None and self.drift > self.tolerance:
            found.append(
                f"the acceptance rate is {self.host.rate:.3f}, the embedded engine's "
                f"{self.embedded.rate:.3f}; they may differ by {self.tolerance}"
            )
        return found

    @property
    def drift(self) -> float:
        """Difference of the acceptance rates of host and embedded engine."""
        if self.host is None or self.embedded is None:
            return 0.0
        return abs(self.host.rate - self.embedded.rate)

    def status(self) -> str:
        """Returns PASS, FAIL or SKIPPED."""
        if self.skipped:
            return "SKIPPED"
        return "FAIL" if self.failures() else "PASS"


def exit_code(results: Sequence[PairResult]) -> int:
    """Returns 0 when all pass, 3 when only NVFP4 fails, else 1; with nothing run it is 1."""
    failed = [result.name for result in results if result.status() == "FAIL"]
    if not any(result.status() == "PASS" for result in results):
        return EXIT_FAILED
    if not failed:
        return EXIT_PASS
    return EXIT_ONLY_NVFP4_FAILED if set(failed) == {"nvfp4"} else EXIT_FAILED


def render(facts: Mapping[str, str], results: Sequence[PairResult]) -> str:
    """Returns the report as Markdown.

    Args:
        facts: Versions and devices, by name.
        results: One per pair.
    """
    lines = ["## Smoke test of tensorrt_llm_ext", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    for result in results:
        lines += ["", f"### {result.name}: {result.status()}", ""]
        lines += [f"* {line}" for line in _lines(result)]
    words = {EXIT_PASS: "PASS", EXIT_ONLY_NVFP4_FAILED: "bf16 passes, NVFP4 FAILS"}
    lines += ["", f"**{words.get(exit_code(results), 'FAIL')}**", ""]
    return "\n".join(lines)


def _lines(result: PairResult) -> list[str]:
    backends = ", ".join(f"{name} {value}" for name, value in result.backends.items())
    lines = [f"target {result.target}, draft {result.draft}; {backends}"]
    if result.skipped:
        return [*lines, f"skipped: {result.skipped}"]
    if result.exactness is not None:
        lines.append(f"with the draft against without: {result.exactness.line()}")
    if result.stepwise is not None:
        lines.append(f"the same without the overlap scheduler: {result.stepwise.line()}")
    if result.reference is not None:
        lines.append(f"without it against the embedded engine: {result.reference.line()}")
    if result.scores is not None:
        lines.append("right answers: {:.3f} without, {:.3f} with".format(*result.scores))
    counted = {
        "host": result.host,
        "embedded engine": result.embedded,
        "host with the overlap scheduler": result.overlapped,
    }
    for name, found in counted.items():
        if found is not None:
            lines.append(f"acceptance, {name}: {found.line()}, {found.steps} verify steps")
    if result.host is not None and result.embedded is not None:
        lines.append(f"difference of the rates {result.drift:.4f}, at most {result.tolerance}")
    if result.per_iteration is not None:
        lines.append(f"tokens per iteration as the host reports them: {result.per_iteration:.3f}")
    return lines + [f"**failed**: {_indented(text)}" for text in result.failures()]


def _indented(text: str) -> str:
    first, *rest = text.splitlines()
    return "\n".join([first, *(f"      {line}" for line in rest)])


def to_dict(facts: Mapping[str, str], results: Sequence[PairResult]) -> dict[str, Any]:
    """Returns everything as plain data."""
    from dataclasses import asdict

    pairs = []
    for result in results:
        row = {**asdict(result), "status": result.status(), "failures": result.failures()}
        for name in ("host", "embedded", "overlapped"):
            found = getattr(result, name)
            if found is not None:
                row[name] |= {"length": found.length, "rate": found.rate}
        pairs.append(row)
    return {"facts": dict(facts), "exit_code": exit_code(results), "pairs": pairs}
