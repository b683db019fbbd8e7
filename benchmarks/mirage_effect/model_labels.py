"""Label answers to questions without their image by a judge: do they notice, and do they describe?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mmprobe.benchmarks.judges import Judge, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.parsing import StrictReply, read_reply
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels, JudgedAnswer
from mmprobe.benchmarks.mirage_effect.prompts import LABELS


class _Labels(StrictReply):
    notices: bool
    describes: bool


def label_by_judge(answers: Mapping[str, tuple[str, str]], judge: Judge) -> dict[str, JudgedAnswer]:
    """Return both labels of each answer. An empty answer has none and needs no request.

    Args:
        answers: question and response, by id.
        judge: the judge.

    Example:
        >>> label_by_judge({"1": ("Who is this?", "A man in red.")}, judge)["1"].labels    # doctest: +SKIP
        ImagelessLabels(notices=False, describes=True)
    """
    requests = {
        name: JudgeRequest(LABELS, {"question": question, "response": response}, read_labels)
        for name, (question, response) in answers.items()
        if response.strip()
    }
    judged = {name: JudgedAnswer(None) for name in answers}
    for name, judgement in asyncio.run(ask_by_name(judge, requests)).items():
        labels = None if judgement.items is None else ImagelessLabels(*judgement.items)
        judged[name] = JudgedAnswer(labels, judgement.unscored)
    return judged


def read_labels(reply: str) -> tuple[bool, bool]:
    """Return whether an answer notices and whether it describes, from a reply to `LABELS`.

    Raises:
        UnusableReply: the form is wrong.

    Example:
        >>> read_labels('{"notices": true, "describes": false}')
        (True, False)
    """
    labels = read_reply(reply, _Labels)
    return labels.notices, labels.describes
