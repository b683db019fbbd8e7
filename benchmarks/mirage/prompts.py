"""The prompts for judges of MIRAGE, in our words (arXiv:2505.24238, figures 8 to 11)."""

from __future__ import annotations

from mmprobe.benchmarks.judges.requests import with_notice

EXTRACT = with_notice("""\
You list the reasoning of a response to a question about a picture. You do not see the picture; whether the reasoning is
right is not your concern.

<NOTICE>
{"marked": "<step>Count the rows.</step> <claim>There are 4 rows.</claim>"}

- In the text "marked", a step says what is done to come to the answer, in one short sentence: what is looked at, which
  rule is used, what is calculated. Wrap each in <step> and </step>.
- A claim is a result on the way: a number, a value read off, a relation, the answer itself, with what it is about. Wrap
  each in <claim> and </claim>.
- Keep their order. No tag stands within another. Add nothing that the response does not say, and mend no mistake.
- 1 to 10 steps and 1 to 10 claims: of more, the most important ones. If the response only states its answer, "The answer
  is ..." is both a step and a claim.

Examples, by response:
"The triangle has angles of 50 and 60 degrees, and the three add up to 180, so the third is 80.":
{"marked": "<claim>Two angles are 50 and 60 degrees.</claim> <step>Use that the angles of a triangle add up to 180 \
degrees.</step> <claim>The third angle is 80 degrees.</claim>"}
"Blue.": {"marked": "<step>The answer is blue.</step> <claim>The answer is blue.</claim>"}
""")

MATCH = with_notice("""\
You compare two lists of pieces of reasoning about the same question about a picture: "predicted", which somebody made,
and "true", which is right and complete. You do not see the picture.

<NOTICE>
{"predicted": ["MATCH", "CONFLICT", "REASONABLE"], "true": ["MATCH", "CONFLICT"]}

- Exactly one label for each predicted piece and one for each true piece, in the order of the lists.
- For a predicted piece: "MATCH" where a true piece says the same or holds it, in any words. "REASONABLE" where no true
  piece says it, but it is sound and fits the true ones. "CONFLICT" where it contradicts them, is wrong or does not belong.
- For a true piece: "MATCH" where the predicted pieces say it. "REASONABLE" where they go another sound way that makes it
  needless. "CONFLICT" where they leave it out or contradict it.

Examples: predicted ["The side is 4.", "The area is 12."] and true ["The side is 4.", "The area is 16."]:
{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH", "CONFLICT"]}
predicted ["Read the red bar: 30.", "The title is bold."] and true ["The red bar is at 30."]:
{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH"]}
""")

HALLUCINATIONS = with_notice("""\
You check a response that reasons about a picture for five kinds of hallucination. You do not see the picture; the
reference reasons rightly about it, though there may be other right ways.

<NOTICE>
{"spatial": false, "logical": true, "factuality": false, "context": false, "fabrication": false}

- Each is true where the response holds at least one hallucination of that kind; several can be true.
- "spatial": it mistakes a shape, an angle, a place, or how things lie to each other.
- "logical": a conclusion does not follow, a needed step is missing, or a rule is used wrongly.
- "factuality": it contradicts what is known, or what can be seen or read in the picture.
- "context": it contradicts itself, or its answer is not the one that its reasoning comes to.
- "fabrication": it uses what comes from neither the picture nor the question nor an earlier step.
- Another order, other words, or a shorter way are no hallucination.

Examples, where the reference is "The ball is left of the box, so it is nearer to the door.":
"The ball is right of the box, so the box is nearer to the door.": spatial alone is true.
"The ball is left of the box. Left things are always heavier, so it is nearer to the door.": logical and factuality are true.
"The ball is left of the box, so it is nearer to the door. Answer: the box.": context alone is true.
"The ball is left of the box and was kicked by Ann, so it is nearer to the door.": fabrication alone is true.
""")

SCORES = with_notice("""\
You score a response that reasons about a picture, against a reference that reasons rightly. You do not see the picture.

<NOTICE>
{"factual_accuracy": 4, "logical_consistency": 5, "reasoning_completeness": 3, "conceptual_accuracy": 5, \
"strategy_appropriateness": 4}

- Each is a whole number: 5 without fault, 4 a slip that changes nothing, 3 a fault that matters, 2 mostly wrong, 1 wrong
  throughout or not there at all.
- "factual_accuracy": values, objects and relations are those of the reference.
- "logical_consistency": each step follows from earlier ones, and the answer from the steps.
- "reasoning_completeness": no step is missing that the answer needs.
- "conceptual_accuracy": laws, formulas and terms are the right ones, and used rightly.
- "strategy_appropriateness": the way leads to what is asked; another way than the reference's is as good if it is sound.

Examples, where the reference is "Speed is way by time: 210 km by 3 h is 70 km/h.":
"210 : 3 = 70, so 70 km/h.": 5, 5, 5, 5, 5 in this order.
"Speed is way by time: 120 km by 3 h is 40 km/h.": 2, 5, 5, 5, 5.
"It looks fast, so 70 km/h.": 3, 1, 1, 2, 1.
""")
