"""The mirage effect (arXiv:2603.21687): what a model says about images that nobody gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark
from mmprobe.benchmarks.core.prompts import Prompts, fill
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mirage_effect.data import (
    YES_NO,
    ChoiceQuestion,
    ImagelessQuestion,
    MirageEffectTruth,
    imageless_questions,
    load_imageless,
    load_questions,
)
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.benchmarks.mirage_effect.metrics import (
    AnswersById,
    Labels,
    Verdicts,
    collect_diagnoses,
    compute_metrics,
    first_answer,
    read_alarming,
    read_choices,
    select_answers_to_label,
)
from mmprobe.benchmarks.mirage_effect.model_labels import judge_choices, judge_diagnoses, label_by_judge
from mmprobe.benchmarks.mirage_effect.prompts import (
    MODALITIES,
    VARIANTS,
    MirageEffectPrompts,
    build_prompt,
)
from mmprobe.benchmarks.mirage_effect.rule_labels import label_by_rules, normalize_answer
from mmprobe.benchmarks.mirage_effect.samples import (
    DATA_SET,
    WAYS,
    asks_otherwise,
    build_choice_prompt,
    build_example,
    check_ids,
    choose_examples,
    diagnosis_prompts,
    group_by_question,
    imageless_id,
    make_imageless_sample,
    select_varied,
)
from mmprobe.benchmarks.mirage_effect.synthetic import draw_questions, synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.files import json_lines
from mmprobe.samples import Sample, load_short_samples


class MirageEffect(WordedBenchmark):
    """What a model says about images that nobody gave it, and how well it answers without them.

    Attributes:
        data_set: name of the data set that the questions come from. With it, each question with a known answer
            is also asked with this name in the system prompt, with and without its images (figure S3).
        examples: a file of further questions with known answers. With it, each question is also asked without
            its images after some of them as examples (figure 3b).
        shots: number of examples before a question. The paper gives none; our default is 8.
        seeds: number of seeds of each request for a diagnosis, 200 in the paper. 0 asks four wordings greedily.
        varied: number of questions about missing images that are asked in every variant (figures S1 and S2). The default is as
            many as `--limit`, or 40 without: two of each category. The paper asks all 200.
        temperature: of the diagnoses with seeds. The paper gives none; our default is 1.
        closed: whether only questions of yes or no are asked; of VQA-RAD the paper asks 430, of another split than the published one.
    """

    name: ClassVar[str] = "mirage-effect"
    headline: ClassVar[tuple[str, ...]] = (
        "mirage_rate",
        "mirage_rate_described",
        "accuracy_with",
        "accuracy_without",
        "accuracy_guess",
        "accuracy_with_named",
        "accuracy_without_named",
        "name_gain_with",
        "name_gain_without",
        "accuracy_few_shot",
        "mirage_score",
        "mirage_score_above_chance",
        "similarity",
        "similarity_by_chance",
    )
    lists: ClassVar[tuple[str, ...]] = ("imageless", "choices")
    max_new_tokens: ClassVar[int] = (
        512  # our choice: the prompts ask for a line at the end, which 128 tokens cut off
    )
    visual: ClassVar[bool] = False
    judged_fields: ClassVar[tuple[str, ...]] = ("answers.*.notices", "answers.*.describes")
    form: ClassVar[type[Prompts]] = MirageEffectPrompts

    data_set: str | None = Field(default=None, min_length=1)
    examples: Path | None = None
    shots: int = Field(default=8, ge=1)
    seeds: int = Field(default=0, ge=0)
    varied: int | None = Field(default=None, ge=0)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    closed: bool = False

    @model_validator(mode="after")
    def _check_use(self) -> MirageEffect:
        for name, needed in (("shots", "examples"), ("temperature", "seeds")):
            if name in self.model_fields_set and not getattr(self, needed):
                raise ValueError(f"{name!r} has no effect without {needed!r}")
        return self

    @property
    def filters(self) -> bool:
        """Whether questions of other answers than yes or no are left out."""
        return self.closed

    def read(self, path: Path) -> MirageEffectTruth:
        """Read questions with options, and those of `imageless.jsonl` beside them; without this file, our 200.

        `path` is a file of questions, `samples.jsonl` of `make-pairs`, or a folder with one. Raises InputError, with line and
        field, for an invalid line, an id that is used twice, or data without questions of yes or no if only these are asked.
        """
        file = path / "samples.jsonl" if path.is_dir() else path
        if _is_imageless(file):
            truth = MirageEffectTruth(
                load_imageless(file), [], _read_choices(self.examples) if self.examples else ()
            )
            check_ids(truth, str(file))
            return truth
        imageless_file = file.with_name("imageless.jsonl")
        imageless = load_imageless(imageless_file) if imageless_file.exists() else list(imageless_questions())
        choices = _read_choices(file)
        if self.closed:
            choices = [question for question in choices if question.choices == YES_NO]
            if not choices:
                raise InputError(
                    f"{path}: contains no question whose answer is yes or no; leave out --closed"
                )
        truth = MirageEffectTruth(imageless, choices, _read_choices(self.examples) if self.examples else ())
        check_ids(truth, str(file))
        return truth

    def draw(self, folder: Path, n: int, seed: int) -> Path:
        """Draw questions about the synthetic world, and a few of ours without images."""
        return draw_questions(folder, n, seed)

    def take(self, truth: MirageEffectTruth, n: int) -> MirageEffectTruth:
        """Return the first n questions of each kind. All of those without images are asked in every variant."""
        return super().take(truth, n)._replace(varied=n)

    def ask(self, truth: MirageEffectTruth) -> list[Sample]:
        """Return the questions with known answers in every way of asking; then the questions without images.

        Example:
            >>> question = ChoiceQuestion(id="1", images=["a.png"], question="What is it?", answer="a cat")
            >>> [sample.id for sample in MirageEffect().ask(MirageEffectTruth([], [question]))][:3]
            ['1', '1--absent', '1--guess']
        """
        for question in truth.choices:
            if not question.images:
                raise InputError(f"question {question.id!r}: has no 'images', so none can be taken away")
        prompts: MirageEffectPrompts = self.texts
        samples = [
            sample for question in truth.choices for sample in self._make_choice_samples(question, truth)
        ]
        varied = select_varied(truth.imageless, self.varied or truth.varied)
        for imageless in truth.imageless:
            variants = VARIANTS if imageless in varied else VARIANTS[:1]
            samples += [
                make_imageless_sample(imageless, variant, self.data_set or DATA_SET, prompts)
                for variant in variants
            ]
        return samples + [sample for modality in MODALITIES for sample in self._make_diagnoses(modality)]

    def _make_diagnoses(self, modality: str) -> list[Sample]:
        """Return the requests for a diagnosis: in several wordings, or in the paper's with several seeds."""
        metadata: dict[str, Any] = {"picture": "none", "kind": "diagnosis", "modality": modality}
        prompts = diagnosis_prompts(modality, self.texts)
        if not self.seeds:
            return [Sample(id=name, question=text, metadata=metadata) for name, text in prompts.items()]
        name, text = next(iter(prompts.items()))
        return [
            Sample(
                id=f"{name}--seed-{seed}",
                question=text,
                metadata=metadata | {"sampling": {"temperature": self.temperature, "seed": seed}},
            )
            for seed in range(self.seeds)
        ]

    def _make_choice_samples(self, question: ChoiceQuestion, truth: MirageEffectTruth) -> list[Sample]:
        """Return a question in every way of asking. `with_picture` of `absent` names the sample with images."""
        wording: MirageEffectPrompts = self.texts
        data_set = self.data_set or question.metadata.get("data_set")
        if question.prompt == question.question and asks_otherwise(wording, data_set):
            question = question.model_copy(update={"prompt": None, "system": None})  # drawn
        text = build_choice_prompt(question, wording, data_set)
        system = question.system or (None if question.prompt else wording.find_system(data_set))
        guess = build_prompt(text, "guess", system, prompts=wording).system
        prompts = {"present": (text, system), "absent": (text, system), "guess": (text, guess)}
        if self.data_set:
            named = build_prompt(text, "benchmark", system, self.data_set, wording).system
            prompts |= {"named": (text, named), "absent_named": (text, named)}
        if truth.examples:
            examples = choose_examples(question, truth.examples, self.shots)
            shown = "\n\n".join(build_example(example) for example in examples)
            prompts["few_shot"] = (fill(wording.few_shot, {"examples": shown, "question": text}), system)
        samples = []
        for way, (prompt, system_prompt) in prompts.items():
            metadata = {"kind": "choice", "category": question.category, "picture": way}
            samples.append(
                Sample(
                    id=question.id + WAYS[way],
                    images=question.images if way in ("present", "named") else [],
                    question=prompt,
                    system=system_prompt,
                    answer=question.choices.get(question.answer, question.answer),
                    pair_id=question.id,
                    metadata=metadata | ({"with_picture": question.id} if way == "absent" else {}),
                )
            )
        return samples

    def score(
        self, truth: MirageEffectTruth, responses: Mapping[str, str], judge: Judge | None = None
    ) -> Scored:
        """Return metrics and records with labels by rules, or by a judge with the share of answers that it left unscored.

        Responses are by sample id: `ID` with images, `ID--absent` without them and so on (`WAYS`); `ID--VARIANT`
        for the ways of asking about missing images. `--seed-N` after an id names one of several answers to the
        same question. A judge also decides the answers to questions with a known answer that rules cannot read, and those to
        open questions that rules do not find right, and says which diagnoses beside our lists are alarming.
        """
        answers = group_by_question(truth, responses)
        selected = select_answers_to_label(truth, answers)
        if judge is None:
            by_rules = {name: label_by_rules(text) for name, (_, text) in selected.items()}
            return _score(truth, answers, by_rules, read_choices(truth, answers), read_alarming(answers))
        judged = label_by_judge(selected, judge, self.texts)
        labels = {name: ImagelessLabels(*each.items) if each.items else None for name, each in judged.items()}
        verdicts = read_choices(truth, answers)
        questions = {question.id + suffix: question for question in truth.choices for suffix in WAYS.values()}
        undecided = {
            name: (questions[name], text)
            for name, right in verdicts.items()
            if (text := first_answer(answers, name) or "").strip()
            and (right is None or (right is False and not questions[name].choices and not is_refusal(text)))
        }
        for name, judgement in judge_choices(undecided, judge, self.texts).items():
            verdicts[name] = None if judgement.items is None else judgement.items == (True,)
        alarming = read_alarming(answers)
        alarming |= judge_diagnoses(
            [text for text, known in alarming.items() if known is None], judge, self.texts
        )
        metrics, records = _score(truth, answers, labels, verdicts, alarming)
        metrics["unscored"] = mean_metric([each.unscored is not None for each in judged.values()], "lower")
        for record in records:
            for answer in record["answers"].values() if record["kind"] != "diagnosis" else ():
                if answer["id"] in selected:
                    asked = judged.get(answer["id"])
                    answer["unscored"] = None if asked is None else asked.unscored
        return metrics, records

    def label(self, truth: MirageEffectTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer is faithful.

        With its image it is if it is right, without its image if it notices that and describes nothing. Left out
        are answers without an image that do neither, and guesses.
        """
        faithful: dict[str, bool] = {}
        for record in records:
            if record["kind"] == "diagnosis":
                continue
            for kind, answer in record["answers"].items():
                if kind in ("present", "named"):
                    if answer["correct"] is not None:
                        faithful[answer["id"]] = answer["correct"]
                elif (
                    kind != "guess"
                    and answer["describes"] is not None
                    and (answer["notices"] or answer["describes"])
                ):
                    faithful[answer["id"]] = answer["notices"] and not answer["describes"]
        return faithful


def _is_imageless(file: Path) -> bool:
    """Return whether a file contains questions about missing images alone: their lines have a category and no answer."""
    first = next((row for _, row in json_lines(file)), None) if file.is_file() else None
    return isinstance(first, dict) and {"id", "category", "question"} == first.keys()


def _read_choices(file: Path) -> list[ChoiceQuestion]:
    return (
        synthetic_questions(load_short_samples(file, "mirage-effect"))
        if is_synthetic(file)
        else load_questions(file)
    )


def _score(
    truth: MirageEffectTruth,
    answers: AnswersById,
    labels: Labels,
    verdicts: Verdicts,
    alarming: Mapping[str, bool | None],
) -> Scored:
    """Return metrics, and a record of each question and of the diagnoses of each modality."""
    records = [_make_imageless_record(question, answers, labels) for question in truth.imageless]
    records += [make_record(question, answers, labels, verdicts) for question in truth.choices]
    records += [_make_diagnosis_record(modality, answers, alarming) for modality in MODALITIES]
    return compute_metrics(truth, answers, labels, verdicts, alarming), records


def make_record(
    question: ChoiceQuestion, answers: AnswersById, labels: Labels, verdicts: Verdicts
) -> dict[str, Any]:
    """Return the record of a question with a known answer for `samples.jsonl`."""
    answer_records = {}
    for kind, suffix in WAYS.items():
        name = question.id + suffix
        text = first_answer(answers, name)
        if text is not None:
            answer_records[kind] = _make_answer_record(name, answers, labels) | {
                "said": normalize_answer(question, text),
                "correct": verdicts.get(name),
            }
    return {
        "id": question.id,
        "kind": "choice",
        "category": question.category,
        "question": question.question,
        "options": len(question.choices) or None,
        "true_answer": question.choices.get(question.answer, question.answer),
        "answers": answer_records,
    }


def _make_imageless_record(
    question: ImagelessQuestion, answers: AnswersById, labels: Labels
) -> dict[str, Any]:
    """Return the record of a question about a missing image for `samples.jsonl`."""
    ids = {variant: imageless_id(question.id, variant) for variant in VARIANTS}
    return {
        "id": question.id,
        "kind": "imageless",
        "category": question.category,
        "question": question.question,
        "answers": {
            variant: _make_answer_record(name, answers, labels)
            for variant, name in ids.items()
            if answers.get(name)
        },
    }


def _make_diagnosis_record(
    modality: str, answers: AnswersById, alarming: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Return the record of the diagnoses of one modality for `samples.jsonl`."""
    texts, diagnoses, shares = collect_diagnoses(modality, answers)
    return {
        "id": next(iter(diagnosis_prompts(modality))).rpartition("-")[0],
        "kind": "diagnosis",
        "modality": modality,
        "answers": [
            {
                "id": name,
                "response": text,
                "diagnosis": diagnosis,
                "alarming": alarming.get(diagnosis) if diagnosis else None,
            }
            for (name, text), diagnosis in zip(texts, diagnoses, strict=True)
        ],
        "shares": {kind: share.value for kind, share in shares.items()},
    }


def _make_answer_record(name: str, answers: AnswersById, labels: Labels) -> dict[str, Any]:
    answer_labels = labels.get(name)
    return {
        "id": name,
        "response": first_answer(answers, name),
        "notices": None if answer_labels is None else answer_labels.notices,
        "describes": None if answer_labels is None else answer_labels.describes,
    }
