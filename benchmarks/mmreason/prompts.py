"""The prompts for judges of MMReason, in our words and with our examples."""

from __future__ import annotations

from mmprobe.benchmarks.judges.requests import with_notice

ANSWER = with_notice("""\
You read off the final answer of a response to a question. You do not see the question's pictures; whether the answer is
right is not your concern.

<NOTICE>
{"answer": "15 cm"}

- "answer": the shortest words of the response that give its final answer, with their unit, copied letter by letter.
- null where the response states none: it refuses, breaks off, or leaves it open between several.

Examples, each a response and your reply:
"The legs are 9 and 12, so the ladder is 15 cm long." {"answer": "15 cm"}
"First I thought of 4 amperes, but both lamps are in series. It is 2 A." {"answer": "2 A"}
"The graph is too blurred; I cannot tell." {"answer": null}
""")

# The rules are those of the authors' judge in VLMEvalKit, in our words.
EQUIVALENT = with_notice("""\
You compare the answer that somebody gave to a question with the true one. You do not see the question's pictures and
do not solve it: the true answer is right.

<NOTICE>
{"equivalent": true}

- true where both mean the same: another notation, wording or order of what has no order, a unit written out or in other
  units of the same size, rounding to the digits asked for, or a trivial step of arithmetic or algebra. A unit or a sign
  of money that only one of them has makes no difference.
- false where they differ in a value, a sign, a variable, an order that matters, a unit's size or the thing named, where
  it takes a real calculation to see that they are equal, where the given one says less than was asked, or adds
  something false.

Examples, each the true answer, the given one, and your reply:
"1/4", "25 %": {"equivalent": true}
"90", "90 degrees": {"equivalent": true}
"a^2 - 1", "(a - 1)(a + 1)": {"equivalent": true}
"sodium chloride", "NaCl": {"equivalent": true}
"5 km", "5 m": {"equivalent": false}
"a + 1", "b + 1": {"equivalent": false}
"2, 1, 3", "1, 2, 3": {"equivalent": false}
"437", "8303/19": {"equivalent": false}
"June and July", "in July": {"equivalent": false}
""")

STEPS = with_notice("""\
You grade the steps of somebody's reasoning as a teacher does who has the true solution at hand. You do not see the
question's pictures. The true solution is right, but may not be the only way.

<NOTICE>
{"labels": [{"step": 1, "label": "correct"}, {"step": 2, "label": "none"}]}

- One label for each numbered piece of the response, in their order, as many as there are.
- "correct": the true solution supports what the piece says, in whatever words and at whatever place.
- "incorrect": it conflicts with the true solution, or follows from nothing that is so.
- "unverifiable": the true solution does not settle it, as in another way that may be valid.
- "none": it is no step of reasoning, such as a heading, the question told again, or what a step before said already.

Example: the true solution is "Both lamps are in series. The resistance is 6 ohms. The current is 12 / 6 = 2 A."
"Let me see." none. "The lamps are in series, so resistances add up to 6 ohms." correct. "The wire is copper."
unverifiable. "The current is 12 * 6 = 72 A." incorrect.
""")

ERROR = with_notice("""\
You say why a response to a question is wrong. You do not see the question's pictures; the true answer and, where there
is one, the true solution tell what they show.

<NOTICE>
{"error": "perception"}

- "error": the first thing that went wrong and made the answer wrong; one of:
  "lack_of_knowledge": a fact, rule or formula that the question needs is not known or is false,
  "refusal": no attempt is made, or the response says that it cannot or will not answer,
  "answer_extraction": the reasoning reaches the true answer, but states another, or in a form that does not count,
  "misunderstood_question": something else is answered than was asked,
  "reasoning": what is known and seen is right, but a conclusion or a calculation from it is wrong,
  "perception": something is read from the picture that is not so, or is overlooked.

Examples: "The axis reads 40" where the solution reads 60: perception. "40 + 25 = 75": reasoning. "I cannot see a
picture": refusal. The area is told where the perimeter was asked: misunderstood_question.
""")
