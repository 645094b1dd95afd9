"""What a training step costs beside its own matrix products, how that grows with past environments, and what each one keeps.

    python benchmarks/step.py [--threads 2] [--steps 60] [--json]

2048-dimensional features, latent 512, h 1024, batch 32 + 32, 31 classes. After every step its matrix products (forward,
gradient of the weights, gradient of the inputs) are timed alone in the same process, so that a busy machine slows both;
what is printed are ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from perdure import Environment, Query, Support, VariationalConfig, VariationalLearner

INPUTS, CLASSES, ROWS = 2048, 31, 256
PAST = (1, 8, 32)


def matrix_products(config: VariationalConfig) -> Callable[[], None]:
    """Those of one step without replay: encoder, class priors, decoder, f and f' on both streams; the solver on the support."""
    both = 2 * config.batch
    first = [(both, INPUTS, 2 * config.latent), (both, CLASSES, config.latent), (both, CLASSES, config.latent)]
    later = [(both, config.latent, config.features)]
    for rows in (both, both, config.batch):
        later += [(rows, config.features, config.width), (rows, config.width, CLASSES)]
    operands = [(torch.randn(n, i), torch.randn(o, i), torch.randn(n, o)) for n, i, o in first + later]
    # Room made beforehand: taken and freed between two steps, it would have the step's own memory mapped anew every time.
    results = [[torch.empty_like(each) for each in three] for three in operands]

    def run() -> None:
        for number, ((x, weight, gradient), (of_x, of_weight, of_gradient)) in enumerate(zip(operands, results, strict=True)):
            torch.mm(x, weight.T, out=of_gradient)
            torch.mm(gradient.T, x, out=of_weight)
            if number >= len(first):  # of the others nobody needs the gradient of the inputs
                torch.mm(gradient, weight, out=of_x)

    return run


def environment(number: int) -> Environment:
    """Noise: what is learned does not matter here."""
    x = np.random.default_rng(number).normal(size=(2, ROWS, INPUTS))
    return Environment(str(number), Support(x[0], np.arange(ROWS) % CLASSES), Query(x[1]))


def measure(config: VariationalConfig, past: int, steps: int) -> tuple[float, float, VariationalLearner]:
    """Median milliseconds of a step and of its matrix products, with this many environments learned before."""
    learner = VariationalLearner(replace(config, warm_up=0, steps=1))
    for number in range(past):
        learner.learn(environment(number), progress=False)
    learner.config = replace(config, warm_up=0, steps=steps)
    products = matrix_products(config)
    of_steps: list[float] = []
    of_products: list[float] = []
    since = time.perf_counter()

    def after_each(step: int, total: int) -> None:
        nonlocal since
        now = time.perf_counter()
        of_steps.append(1000 * (now - since))
        products()
        since = time.perf_counter()
        of_products.append(1000 * (since - now))

    learner.learn(environment(past), progress=after_each)
    return statistics.median(of_steps[5:]), statistics.median(of_products[5:]), learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    config = VariationalConfig()
    step, products, learner = measure(replace(config, replay="none"), 0, options.steps)
    plain = step / products
    growth = {}
    for past in PAST:
        with_replay, beside, learner = measure(config, past, options.steps)
        growth[past] = with_replay / beside / plain
    result = {
        "threads": options.threads,
        "step_ms": step,
        "matrix_products_ms": products,
        "step_over_matrix_products": plain,
        "replay_step_over_plain_step": growth,
        "bytes_per_environment": learner.bytes_held["0"],
        "bytes_shared": learner.bytes_held["(shared)"],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"a step without replay: {step:.1f} ms, its matrix products alone: {products:.1f} ms, ratio {plain:.2f} (at most 1.5)")
    for past, ratio in growth.items():
        print(f"a step with replay, {past:3d} past environments: {ratio:.2f} times a step without")
    each, shared = (learner.bytes_held[name] / 2**20 for name in ("0", "(shared)"))
    print(f"kept for each environment: {each:.1f} MiB, shared by all: {shared:.1f} MiB")


if __name__ == "__main__":
    main()
