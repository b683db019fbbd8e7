"""The prompts of MagiC, in our words: for the questions, and for the judges (arXiv:2507.07297, appendix)."""

from __future__ import annotations

from mmprobe.benchmarks.judges.requests import with_notice

QUESTION = """\
Numbered red boxes are drawn on the picture: {boxes}. There are no others.

Question: {question}

Think aloud before you answer, one observation a sentence. First say what kind of scene it is and how that helps you to \
search. Then say which boxes you look into and what you see there, and name each box by its number, such as R2; leave \
out boxes that do not matter. Say how what you see leads to the answer.{heal} End with a line that begins with \
"Answer:" and gives the answer in one sentence.

This is how it looks for another picture, with the boxes R1, R2, R3 and R4 and the question "Is the cup to the left of \
the laptop?":

The picture shows a desk in an office, so I look at what stands on its top. In R3 there is an open laptop with a dark \
screen. R1 holds a white cup with a spoon in it. R1 lies nearer to the left edge of the picture than R3 does, so the cup \
is to the left.
Answer: Yes, the cup is to the left of the laptop.

Your last line, too, begins with "Answer:" and gives the answer in one sentence."""
HEAL = " If you notice that something you wrote before is wrong, say so and put it right."

ANSWER = with_notice("""\
You check whether a response answers a question about a picture as the true answer does. You do not see the picture;
the true answer is right.

<NOTICE>
{"label": "correct"}

- Take the conclusion that the response comes to; if it comes to none, or to two that conflict, it is "incorrect".
- "correct": the conclusion says what the true answer says. Other words for the same thing, details beside it and
  small differences of wording do not matter.
- "incorrect": it says something else, or leaves out what the true answer is about.

Examples, by conclusion and true answer: "The sofa is beige." and "tan": "correct". "It is a metal chair." and "wood":
"incorrect". "Yes." and "Yes, the bus is behind the tree.": "correct". "A vehicle." and "The bus is red.": "incorrect".
""")

_HEALED_TASK = with_notice("""\
You check whether somebody who began to reason wrongly about a picture put it right. The reasoning so far holds at least
one wrong step; the corrections say what is true instead; the continuation is what was written next. You do not see the
picture; the corrections are right.

<NOTICE>
""")

# Section 4.3: some later step says what a correction says.
HEALED = (
    _HEALED_TASK
    + """\
{"label": "healed"}

- "healed": some sentence of the continuation says what a correction says, in any words, and the continuation does not
  take it back.
- "not_healed": the continuation goes on from the wrong step, leaves the matter out, is empty, or only says that
  something may be wrong without saying what is true.

Examples, with the wrong step "R2 is a dog." and the correction "R2 is a fox.": "Wait, its tail is bushy: it is a fox."
is "healed". "The dog is asleep." is "not_healed". "I am not sure about R2." is "not_healed".
"""
)

# Figure 17: the continuation also says that the step was wrong.
HEALED_EXPLICIT = (
    _HEALED_TASK
    + """\
{"label": "healed"}

- "healed": the continuation says that the wrong step was wrong, says what a correction says, in any words, and nothing
  in it rests on the wrong step any more. All three are needed.
- "not_healed": otherwise, also if it only goes on with what is true.

Examples, with the wrong step "R2 is a dog." and the correction "R2 is a fox.": "Wait, its tail is bushy: it is no dog
but a fox." is "healed". "The fox is asleep." is "not_healed". "R2 may be wrong." is "not_healed".
"""
)

STEPS = with_notice("""\
You check the steps of somebody's reasoning about a picture that has numbered boxes. You do not see the picture; what is
given as known is true.

<NOTICE>
{"labels": ["correct", "wrong", "unknown"]}

- One label for each step, in the order of the steps.
- "correct": what the step says agrees with what is known, or follows from it and from correct steps before it.
- "wrong": what the step says conflicts with what is known, or does not follow from what it is said to follow from.
- "unknown": what is known neither supports the step nor conflicts with it.

An example: it is known that "R1 shows a red bus." and that the answer is "No, the bus is red." The steps "R1 shows a
bus.", "It is blue.", "The street is wet.", "So the answer is no." are "correct", "wrong", "unknown", "correct".
""")
