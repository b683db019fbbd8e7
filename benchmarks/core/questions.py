"""The base of benchmarks whose questions have known answers: yes or no, an option, a number or words."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from mmprobe.benchmarks.answers.drawn import drawn_colour
from mmprobe.benchmarks.answers.forms import VALUES, Verdict, find_answer
from mmprobe.benchmarks.answers.numbers import parse_quantity
from mmprobe.benchmarks.answers.options import find_mark, read_choice, split_options
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.core.benchmark import WordedBenchmark
from mmprobe.benchmarks.core.prompts import Fills, Prompts, fill
from mmprobe.benchmarks.core.results import Metric, mean_metric
from mmprobe.benchmarks.judges import JudgeRequest
from mmprobe.benchmarks.judges.requests import correct_request
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

DRAWN = ("exists", "colour")  # types of drawn questions whose answers are a word
AnswerKind = Literal["yes-no", "options", "number", "words"]
YES_NO = {"yes": "yes", "no": "no"}
_log = logging.getLogger(__name__)


class KnownQuestion(NamedTuple):
    """A question with the answers that count as right.

    Attributes:
        accepted: the right answers; for a question with options, the letter of the right one.
        options: the text of each option by its letter; empty for a question without options.
    """

    sample: Sample
    accepted: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def kind(self) -> AnswerKind:
        """How an answer is read."""
        if self.options:
            return "options"
        if self.accepted and all(text.strip(" .!").casefold() in YES_NO for text in self.accepted):
            return "yes-no"
        return "number" if self.accepted and all(map(_is_number, self.accepted)) else "words"


def _is_number(text: str) -> bool:
    return parse_quantity(text) is not None and any(character.isdigit() for character in text)


def make_question(sample: Sample) -> KnownQuestion | None:
    """Return the question of a sample; None for a sample without an answer.

    `metadata.answers` lists further right answers, and `metadata.options` the options: a list of texts, or texts by
    letter. The answer to a question with options is the letter or the text of one.

    Raises:
        InputError: the options or the answers have another form, or the answer is none of the options.

    Example:
        >>> sample = Sample(id="1", question="What is it?", answer="a cat", metadata={"options": ["a dog", "a cat"]})
        >>> make_question(sample).accepted, make_question(sample).kind
        (('B',), 'options')
    """
    if sample.answer is None:
        return None
    further, given = sample.metadata.get("answers", []), sample.metadata.get("options", {})
    if not isinstance(further, list) or not all(isinstance(text, str) for text in further):
        raise InputError(f"sample {sample.id}: metadata.answers must be a list of texts")
    if isinstance(given, list):
        given = {chr(ord("A") + number): text for number, text in enumerate(given[:26])}
    if (
        not isinstance(given, Mapping)
        or len(given) == 1
        or not all(isinstance(text, str) for text in given.values())
    ):
        raise InputError(
            f"sample {sample.id}: metadata.options must be a list of two to 26 texts, or texts by letter"
        )
    accepted = tuple(dict.fromkeys([sample.answer, *further]))
    if given:
        by_text = {text.strip(" .").casefold(): letter for letter, text in given.items()}
        letters = [text if text in given else by_text.get(text.strip(" .").casefold()) for text in accepted]
        if None in letters:
            raise InputError(f"sample {sample.id}: its answer {sample.answer!r} is none of its options")
        accepted = tuple(dict.fromkeys(letter for letter in letters if letter))
    return KnownQuestion(sample, accepted, given)


def read_verdict(question: KnownQuestion, response: str) -> Verdict:
    """Return whether a response is right, by rules.

    Yes and no, an option, a number, a colour and a place are right or wrong. Other words are right if they contain an
    accepted answer, and else `other`: they count as wrong, and a judge may know them as a synonym.

    Example:
        >>> from mmprobe.samples import Sample
        >>> question = make_question(Sample(id="1", question="What is it?", answer="a cat"))
        >>> [read_verdict(question, text) for text in ("It is a cat.", "A dog.", "I cannot see it.", "")]
        ['right', 'other', 'refused', 'unread']
        >>> question = make_question(Sample(id="1", question="Is it a cat?", answer="no"))
        >>> [read_verdict(question, text) for text in ("No, a dog.", "Yes.", "Perhaps")]
        ['right', 'wrong', 'unread']
    """
    if not response.strip():
        return "unread"
    asked = question.sample.question
    if question.kind == "yes-no":
        said = read_yes_no(response, asked)
        if said is None:
            return "refused" if find_answer(response).refused else "unread"
        return "right" if said in {text.strip(" .!").casefold() for text in question.accepted} else "wrong"
    options, accepted = question.options, question.accepted
    if not options:  # they may stand in the question
        listed = split_options(asked, accepted[0]).choices
        marks = [find_mark(text, listed) for text in accepted]
        if all(marks):
            options, accepted = listed, tuple(mark for mark in marks if mark)
    if not options:
        return judge_text(response, *accepted, question=asked)
    chosen, refused = read_choice(response, options, question=split_options(asked).question)
    if chosen is not None:
        return "right" if chosen in accepted else "wrong"
    return "refused" if refused else "unread"


def read_answer(question: KnownQuestion, response: str) -> bool | None:
    """Return whether a response is right, as `read_verdict`; None if it is unread. A refusal is wrong."""
    return VALUES[read_verdict(question, response)]


def right_request(question: KnownQuestion, response: str) -> JudgeRequest[bool | None]:
    """Return the request whose only label says whether a response is right; None if it states no answer."""
    return correct_request(
        question.sample.question, response, " or ".join(question.accepted), question.options
    )


class OptionPrompts(Prompts):
    """What a question is asked in, and one with options."""

    folder = "vqa"

    question: Annotated[str, Fills("question")]
    choices: Annotated[str, Fills("question", "options")]


class QuestionBenchmark(WordedBenchmark):
    """Questions of a samples file, asked as they are, with their options below them."""

    visual: ClassVar[bool] = False
    lists: ClassVar[tuple[str, ...]] = ("questions",)
    form: ClassVar[type[Prompts]] = OptionPrompts

    def read_samples(self, path: Path) -> tuple[list[Sample], list[str]]:
        """Return the lines of a samples file or of a folder with `samples.jsonl`; of drawn ones those whose answer is a word.

        Then the ids of the other drawn ones.
        """
        file = path / "samples.jsonl" if path.is_dir() else path
        samples = load_samples(file)
        if not is_synthetic(file):
            return samples, []
        short = [_shorten(sample) for sample in samples if sample.metadata["type"] in DRAWN]
        return short, [sample.id for sample in samples if sample.metadata["type"] not in DRAWN]

    def warn_left_out(self, n_lines: int, reasons: Mapping[str, Sequence[str]]) -> list[str]:
        """Say how many lines are left out, and why; return their ids. `reasons` holds the ids by why."""
        if names := [name for each in reasons.values() for name in each]:
            why = "; ".join(
                f"{len(each)} {reason} ({', '.join(each[:3])}{' ...' if len(each) > 3 else ''})"
                for reason, each in reasons.items()
                if each
            )
            _log.warning("%s: %d of %d lines are left out: %s", self.name, len(names), n_lines, why)
        return names

    def ask(self, truth: Any) -> list[Sample]:
        """Return the samples as they are asked: the question, with its options below it.

        Example:
            >>> from mmprobe.benchmarks.vqa.benchmark import Vqa, VqaTruth
            >>> sample = Sample(id="1", question="What is it?", answer="B", metadata={"options": ["a dog", "a cat"]})
            >>> Vqa().ask(VqaTruth([make_question(sample)]))[0].question
            'What is it?\\nA. a dog\\nB. a cat'
        """
        asked = []
        for question in truth.questions:
            form = self.texts.choices if question.options else self.texts.question
            text = fill(form, {"question": question.sample.question, "options": question.options})
            asked.append(question.sample.model_copy(update={"question": text}))
        return asked


def count_left_out(questions: Sequence[KnownQuestion], left_out: Sequence[str]) -> dict[str, Metric]:
    """Return the metric `left_out`: the share of the file's lines that nothing was asked about. Empty if there are none."""
    if not left_out:
        return {}
    return {"left_out": mean_metric([0.0] * len(questions) + [1.0] * len(left_out), "neither")}


def _shorten(sample: Sample) -> Sample:
    """Return a drawn question with the word that answers it in place of its sentence."""
    text = sample.answer or ""
    short = drawn_colour(text) or text.partition(",")[0].rstrip(".")
    return sample.model_copy(update={"answer": short})
