"""How fast pictures become features, beside the backbone's forward pass alone, and what a second time costs.

    python benchmarks/features.py PICTURES --backbone NAME [--count 128] [--rounds 5] [--device auto] [--json]

The forward pass runs on a batch that is decoded and on its device; extraction reads, decodes, resizes, computes and keeps.
Both take turns in the same process, so that a busy machine slows both; what counts is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from perdure.inputs import PictureBackbone
from perdure.inputs.extraction import extract
from perdure.inputs.folders import photos


@dataclass(frozen=True)
class Speeds:
    """Pictures a second."""

    forward: float
    extraction: float
    again: float
    """Everything known already."""

    @property
    def ratio(self) -> float:
        """Of extraction to the forward pass."""
        return self.extraction / self.forward


def seconds(run: Callable[[], object]) -> float:
    """What it takes, until the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    since = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - since


def measure(files: Sequence[Path], backbone: PictureBackbone, rounds: int) -> Speeds:
    """Medians over rounds in which each has its turn."""
    prepared = [backbone.prepare(backbone.content(file), file) for file in files[: backbone.running.batch]]
    x = torch.from_numpy(np.stack(prepared)).to(backbone.running.device).permute(0, 3, 1, 2).float() / 255
    batches = [min(backbone.running.batch, len(files) - i) for i in range(0, len(files), backbone.running.batch)]

    def forward() -> None:
        with backbone.running.mixed():
            for size in batches:
                backbone.network(x[:size])

    forward()  # what happens once only is left out: memory, choice of kernels
    of_forward, of_extraction, of_again = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            of_forward.append(seconds(forward))
            of_extraction.append(seconds(lambda: extract(files, backbone, cache=cache, progress=False)))
            of_again.append(seconds(lambda: extract(files, backbone, cache=cache, progress=False)))
    return Speeds(*(len(files) / statistics.median(times) for times in (of_forward, of_extraction, of_again)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--count", type=int, default=128, help="pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--threads", type=int, help="of the forward pass on a CPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    backbone = PictureBackbone(options.backbone, device=options.device, precision=options.precision, batch=options.batch)
    found = photos(options.pictures).files
    count = min(options.count, len(found))
    files = [found[i * len(found) // count] for i in range(count)]  # from all over
    speeds = measure(files, backbone, options.rounds)
    if options.json:
        print(json.dumps({**asdict(speeds), "ratio": speeds.ratio, **asdict(backbone.running), "pictures": len(files)}))
        return
    print(f"{len(files)} pictures, {backbone.running.device}, {backbone.running.precision}, batches of {backbone.running.batch}")
    print(f"forward pass alone  {speeds.forward:10.1f} img/s")
    print(f"extraction          {speeds.extraction:10.1f} img/s, {100 * speeds.ratio:.1f} % of it")
    print(f"a second time       {speeds.again:10.1f} img/s")


if __name__ == "__main__":
    main()
