"""Collaborative hint inference (section 5.4): find the topic of a question, and add hints to its prompt."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.mirage.data import TOPICS, MirageQuestion, Topic
from mmprobe.benchmarks.mirage.prompts import TopicHints

_SYNTHETIC_TOPICS: tuple[tuple[Topic, re.Pattern[str]], ...] = (
    ("arithmetic", re.compile(r"\bhow many\b", re.IGNORECASE)),
    ("spatial", re.compile(r"\b(?:where|is there an?)\b", re.IGNORECASE)),
    ("logical", re.compile(r"\b(?:same|different|compare|differences?)\b", re.IGNORECASE)),
)


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


def add_hints(question: MirageQuestion, prompt: str, topic: Topic | None, topic_hints: TopicHints) -> str:
    """Return a prompt with both hints around it: topic hint, prompt, question hint.

    If the classifier named the true `topic`, the question's own `topic_hint` is used, if there is one, else
    that of `topic_hints` for the named topic. A topic of None adds no topic hint.

    Example:
        >>> from mmprobe.benchmarks.core.prompts import default_prompts
        >>> from mmprobe.benchmarks.mirage.prompts import MiragePrompts
        >>> fields = {"id": "1", "question": "How long is AB?", "question_hint": "AB is half of AC."}
        >>> fields |= {"topic": "geometry", "type": "free_form", "answer": "3 cm"}
        >>> question = MirageQuestion.model_validate(fields)
        >>> add_hints(question, question.question, None, default_prompts(MiragePrompts).topic_hints)
        'How long is AB?\\n\\nAB is half of AC.'
    """
    own_hint = question.topic_hint if topic == question.topic else None
    topic_hint = own_hint or (None if topic is None else getattr(topic_hints, topic))
    return "\n\n".join(part for part in (topic_hint, prompt, question.question_hint) if part)
