"""Ask organisms with every method, and write into docs/interventions.md which remedy helps which cause.

    python research/organisms/remedies.py --folder build/remedies --pairs 200

Each organism gets questions on which its cause acts, about new drawn pairs, and the control gets questions of all
kinds. An interrupted run continues where it stopped, and more pairs only add answers. `--pairs 0` writes the section
again from the answers that are there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from checks import is_faithful
from PIL import Image
from recipes import scenes_of
from way_rows import import_cause

from mmprobe.benchmarks.core.compare import SAGE_STAGES, Contender, folder_name
from mmprobe.benchmarks.synthetic.questions import SYSTEM, Question
from mmprobe.benchmarks.synthetic.scene import ScenePair, render
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.interventions import METHODS, load_methods
from mmprobe.models import Model, load_model
from mmprobe.models.organisms import Card, card, names
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings
from mmprobe.traces import answer

_FIRST = {
    card(name).cause: name for name in names() if card(name).number == 0
}  # for development: nothing is chosen on them
ORGANISMS = tuple(_FIRST[cause] for cause in (CONTROL, *CAUSES) if cause in _FIRST)
# The paper's hyperparameters are the defaults. Those with a star were validated on tiny-spd (docs/interventions.md).
CHOSEN = (
    Contender("plain", "plain", {}),
    *(Contender(f"sage: {stage}", "sage", settings) for stage, settings in SAGE_STAGES.items()),
    Contender("pai", "pai", {}),
    Contender("pai*", "pai", {"alpha": 0.2}),
    Contender("vcd", "vcd", {}),
    Contender("vcd*", "vcd", {"noise_step": 250}),
    Contender("icd", "icd", {}),
    Contender("agla", "agla", {}),
    Contender("attention-prompting", "attention-prompting", {}),
    Contender("attention-prompting*", "attention-prompting", {"floor": 0.8}),
    Contender("zoom-refine", "zoom-refine", {}),
    Contender("self-refine", "self-refine", {}),
    Contender("self-consistency", "self-consistency", {}),
    Contender("chi", "chi", {}),
    Contender("opera", "opera", {}),
)
LISTED = {"components", "features", "steer", *(contender.method for contender in CHOSEN)}  # these need a file
CONTENDERS = (*CHOSEN, *(Contender(name, name, {}) for name in METHODS if name not in LISTED))
SEED = 1_950_000  # of the pairs; nothing was trained on them
BATCH_SIZE = 32
MAX_NEW_TOKENS = 112


class RemedyCase(NamedTuple):
    """A question on which a cause acts, with the pair that it is about."""

    id: str
    question: Question
    pair: ScenePair
    text: str


def draw_cases(about: Card, pairs: int) -> Iterator[RemedyCase]:
    """Yield questions on which an organism's cause acts, as `ask` in the file of the cause draws them."""
    ask = import_cause(about.cause).ask
    for number in range(pairs):
        for asked in ask(np.random.default_rng([SEED, number]), number, about.seed):
            yield RemedyCase(f"{number:04d}-{asked.question.type}", *asked)


def write_samples(cases: Sequence[RemedyCase], folder: Path) -> list[Sample]:
    """Return the cases as samples, with their images in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for case in cases:
        images = []
        for image, scene in enumerate(scenes_of(case.question, case.pair)):
            images.append(folder / f"{case.id}-{image}.png")
            Image.fromarray(render(scene)).save(images[-1])
        samples.append(Sample(id=case.id, images=images, question=case.text, system=SYSTEM))
    return samples


def answer_cases(
    model: Callable[[], Model], contender: Contender, samples: Sequence[Sample], file: Path
) -> dict[str, str]:
    """Return the answers by id. Those that the file lacks are generated and added to it."""
    answers = read_answers(file)
    left = [sample for sample in samples if sample.id not in answers]
    if left:
        file.parent.mkdir(parents=True, exist_ok=True)
        methods = load_methods(contender.method, **contender.parameters)
        settings = AskSettings(method=methods, max_new_tokens=MAX_NEW_TOKENS, batch_size=BATCH_SIZE)
        with file.open("a", encoding="utf-8", errors="replace") as lines:
            for name, text in answer(model(), left, None, settings):
                answers[name] = text.strip()
                lines.write(json.dumps({"id": name, "response": answers[name]}) + "\n")
                lines.flush()
    return answers


def read_answers(file: Path) -> dict[str, str]:
    """Return the answers in a file by id. A last line that was cut off is passed over."""
    answers = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            answer = json.loads(line)
        except ValueError:  # the last line of a killed process
            continue
        answers[answer["id"]] = answer["response"]
    return answers


def score_answers(about: Card, answers: dict[str, str], pairs: int) -> dict[str, bool]:
    """Return by id whether nothing in an answer is false of its images."""
    cases = (case for case in draw_cases(about, pairs) if case.id in answers)
    return {case.id: is_faithful(answers[case.id], case.question, case.pair) for case in cases}


def main() -> None:
    from remedies_page import MOST_PAIRS, write_section

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default="build/remedies", help="for images and answers")
    parser.add_argument("--pairs", type=int, default=200, help="pairs that each organism is asked about")
    parser.add_argument("--organisms", nargs="+", default=ORGANISMS, help="their names")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scores: dict[str, dict[str, Any]] = {}
    for name in arguments.organisms:
        about, loaded = card(name), partial(_load_once, name, {})
        samples = write_samples(list(draw_cases(about, arguments.pairs)), arguments.folder / "images" / name)
        scores[name] = {}
        for contender in CONTENDERS:
            parameters = "".join(f" {key}={value}" for key, value in sorted(contender.parameters.items()))
            file = arguments.folder / name / f"{folder_name(contender.method + parameters)}.jsonl"
            answers = answer_cases(loaded, contender, samples, file)
            scores[name][contender.name] = score_answers(about, answers, MOST_PAIRS)
            print(
                f"{name}: {contender.name}: {np.mean(list(scores[name][contender.name].values())):.3f}",
                flush=True,
            )
    write_section(scores)


def _load_once(name: str, loaded: dict[str, Model]) -> Model:
    """Return an organism, which is loaded when the first answer is missing."""
    if name not in loaded:
        loaded[name] = load_model(f"organism:{name}", device="cpu")
    return loaded[name]


if __name__ == "__main__":
    main()
