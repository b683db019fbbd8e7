"""The base of benchmarks that ask for yes or no: questions about images, each with its true answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from mmprobe.benchmarks.answers.yes_no import first_word, read_yes_no
from mmprobe.benchmarks.core.benchmark import ScoringRules, WordedBenchmark, match_responses, take_images
from mmprobe.benchmarks.core.prompts import Prompts, QuestionPrompts, word_questions
from mmprobe.samples import Sample


class YesNoBenchmark(WordedBenchmark):
    """A benchmark of questions about images whose answers are yes or no."""

    max_new_tokens: ClassVar[int] = 32
    unit: ClassVar[str] = "images"
    form: ClassVar[type[Prompts]] = QuestionPrompts

    profile: ScoringRules = Field(
        default="own",
        description="how answers are read: `own` leaves what says neither yes nor no unread and counts it; `code` is the authors' "
        "rule, for a table beside published numbers",
    )

    def take(self, truth: list[Sample], n: int) -> list[Sample]:
        """Return the questions about the first n images."""
        return take_images(truth, n)

    def ask(self, truth: list[Sample]) -> list[Sample]:
        """Return the questions in a wording.

        Example:
            >>> from mmprobe.benchmarks.pope.benchmark import Pope
            >>> Pope().ask([Sample(id="1", question="Is there a dog?")])[0].question
            'Is there a dog?'
        """
        return word_questions(truth, self.texts.question)

    def read_words(
        self, truth: list[Sample], responses: Mapping[str, str], authors_rule: Callable[[str], str]
    ) -> Iterator[tuple[Sample, str | None, str | None]]:
        """Yield each question, its answer, and what it says: yes, no or unknown. Both are None without an answer."""
        answers = match_responses(truth, responses, self.name.upper())
        for sample in truth:
            answer = answers.get(sample.id)
            if answer is None:
                yield sample, None, None
            elif self.profile == "code":
                yield sample, answer, authors_rule(answer)
            else:
                yield sample, answer, read_yes_no(answer, sample.question) or first_word(answer)
