"""The paper's learner: infer domain-agnostic features, remember how to generate them, solve with one classifier.

Read `VariationalLearner.step` first: it is one update of all three modules. `learn` is the loop around it.
"""

from __future__ import annotations

import copy
import logging
import re
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from perdure import checkpoint as checkpoints
from perdure.answers import InferredEnvironment
from perdure.errors import CheckpointError, InputError, NotSolvableYet, UnknownEnvironment
from perdure.generative import ClassPriors, FeatureGenerator, Rehearsal, Replay, ReplayKind, Snapshot
from perdure.inference import Decoder, InferenceModule, Stream
from perdure.inputs.backbones import lasting_name
from perdure.inputs.pictures import FineTuned
from perdure.objectives import (
    Posterior,
    inference_objective,
    kl_to_class_prior,
    kl_to_prior,
    margin_disparity_discrepancy,
    replay_objective,
    reversal_strength,
    reverse_gradient,
    satisfaction_error,
    solver_objective,
)
from perdure.progress import Progress, interruptible, progress_bar
from perdure.randomness import Batches, Use, generator, initialised_from
from perdure.settings import LATER, checked_settings, settings_from_json, settings_to_json
from perdure.solver import TwoLayerClassifier
from perdure.streams import Environment, Inputs, Label, Labels, Query, Support, as_label, as_labels, as_rows
from perdure.waiting import Half, Queued, WaitingRoom, refuse_misfits, refuse_one_class, refuse_one_row

log = logging.getLogger("perdure")
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 4096, 1 << 24
"""So many rows are answered together, or fewer if they are large."""
_MAY_BE_ZERO = frozenset({"warm_up", "beta", "kl_weight", "prior_spread", "momentum", "weight_decay", "reversal_ceiling", "seed"})


@dataclass(frozen=True, kw_only=True)
class VariationalConfig:
    """Every choice of the paper's learner. The defaults are its full method; docs/paper.md says where each comes from."""

    latent: int = 512
    """Dimensions of z."""
    features: int = 1024
    """Dimensions of h: 1024 for Office-31, 2048 for Office-Home in the paper."""
    width: int = 1024
    """Hidden units of the solver, of f and of f'."""
    steps: int = 1000
    """Updates of all three modules together, an environment."""
    warm_up: int = 500
    """Updates of the inference module alone before those."""
    batch: int = 32
    """Rows of each stream in an update."""
    replay_batch: int = 32
    """Replayed features in an update, shared evenly among the snapshots however many there are."""
    gamma: float = 4.0
    """Margin of the discrepancy: 4 for Office-31, 2 for Office-Home, as in MDD."""
    beta: float = 1.0
    """Weight of the discrepancy (eq. 3)."""
    kl_weight: float = 1.0
    """Weight of the KL term (eq. 1)."""
    kl_summed: bool = False
    """Sum the KL term over latent dimensions instead of averaging it. In the environment reading the posterior then collapses."""
    conditioning: Literal["class_prior", "environment"] = "class_prior"
    """What c adds to the choice of the snapshot: a learned prior mean for each class, or nothing."""
    prior_spread: float = 2.0
    """Standard deviation of the first prior means (class prior only)."""
    replay: ReplayKind = "generative"
    """What the solver is reminded with."""
    replay_around: Literal["posterior", "prior"] = "posterior"
    """Where a replayed class is drawn: around the mean of z over its support rows, or around the mean of its prior, which the
    encoder may be far from (class prior only)."""
    hard_labels: bool = False
    """Label replayed features with f's answer instead of its belief (environment reading only; a class prior gives the class)."""
    memory: int = 1024
    """Features of real rows stored for each environment (memory replay only)."""
    task_confusion: bool = True
    """A solver apart from f. Without it f itself answers, over every class seen so far."""
    snapshot: Literal["full", "decoder", "none"] = "full"
    """What is kept of an environment. Unless it is everything, every query passes through the newest inference module."""
    fresh_inference: bool = True
    """Begin each environment with a new inference module instead of the last one's weights."""
    fresh_solver: bool = False
    """Begin each environment with a new solver: complete forgetting, which only replay can undo (the paper's Scenario 2)."""
    centre: bool = True
    """Subtract from each stream its own mean and bring it to a common length. Never done to a backbone's inputs."""
    length: float = 7.0
    """That common length: the root mean square of a centred row."""
    inference_rate: float = 1e-4
    """Adam's learning rate for the inference module."""
    hypothesis_rate: float = 4e-4
    """SGD's learning rate for f and f'."""
    solver_rate: float = 1e-2
    """SGD's learning rate for the solver."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of SGD."""
    reversal_ceiling: float = 0.3
    """What the strength of gradient reversal rises to."""
    reversal_horizon: float = 2000.0
    """Over how many steps it does."""
    seed: int = 0
    """Everything random follows from it."""
    backbone: str | None = field(default=None, metadata=LATER)
    """A pretrained network for pictures, by its folder or its name on the Hugging Face hub. Inputs are then pictures."""
    finetune: str = field(default="all", metadata=LATER)
    """What of it is trained along: "all", "none", or from "last 1" on so many of its last blocks (docs/fine-tuning.md)."""
    precision: Literal["auto", "float32", "bfloat16"] = field(default="auto", metadata=LATER)
    """What a backbone multiplies in; "auto" is bfloat16 on CUDA if `backbone` names it, else float32. Weights, and all that is no
    backbone, are float32."""

    def __post_init__(self) -> None:
        checked_settings(self, may_be_zero=_MAY_BE_ZERO)
        if not re.fullmatch("all|none|last [1-9][0-9]*", self.finetune):
            raise InputError(f'`finetune` must be "all", "none", or "last 1", "last 2" and so on, got {self.finetune!r}.')
        if self.finetune != "all" and self.backbone is None:
            raise InputError(
                f'`finetune="{self.finetune}"` needs a `backbone` by name; of another its maker says what is frozen.'
            )
        if self.replay in ("generative", "noise") and self.snapshot == "none":
            raise InputError(f'Replay "{self.replay}" needs snapshots to draw from: set `snapshot` to "full" or "decoder".')
        if self.batch < 2:
            raise InputError(f"`batch` must be at least 2 for batch normalisation, got {self.batch}.")


def generative_replay() -> VariationalConfig:
    """The paper's method ("GFR", "ours")."""
    return VariationalConfig()


def memory_replay() -> VariationalConfig:
    """Features of real support rows are stored and replayed: a control that keeps data."""
    return VariationalConfig(replay="memory")


def noise_replay() -> VariationalConfig:
    """Noise with the labels of generated features: a control that should not help."""
    return VariationalConfig(replay="noise")


def optimal_baseline() -> VariationalConfig:
    """Baseline 1: everything but replay."""
    return VariationalConfig(replay="none")


def baseline_2() -> VariationalConfig:
    """No replay and no warm-up; as many updates in all, so that only their order differs."""
    return _without_warm_up(optimal_baseline())


def baseline_3() -> VariationalConfig:
    """No replay, no warm-up, no task confusion: f is the only classifier."""
    return replace(baseline_2(), task_confusion=False)


def naive_baseline() -> VariationalConfig:
    """Baseline 4: not even snapshots; every query passes through the newest inference module."""
    return replace(baseline_3(), snapshot="none")


def _without_warm_up(config: VariationalConfig) -> VariationalConfig:
    return replace(config, warm_up=0, steps=config.warm_up + config.steps)


class SupportBatch(NamedTuple):
    """Rows of the support."""

    x: Float[Tensor, "s *input"]
    own_y: Int[Tensor, " s"]
    """The class among the environment's own."""
    y: Int[Tensor, " s"]
    """The class among all classes seen so far."""


class QueryBatch(NamedTuple):
    """Rows of the query."""

    x: Float[Tensor, "q *input"]


class Losses(NamedTuple):
    """The terms of one step: eq. 3, its KL part and its discrepancy; eq. 6 and its replayed part."""

    epsilon: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    discrepancy: Float[Tensor, ""]
    solver: Float[Tensor, ""] | None
    replay: Float[Tensor, ""] | None

    def as_numbers(self) -> dict[str, float]:
        """The terms that were there."""
        return {name: term.detach().item() for name, term in self._asdict().items() if term is not None}


@dataclass(frozen=True)
class Learned:
    """What `learn` did."""

    environment: str
    steps: int
    seconds: float
    losses: dict[str, float]
    """The terms of the last step."""
    returning: list[Label]
    """Classes that an earlier environment had already: each stays one class, learned from both."""


@dataclass(eq=False)
class Lesson:
    """An environment being learned: all that changes and is gone when it is over."""

    environment: Environment | None
    """`None` after loading, until the same environment is handed in again."""
    name: str
    digest: str
    number: int
    """How many lessons were begun before: the seed of everything random in it."""
    classes: Int[Tensor, " own"]
    returning: list[Label]
    prior_means: nn.Parameter
    adam: torch.optim.Adam
    sgd: torch.optim.SGD
    step: int = 0
    batch_of: Callable[[int], tuple[SupportBatch, QueryBatch]] | None = None
    rehearsal: Rehearsal | None = None

    def to_json(self) -> dict[str, Any]:
        """Where it stands."""
        return {
            "name": self.name,
            "digest": self.digest,
            "number": self.number,
            "classes": self.classes.tolist(),
            "returning": self.returning,
            "step": self.step,
        }

    def tensors(self) -> dict[str, Tensor]:
        """The state of the optimisers and the prior means."""
        return {
            "lesson.prior_means": self.prior_means,
            **checkpoints.optimiser_tensors(self.adam, "lesson.adam"),
            **checkpoints.optimiser_tensors(self.sgd, "lesson.sgd"),
        }


class VariationalLearner:
    """Learns environments one after another and answers queries of all of them.

    >>> import numpy as np, perdure
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 40)
    >>> x = rng.normal(size=(80, 8)) + 3 * (y == "dog")[:, None]
    >>> config = perdure.VariationalConfig(latent=8, features=16, width=16, warm_up=20, steps=20)
    >>> learner = perdure.VariationalLearner(config)
    >>> learned = learner.learn(perdure.Environment("clinic", perdure.Support(x, y), perdure.Query(x + 0.5)), progress=False)
    >>> learner.environments, learner.classes
    (['clinic'], ['cat', 'dog'])
    """

    def __init__(
        self,
        config: VariationalConfig | None = None,
        *,
        backbone: Callable[[], nn.Module] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """`backbone` makes a network of your own from inputs to feature vectors, which is trained along; the configuration may
        name a pretrained one instead. Without either inputs are features."""
        config = VariationalConfig() if config is None else config
        if config.backbone is not None and backbone is not None:
            raise InputError(f"The configuration names the backbone {config.backbone!r} already; leave `backbone` out.")
        if config.backbone is None and backbone is None and config.precision == "bfloat16":
            raise InputError('`precision="bfloat16"` is of a backbone, and there is none; leave it out.')
        if config.backbone is not None:
            config = replace(config, backbone=lasting_name(config.backbone))
        self.config = config
        self.device = torch.device(device)
        self._pretrained = None if config.backbone is None else FineTuned(config.backbone, config.finetune, self.device)
        self._backbone: Callable[[], nn.Module] | None = backbone or self._pretrained
        self._classes: list[Label] = []
        self._row_shape: tuple[int, ...] | None = None
        self._lessons = 0
        self.snapshots: list[Snapshot] = []
        self.inference: InferenceModule | None = None
        self.hypothesis: TwoLayerClassifier | None = None
        self.adversary: TwoLayerClassifier | None = None
        self.solver: TwoLayerClassifier | None = None
        self._lesson: Lesson | None = None
        self._waiting = WaitingRoom()

    # -- the training step ------------------------------------------------------------------------------------------------

    def step(self, support: SupportBatch, query: QueryBatch) -> Losses:
        """One update of all three modules (eq. 4 and eq. 6); of the inference module alone while warming up."""
        config, lesson = self.config, self._under_way()
        inference, hypothesis, adversary = self._networks()
        rows = [len(support.x), len(query.x)]
        rng = generator(config.seed, Use.STEP, lesson.number, lesson.step, device=self.device)

        with self._backbone_draws_from(lesson):
            posterior = inference.encode.both(support.x, query.x)
        h = inference.decode.both(posterior.sample(rng), len(support.x))
        f_s, f_q = hypothesis(h).split(rows)
        f_adv_s, f_adv_q = adversary(reverse_gradient(h, self._reversal_strength(lesson.step))).split(rows)

        y_f = support.own_y if config.task_confusion else support.y
        kl = self._kl(posterior, support, f_q.detach())
        epsilon = satisfaction_error(f_s, y_f, kl, kl_weight=config.kl_weight)
        discrepancy = margin_disparity_discrepancy(f_s, f_adv_s, f_q, f_adv_q, gamma=config.gamma)
        objective = inference_objective(epsilon, discrepancy, beta=config.beta)

        solver_loss = replay_loss = None
        if lesson.step >= config.warm_up:
            answer = self._answering()
            replay = self._replay(lesson)
            h_s = h[: len(support.x)]
            answers = answer(h_s if replay is None else torch.cat([h_s, replay.h]))
            if replay is not None:
                replay_loss = replay_objective(answers[len(h_s) :], replay.labels, environments=len(self.snapshots))
            if config.task_confusion:
                solver_loss = solver_objective(answers[: len(h_s)], support.y, replay_loss)
                objective = objective + solver_loss
            elif replay_loss is not None:
                objective = objective + replay_loss

        lesson.adam.zero_grad()
        lesson.sgd.zero_grad()
        torch.autograd.backward(objective)
        lesson.adam.step()
        lesson.sgd.step()
        lesson.step += 1
        return Losses(epsilon, kl, discrepancy, solver_loss, replay_loss)

    # -- learning an environment ------------------------------------------------------------------------------------------

    def learn(
        self,
        environment: Environment,
        *,
        checkpoint: str | Path | None = None,
        every: int = 200,
        progress: Progress = None,
    ) -> Learned | Queued:
        """Learn one environment; or keep its one half until the other arrives.

        With `checkpoint` the whole learner is saved there every `every` steps, when interrupted and at the end. To go on
        after a kill, `load` it and call `learn` with the same environment: the result is the same, bit for bit (on a CPU).
        """
        if every < 1:
            raise InputError(f"`every` must be at least 1 step, got {every}.")
        whole = self._waiting.join(environment)
        self._check(environment if isinstance(whole, Queued) else whole)
        if isinstance(whole, Queued):
            self._waiting.admit(environment, whole)
            return whole
        if checkpoint is not None:
            self._refuse_to_overwrite(checkpoint)
        self._set_up(self._lesson or self._begin(whole), whole)
        self._waiting.dismiss(whole.name)

        lesson, total = self._under_way(), self.config.warm_up + self.config.steps
        assert lesson.batch_of is not None
        began, losses = time.perf_counter(), None
        with interruptible() as interrupted, progress_bar(progress, whole.name, total, lesson.step) as report:
            while lesson.step < total:
                losses = self.step(*lesson.batch_of(lesson.step))
                report(lesson.step)
                due = lesson.step % every == 0 and lesson.step < total
                if checkpoint is not None and (due or interrupted()):
                    self.save(checkpoint)
                if interrupted():
                    raise KeyboardInterrupt
        self._remember(lesson)
        if checkpoint is not None:
            self.save(checkpoint)
        numbers = {} if losses is None else losses.as_numbers()
        return Learned(whole.name, total, time.perf_counter() - began, numbers, lesson.returning)

    def _check(self, environment: Environment) -> None:
        """Refuse, before anything changes, what could not be learned."""
        name = environment.name
        if name in self.environments:
            raise InputError(f'Environment "{name}" is learned already. Give the new data a new name, or forget("{name}") first.')
        if self._lesson is not None and self._lesson.name != name:
            raise InputError(
                f'"{self._lesson.name}" is under way (step {self._lesson.step}). Learn it again to continue, or drop it with '
                f'forget("{self._lesson.name}"); then learn "{name}".'
            )
        if self._lesson is not None and (environment.support is None or environment.query is None):
            raise InputError(f'"{name}" is under way (step {self._lesson.step}). Give support and query together to continue.')
        halves: tuple[tuple[Support | Query | None, Half], ...] = ((environment.support, "support"), (environment.query, "query"))
        for half, what in halves:
            if half is None:
                continue
            refuse_one_row(name, what, half.x)
            if self._backbone is None and half.x.ndim != 2:
                raise InputError(
                    f'Rows of the {what} of "{name}" have shape {half.x.shape[1:]}; without a backbone each must be a vector.'
                )
            if self._pretrained is not None:
                self._pretrained.check(half.x)
        refuse_misfits(environment, self._row_shape, self._classes)
        if environment.support is not None:
            refuse_one_class(name, environment.support.classes)

    def _refuse_to_overwrite(self, path: str | Path) -> None:
        """A checkpoint must not replace a learner that knows what this one does not."""
        if not (Path(path) / checkpoints.STATE).exists():
            return
        there = checkpoints.read_state(path)
        try:
            known = [str(entry["name"]) for entry in there["environments"]]
            lesson = None if there["lesson"] is None else str(there["lesson"]["name"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} holds a damaged learner, which saving would overwrite. Remove it or choose another path."
            ) from error
        if lesson is not None and lesson != self.in_progress:
            known.append(lesson)
        lost = [name for name in known if name not in self.environments]
        if lost:
            raise CheckpointError(
                f"{path} holds a learner that knows {lost}, which this one does not, and saving would lose it. "
                f"Continue it with {type(self).__name__}.load({str(path)!r}), or choose another path."
            )

    def _begin(self, environment: Environment) -> Lesson:
        """Networks and optimisers for a new environment."""
        assert environment.support is not None and environment.query is not None
        config, number = self.config, self._lessons
        own = environment.support.classes
        returning = [label for label in own if label in self._classes]
        if returning:
            log.info("%s: classes %s were seen before; each stays one class, learned from both.", environment.name, returning)
        if config.replay == "memory":
            log.warning("%s: memory replay stores features of real rows, against the promise to keep no data.", environment.name)
        with initialised_from(config.seed, number):
            if self.inference is None or config.fresh_inference:
                self.inference = self._new_inference(environment.support.x)  # first, because a backbone may refuse the rows
            self._classes += [label for label in own if label not in returning]
            self._row_shape = environment.support.x.shape[1:]
            seen, mine = len(self._classes), len(own) if config.task_confusion else len(self._classes)
            if self.hypothesis is None or self.adversary is None or config.task_confusion:
                self.hypothesis, self.adversary = self._new_classifier(mine), self._new_classifier(mine)
            else:
                self.hypothesis.grow(mine)
                self.adversary.grow(mine)
            if config.task_confusion:
                if self.solver is None or config.fresh_solver:
                    self.solver = self._new_classifier(seen)
                else:
                    self.solver.grow(seen)
            prior_means = config.prior_spread * torch.randn(len(own), config.latent)
        if self._backbone is None and config.centre:
            for centring, half in (
                (self.inference.encode.support, environment.support),
                (self.inference.encode.query, environment.query),
            ):
                centring.fit(_tensor(half.x, self.device), config.length)
        self._lessons += 1
        classes = torch.tensor([self._classes.index(label) for label in own], device=self.device)
        means = nn.Parameter(prior_means.to(self.device))
        self._lesson = Lesson(
            environment, environment.name, environment.digest, number, classes, returning, means, *self._optimisers(means)
        )
        return self._lesson

    def _new_inference(self, x: Inputs) -> InferenceModule:
        backbone = None if self._backbone is None else self._backbone().to(self.device)
        inputs = x.shape[1] if backbone is None else _features_of(backbone, self._inputs(x[:2]).clone())
        return self._inference_module(inputs, backbone).to(self.device)

    def _inference_module(self, inputs: int, backbone: nn.Module | None) -> InferenceModule:
        config = self.config
        return InferenceModule(inputs, config.latent, config.features, backbone, None if backbone is None else self._precision)

    @property
    def _precision(self) -> torch.dtype | None:
        """What a backbone multiplies in, if not in float32. Unlike float16, bfloat16 needs no scaling of the loss.

        Left to us, a network of your own is exact: what it bears is for its maker to say.
        """
        wanted = self.config.precision
        chosen_here = wanted == "auto" and self._pretrained is not None and self.device.type == "cuda"
        if chosen_here and torch.cuda.is_bf16_supported(including_emulation=False):
            wanted = "bfloat16"
        return torch.bfloat16 if wanted == "bfloat16" else None

    def _new_classifier(self, classes: int) -> TwoLayerClassifier:
        return TwoLayerClassifier(self.config.features, self.config.width, classes).to(self.device)

    def _optimisers(self, prior_means: nn.Parameter) -> tuple[torch.optim.Adam, torch.optim.SGD]:
        """Adam for the inference module; SGD for f, f' and the solver."""
        config = self.config
        inference, hypothesis, adversary = self._networks()
        inferring = [*inference.parameters(), *([prior_means] if config.conditioning == "class_prior" else [])]
        groups: list[dict[str, Any]] = [{"params": [*hypothesis.parameters(), *adversary.parameters()]}]
        if self.solver is not None:
            groups.append({"params": list(self.solver.parameters()), "lr": config.solver_rate})
        adam = torch.optim.Adam(inferring, lr=config.inference_rate, fused=True)
        sgd = torch.optim.SGD(
            groups,
            lr=config.hypothesis_rate,
            momentum=config.momentum,
            nesterov=config.momentum > 0,
            weight_decay=config.weight_decay,
            fused=True,
        )
        return adam, sgd

    def _set_up(self, lesson: Lesson, environment: Environment) -> None:
        """Where batches and replay of the lesson come from; nothing here changes what is learned."""
        if environment.digest != lesson.digest:
            raise InputError(
                f'"{lesson.name}" was begun with other data. Give the same support and query to continue at step {lesson.step}, '
                f'or drop it with forget("{lesson.name}").'
            )
        assert environment.support is not None and environment.query is not None
        lesson.environment = environment
        config, number = self.config, lesson.number
        own = environment.support.classes
        y = np.searchsorted(np.array(own), environment.support.y)
        x_s, x_q = (_tensor(self._fitted(half.x), self.device) for half in (environment.support, environment.query))
        own_y = torch.from_numpy(y).to(self.device)
        rows_s = Batches(len(x_s), config.batch, config.seed, Use.SUPPORT_ORDER, number, device=self.device)
        rows_q = Batches(len(x_q), config.batch, config.seed, Use.QUERY_ORDER, number, device=self.device)

        def batch_of(step: int) -> tuple[SupportBatch, QueryBatch]:
            s, q = rows_s(step), rows_q(step)
            support = SupportBatch(self._as_floats(x_s[s]), own_y[s], lesson.classes[own_y[s]])
            return support, QueryBatch(self._as_floats(x_q[q]))

        lesson.batch_of = batch_of
        if self.snapshots and config.replay != "none":
            lesson.rehearsal = Rehearsal(
                self.snapshots, config.replay, config.replay_batch, len(self._classes), config.seed, number
            )
        for network in (*self._networks(), self.solver):
            if network is not None:
                network.train().requires_grad_(True)

    def _inputs(self, x: Inputs) -> Tensor:
        """Rows as the inference module takes them."""
        return self._as_floats(_tensor(self._fitted(x), self.device))

    def _fitted(self, x: Inputs) -> Inputs:
        """Rows as they are; pictures of the size that their backbone asks for."""
        return x if self._pretrained is None else self._pretrained.fitted(x)

    def _as_floats(self, x: Tensor) -> Tensor:
        """Pictures stay bytes until they are needed; what was pretrained takes them from 0 to 1, another as they are."""
        return x if x.is_floating_point() else x.float() / (1 if self._pretrained is None else 255)

    def _backbone_draws_from(self, lesson: Lesson) -> AbstractContextManager[None]:
        """A backbone with dropout draws from the global generator; let that be a function of the step, too."""
        return nullcontext() if self._backbone is None else initialised_from(self.config.seed, lesson.number, lesson.step)

    def _replay(self, lesson: Lesson) -> Replay | None:
        return None if lesson.rehearsal is None else lesson.rehearsal(lesson.step - self.config.warm_up)

    def _kl(self, posterior: Posterior, support: SupportBatch, f_q: Float[Tensor, "q classes"]) -> Float[Tensor, ""]:
        """The KL term of both streams: to N(0, I), or to the prior of the class, which for a query is what f believes."""
        config, lesson = self.config, self._under_way()
        if config.conditioning == "environment":
            return 2 * kl_to_prior(posterior, summed=config.kl_summed)
        own = lesson.classes
        belief = (f_q if config.task_confusion else f_q[:, own]).softmax(dim=1)
        weights = torch.cat([torch.eye(len(own), device=self.device)[support.own_y], belief])
        return 2 * kl_to_class_prior(posterior, lesson.prior_means, weights, summed=config.kl_summed)

    def _reversal_strength(self, step: int) -> float:
        return reversal_strength(step, ceiling=self.config.reversal_ceiling, horizon=self.config.reversal_horizon)

    @torch.no_grad()
    def _remember(self, lesson: Lesson) -> None:
        """The lesson is over: keep a snapshot, let go of the rest."""
        config = self.config
        inference, hypothesis, _ = self._networks()
        f = copy.deepcopy(hypothesis)
        if not config.task_confusion:
            self._keep(f, lesson.classes)
        for network in (*self._networks(), self.solver, f):
            if network is not None:
                network.eval().requires_grad_(False)
        kept = copy.deepcopy(inference)
        priors = None
        if config.conditioning == "class_prior":
            means = lesson.prior_means.detach().clone()
            priors = ClassPriors(means, self._posterior_means(lesson) if self._draws_around_posterior else means)
        self.snapshots.append(
            Snapshot(
                environment=lesson.name,
                classes=lesson.classes,
                inference=kept if config.snapshot == "full" else None,
                generate=None if config.snapshot == "none" else FeatureGenerator(kept.decode, f, priors, config.hard_labels),
                memory=self._memorise(lesson) if config.replay == "memory" else None,
            )
        )
        self._let_go()
        self._lesson = None

    def _let_go(self) -> None:
        """Of the networks that only the lesson needed."""
        if self.config.task_confusion:
            self.hypothesis = self.adversary = None
        if self.config.fresh_inference and self.config.snapshot == "full":
            self.inference = None

    def _keep(self, network: TwoLayerClassifier, classes: Int[Tensor, " kept"]) -> None:
        """Only these outputs. The first weights of its new layer are overwritten, but drawing them must not be noticed."""
        with initialised_from(self.config.seed):
            network.keep(classes)

    @property
    def _draws_around_posterior(self) -> bool:
        """Whether a snapshot keeps where z of its classes lies: only what replays it needs to know."""
        config = self.config
        return config.replay == "generative" and config.conditioning == "class_prior" and config.replay_around == "posterior"

    def _posterior_means(self, lesson: Lesson) -> Float[Tensor, "own latent"]:
        """The mean of z over the support rows of each class; of a class with one row only, repeated or not, its prior's mean.

        From the z of a single row and the encoder that is kept beside it the row could be computed back.
        """
        assert lesson.environment is not None and lesson.environment.support is not None
        inference, _, _ = self._networks()
        support = lesson.environment.support
        z = torch.from_numpy(self._in_chunks(lambda rows: inference.encode(rows, "support").mean, support.x)).to(self.device)
        means = lesson.prior_means.detach().clone()
        for number, label in enumerate(support.classes):
            of_class = support.y == label
            x = support.x[of_class]
            if (x != x[0]).any():
                means[number] = z[torch.from_numpy(of_class).to(self.device)].mean(dim=0)
        return means

    def _memorise(self, lesson: Lesson) -> Replay:
        """Features of real support rows and their classes, for the control that stores them."""
        assert lesson.environment is not None and lesson.environment.support is not None
        inference, _, _ = self._networks()
        support = lesson.environment.support
        rng = generator(self.config.seed, Use.MEMORY, lesson.number)
        rows = torch.randperm(len(support.x), generator=rng)[: self.config.memory].numpy()
        own = np.searchsorted(np.array(support.classes), support.y[rows])
        h = torch.from_numpy(self._in_chunks(lambda chunk: inference(chunk, "support"), support.x[rows])).to(self.device)
        return Replay(h, F.one_hot(torch.from_numpy(own), len(lesson.classes)).float().to(self.device))

    # -- answering --------------------------------------------------------------------------------------------------------

    @property
    def environments(self) -> list[str]:
        """The learned environments, in the order they were learned."""
        return [snapshot.environment for snapshot in self.snapshots]

    @property
    def classes(self) -> list[Label]:
        """Every class seen so far; the columns of `predict_proba`."""
        return list(self._classes)

    @property
    def queued(self) -> dict[str, Half]:
        """Environments that wait, and the half that is missing."""
        return self._waiting.missing

    @property
    def in_progress(self) -> str | None:
        """The environment whose learning was interrupted. Learn it again to continue."""
        return None if self._lesson is None else self._lesson.name

    @property
    def bytes_held(self) -> dict[str, int]:
        """What each environment costs to remember, and what is shared by all."""
        held = {snapshot.environment: sum(tensor.nbytes for tensor in snapshot.tensors().values()) for snapshot in self.snapshots}
        shared = sum(tensor.nbytes for tensor in self._shared_tensors().values())
        return {**held, "(shared)": shared + (0 if self._pretrained is None else self._pretrained.nbytes)}

    def predict(self, x: Any, environment: str | None = None) -> Labels:
        """The class of each row, among all seen so far."""
        best = self.predict_proba(x, environment).argmax(axis=1)
        answers: Labels = np.array(self._classes)[best]
        return answers

    def predict_proba(self, x: Any, environment: str | None = None) -> Float[np.ndarray, "n classes"]:
        """Probability of each class. Without an environment, those of all snapshots weighted by how likely each is of the row."""
        rows = self._checked_query(x)
        answer = self._answering()
        if environment is None and self.config.snapshot == "full" and len(self.snapshots) > 1:
            return self._in_chunks(partial(self._mixed, answer), rows)
        module = self._module(self.environments[-1] if environment is None else environment)
        return self._in_chunks(lambda chunk: answer(module(chunk)).softmax(dim=1), rows)

    def _mixed(self, answer: TwoLayerClassifier, x: Float[Tensor, "n *input"]) -> Float[Tensor, "n classes"]:
        """The answers through every snapshot, weighted; each row is encoded once by each."""
        encoded = self._encoded(x)
        mixed: Tensor = sum(
            weight[:, None] * answer(self._module(name).decode(z)).softmax(dim=1)
            for name, z, weight in zip(self.environments, encoded, self._weights(encoded).T, strict=True)
        )
        return mixed

    def _encoded(self, x: Float[Tensor, "n *input"]) -> list[Float[Tensor, "n latent"]]:
        """The posterior's mean in every environment."""
        return [self._module(name).encode(x, "query").mean for name in self.environments]

    def _weights(self, encoded: list[Float[Tensor, "n latent"]]) -> Float[Tensor, "n environments"]:
        """How likely a row is of each environment."""
        dimensions = float(np.mean([len(snapshot.classes) for snapshot in self.snapshots]))
        each = zip(self.snapshots, encoded, strict=True)
        return torch.stack([snapshot.evidence(z, dimensions=dimensions) for snapshot, z in each], dim=1).softmax(dim=1)

    def transform(self, x: Any, environment: str, *, stream: Stream = "query") -> Float[np.ndarray, "n features"]:
        """The domain-agnostic features h of rows of this environment."""
        rows, module = self._checked_query(x), self._module(environment)
        return self._in_chunks(lambda chunk: module(chunk, stream), rows)

    def inferred_environment(self, x: Any) -> InferredEnvironment:
        """Which environment each row seems to come from, and how sure that is."""
        rows = self._checked_query(x)
        if self.config.snapshot != "full":
            raise NotSolvableYet(
                f'This learner keeps no encoders (snapshot="{self.config.snapshot}"), so it cannot tell environments apart; '
                "every query passes through the newest one."
            )
        probabilities = self._in_chunks(lambda chunk: self._weights(self._encoded(chunk)), rows)
        best = probabilities.argmax(axis=1)
        return InferredEnvironment(np.array(self.environments)[best], probabilities.max(axis=1), probabilities)

    def _module(self, environment: str) -> InferenceModule:
        """The inference module that queries of this environment pass through."""
        module = self._snapshot(environment).inference or self.inference
        assert module is not None
        return module

    def _snapshot(self, environment: str) -> Snapshot:
        for snapshot in self.snapshots:
            if snapshot.environment == environment:
                return snapshot
        if environment in self.queued:
            half = self.queued[environment]
            other = "query" if half == "support" else "support"
            raise NotSolvableYet(
                f'"{environment}" has a {other} but no {half} yet; it is queued. Add the {half} with `learn(...)` '
                f'or drop it with `forget("{environment}")`.'
            )
        if environment == self.in_progress:
            raise NotSolvableYet(f'"{environment}" is still being learned. Learn it again to continue.')
        raise UnknownEnvironment(f'No environment is called "{environment}". Learned so far: {self.environments}.')

    def _checked_query(self, x: Any) -> Inputs:
        if not self.snapshots:
            waiting = f" Waiting: {self.queued}." if self.queued else ""
            raise NotSolvableYet(f"Nothing has been learned yet. Give support and query to `learn(...)`.{waiting}")
        rows = as_rows(x, "query")
        if rows.shape[1:] != self._row_shape:
            raise InputError(f"Rows of the query have shape {rows.shape[1:]}, what was learned has {self._row_shape}.")
        if self._pretrained is not None:
            self._pretrained.check(rows)
        return rows

    @torch.no_grad()
    def _in_chunks(self, function: Callable[[Tensor], Tensor], rows: Inputs) -> NDArray[np.float32]:
        """`function` of some rows at a time, so that memory does not grow with their number."""
        size = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // self._fitted(rows[:1]).size))
        training = [module for module in (self.inference,) if module is not None and module.training]
        for module in training:
            module.eval()
        try:
            parts = [function(self._inputs(rows[i : i + size])).cpu() for i in range(0, len(rows), size)]
        finally:
            for module in training:
                module.train()
        answers: NDArray[np.float32] = torch.cat(parts).numpy()
        return answers

    # -- forgetting, saving, loading --------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """Drop an environment: its snapshot, its place in the queue or its unfinished lesson, and the classes only it had.

        What the solver's shared weights owe to it stays in them; only a learner that never saw it is free of it.
        """
        if name in self.queued:
            self._waiting.dismiss(name)
            return
        if self._lesson is not None and self._lesson.name != name:
            raise InputError(
                f'"{self._lesson.name}" is under way. Finish it, or drop it first with forget("{self._lesson.name}").'
            )
        if self._lesson is not None:
            self._lesson = None
            self._let_go()
        else:
            self._snapshot(name)
            self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.environment != name]
        used = sorted({int(c) for snapshot in self.snapshots for c in snapshot.classes})
        place = {old: new for new, old in enumerate(used)}
        self._classes = [self._classes[old] for old in place]
        self.snapshots = [
            replace(s, classes=torch.tensor([place[int(old)] for old in s.classes], device=self.device)) for s in self.snapshots
        ]
        if not self.snapshots:
            self.inference = self.hypothesis = self.adversary = self.solver = self._row_shape = None
            return
        for network in (self.solver, self.hypothesis, self.adversary):
            if network is not None:
                self._keep(network, torch.tensor(used, device=self.device))
                network.eval().requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write `tensors.safetensors` and `state.json` into the folder `path`, atomically. No data are among them."""
        lesson = self._lesson
        state = {
            "learner": type(self).__name__,
            "config": settings_to_json(self.config),
            **({} if self._pretrained is None else {"backbone": self._pretrained.pictures.identity.to_json()}),
            "classes": self._classes,
            "row_shape": self._row_shape,
            "lessons": self._lessons,
            "environments": [{"name": s.environment, "classes": s.classes.tolist()} for s in self.snapshots],
            "queued": self._waiting.to_json(),
            "lesson": None if lesson is None else lesson.to_json(),
        }
        checkpoints.save(path, self._tensors(), state)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone: Callable[[], nn.Module] | str | Path | None = None,
        device: str | torch.device = "cpu",
    ) -> VariationalLearner:
        """The learner that was saved there. One with a network of your own needs the same `backbone` to make its networks from;
        one with a pretrained network finds it where it was, or in the folder `backbone`."""
        tensors, state = checkpoints.load(path)
        where = str(path)
        if state.get("learner") != cls.__name__:
            raise CheckpointError(f"{where} holds a {state.get('learner')!r}, not a {cls.__name__}. Load it with its own class.")
        config = settings_from_json(VariationalConfig, state.get("config"), where)
        if isinstance(backbone, (str, Path)) and config.backbone is None:
            raise CheckpointError(f"{where} has no pretrained backbone to be found in {backbone}; leave `backbone` out.")
        if isinstance(backbone, (str, Path)) or (backbone is None and config.backbone is not None):
            learner = cls._with_its_backbone(config, backbone, state.get("backbone"), where, device)
        else:
            learner = cls(config, backbone=backbone, device=device)
        try:
            learner._restore(checkpoints.Folder(tensors), state, where)
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"{where} is damaged or was saved with another backbone ({_in_one_line(error)}). Restore it from a copy."
            ) from error
        return learner

    @classmethod
    def _with_its_backbone(
        cls, config: VariationalConfig, backbone: str | Path | None, identity: Any, where: str, device: str | torch.device
    ) -> VariationalLearner:
        """A new learner with the pretrained network that a saved one had."""
        there = config.backbone if backbone is None else str(backbone)
        hint = "Say where its backbone is: load(..., backbone=FOLDER)."
        try:
            learner = cls(replace(config, backbone=there), device=device)
        except InputError as error:
            raise CheckpointError(
                f"{where} was learned with {config.backbone}, which cannot be used now. {error} {hint}"
            ) from error
        assert learner._pretrained is not None
        if (found := learner._pretrained.pictures.identity.to_json()) != identity:
            other = [name for name in found if not isinstance(identity, dict) or found[name] != identity.get(name)]
            raise CheckpointError(
                f"{where} was learned with {config.backbone}, but {there} is now another backbone (its {' and '.join(other)} "
                f"differs). {hint}"
            )
        return learner

    def _restore(self, tensors: checkpoints.Folder, state: dict[str, Any], where: str) -> None:
        """All that `save` wrote, each part checked against the others: what loads will not fail later."""
        config = self.config
        tensors = tensors.to(self.device)
        self._classes = _labels(state["classes"])
        if len(set(self._classes)) < len(self._classes):
            raise ValueError(f"a class stands twice in {self._classes}")
        if state["row_shape"] is not None:
            self._row_shape = tuple(checkpoints.whole(size) for size in state["row_shape"])
        self._lessons = checkpoints.whole(state["lessons"])
        self._waiting = WaitingRoom.from_json(state["queued"], where)
        names = [
            checkpoints.word(entry["name"]) for entry in [*state["environments"], *([state["lesson"]] if state["lesson"] else [])]
        ]
        if len(set(names)) < len(names):
            raise ValueError(f"an environment stands twice in {names}")

        self.inference = self._restored_inference(tensors.folder("inference"))
        self.solver, self.hypothesis, self.adversary = (
            self._restored_classifier(tensors.folder(name)) for name in ("solver", "hypothesis", "adversary")
        )
        self.snapshots = [
            self._restored_snapshot(tensors.folder(f"snapshots.{i}"), e) for i, e in enumerate(state["environments"])
        ]
        answering = self.solver if config.task_confusion else self.hypothesis
        if names and (answering is None or answering.classes != len(self._classes)):
            raise ValueError(f"no classifier answers the {len(self._classes)} classes that it names")
        if self.snapshots and config.snapshot != "full" and self.inference is None:
            raise ValueError("no inference module for queries to pass through")
        if state["lesson"]:
            self._lesson = self._restored_lesson(tensors.folder("lesson"), state["lesson"])
        if self._tensors().keys() != tensors.keys():
            raise ValueError(f"it does not say what {min(self._tensors().keys() ^ tensors.keys())} is of")

    def _restored_snapshot(self, tensors: checkpoints.Folder, entry: dict[str, Any]) -> Snapshot:
        config = self.config
        classes = checkpoints.places(entry["classes"], below=len(self._classes))
        inference = generate = memory = None
        if config.snapshot == "full":
            inference = self._restored_inference(tensors.folder("inference"))
            decode = None if inference is None else inference.decode
        else:
            decode = self._restored_decoder(tensors.folder("decode"))
        if config.snapshot != "none":
            f = self._restored_classifier(tensors.folder("hypothesis"))
            if decode is None or f is None or f.classes != len(classes):
                raise ValueError(f"no decoder or no f of {len(classes)} classes was kept of {entry['name']!r}")
            priors = None
            if config.conditioning == "class_prior":
                means = tensors.numbers("prior_means", len(classes), config.latent)
                drawn_around = tensors.numbers("drawn_around", *means.shape) if self._draws_around_posterior else means
                priors = ClassPriors(means, drawn_around)
            generate = FeatureGenerator(decode, f, priors, config.hard_labels)
        if config.replay == "memory":
            rows = max(1, len(tensors["memory.h"]))
            memory = Replay(
                tensors.numbers("memory.h", rows, config.features), tensors.numbers("memory.labels", rows, len(classes))
            )
        return Snapshot(entry["name"], torch.tensor(classes, device=self.device), inference, generate, memory)

    def _restored_lesson(self, tensors: checkpoints.Folder, entry: dict[str, Any]) -> Lesson:
        config = self.config
        classes = checkpoints.places(entry["classes"], below=len(self._classes))
        told_apart = len(classes) if config.task_confusion else len(self._classes)
        for network in (self.hypothesis, self.adversary):
            if network is None or self.inference is None or network.classes != told_apart:
                raise ValueError(f"the networks of the lesson {entry['name']!r} are missing or of other classes")
        means = nn.Parameter(tensors.numbers("prior_means", len(classes), config.latent))
        adam, sgd = self._optimisers(means)
        for optimiser, name in ((adam, "adam"), (sgd, "sgd")):
            checkpoints.restore_optimiser(optimiser, tensors.folder(name))
        return Lesson(
            environment=None,
            name=entry["name"],
            digest=checkpoints.word(entry["digest"]),
            number=checkpoints.whole(entry["number"], below=self._lessons),
            classes=torch.tensor(classes, device=self.device),
            returning=_labels(entry["returning"]),
            prior_means=means,
            adam=adam,
            sgd=sgd,
            step=checkpoints.whole(entry["step"], below=config.warm_up + config.steps + 1),
        )

    def _restored_inference(self, tensors: checkpoints.Folder) -> InferenceModule | None:
        if not tensors:
            return None
        inputs = tensors["encode.to_posterior.weight"].shape[1]
        if self._backbone is None and self._row_shape != (inputs,):
            raise ValueError(f"rows of shape {self._row_shape} do not fit {inputs} inputs")
        with initialised_from(self.config.seed):
            backbone = None if self._backbone is None else self._backbone().to(self.device)
        with torch.device("meta"):
            module = self._inference_module(inputs, backbone)
        return tensors.into(module)

    def _restored_decoder(self, tensors: checkpoints.Folder) -> Decoder | None:
        if not tensors:
            return None
        with torch.device("meta"):
            module = Decoder(self.config.latent, self.config.features)
        return tensors.into(module)

    def _restored_classifier(self, tensors: checkpoints.Folder) -> TwoLayerClassifier | None:
        if not tensors:
            return None
        with torch.device("meta"):
            module = TwoLayerClassifier(self.config.features, self.config.width, len(tensors["output.bias"]))
        return tensors.into(module)

    def _tensors(self) -> dict[str, Tensor]:
        """All that is saved, by name."""
        tensors = self._shared_tensors()
        for i, snapshot in enumerate(self.snapshots):
            tensors |= {f"snapshots.{i}.{name}": tensor for name, tensor in snapshot.tensors().items()}
        return tensors | ({} if self._lesson is None else self._lesson.tensors())

    def _shared_tensors(self) -> dict[str, Tensor]:
        networks = {
            "inference": self.inference,
            "hypothesis": self.hypothesis,
            "adversary": self.adversary,
            "solver": self.solver,
        }
        return {
            f"{name}.{key}": tensor
            for name, network in networks.items()
            if network is not None
            for key, tensor in network.state_dict().items()
        }

    # -- what must be there -----------------------------------------------------------------------------------------------

    def _under_way(self) -> Lesson:
        if self._lesson is None:
            raise NotSolvableYet("No environment is being learned; `learn` begins one and calls `step`.")
        return self._lesson

    def _answering(self) -> TwoLayerClassifier:
        """The solver; without task confusion f."""
        answering = self.solver if self.config.task_confusion else self.hypothesis
        assert answering is not None
        return answering

    def _networks(self) -> tuple[InferenceModule, TwoLayerClassifier, TwoLayerClassifier]:
        assert self.inference is not None and self.hypothesis is not None and self.adversary is not None
        return self.inference, self.hypothesis, self.adversary


def _tensor(x: Inputs, device: torch.device) -> Tensor:
    """Rows on the device; on a CPU without a copy, since nothing here writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x).to(device)


def _features_of(backbone: nn.Module, x: Tensor) -> int:
    """How many features the backbone gives, found on two rows."""
    with torch.no_grad():
        was_training = backbone.training
        features = backbone.eval()(x)
        backbone.train(was_training)
    if features.ndim != 2:
        raise InputError(f"The backbone must give one vector a row, got shape {tuple(features.shape)} for two rows.")
    return int(features.shape[1])


def _labels(values: Any) -> list[Label]:
    """Labels as JSON should hold them."""
    return [as_label(label) for label in as_labels(np.array(values, dtype=object))]


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
