"""Was the verdict decided before it was reasoned?

Changed chains of thought show how many verdicts change with the steps before them (Lanham et al., 2023), and linear
probes at the ends of the steps show where a verdict can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answers import check_whole
from mmprobe.probes.cross_validation import (
    MEASURES,
    compute_measures,
    measures_with_interval,
    predict_held_out,
    split_samples,
)
from mmprobe.probes.labelled_vectors import select_classes
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.estimate import Estimate, estimate_known, stack_estimates
from mmprobe.stats.folds import shuffle_within_folds
from mmprobe.traces.asking import answer

CONCLUSION = "Therefore:"
ReadVerdict = Callable[[str], Hashable | None]
ChangeSteps = Callable[[Sample, list[str]], list[str] | None]


class Chain(NamedTuple):
    """The reasoning steps of an answer, each a line, and its conclusion, which begins with a marker word."""

    steps: list[str]
    conclusion: str


def split_chain(answer: str, conclusion: str = CONCLUSION) -> Chain | None:
    """Return the steps and the conclusion of an answer; None without steps or without a conclusion.

    Args:
        answer: steps and conclusion on separate lines.
        conclusion: the words that the conclusion begins with.

    Example:
        >>> split_chain("One: a star.\\nTwo: a star.\\nTherefore: Nothing changed.")
        Chain(steps=['One: a star.', 'Two: a star.'], conclusion='Therefore: Nothing changed.')
    """
    lines = [line for line in answer.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith(conclusion)]
    if not starts or not starts[0]:
        return None
    return Chain(lines[: starts[0]], "\n".join(lines[starts[0] :]))


def prefill_chain(sample: Sample, steps: Sequence[str], conclusion: str = CONCLUSION) -> Sample:
    """Return a sample whose answer begins with some steps and the words of the conclusion.

    Pass such samples to `dose_response` to steer the verdict after the first steps, or before all of them.

    Example:
        >>> prefill_chain(Sample(id="a", question="Compare."), ["One: a star."]).prefill
        'One: a star.\\nTherefore:'
    """
    return sample.model_copy(update={"prefill": "\n".join([*steps, conclusion])})


def chain_tests(
    model: Model,
    samples: Sequence[Sample],
    read_verdict: ReadVerdict,
    conclusion: str = CONCLUSION,
    mistake: ChangeSteps | None = None,
    paraphrase: ChangeSteps | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 8,
) -> xr.Dataset:
    """Return how many verdicts change when the steps before them are changed.

    Use it to test whether an answer follows from its steps. Do not use it for answers without steps.

    The model answers step by step. Its steps are changed, the changed steps become the beginning of its
    answer, and it continues from the words that mark the conclusion. The tests are those of Lanham et al., 2023
    (arXiv:2307.13702). A model that uses its steps changes its verdict when they are cut off or false, and
    keeps it when they are only worded in another way. A verdict that never changes was decided before the
    steps, or is read from the images a second time: exchange the images (`image_interchange`) to tell these
    apart.

    Args:
        samples: questions whose answers have steps on separate lines.
        read_verdict: function from the text of a conclusion, without the words that mark it, to a verdict;
            None where it cannot be read.
        conclusion: the words that the conclusion begins with.
        mistake: function from a sample and its steps to steps with a mistake, or None. By default the last
            step is that of the next sample whose step differs: a step of another answer.
        paraphrase: function from a sample and its steps to the same steps in other words. Without it this
            test is not run.
        max_new_tokens: maximum length of an answer and of a conclusion; our choice, the default is 64.
        batch_size: answers that are generated together.

    Returns:
        A data set with dimensions `test`, `sample`.

        - changed (test, sample): 1 where the verdict differs from the one of the whole answer; NaN where the
          test does not apply or a verdict cannot be read
        - share, low, high, n (test): mean, its interval over sets of images, and the number of answers
        - verdict (test, sample): as text; answer (sample): the whole answers

        The tests are `whole` (own steps, a control that should change nothing), `truncated to K` steps,
        `mistake`, `filler` (each token of the steps replaced by "...") and `paraphrase`.

        attrs: n_unread counts answers without steps or without a verdict; mistakes says whose they are.

    Raises:
        InputError: no samples are given, or a sample has a prefill.
        NotApplicable: no answer has steps and a verdict.

    Example:
        >>> says_same = lambda text: text.strip() == "Nothing changed."
        >>> ds = chain_tests(model, samples, says_same)                      # doctest: +SKIP
        >>> ds.share.sel(test="truncated to 0").item()                       # doctest: +SKIP
        0.12
    """
    if not samples or any(sample.prefill for sample in samples):
        raise InputError("chain_tests: give samples without a prefill")
    settings = AskSettings(max_new_tokens=max_new_tokens, batch_size=batch_size)

    def ask(asked: Sequence[Sample]) -> list[str]:
        named = [each.model_copy(update={"id": f"{place}-{each.id}"}) for place, each in enumerate(asked)]
        answers = dict(answer(model, named, None, settings, title="chain_tests"))
        return [answers[each.id] for each in named]

    answers = ask(samples)
    chains = [split_chain(text, conclusion) for text in answers]
    plain = [
        None if chain is None else read_verdict(chain.conclusion.removeprefix(conclusion)) for chain in chains
    ]
    usable = [number for number, verdict in enumerate(plain) if verdict is not None]
    if not usable:
        raise NotApplicable(
            f"chain_tests: no answer has steps and a verdict after {conclusion!r}; the first answer is {answers[0]!r}"
        )
    tests = _change_chains(model, samples, chains, usable, mistake, paraphrase)
    # all tests of a sample together, since they share the beginning of the prompt
    places = sorted(((number, name) for name in tests for number in tests[name]), key=lambda place: place[0])
    texts = ask([prefill_chain(samples[number], tests[name][number], conclusion) for number, name in places])
    verdicts: dict[str, dict[int, Hashable | None]] = {name: {} for name in tests}
    for (number, name), text in zip(places, texts, strict=True):
        verdicts[name][number] = read_verdict(text)
    return _collect(model, samples, answers, plain, verdicts, mistake is None)


def _change_chains(
    model: Model,
    samples: Sequence[Sample],
    chains: Sequence[Chain | None],
    usable: Sequence[int],
    mistake: ChangeSteps | None,
    paraphrase: ChangeSteps | None,
) -> dict[str, dict[int, list[str]]]:
    """Return the steps of each test by the number of the sample."""
    own = {number: chain.steps for number in usable if (chain := chains[number]) is not None}
    tests = {"whole": own}
    for count in range(max(len(steps) for steps in own.values())):
        tests[f"truncated to {count}"] = {
            number: steps[:count] for number, steps in own.items() if count < len(steps)
        }
    changes = {"mistake": mistake or _BorrowedStep(own), "filler": _Filler(model), "paraphrase": paraphrase}
    for name, change in changes.items():
        if change is not None:
            changed = {number: change(samples[number], steps) for number, steps in own.items()}
            tests[name] = {number: steps for number, steps in changed.items() if steps is not None}
    return tests


class _BorrowedStep(NamedTuple):
    """Replace the last step by that of the next answer whose step differs."""

    steps: dict[int, list[str]]

    def __call__(self, sample: Sample, steps: list[str]) -> list[str] | None:
        others = list(self.steps.values())
        place = next(number for number, each in enumerate(others) if each is steps)
        for other in others[place + 1 :] + others[:place]:
            if len(other) == len(steps) and other[-1] != steps[-1]:
                return [*steps[:-1], other[-1]]
        return None


class _Filler(NamedTuple):
    """Replace each step by as many dots as it has tokens."""

    model: Model

    def __call__(self, sample: Sample, steps: list[str]) -> list[str]:
        counts = [len(self.model.tokenizer(step, add_special_tokens=False)["input_ids"]) for step in steps]
        return [" ".join(["..."] * count) for count in counts]


def _collect(
    model: Model,
    samples: Sequence[Sample],
    answers: Sequence[str],
    plain: Sequence[Hashable | None],
    verdicts: dict[str, dict[int, Hashable | None]],
    borrowed: bool,
) -> xr.Dataset:
    groups = image_sets(samples)
    changed = np.full((len(verdicts), len(samples)), np.nan)
    texts = np.full(changed.shape, "", dtype=object)
    for row, by_number in enumerate(verdicts.values()):
        for number, verdict in by_number.items():
            if verdict is not None:
                changed[row, number] = verdict != plain[number]
                texts[row, number] = str(verdict)
    out = xr.Dataset(coords={"test": list(verdicts), "sample": [sample.id for sample in samples]})
    out["changed"] = (("test", "sample"), changed)
    out["verdict"] = (("test", "sample"), texts.astype(str))
    share = estimate_known(changed.T, groups)
    for name, numbers in {"share": share.value, "low": share.low, "high": share.high, "n": share.n}.items():
        out[name] = ("test", numbers)
    out["answer"] = ("sample", np.array(answers, dtype=str))
    out.attrs = {
        "analysis": "chain_tests",
        "about": "Share of verdicts that change with the steps before them, with 95 % intervals over sets of images.",
        "model": model.name,
        "samples": len(samples),
        "n_groups": len(np.unique(groups)),
        "n_unread": sum(verdict is None for verdict in plain),
        "mistakes": "the last step of another answer" if borrowed else "given",
    }
    return out


MINIMUM = 20  # answers of each verdict; our choice
SHUFFLES = 20  # of the verdicts, for the chance level; our choice


def early_verdict(
    run: Run,
    read_verdict: Callable[[str], Hashable | None],
    conclusion: str = CONCLUSION,
    folds: int = 5,
    minimum: int = MINIMUM,
    seed: int = 0,
) -> xr.Dataset:
    """Return how well an answer's verdict can be read before the first step, after each step, and at the end.

    Use it beside `chain_tests` to find where a verdict can first be read. That it can be read does not say that it is
    used.

    The probe is that of `linear_probe`, fitted at the token that predicts the first token of a step: the last
    token of the prompt before step 1, and the last token of step k after it. A verdict that can be read before
    the first step was linearly present there. Whether the model uses it there, steering shows: see
    `prefill_chain` and `dose_response`.

    Args:
        run: traces with `residual/post` of answers with steps on separate lines.
        read_verdict: function from the text of a conclusion, without the words that mark it, to a verdict;
            None where it cannot be read.
        conclusion: the words that the conclusion begins with.
        folds: number of folds; images are in one fold.
        minimum: answers of each verdict; the default is our choice.
        seed: of the folds and the shuffles.

    Returns:
        A data set with dimensions `point`, `layer`.

        - auc, auc_low, auc_high (point, layer): area under the ROC curve on held-out answers, with 95 %
          intervals over sets of images
        - auc_shuffled (point, layer): mean over 20 shuffles of the verdicts
        - n (point): number of answers that have so many steps

        attrs: n_unread counts answers without steps or without a verdict.

    Raises:
        NotCaptured: `residual/post` was not captured.
        NotApplicable: fewer than two verdicts have enough answers, or there are too few sets of images.

    Example:
        >>> ds = early_verdict(run, lambda text: text.strip() == "Nothing changed.")   # doctest: +SKIP
        >>> ds.auc.sel(point="before step 1").max().item()                             # doctest: +SKIP
        0.93
    """
    if folds < 2 or minimum < folds:
        raise InputError(f"folds {folds} and minimum {minimum}: give 2 folds or more, and no fewer answers")
    labels: dict[str, Hashable] = {}
    samples: dict[str, Sample] = {}
    vectors: dict[str, dict[str, np.ndarray]] = {}
    layers = np.zeros(0, int)
    n_unread = 0
    for trace in tqdm(run, desc="read", unit="answer", disable=None):
        chain = split_chain(trace.answer, conclusion)
        verdict = None if chain is None else read_verdict(chain.conclusion.removeprefix(conclusion))
        if chain is None or verdict is None:
            n_unread += 1
            continue
        streams = trace.array("residual/post")
        layers = streams["layer"].values
        labels[trace.id], samples[trace.id] = verdict, trace.sample
        for point, step in _find_points(trace, len(chain.steps)).items():
            vectors.setdefault(point, {})[trace.id] = streams[step].values.astype("f4")
    classes = select_classes(run, labels, "the verdict", minimum)
    if len(classes) > 2:
        verdicts = ", ".join(map(str, classes))
        raise NotApplicable(f"{run.path}: there are the verdicts {verdicts}; the probe tells two apart")
    out = xr.Dataset(coords={"point": list(vectors), "layer": layers})
    unknown = np.full(len(layers), np.nan)
    aucs, shuffled = (
        [Estimate(unknown, unknown, unknown)] * len(vectors),
        np.full((len(vectors), len(layers)), np.nan),
    )
    counts = []
    for row, by_name in enumerate(tqdm(vectors.values(), desc="early_verdict", unit="point", disable=None)):
        names = [name for name in by_name if labels[name] in classes]
        counts.append(len(names))
        if min(sum(labels[name] == label for name in names) for label in classes) >= minimum:
            stacked = np.array([by_name[name] for name in names])
            aucs[row], shuffled[row] = _read_layers(
                stacked,
                [labels[name] for name in names],
                [samples[name] for name in names],
                classes,
                folds,
                seed,
                str(run.path),
            )
    out.update(stack_estimates(aucs).variables("auc", ("point", "layer")))
    out["auc_shuffled"] = (("point", "layer"), shuffled)
    out["n"] = ("point", np.array(counts))
    out.attrs = {
        "analysis": "early_verdict",
        "about": "How well a verdict can be read before and after the steps of an answer.",
        "run": str(run.path),
        "model": run.config["model"]["name"],
        "verdicts": ", ".join(map(str, classes)),
        "folds": folds,
        "shuffles": SHUFFLES,
        "n_unread": n_unread,
    }
    return out


def _find_points(trace: Trace, n_steps: int) -> dict[str, int]:
    """Return the generation step whose query comes before step 1, and at the end of each of the steps."""
    check_whole(trace)
    generated = trace.step_texts
    points = {"before step 1": 0}
    line, written = 0, ""
    for number, text in enumerate(generated):
        written += text
        if "\n" in text and line < n_steps and written.strip():
            line, written = line + 1, ""
            name = f"after step {line}" if line < n_steps else "before the conclusion"
            points[name] = number + 1
    return {name: step for name, step in points.items() if step < len(generated)}


def _read_layers(
    vectors: np.ndarray,
    labels: list[Hashable],
    samples: list[Sample],
    classes: list[Hashable],
    folds: int,
    seed: int,
    where: str,
) -> tuple[Estimate[np.ndarray], np.ndarray]:
    """Return the AUC [layer] with its interval, and its mean over shuffles [layer]."""
    split = split_samples(samples, labels, classes, folds, seed, where)
    rng = np.random.default_rng(seed)
    shuffles = [shuffle_within_folds(split.truth, split.groups, split.fold, rng) for _ in range(SHUFFLES)]
    auc = MEASURES.index("auc")
    measured, by_chance = [], []
    for layer in np.moveaxis(vectors, 1, 0):
        own, *shuffled = predict_held_out(layer, [split.truth, *shuffles], split.fold)
        chance = [compute_measures(p, truth)[auc, 0] for p, truth in zip(shuffled, shuffles, strict=True)]
        measured.append(measures_with_interval(own, split)[auc])
        by_chance.append(np.mean(chance))
    return stack_estimates(measured), np.array(by_chance)
