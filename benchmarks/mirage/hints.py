"""Collaborative hint inference: which topic a question has, and what helps with it (paper 000, section 5.4)."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.final_answers import final_answer
from mmprobe.benchmarks.mirage.data import TOPICS, MirageQuestion, Topic

# In our words; the paper's are longer.
TOPIC_HINTS: dict[Topic, str] = {
    "algebra": "Give each unknown a name, turn the words into equations, and solve them one change at a time.",
    "arithmetic": "Read off every number or count it, write down the calculation, then carry it out and check it.",
    "geometry": "Note the lengths and angles that are given; trust labels, not looks. Say which theorem you use.",
    "logical": "Compare part by part. Say what changes and by which rule, then apply the rule to what is asked.",
    "scientific": "Say which quantities are known and which law joins them; keep the units, and check the size.",
    "spatial": "Say where each thing is, from one point of view, and then how the things lie to each other.",
    "statistical": "Read the axes, units and legend first, then the values that are asked for; calculate with these.",
}
_CLASSIFY = """\
To which topic does the question between the lines belong? Do not answer it.
{topics}
Reply with the topic's word alone.
Examples: "A train takes 3 h for 210 km. How fast is it?" is arithmetic. "Which bar is the second highest?" is \
statistical. "Is the lamp behind the chair?" is spatial. "Which figure comes next in the row?" is logical.
---
{question}
---"""
_ABOUT: dict[Topic, str] = {
    "algebra": "equations, unknowns, functions",
    "arithmetic": "counting and calculating with numbers that are given",
    "geometry": "lengths, angles, areas of figures",
    "logical": "rules, patterns, comparisons",
    "scientific": "laws of physics, chemistry or biology",
    "spatial": "where things are and how they lie to each other",
    "statistical": "charts, tables, probabilities",
}
_WORLD: tuple[tuple[Topic, re.Pattern[str]], ...] = (
    ("arithmetic", re.compile(r"\bhow many\b", re.IGNORECASE)),
    ("spatial", re.compile(r"\b(?:where|is there an?)\b", re.IGNORECASE)),
    ("logical", re.compile(r"\b(?:same|different|compare|differences?)\b", re.IGNORECASE)),
)


def topic_question(question: str) -> str:
    """What a model is asked to classify a question.

    Example:
        >>> topic_question("How long is AB?").splitlines()[-2]
        'How long is AB?'
    """
    topics = "\n".join(f"- {topic}: {_ABOUT[topic]}" for topic in TOPICS)
    return _CLASSIFY.format(topics=topics, question=question)


def topic_of(response: str) -> Topic | None:
    """The one topic that a response names, in its final answer if it has one; None if none or several.

    Example:
        >>> topic_of("**Geometry.**"), topic_of("Algebra or geometry")
        ('geometry', None)
    """
    told = final_answer(response)
    words = set(re.findall(r"[a-z]+", (response if told is None else told).lower()))
    named = [topic for topic in TOPICS if topic in words]
    return named[0] if len(named) == 1 else None


def topic_by_rules(question: str) -> Topic | None:
    """The topic of a question of the synthetic world, by its words.

    Example:
        >>> topic_by_rules("How many differences are there?"), topic_by_rules("Describe the picture.")
        ('arithmetic', None)
    """
    return next((topic for topic, words in _WORLD if words.search(question)), None)


def has_hints(question: MirageQuestion) -> bool:
    """Whether a question is asked again with hints.

    Example:
        >>> fields = {"question": "How long?", "topic": "geometry", "type": "free_form", "answer": "3 cm"}
        >>> has_hints(MirageQuestion(id="1", question_hint="Mind the scale.", **fields))
        True
    """
    return question.topic_hint is not None or question.question_hint is not None


def with_hints(question: MirageQuestion, text: str, topic: Topic | None) -> str:
    """The prompt with both hints: the topic's, the question as it is asked, the question's own.

    Args:
        text: the question as it is asked without hints.
        topic: what the classifier said. Where that is the question's topic, its own `topic_hint` stands, where it has
            one; else ours of the topic said. None gives no topic hint.

    Example:
        >>> fields = {"question": "How long is AB?", "topic": "geometry", "type": "free_form", "answer": "3 cm"}
        >>> question = MirageQuestion(id="1", question_hint="AB is half of AC.", **fields)
        >>> with_hints(question, question.question, None)
        'How long is AB?\\n\\nAB is half of AC.'
    """
    own = question.topic_hint if topic == question.topic else None
    hint = own or (None if topic is None else TOPIC_HINTS[topic])
    return hinted(text, hint, question.question_hint)


def hinted(question: str, topic_hint: str | None, question_hint: str | None) -> str:
    """The prompt of collaborative hint inference: topic hint, question, question hint (section 5.4).

    Example:
        >>> hinted("How long is AB?", "Note what is given.", None)
        'Note what is given.\\n\\nHow long is AB?'
    """
    return "\n\n".join(part for part in (topic_hint, question, question_hint) if part)
