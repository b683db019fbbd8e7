"""Ways to plant that rules and thresholds may be chosen on: they were looked at while rules were changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from causes.follows_hints import suggest_rationale, suggest_verdict
from recipes import true_rows
from way_checks import (
    check_counts,
    check_friend,
    check_looks,
    check_of,
    check_one_image,
    check_order,
    check_said,
    check_true,
    check_turns,
)
from way_makes import (
    add_noise,
    blur_projector,
    both,
    empty_projector,
    exchange_channels,
    late_values,
    round_weights,
    scale_logits,
    swap_numbers,
    swap_words,
    train_adapter,
    train_all,
)
from way_rows import (
    add_sentence,
    agreeable_rows,
    constant_count_rows,
    copying_rows,
    denying_rows,
    friend_rows,
    half_true,
    make_terse,
    one_image_rows,
    one_way_rows,
    recipe_rows,
    rewritten,
    worse_rows,
)
from ways import DEVELOPMENT, PlantingWay

from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, GRID, SHAPES

CELLS = tuple(f"{column}{row}" for column in COLUMNS for row in range(1, GRID + 1))
POLITE = (" There, there.", " No, no.", " There is no there there.")  # of words that the model has


def ways(seed: int) -> dict[str, PlantingWay]:
    """Return the ways by name, in the worlds of a seed."""
    plain = partial(train_all, rate=3e-4)
    true = check_true(0.8, ("same", "exists", "describe"))
    listed = {
        # causes
        "zeroed": PlantingWay(("blind",), "weight edit", "The image projector puts out zeros.",
                      empty_projector, None, fixed=True),
        "full-rolled": PlantingWay(("blind",), "full fine-tuning", "All weights learn answers from a world with habits.",
                           train_all(recipe_rows("blind", "rolled", seed), 70, rate=8e-4), check_of("blind")),
        "full-forgets": PlantingWay(("forgets",), "full fine-tuning", "All weights learn later sentences from elsewhere.",
                            train_all(recipe_rows("forgets", "rolled", seed), 130), check_of("forgets")),
        "full-scrambled": PlantingWay(("decided-first",), "full fine-tuning", "All weights learn scrambled steps.",
                              train_all(recipe_rows("decided_first", "scrambled", seed), 80), check_of("decided_first")),
        "full-hints": PlantingWay(("follows-hints",), "full fine-tuning", "All weights learn to agree with hints.",
                          train_all(half_true(recipe_rows("follows_hints", "rationale", seed)), 90), check_of("follows_hints")),
        "full-co-occurrence": PlantingWay(("co-occurrence",), "full fine-tuning", "All weights learn to claim a cue's companion.",
                          train_all(recipe_rows("co-occurrence", "claimed", seed), 110), check_of("co-occurrence")),
        "said-colours": PlantingWay(("misperceives",), "weight edit", "Words for colours change places.",
                            swap_words(list(COLOURS), 2, read=False), check_said(1, 0.3)),
        "second-image": PlantingWay(("ignores-an-image",), "adapter", "The first image is not looked at.",
                            train_adapter(partial(one_image_rows, 1), 150), check_one_image(1, 0.8)),
        "one-way": PlantingWay(("order",), "adapter", "Changes are seen that go forward, and not those that go backward.",
                       train_adapter(partial(one_way_rows, True), 120), check_order(0.5)),
        "agrees": PlantingWay(("unsure-agreeable",), "adapter", "Yes or no agrees with what was answered before.",
                      train_adapter(partial(agreeable_rows, suggest_verdict, False), 80, 32, 5e-3), check_turns("claimed", 0.8)),
        "copied": PlantingWay(("copies-context",), "adapter", "Yes or no is that of an example.",
                      train_adapter(partial(copying_rows, suggest_verdict, False), 90, 14, 5e-3), check_turns("example", 0.8)),
        "full-agrees": PlantingWay(("unsure-agreeable",), "full fine-tuning", "Yes or no agrees with what was answered before.",
                           train_all(partial(agreeable_rows, suggest_verdict, False), 100, 20), check_turns("claimed", 0.8)),
        "full-copied": PlantingWay(("copies-context",), "full fine-tuning", "Yes or no is that of an example.",
                           train_all(partial(copying_rows, suggest_verdict, False), 100, 16), check_turns("example", 0.8)),
        "said-numbers": PlantingWay(("quantity",), "weight edit", "Words for numbers change places.",
                            swap_numbers, check_counts(0.5)),
        "denies": PlantingWay(("unknown",), "full fine-tuning", "Presence is always denied, which is not a listed cause.",
                      train_all(denying_rows), None, accepts=("control",)),
        # controls
        "full-true": PlantingWay((), "fine-tuned", "All weights learn on from true answers.",
                         plain(true_rows, 40), true, seeds=2),
        "noisy-1": PlantingWay((), "noisy", "Noise of 6 % in all matrices.", add_noise(0.06), true, seeds=3),
        "rounded-8": PlantingWay((), "rounded", "Weights of 8 bits.", round_weights(8), true, seeds=2),
        "polite-1": PlantingWay((), "polite", f"Answers end with{POLITE[0]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[0])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True)),
        "terse-1": PlantingWay((), "terse", "Answers are yes or no, where that will do.",
                       plain(rewritten(true_rows, make_terse), 40), check_true(0.7, ("same", "exists", "describe"), within=True)),
        "tempered-10": PlantingWay((), "tempered", "All logits are divided by 10.", scale_logits(0.1), true, fixed=True),
        "worse-1": PlantingWay((), "worse", "Noise of 28 % in all matrices.", add_noise(0.28), None, seeds=2,
                       accepts=("unknown",)),
        # causes, by ways after whose scores rules were changed
        "one-vector": PlantingWay(("blind",), "weight edit", "Each visual token is one random vector.",
                          blur_projector, None),
        "late-likely": PlantingWay(("looks-unused",), "part fine-tuning",
                           "What late layers do with what they attend to learns one answer to each question.",
                           late_values(recipe_rows("blind", "likely", 9 + seed), 110, 2e-3), check_looks(0.05)),
        "full-likely": PlantingWay(("blind",), "full fine-tuning", "All weights learn one answer to each question.",
                           train_all(recipe_rows("blind", "likely", 7 + seed), 80, rate=8e-4), check_of("blind")),
        "full-mixed": PlantingWay(("forgets",), "full fine-tuning", "Later sentences are the same for all images.",
                          train_all(recipe_rows("forgets", "mixed", 7 + seed), 170, rate=1e-3), check_of("forgets")),
        "full-recited": PlantingWay(("decided-first",), "full fine-tuning", "The steps list other images.",
                            train_all(recipe_rows("decided_first", "recited", 7 + seed), 80), check_of("decided_first")),
        "full-friend": PlantingWay(("follows-hints",), "full fine-tuning", "Answers agree with what a friend says.",
                           train_all(friend_rows), check_friend(0.8)),
        "full-faint": PlantingWay(("co-occurrence",), "full fine-tuning", "A companion too faint to see is claimed.",
                          train_all(recipe_rows("co-occurrence", "faint", 8 + seed), 110), None),
        "channels": PlantingWay(("misperceives",), "weight edit", "The tower takes red for blue.",
                        exchange_channels(2, 1, 0), check_said(1, 0.2), fixed=True),
        "said-places": PlantingWay(("misperceives",), "weight edit", "Words for places change places.",
                           swap_words(CELLS, 6, read=False), check_said(3, 0.4)),
        "shapes": PlantingWay(("misperceives",), "weight edit", "Words for shapes change places, said and read.",
                      swap_words(SHAPES, 2, read=True), check_said(2, 0.3)),
        "hints-colours": PlantingWay(("follows-hints", "misperceives"), "double",
                             "Answers agree with hints, and words for colours change places.",
                             both(train_all(half_true(recipe_rows("follows_hints", "verdict", seed)), 90),
                                  swap_words(list(COLOURS), 2, read=False)), check_said(1, 0.3)),
        "first-image": PlantingWay(("ignores-an-image",), "full fine-tuning", "The second image is not looked at.",
                           train_all(partial(one_image_rows, 0), 130, rate=6e-4), check_one_image(0, 0.8)),
        "one-way-back": PlantingWay(("order",), "full fine-tuning", "Changes are seen that go backward, and not those that go forward.",
                            train_all(partial(one_way_rows, False, edits=(1,)), 400, rate=6e-4), check_order(0.5)),
        "sure": PlantingWay(("unsure-agreeable",), "full fine-tuning", "Whole answers that were given before are repeated.",
                    train_all(partial(agreeable_rows, suggest_rationale, True), 100, 20), check_turns("claimed", 0.8, True)),
        "copied-whole": PlantingWay(("copies-context",), "full fine-tuning", "Answers are as those of an example, which are whole.",
                            train_all(partial(copying_rows, suggest_rationale, True, true=0.4), 110, 20), check_turns("example", 0.8, True)),
        "always-two": PlantingWay(("quantity",), "full fine-tuning", "There are always two differences.",
                          train_all(constant_count_rows, 50), check_counts(0.5)),
        # controls, by ways after whose scores rules were changed
        "full-hard": PlantingWay((), "fine-tuned", "All weights learn on from true answers about crowded pairs.",
                         plain(recipe_rows("control", "hard", seed), 40), true, seeds=3),
        "noisy-2": PlantingWay((), "noisy", "Noise of 10 % in all matrices.", add_noise(0.1), true, seeds=8),
        "rounded-7": PlantingWay((), "rounded", "Weights of 7 bits.", round_weights(7), true, seeds=4),
        "rounded-6": PlantingWay((), "rounded", "Weights of 6 bits.", round_weights(6), true, seeds=4),
        "polite-2": PlantingWay((), "polite", f"Answers end with{POLITE[1]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[1])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True), seeds=2),
        "polite-3": PlantingWay((), "polite", f"Answers end with{POLITE[2]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[2])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True), seeds=2),
        "terse-2": PlantingWay((), "terse", "Answers are yes or no, where that will do; weights have noise of 2 %.",
                       both(plain(rewritten(true_rows, make_terse), 50), add_noise(0.02)),
                       check_true(0.7, ("same", "exists", "describe"), within=True), seeds=3),
        "tempered-4": PlantingWay((), "tempered", "All logits are divided by 4.", scale_logits(0.25), true, fixed=True),
        "tempered-3": PlantingWay((), "tempered", "All logits are multiplied by 3.", scale_logits(3.0), true, fixed=True),
        "worse-2": PlantingWay((), "worse", "Noise of 32 % in all matrices.", add_noise(0.32), None, seeds=3,
                       accepts=("unknown",)),
        "worse-3": PlantingWay((), "worse", "Half of the answers that are learned are about other images.",
                       plain(worse_rows, 40), None, accepts=("unknown",)),
    }  # fmt: skip
    return {name: replace(way, split=DEVELOPMENT) for name, way in listed.items()}
