"""Changed chains of thought: how many verdicts change with the steps before them (Lanham et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.errors import InputError, NotApplicable
from mmprobe.interventions import generate_batch
from mmprobe.models import Model
from mmprobe.models.shared_prefix import PrefixStore, prefix_key
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_rows

CONCLUSION = "Therefore:"
ReadVerdict = Callable[[str], Hashable | None]
ChangeSteps = Callable[[Sample, list[str]], list[str] | None]


class Chain(NamedTuple):
    """An answer's steps, one a line, and its conclusion, which begins with the word that marks it."""

    steps: list[str]
    conclusion: str


def split_chain(answer: str, conclusion: str = CONCLUSION) -> Chain | None:
    """Return the steps and the conclusion of an answer; None without steps or without a conclusion.

    Args:
        answer: steps and conclusion on lines of their own.
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

    Use it to ask whether an answer follows from its steps. Do not use it for answers without steps.

    The model answers step by step. Its steps are changed, the changed steps become the beginning of its
    answer, and it goes on from the words that mark the conclusion. The tests are those of Lanham et al., 2023
    (arXiv:2307.13702). A model that uses its steps changes its verdict when they are cut off or false, and
    keeps it when they are only worded in another way. A verdict that never changes was decided before the
    steps, or is read from the images a second time: exchange the images (`image_interchange`) to tell these
    apart.

    Args:
        samples: questions whose answers have steps on lines of their own.
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
        InputError: there are no samples, or a sample has a prefill.
        NotApplicable: no answer has steps and a verdict.

    Example:
        >>> says_same = lambda text: text.strip() == "Nothing changed."
        >>> ds = chain_tests(model, samples, says_same)                      # doctest: +SKIP
        >>> ds.share.sel(test="truncated to 0").item()                       # doctest: +SKIP
        0.12
    """
    if not samples or any(sample.prefill for sample in samples):
        raise InputError("chain_tests: give samples without a prefill")
    progress = tqdm(desc="chain_tests", unit="answer", disable=None)
    keys = frozenset(prefix_key(sample) for sample in samples if sample.images)
    prefixes = PrefixStore(model, keys, keeps_states=False)

    def answer(asked: Sequence[Sample]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(asked), batch_size):
            batch = asked[start : start + batch_size]
            given = generate_batch(model, batch, max_new_tokens=max_new_tokens, prefixes=prefixes)
            texts += [each.text for each in given]
            progress.update(len(batch))
        return texts

    with progress:
        answers = answer(samples)
        chains = [split_chain(text, conclusion) for text in answers]
        plain = [
            None if chain is None else read_verdict(chain.conclusion.removeprefix(conclusion))
            for chain in chains
        ]
        usable = [number for number, verdict in enumerate(plain) if verdict is not None]
        if not usable:
            raise NotApplicable(
                f"chain_tests: no answer has steps and a verdict after {conclusion!r}; the first answer is {answers[0]!r}"
            )
        tests = _change_chains(model, samples, chains, usable, mistake, paraphrase)
        # all tests of a sample together, since they share the beginning of the prompt
        places = sorted(
            ((number, name) for name in tests for number in tests[name]), key=lambda place: place[0]
        )
        texts = answer(
            [prefill_chain(samples[number], tests[name][number], conclusion) for number, name in places]
        )
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
    share = estimate_rows(changed, groups)
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
