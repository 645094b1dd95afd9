"""What fine-tuning the ResNet-50 costs and brings, on real pictures: Office-31, D→A and then D→W, beside its frozen features.

    python benchmarks/fine_tuning.py DATA [--steps 300] [--count 217] [--batch 32] [--finetune "last 1" all] [--device auto]

DATA is the folder of test data (`PERDURE_DATA`): it holds `backbones/resnet50-imagenet` and `office31_images_small`. Accuracies
are of the very queries that were adapted to (transductive), after the last step, one seed. The solver starts afresh in each
environment, so that only replay can keep what the first one taught. Frozen features get the steps of the default configuration,
which are more, unless `--steps` is below 100; each row says its steps. Minutes on a GPU; on a CPU give it a handful of steps and
of pictures.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perdure import Environment, Query, Support, VariationalConfig, VariationalLearner
from perdure.experiments.lower_bounds import source_only
from perdure.inputs import PictureBackbone
from perdure.inputs.extraction import extract
from perdure.inputs.folders import Picture, find
from perdure.inputs.pictures import pretrained
from perdure.metrics import accuracy

BACKBONE, PICTURES = "backbones/resnet50-imagenet", "office31_images_small"
SUPPORT, QUERIES = "dslr", ("amazon", "webcam")
CONFIG = VariationalConfig(hypothesis_rate=4e-3, fresh_solver=True)
"""As in the table of fine-tuned backbones."""


@dataclass(frozen=True)
class Speed:
    """Of learning with one part of the backbone trained, at one precision."""

    finetune: str
    precision: str
    steps_a_second: float
    peak_bytes: int | None
    """Of the GPU's memory; `None` on a CPU."""


@dataclass(frozen=True)
class Scores:
    """Accuracy on the queries of the first environment after each, and on those of the second."""

    first: float
    first_after_second: float
    second: float
    unknown: float
    """Both at the end, the environment unknown."""


@dataclass(frozen=True, eq=False)
class Data:
    """The two environments, and the labels that only scores see."""

    environments: Sequence[Environment]
    truth: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, pictures: Sequence[Picture], rows: Callable[[Sequence[Path]], np.ndarray]) -> Data:
        """Rows of the pictures: their features or their pixels."""
        of_domain = {domain: [each for each in pictures if each.domain == domain] for domain in (SUPPORT, *QUERIES)}
        x = {domain: rows([each.file for each in some]) for domain, some in of_domain.items()}
        y = {domain: np.array([each.label for each in some]) for domain, some in of_domain.items()}
        support = Support(x[SUPPORT], y[SUPPORT])
        environments = [Environment(f"{SUPPORT}→{query}", support, Query(x[query])) for query in QUERIES]
        return cls(environments, {f"{SUPPORT}→{query}": y[query] for query in QUERIES})

    def scores(self, learner: VariationalLearner, environment: str | None = None) -> float:
        """Of the queries of one environment; of both and unknown without."""
        found = []
        for each in self.environments:
            if environment in (None, each.name):
                assert each.query is not None
                found.append(accuracy(learner.predict(each.query.x, environment), self.truth[each.name]))
        return float(np.mean(found))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """What it takes, until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    since = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - since


def speed(config: VariationalConfig, environment: Environment, steps: int, device: torch.device) -> Speed:
    """Half of the steps are not timed: what happens once only is in them."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []

    def tick(step: int, total: int) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    few = replace(config, warm_up=steps // 2, steps=steps - steps // 2)
    VariationalLearner(few, device=device).learn(environment, progress=tick)
    timed = times[steps // 2 - 1 :]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return Speed(config.finetune, config.precision, (len(timed) - 1) / (timed[-1] - timed[0]), peak)


def alone(
    folder: Path, finetune: str, environment: Environment, batch: int, device: torch.device, rounds: int
) -> dict[str, float]:
    """Milliseconds of the backbone's own forward and backward pass in a step, for either order of its colours in memory."""
    assert environment.query is not None
    x = torch.from_numpy(environment.query.x[: 2 * batch].copy()).to(device).float() / 255
    half = torch.bfloat16 if device.type == "cuda" else None
    found = {}
    for name, layout in (("contiguous", torch.contiguous_format), ("channels last", torch.channels_last)):
        network = pretrained(folder, finetune).train().to(device).to(memory_format=layout)  # type: ignore[call-overload]

        def once(network: Any = network, layout: torch.memory_format = layout) -> None:
            with torch.autocast(device.type, half, enabled=half is not None):
                out = network(x.contiguous(memory_format=layout))
            if out.requires_grad:
                out.float().square().mean().backward()

        for _ in range(2):
            once()
        found[name] = 1000 * seconds(lambda once=once: [once() for _ in range(rounds)], device) / rounds  # type: ignore[misc]
    return found


def learned(config: VariationalConfig, data: Data, device: torch.device) -> tuple[dict[str, Scores], dict[str, int]]:
    """With replay and without, from the same first environment; and what is held at the end."""
    first, second = data.environments
    learner = VariationalLearner(config, device=device)
    learner.learn(first, progress=False)
    forgetful = copy.deepcopy(learner)  # nothing of the past is replayed in a first environment
    forgetful.config = replace(config, replay="none")
    after_first, found = data.scores(learner, first.name), {}
    for name, each in (("replay", learner), ("no replay", forgetful)):
        each.learn(second, progress=False)
        found[name] = Scores(after_first, data.scores(each, first.name), data.scores(each, second.name), data.scores(each))
    return found, learner.bytes_held


def some_of(pictures: Sequence[Picture], count: int) -> list[Picture]:
    """So many of each domain, from all over its classes."""
    chosen = []
    for domain in (SUPPORT, *QUERIES):
        there = [each for each in pictures if each.domain == domain]
        taken = min(count, len(there))
        chosen += [there[i * len(there) // taken] for i in range(taken)]
    return chosen


def measure(folder: Path, *, steps: int, count: int, batch: int, finetune: Sequence[str], device: torch.device) -> dict[str, Any]:
    """All numbers."""
    pictures = some_of(find(folder / PICTURES).pictures, count)
    frozen = PictureBackbone(folder / BACKBONE, device=str(device))
    pixels = Data.of(pictures, frozen.rows)
    features = Data.of(pictures, lambda files: extract(files, frozen, cache=None, progress=False).x)
    first = pixels.environments[0]
    config = replace(CONFIG, warm_up=steps // 3, steps=steps - steps // 3, batch=batch)
    tuned = partial(replace, config, backbone=str(folder / BACKBONE))

    lower = source_only()
    lower.learn(features.environments[0])
    said: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "torch": str(torch.__version__),
        "pictures": {domain: sum(each.domain == domain for each in pictures) for domain in (SUPPORT, *QUERIES)},
        "steps": steps,
        "source-only": {
            name: accuracy(lower.predict(each.query.x, features.environments[0].name), features.truth[name])
            for name, each in ((each.name, each) for each in features.environments)
            if each.query is not None
        },
        "protocol": {"queries": "transductive", "selection": "last step", "seeds": [CONFIG.seed]},
        "speeds": [],
        "backbone alone": {},
        "learned": {},
        "updates": {},
        "bytes": {},
        "seconds": {},
    }
    for part in finetune:
        for precision in ("float32", "bfloat16"):
            fast = speed(tuned(finetune=part, precision=precision), first, max(2, min(60, steps)), device)
            said["speeds"].append(asdict(fast))
            print(fast, file=sys.stderr, flush=True)
        said["backbone alone"][part] = alone(folder / BACKBONE, part, first, batch, device, max(1, min(20, steps)))
    for name, data, settings in (
        ("frozen features", features, replace(config, warm_up=CONFIG.warm_up, steps=CONFIG.steps) if steps >= 100 else config),
        *((f"fine-tuned, {part}", pixels, tuned(finetune=part)) for part in finetune),
    ):
        began = time.perf_counter()
        said["updates"][name] = settings.warm_up + settings.steps
        found, said["bytes"][name] = learned(settings, data, device)
        said["learned"][name] = {kind: asdict(scores) for kind, scores in found.items()}
        said["seconds"][name] = time.perf_counter() - began
        print(name, found, file=sys.stderr, flush=True)
    return said


def told(said: Mapping[str, Any]) -> list[str]:
    """The same as lines."""
    counts = ", ".join(f"{domain} {count}" for domain, count in said["pictures"].items())
    lines = [
        f"{said['device']}, torch {said['torch']}; {counts} pictures; fine-tuned in {said['steps']} steps an environment",
        "",
    ]
    lines.append("trained     precision    steps/s    peak GPU memory")
    for each in said["speeds"]:
        peak = "–" if each["peak_bytes"] is None else f"{each['peak_bytes'] / 1e9:.2f} GB"
        lines.append(f"{each['finetune']:10}  {each['precision']:10} {each['steps_a_second']:9.2f}    {peak:>15}")
    for part, times in said["backbone alone"].items():
        of_each = ", ".join(f"{name} {time:.1f} ms" for name, time in times.items())
        lines.append(f"{part:10}  the backbone's forward and backward pass alone: {of_each}")
    given = [f"{QUERIES[0]}, given", f"{QUERIES[0]} after {QUERIES[1]}, given", f"{QUERIES[1]}, given"]
    headings = ["steps", *given, "both, unknown", "seconds"]
    seeds = ", ".join(map(str, said["protocol"]["seeds"]))
    scored = f"{said['protocol']['queries']}, scored at the {said['protocol']['selection']}, seed {seeds}"
    lines += ["", f"accuracy in %, {scored}; the environment given or unknown; steps an environment"]
    lines.append(f"{'':39}   " + "   ".join(headings))

    def row(name: str, cells: Sequence[str]) -> str:
        return f"{name:39}   " + "   ".join(f"{cell:>{len(heading)}}" for cell, heading in zip(cells, headings, strict=True))

    first, second = (f"{100 * value:.1f}" for value in said["source-only"].values())
    lines.append(row("source-only, frozen features", ["–", first, "–", second, "–", "–"]))
    for name, kinds in said["learned"].items():
        for kind, scores in kinds.items():
            cells = [f"{100 * value:.1f}" for value in scores.values()]
            lines.append(row(f"{name}, {kind}", [str(said["updates"][name]), *cells, f"{said['seconds'][name]:.1f}"]))
    lines.append("")
    for name, held in said["bytes"].items():
        lines.append(f"{name:20} " + ", ".join(f"{environment} {size / 1e6:.1f} MB" for environment, size in held.items()))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="an environment; a third of them warm-up")
    parser.add_argument("--count", type=int, default=217, help="pictures of each domain")
    parser.add_argument("--batch", type=int, default=CONFIG.batch, help="pictures of each stream in a step")
    parser.add_argument("--finetune", nargs="+", default=["last 1", "all"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = "cuda" if options.device == "auto" and torch.cuda.is_available() else options.device.replace("auto", "cpu")
    said = measure(
        options.data,
        steps=options.steps,
        count=options.count,
        batch=options.batch,
        finetune=options.finetune,
        device=torch.device(device),
    )
    print(json.dumps(said) if options.json else "\n".join(told(said)))


if __name__ == "__main__":
    main()
