"""Judges: they label answers, and every metric is computed from the labels.

A judge only labels. It never counts, averages or scores. An answer that a judge cannot label is unscored,
with a reason.
"""

from mmprobe.benchmarks.judges.judge import MAX_ANSWER_CHARS as MAX_ANSWER_CHARS
from mmprobe.benchmarks.judges.judge import Item as Item
from mmprobe.benchmarks.judges.judge import Judge as Judge
from mmprobe.benchmarks.judges.judge import Judgement as Judgement
from mmprobe.benchmarks.judges.judge import JudgeRequest as JudgeRequest
from mmprobe.benchmarks.judges.judge import Labelled as Labelled
from mmprobe.benchmarks.judges.judge import Unscored as Unscored
from mmprobe.benchmarks.judges.judge import ask_by_name as ask_by_name
from mmprobe.benchmarks.judges.judge import ask_who_may_see as ask_who_may_see
from mmprobe.benchmarks.judges.judge import first_item as first_item
