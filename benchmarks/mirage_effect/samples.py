"""The samples of the mirage effect: every question with its ids, and the answers grouped by question."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mmprobe.benchmarks.core.prompts import default_prompts, fill
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, MirageEffectTruth
from mmprobe.benchmarks.mirage_effect.prompts import (
    MODALITIES,
    VARIANTS,
    MirageEffectPrompts,
    Variant,
    build_prompt,
)
from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, Sample
from mmprobe.thoughts import said

ABSENT = "--absent"  # suffix of the id of a question without its images
GUESSED = "--guess"  # suffix of the id of a question without its images that asks for a guess
NAMED = "--named"  # suffix of the id of a question whose system prompt names the data set
ABSENT_NAMED = "--absent-named"  # the same without its images
FEW_SHOT = "--few-shot"  # suffix of the id of a question without its images, after examples
WAYS = {
    "present": "",
    "absent": ABSENT,
    "guess": GUESSED,
    "named": NAMED,
    "absent_named": ABSENT_NAMED,
    "few_shot": FEW_SHOT,
}
"""The ways to ask a question with a known answer, and the suffix of its id in each."""
VARIED_PER_CATEGORY = 2  # questions of each category that are asked in every variant, our choice
DATA_SET = (
    "MMMU-Pro"  # named by the variant `benchmark`, our choice: models know it, and it covers many subjects
)
_SEED = re.compile(r"(.+)--seed-(\d+)")


def asks_otherwise(prompts: MirageEffectPrompts, data_set: str | None) -> bool:
    """Return whether a wording has other words than ours for a question with a known answer."""
    own = default_prompts(MirageEffectPrompts)
    return (prompts.letter, prompts.short) != (own.letter, own.short) or prompts.find_system(
        data_set
    ) is not None


def choose_examples(
    question: ChoiceQuestion, examples: Sequence[ChoiceQuestion], count: int
) -> list[ChoiceQuestion]:
    """Draw examples. The draw depends on the question's id only; the question itself is never its example."""
    usable = [
        example
        for example in examples
        if (example.question, example.images) != (question.question, question.images)
    ]
    drawn = np.random.default_rng(zlib.crc32(question.id.encode())).permutation(len(usable))
    return [usable[index] for index in drawn[:count]]


def build_example(example: ChoiceQuestion) -> str:
    question = example.prompt or _list_options(example)
    return f"{question}\n{build_choice_answer(example)}"


def build_choice_prompt(
    question: ChoiceQuestion, prompts: MirageEffectPrompts | None = None, data_set: str | None = None
) -> str:
    """Return what a model is asked: the question's own prompt, or the question with its options.

    A system prompt of its data set says in which form to answer. Without one, the question does.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> build_choice_prompt(question).splitlines()[:3]
        ['Which?', 'A. cat', 'B. dog']
    """
    if question.prompt is not None:
        return question.prompt
    prompts = prompts or default_prompts(MirageEffectPrompts)
    if question.system is None and prompts.find_system(data_set) is not None:
        return _list_options(question)
    return f"{_list_options(question)}\n\n{prompts.letter if question.choices else prompts.short}"


def build_choice_answer(question: ChoiceQuestion) -> str:
    """Return the true answer in the form that `build_choice_prompt` asks for.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> build_choice_answer(question)
        '[[B]]'
    """
    if question.prompt is not None:
        return question.choices.get(question.answer, question.answer)
    return f"[[{question.answer}]]"


def _list_options(question: ChoiceQuestion) -> str:
    options = "".join(f"\n{letter}. {text}" for letter, text in question.choices.items())
    return question.question + options


def make_imageless_sample(
    question: ImagelessQuestion, variant: Variant, data_set: str, prompts: MirageEffectPrompts
) -> Sample:
    system, text = build_prompt(question.question, variant, data_set=data_set, prompts=prompts)
    return Sample(
        id=imageless_id(question.id, variant),
        question=text,
        system=system,
        metadata={
            "picture": "none",
            "kind": "imageless",
            "category": question.category,
            "variant": variant,
        },
    )


def imageless_id(question_id: str, variant: Variant) -> str:
    """Return the id of a question in one of the ways of asking."""
    return question_id if variant == "plain" else f"{question_id}--{variant}"


def select_varied(
    questions: Sequence[ImagelessQuestion], count: int | None = None
) -> list[ImagelessQuestion]:
    """Return the questions that are asked in every variant: the first so many, or by default two of each category."""
    if count is not None:
        return list(questions[:count])
    by_category: dict[str, list[ImagelessQuestion]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    return [question for members in by_category.values() for question in members[:VARIED_PER_CATEGORY]]


def diagnosis_prompts(modality: str, prompts: MirageEffectPrompts | None = None) -> dict[str, str]:
    """Return the requests for a diagnosis of one modality, in several wordings, by id (`diagnosis-ecg-1`)."""
    prompts = prompts or default_prompts(MirageEffectPrompts)
    words = list(dict(prompts.modalities).values())[MODALITIES.index(modality)]
    slug = re.sub(r"\W+", "-", modality.lower())
    return {
        f"diagnosis-{slug}-{number}": fill(text, {"modality": words})
        for number, text in enumerate(prompts.diagnoses, 1)
    }


def check_ids(truth: MirageEffectTruth, source: str) -> None:
    """Raise InputError for a sample id that is used twice, is too long, or ends as that of a seed."""
    used: set[str] = set()
    for sample_id in _sample_ids(truth):
        if not SAFE_ID.fullmatch(sample_id) or _SEED.fullmatch(sample_id) or sample_id in used:
            reason = (
                "is used by another question" if sample_id in used else "is too long or ends with --seed-N"
            )
            raise InputError(f"{source}: the sample id {sample_id!r} {reason}; rename the question")
        used.add(sample_id)


def _sample_ids(truth: MirageEffectTruth) -> Iterator[str]:
    """Yield every possible id, also of questions that are not asked in every variant."""
    for question in truth.choices:
        yield from (question.id + suffix for suffix in WAYS.values())
    for imageless in truth.imageless:
        yield from (imageless_id(imageless.id, variant) for variant in VARIANTS)
    for modality in MODALITIES:
        yield from diagnosis_prompts(modality)


def group_by_question(truth: MirageEffectTruth, responses: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the answers to each question: the plain one, then those with seeds (`ID--seed-3`) in order.

    Raises InputError for a response that answers no question of the data, or one that is answered already.

    Example:
        >>> question = ChoiceQuestion(id="1", question="What is it?", answer="a cat")
        >>> group_by_question(MirageEffectTruth([], [question]), {"1--seed-10": "dog", "1--seed-9": "cat"})
        {'1': ['cat', 'dog']}
    """
    known = set(_sample_ids(truth))
    answers: dict[str, dict[int, str]] = {}
    for name, text in responses.items():
        response_id = name.partition("/")[0]
        seeded = _SEED.fullmatch(response_id)
        sample_id, seed = (seeded[1], int(seeded[2])) if seeded else (response_id, -1)
        if sample_id not in known:
            raise InputError(f"mirage-effect: response {response_id!r} answers no question of the data")
        by_seed = answers.setdefault(sample_id, {})
        if seed in by_seed:
            raise InputError(
                f"mirage-effect: {response_id!r} was answered before; each answer needs its own id"
            )
        by_seed[seed] = said(text)
    return {sample_id: [by_seed[seed] for seed in sorted(by_seed)] for sample_id, by_seed in answers.items()}
