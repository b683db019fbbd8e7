"""Collaborative hint inference (section 5.4): find the topic of a question, and add hints to its prompt."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.mirage.data import TOPICS, MirageQuestion, Topic

# In our words; the hints of the paper are longer.
TOPIC_HINTS: dict[Topic, str] = {
    "algebra": "Give each unknown a name, turn the words into equations, and solve them one change at a time.",
    "arithmetic": "Read off every number or count it, write down the calculation, then carry it out and check it.",
    "geometry": "Note the lengths and angles that are given; trust labels, not looks. Say which theorem you use.",
    "logical": "Compare part by part. Say what changes and by which rule, then apply the rule to what is asked.",
    "scientific": "Say which quantities are known and which law joins them; keep the units, and check the size.",
    "spatial": "Say where each thing is, from one point of view, and then how the things lie to each other.",
    "statistical": "Read the axes, units and legend first, then the values that are asked for; calculate with these.",
}
_CLASSIFY_PROMPT = """\
To which topic does the question between the lines belong? Do not answer it.
{topics}
Reply with the topic's word alone.
Examples: "A train takes 3 h for 210 km. How fast is it?" is arithmetic. "Which bar is the second highest?" is \
statistical. "Is the lamp behind the chair?" is spatial. "Which figure comes next in the row?" is logical.
---
{question}
---"""
TOPIC_DESCRIPTIONS: dict[Topic, str] = {
    "algebra": "equations, unknowns, functions",
    "arithmetic": "counting and calculating with numbers that are given",
    "geometry": "lengths, angles, areas of figures",
    "logical": "rules, patterns, comparisons",
    "scientific": "laws of physics, chemistry or biology",
    "spatial": "where things are and how they lie to each other",
    "statistical": "charts, tables, probabilities",
}
_SYNTHETIC_TOPICS: tuple[tuple[Topic, re.Pattern[str]], ...] = (
    ("arithmetic", re.compile(r"\bhow many\b", re.IGNORECASE)),
    ("spatial", re.compile(r"\b(?:where|is there an?)\b", re.IGNORECASE)),
    ("logical", re.compile(r"\b(?:same|different|compare|differences?)\b", re.IGNORECASE)),
)


def build_topic_prompt(question: str) -> str:
    """Return the prompt that asks a model for the topic of a question."""
    topics = "\n".join(f"- {topic}: {TOPIC_DESCRIPTIONS[topic]}" for topic in TOPICS)
    return _CLASSIFY_PROMPT.format(topics=topics, question=question)


def parse_topic(response: str) -> Topic | None:
    """Return the topic that a response declares, alone; None if it is unread.

    Example:
        >>> parse_topic("**Geometry.**"), parse_topic("Algebra or geometry")
        ('geometry', None)
    """
    answer = (find_answer(response).text or "").casefold()
    return next((topic for topic in TOPICS if answer == topic), None)


def find_topic_by_rules(question: str) -> Topic | None:
    """Return the topic of a question of the synthetic world, from its words.

    Example:
        >>> find_topic_by_rules("How many differences are there?")
        'arithmetic'
    """
    return next((topic for topic, words in _SYNTHETIC_TOPICS if words.search(question)), None)


def has_hints(question: MirageQuestion) -> bool:
    """Return whether a question is asked a second time with hints."""
    return question.topic_hint is not None or question.question_hint is not None


def add_hints(question: MirageQuestion, prompt: str, topic: Topic | None) -> str:
    """Return a prompt with both hints around it: topic hint, prompt, question hint.

    If the classifier named the true `topic`, the question's own `topic_hint` is used, if there is one, else
    mmprobe's for the named topic. A topic of None adds no topic hint.

    Example:
        >>> fields = {"id": "1", "question": "How long is AB?", "question_hint": "AB is half of AC."}
        >>> fields |= {"topic": "geometry", "type": "free_form", "answer": "3 cm"}
        >>> question = MirageQuestion.model_validate(fields)
        >>> add_hints(question, question.question, None)
        'How long is AB?\\n\\nAB is half of AC.'
    """
    own_hint = question.topic_hint if topic == question.topic else None
    topic_hint = own_hint or (None if topic is None else TOPIC_HINTS[topic])
    return "\n\n".join(part for part in (topic_hint, prompt, question.question_hint) if part)
