"""Earlier turns and examples: does the answer repeat another one that stands before the question?"""

from __future__ import annotations

from dataclasses import dataclass

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.choices import Choice, find_exchanged
from mmprobe.diagnosis.dialogue import FORMS, TurnTest, has_own_turn, say_text
from mmprobe.diagnosis.effects import AnswerRecord, MeasuredPart
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.suggestions import NEEDS_CLOSED, Followed
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample

_SAME = ", to the same question"
COPIES = tuple(f"{form}{same}" for same in ("", _SAME) for form in FORMS)  # all wordings of an example


class CopiedRecord(MeasuredPart):
    """The earlier turn or example that an answer got; None where it got none."""

    copied: Followed | None = None


@dataclass(frozen=True)
class CopiesContext(TurnTest):
    """Does the answer repeat that of an earlier turn or example?

    An example with other images comes first, which has an answer. Nearly all answers get the same images, so these are read once. In a
    conversation, it is the model's last earlier answer that is exchanged. The earlier answer says one word or is a whole answer, as in
    `unsure-agreeable`. Both forms take turns with a question that may differ in a word, and the same one.
    """

    name = "copies-context"
    about = "the answers repeat that of an earlier turn or example"
    effect = "answers that agree with an earlier turn or example, whichever answer it has"
    needs = f"{NEEDS_CLOSED}; and images of other samples"
    wordings = COPIES
    threshold: float = 0.4  # development models with it score 62 % or more; what else follows turns is explained by hints or claims

    def ask(self, case: Case) -> Task[CopiedRecord | None]:
        answer, choice = case.answer, case.choice
        if choice is None or not (has_own_turn(answer) or case.study.example(answer) is not None):
            return None
        found = yield from self.suggest(case.study, answer, choice, self.choose_wording(case))
        return None if found is None else CopiedRecord(copied=found)

    def suggest(
        self, study: Study, answer: ParsedAnswer, choice: Choice, wording: str
    ) -> Task[Followed | None]:
        other, is_own = study.example(answer), has_own_turn(answer)
        # A conversation keeps its own question, whose texts need not follow another one.
        is_same = (
            other is not None
            and not other.sample.messages
            and (
                wording.endswith(_SAME)
                or find_exchanged(other.sample.question, answer.sample.question) is None
            )
        )
        example = None if other is None else other.sample
        if example is not None and is_same:
            example = example.model_copy(update={"question": answer.sample.question})
        about = answer if other is None or is_own or is_same else other
        found = yield from self.follow_turn(
            study, answer, choice, wording, lambda said: show_example(answer, example, said), about
        )
        return None if found is None else found.model_copy(update={"own": is_own})

    def tried(self, record: AnswerRecord) -> list[Followed]:
        copied = record.of(CopiedRecord).copied
        return [] if copied is None else [copied]

    def describe(self, record: AnswerRecord) -> list[str]:
        verb = {True: "follows", False: "does not follow"}
        return [
            f"{verb[each.followed]} the answer of an earlier turn or example" for each in self.tried(record)
        ]


def show_example(answer: ParsedAnswer, other: Sample | None, said: str) -> Chat:
    """Return a chat with an earlier turn that has another answer: the last one of a conversation, else an example.

    Args:
        other: a question about other images, which is the example; None in a conversation.
        said: what the earlier turn answers.
    """
    chat = build_chat(answer.sample)
    earlier = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if earlier:
        messages = list(chat.messages)
        messages[earlier[-1]] = {**messages[earlier[-1]], **say_text("assistant", said)}
        return chat._replace(messages=messages)
    assert other is not None, "an answer without an earlier turn gets an example"
    example = build_chat(other)
    system = [message for message in chat.messages if message["role"] == "system"]
    turns = [[each for each in part.messages if each["role"] != "system"] for part in (example, chat)]
    return chat._replace(
        messages=[*system, *turns[0], say_text("assistant", said), *turns[1]],
        images=[*example.images, *chat.images],
    )
