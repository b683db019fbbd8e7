"""Ask a judge whether a response ends in the true answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmprobe.benchmarks.judges.parsing import reader
from mmprobe.benchmarks.judges.prompts import with_notice
from mmprobe.benchmarks.judges.types import JudgeRequest

CORRECT = with_notice("""\
You check whether a response ends in the true answer of a question about a picture. You do not see the picture; the true
answer is right.

<NOTICE>
{"correct": true}

- true where the answer that the response ends in says the same as the true one: other words for it, equal numbers,
  units that can be converted and details beside it do not matter. How it was reached does not matter either.
- Where there are "options", the true answer is the letter of one; the letter or the text of this option says the same.
  Where there is a "tolerance", a number with a smaller relative error says the same.
- false where it says something else, or two things that conflict.
- null where the response ends in no answer at all.

Examples, by true answer and response: "0.5 m" and "... so it is 50 cm long.": true. "0.5 m" and "The rod measures 5 m.":
false. "a pentagon" and "It has five corners and five sides, a pentagon.": true. "7" and "Let us count them one by one:":
null.
""")

read_correct = reader(correct=bool | None)  # null: the response states no answer


def correct_request(
    question: str,
    response: str,
    true: str,
    options: Mapping[str, str] | None = None,
    tolerance: float | None = None,
) -> JudgeRequest[bool | None]:
    """Return the request whose only label says whether a response is right; None if it states no answer.

    With options, `true` is the mark of one. `tolerance` is the largest relative error of a number that counts
    as right.
    """
    data: dict[str, Any] = {"question": question}
    data |= ({"options": dict(options)} if options else {}) | {"response": response, "true": true}
    return JudgeRequest(CORRECT, data | ({} if tolerance is None else {"tolerance": tolerance}), read_correct)
