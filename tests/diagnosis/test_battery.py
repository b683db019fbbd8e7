"""The tests of the battery, on a toy whose route is known and on answers made by hand."""

from __future__ import annotations

import re
from collections import Counter, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.asked import case, drive, read, saying
from helpers.asking import ask
from helpers.causal_toy import build_toy, draw_sample
from PIL import Image, ImageChops

from mmprobe import registry
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS, DIFFICULTIES, SHAPES, draw_pair, edit_boxes
from mmprobe.diagnosis.answers import ParsedAnswer, make_answer
from mmprobe.diagnosis.battery import order
from mmprobe.diagnosis.battery.co_occurrence import (
    CueClaim,
    CueEdit,
    draw_questions,
    find_claims,
    find_suspects,
    plan_edits,
)
from mmprobe.diagnosis.battery.copies_context import COPIES, CopiesContext, show_example
from mmprobe.diagnosis.battery.decided_first import (
    CONCLUSIONS,
    DecidedFirst,
    StepsRecord,
    _shorten,
    drop_part,
)
from mmprobe.diagnosis.battery.follows_hints import WORDINGS, flip_suggestion
from mmprobe.diagnosis.battery.misperceives import (
    MOST_ALTERED,
    Misperceives,
    ask_altered,
    find_suspected,
    locate_attributes,
    measure_doubt,
    plan_alterations,
    rank_values,
)
from mmprobe.diagnosis.battery.order import ADDED, Order
from mmprobe.diagnosis.battery.quantity import Counted, WrongQuantity, count_differences, find_counted
from mmprobe.diagnosis.battery.unsure_agreeable import CLAIMS, UnsureAgreeable
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore, FollowUp
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.choices import Choice, find_choice
from mmprobe.diagnosis.claims import (
    AttributeClaim,
    find_unclaimed,
    follows_from_steps,
    measure_attributes,
    read_contents,
)
from mmprobe.diagnosis.diagnose import diagnose, diagnosis_ledger
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, MeasuredPart
from mmprobe.diagnosis.images import (
    ImagesRecord,
    OtherImages,
    find_names,
    measure_images,
    measure_looks,
    measure_losses,
    read_kinds,
    read_with_images,
)
from mmprobe.diagnosis.run import ANSWERS, MEASURES, answer_all, measure_answer, run_battery
from mmprobe.diagnosis.schedule import Read, Say, read_answers, run, say, together
from mmprobe.diagnosis.schedule import read as read_requests
from mmprobe.diagnosis.study import LONG, Case, Study
from mmprobe.diagnosis.suggestions import Followed, suggest
from mmprobe.diagnosis.truth import judge_answer
from mmprobe.errors import InputError
from mmprobe.models import load_model
from mmprobe.models.likelihood import share_prefixes
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.models.reading import prefix_bytes
from mmprobe.samples import Sample, load_samples

STEPS = "Picture one: red star A1, blue ring B2.\nPicture two: red star A1.\nTherefore: The ring was removed."


def written(text: str, sample: Sample | None = None) -> ParsedAnswer:
    """Return an answer whose tokens are its words, each with the blank before it, and its stops and breaks."""
    tokens = re.findall(r" ?\w+|\n|[^\w\s]", text)
    return ParsedAnswer(sample or Sample(id="a", question="?"), list(range(len(tokens))), text, tokens)


@pytest.fixture(scope="module")
def toy():
    return build_toy()


def answers_of(toy, samples):
    return [make_answer(toy, sample, toy.tokenizer(sample.answer)["input_ids"]) for sample in samples]


def test_an_answer_is_cut_into_lines_and_its_conclusion():
    answer = written(STEPS)
    assert ["".join(answer.tokens[part]) for part in answer.sentences] == [
        "Picture one: red star A1, blue ring B2.\n",
        "Picture two: red star A1.\n",
        "Therefore: The ring was removed.",
    ]
    assert answer.verdict == " The ring was removed."
    assert written("No. The star moved.").conclusion is None


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<think>\nTwo stars.\n\nOne is red.</think>\n\nYes, it is red.", "Yes, it is red."),
        ("1. A star.\n2. A ring.\n\n**Answer:** The ring.", "The ring."),
        ("- A star\n- A ring\nSo, the ring", "the ring"),
        (
            "The first has a star. The second has none. Therefore, the star was removed.",
            "the star was removed.",
        ),
        ("No. The star was removed. I hope it helps.", None),  # sentences without steps
        ("Therefore, it is red.", None),
        ("<think>\n\n</think>\n\nYes.", None),
    ],
)
def test_conclusions_are_found_in_the_forms_that_models_write(text, verdict):
    """A first line that is all there is, or a sentence that nothing marks, concludes nothing."""
    answer = written(text)
    assert answer.tokens and "".join(answer.tokens).replace(" ", "") == text.replace(" ", "")
    if verdict is None:
        assert answer.conclusion is None
    else:
        assert answer.verdict.strip() == verdict


@pytest.mark.parametrize("shared", [False, True])
def test_readings_of_several_answers_are_those_of_one_at_a_time(shared, toy, tmp_path):
    samples = [draw_sample(tmp_path, colour, cell) for colour, cell in (("red", (1, 2)), ("blue", (0, 1)))]
    chats, ids = [build_chat(sample) for sample in samples], [[5, 6, 7], [8]]
    together = read_answers(toy, chats, ids, [True, True], share_prefixes(toy, chats) if shared else None)
    assert read_answers(toy, chats, ids, [False, True])[0].looks is None
    for chat, answer, reading in zip(chats, ids, together, strict=True):
        inputs = toy.batch([samples[chats.index(chat)]]).inputs
        whole = {**inputs, "input_ids": torch.cat([inputs["input_ids"], torch.tensor([answer])], 1)}
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
        toy.hf.set_attn_implementation("eager")
        with torch.no_grad():
            output = toy.hf(**whole, output_attentions=True)
        toy.hf.set_attn_implementation("sdpa")
        logprobs = output.logits[0, -len(answer) - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(reading.logprobs, logprobs[range(len(answer)), answer], atol=1e-5)
        assert reading.likeliest.tolist() == logprobs.argmax(-1).tolist()
        visual = toy.prompt(samples[chats.index(chat)]).visual_positions
        rows = [layer[0, :, -len(answer) - 1 : -1][:, :, visual].mean(1) for layer in output.attentions]
        np.testing.assert_allclose(reading.looks, torch.cat(rows), atol=1e-5)


def test_images_are_exchanged_for_those_with_another_answer(toy, tmp_path):
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "green", "blue")]
    answers = answers_of(toy, samples)
    others = OtherImages(answers)
    assert others.contrasting(answers[2]) is answers[0]
    same = [answer._replace(text=" red", tokens=[" red"]) for answer in answers]
    assert OtherImages(same).contrasting(same[0]) is None
    readings = run(toy, [read_with_images(answer, others) for answer in answers], 2)
    for answer, (reading, passes) in zip(answers, readings, strict=True):
        found = measure_images(answer, reading).images
        own, other = reading["own"].logprobs[0], reading["contrast"].logprobs[0]
        assert found.effect["contrast"] == pytest.approx(own - other, abs=1e-4)
        assert found.effect["contrast"] > 0.1
        assert passes == len(reading)


def test_an_answer_without_images_of_a_kind_leaves_the_readings_of_the_others(toy, tmp_path):
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "green", "blue")]
    answers = answers_of(toy, samples)
    images = [[Image.open(path).convert("RGB") for path in sample.images] for sample in samples]
    others = [{}, {"contrast": images[0]}, {"contrast": images[1], "further 1": images[0]}]

    def tasks():
        return [
            read_kinds(answer, {"own": None, **kinds}) for answer, kinds in zip(answers, others, strict=True)
        ]

    together = [each.value for each in run(toy, tasks(), 4)]
    assert [list(reading) for reading in together] == [["own", *kinds] for kinds in others]
    for reading, task in zip(together, tasks(), strict=True):
        alone = run(toy, [task], 1)[0].value
        for kind in reading:
            np.testing.assert_allclose(reading[kind].logprobs, alone[kind].logprobs, atol=1e-5)
    assert together[1]["contrast"].logprobs[0] < together[1]["own"].logprobs[0] - 0.1


def test_answers_after_shared_images_are_those_of_whole_prompts(tiny_spd, tmp_path):
    """Questions of several lengths about the same images, in one batch with others; each image is looked at once."""
    samples = load_samples(make_pairs(tmp_path, n=3, seed=3))
    asked = [Say(build_chat(sample), 12) for sample in samples]
    store, tower = share_prefixes(tiny_spd, []), tiny_spd.hf.model.visual

    def tasks():
        return [say([each]) for each in asked]

    with patch.object(tower, "forward", wraps=tower.forward) as look:
        shared = [each.value for each in run(tiny_spd, tasks(), 4, store)]
    sets = {tuple(sample.images) for sample in samples}
    assert sum(len(call.kwargs["grid_thw"]) for call in look.call_args_list) == sum(map(len, sets))
    assert len(sets) < len(samples)
    assert shared == [each.value for each in run(tiny_spd, tasks(), 1)]
    assert len({len(ids) for (ids,) in shared}) > 1


def test_what_an_answer_reads_of_its_images_serves_the_tests(tiny_spd, tmp_path):
    """The model's own answers are those that it gives elsewhere; no image is looked at again to read them with it."""
    samples = load_samples(make_pairs(tmp_path, n=3, seed=3))
    ledger = diagnosis_ledger(tmp_path / "out")
    ledger.folder.mkdir()
    ledger.begin({}, {})
    store, tower = share_prefixes(tiny_spd, []), tiny_spd.hf.model.visual
    with patch.object(tower, "forward", wraps=tower.forward) as look:
        study = answer_all(tiny_spd, samples, ledger, 4, 12, None, store)
        looked = look.call_count
        readings = run(tiny_spd, [read_kinds(each, {"own": None}) for each in study.answers], 4, store)
    assert 0 < look.call_count == looked
    asked = ask(tiny_spd, samples, 12)
    assert [each.ids for each in study.answers] == [asked[sample.id].token_ids for sample in samples]
    for answer, reading in zip(study.answers, readings, strict=True):
        assert reading.value["own"].likeliest.tolist() == answer.ids


def test_no_image_is_read_again_for_the_next_question_where_few_fit_into_the_store(tiny_spd, tmp_path):
    samples = load_samples(make_pairs(tmp_path, n=8, seed=3))
    sets = {tuple(sample.images) for sample in samples}
    assert len(samples) > 2 * len(sets) and len(sets) > 4, "several questions about each"
    ledger = diagnosis_ledger(tmp_path / "out")
    ledger.folder.mkdir()
    ledger.begin({}, {})
    store, tower = share_prefixes(tiny_spd, []), tiny_spd.hf.model.visual
    largest = tiny_spd.prompt(max(samples, key=lambda sample: len(sample.images)))
    store.max_bytes = 4 * prefix_bytes(tiny_spd, len(largest.ids), keeps_states=False)
    with patch.object(tower, "forward", wraps=tower.forward) as look:
        answer_all(tiny_spd, samples, ledger, 4, 4, None, store)
    looked = sum(len(call.kwargs["grid_thw"]) for call in look.call_args_list)
    assert looked == sum(map(len, sets))


def test_readings_of_like_lengths_share_a_pass(tiny_spd, tmp_path):
    """Short and long ones about four images take turns, two in a batch; on a processor no short one is filled up to a long one."""
    samples = load_samples(make_pairs(tmp_path, n=4, seed=3))
    first = list({tuple(sample.images): sample for sample in samples if len(sample.images) == 2}.values())
    (no,) = tiny_spd.tokenizer("No", add_special_tokens=False)["input_ids"]
    ids = [[no] * (40 if number % 2 else 2) for number in range(len(first))]
    rows = []

    def count(module, args, kwargs):
        rows.append(kwargs["input_ids"].shape)

    handle = tiny_spd.hf.register_forward_pre_hook(count, with_kwargs=True)
    try:
        asked = [
            read_requests([Read(build_chat(sample), own)]) for sample, own in zip(first, ids, strict=True)
        ]
        found = run(tiny_spd, asked, 2)
    finally:
        handle.remove()
    assert [shape[0] for shape in rows] == [2, 2] and rows[1][1] - rows[0][1] >= 30
    assert [len(each.value[0].logprobs) for each in found] == [2, 40, 2, 40]


def test_tests_are_asked_together_and_an_error_of_one_is_its_own():
    """The second one asks again; the third one fails, once within its task and once not."""

    def once(word):
        return (yield [word])

    def twice(word):
        first = yield [word]
        return first + (yield [word * 2, "and"])

    def careful(word):
        try:
            yield [word]
        except InputError:
            return "refused"

    asked = []

    def answer(request):
        asked.append(request)
        return InputError(request) if request == "bad" else request.upper()

    found = drive(together([once("a"), twice("b"), careful("bad")]), answer)
    assert [tuple(each) for each in found] == [(["A"], 1), (["B", "BB", "AND"], 3), ("refused", 1)]
    assert asked == ["a", "b", "bad", "bb", "and"]
    with pytest.raises(InputError, match="bad"):
        drive(together([once("a"), once("bad")]), answer)


def test_a_region_alone_is_exchanged(toy, tmp_path):
    samples = [draw_sample(tmp_path, colour, cell) for colour, cell in (("red", (1, 2)), ("blue", (0, 1)))]
    regions = [{"image": 0, "box": (0, 0, 20, 30)}]
    samples = [
        Sample.model_validate({**sample.model_dump(), "regions": boxes})
        for sample, boxes in zip(samples, (regions, []), strict=True)
    ]
    others = OtherImages(answers_of(toy, samples))
    found = [others.find(answer) for answer in answers_of(toy, samples)]
    own, other = (Image.open(sample.images[0]).convert("RGB") for sample in samples)
    changed = ImageChops.difference(found[0]["region"][0], own).getbbox()
    assert changed is not None and changed[2] <= 20 and changed[3] <= 30
    assert found[0]["region"][0].crop((0, 0, 20, 30)).tobytes() == other.crop((0, 0, 20, 30)).tobytes()
    assert "region" not in found[1]


def test_answers_that_no_exchange_touches_are_read_with_further_images(toy, tmp_path):
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "green", "blue", "red")]
    answers = answers_of(toy, samples)
    others = OtherImages(answers)
    assert set(others.find_further(answers[0])) == {"further 1"}, (
        "contrast and unrelated show two of the three"
    )
    for least, further in ((-2.0, False), (2.0, True)):
        task = read_with_images(answers[0], others)
        found = drive(task, lambda request, least=least: read([least]))
        assert ("further 1" in found) is further


def test_doubt_is_the_chance_of_other_words_than_the_true_ones(toy, tmp_path):
    sample = Sample(id="a", question="?", metadata={"type": "same", "differences": [
        {"type": "color", "sentence": "The ring changed from blue to green."}]})  # fmt: skip
    text = "No. The ring changed from blue to green. A red star at A1."
    places = [(name, text[start:end]) for name, start, end in locate_attributes(sample, text)]
    assert places == [("colour", "red"), ("shape", "star"), ("place", "A1"), ("colour", text[4:40])]
    true = written(text, sample)
    logprobs = np.zeros(len(true.tokens))
    logprobs[true.tokens.index(" blue")], logprobs[true.tokens.index(" green")] = np.log([0.5, 0.8])
    logprobs[true.tokens.index(" A1")] = np.log(0.9)
    assert measure_doubt(true, logprobs) == {"colour": 0.6, "shape": 0, "place": 0.1}
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "blue")]
    own, answers = {"own": read([0.0])}, answers_of(toy, samples)
    unknown = answers[0]._replace(sample=answers[0].sample.model_copy(update={"answer": None}))

    def reads(request):
        return read([0.0] * len(request.ids))

    for answer, doubt in ((unknown, None), (answers[0], {}), (answers[1], {})):  # no place names an attribute
        assert drive(Misperceives().ask(case(answer, readings=own, model=toy)), reads).doubt == doubt


def lose(record: ImagesRecord):
    """Return what an answer loses, if it is the only one."""
    line = {"id": "a", "answer": "", **record.model_dump()}
    return measure_losses([AnswerRecord(line)], LIMITS.unused_effect)[0]


def test_identical_images_lose_nothing():
    reading = read([2.0, -1.0], looks=np.full((2, 4), 0.1))
    record = measure_images(written("A star"), {"own": reading, "unrelated": reading, "alike": reading})
    found, loss = record.images, lose(record)
    assert found.effect == {"unrelated": 0} and found.changed == {"unrelated": False}
    assert loss.effect == 0 and loss.net == 0 and loss.sentences == [(1, 0.0)]
    looks = measure_looks(reading, {"unrelated": reading}, reading)
    assert looks is not None and looks.moved == looks.alike == [0, 0]


def test_effects_count_tokens_that_images_decide_only():
    """The loss of the second token is large and changes nothing that is said."""
    own, other, alike = read([4.0, 9.0, 4.0, 1.0]), read([3.5, 4.0, -2.0, -1.0]), read([4.0, 9.0, 3.0, 1.0])
    found = measure_images(written("No. Red star"), {"own": own, "unrelated": other, "alike": alike})
    loss = lose(found)
    assert loss.sentences == [(0, 0.0), (2, pytest.approx((6 + 2) / 2 / 4))], "the usual margin is 4"
    assert loss.effect == pytest.approx(1) and loss.alike == pytest.approx(1 / 2 / 4)
    assert "alike" not in found.images.effect and found.images.ends == [2, 4]


def test_images_of_the_same_content_differ_a_little(toy, tmp_path):
    sample = draw_sample(tmp_path, "red")
    alike = OtherImages(answers_of(toy, [sample])).find(answers_of(toy, [sample])[0])["alike"][0]
    own = np.asarray(Image.open(sample.images[0]).convert("RGB"), float)
    difference = np.abs(np.asarray(alike, float) - own)
    assert 1 < difference.mean() < 12 and alike.size == Image.open(sample.images[0]).size


def asked(edit: CueEdit) -> str:
    return edit.chat.messages[-1]["content"][-1]["text"]


def test_cues_are_edited_out_of_images_and_into_others(tmp_path):
    """Either version differs from the image by one object, which is the cue in one of them alone."""
    samples = load_samples(make_pairs(tmp_path / "pairs", 6, seed=3))
    edits = plan_edits(samples, [("star", "ring")])
    by_cue = {has: [edit for edit in edits if edit.has_cue is has] for has in (True, False, None)}
    assert len(by_cue[True]) == len(by_cue[False]) > len(by_cue[None]) > 0
    for with_cue, without in zip(by_cue[True], by_cue[False], strict=True):
        assert asked(with_cue) == asked(without) == "Is there a ring?"
        assert ImageChops.difference(with_cue.chat.images[0], without.chat.images[0]).getbbox()
        shown = next(sample for sample in samples if sample.id == with_cue.id).metadata["objects"]
        assert not all("ring" in " ".join(image) for image in shown)
    assert {asked(edit) for edit in by_cue[None]} == {"Is there a star?"}
    assert plan_edits([Sample(id="a", images=samples[0].images, question="?")], [("star", "ring")]) == []


def test_pairs_are_suspected_by_the_claims_that_go_with_a_cue():
    cues = [("ring", ["star", "heart"], True), ("ring", ["heart"], False), ("heart", ["star"], False)]
    claims = [CueClaim(thing=t, cues=c, claimed=said) for t, c, said in cues] * 3
    assert find_suspects(claims) == []  # star is not asked about anywhere, so it is not a shape
    claims.append(CueClaim(thing="star", cues=["heart"], claimed=False))
    assert find_suspects(claims) == [("star", "ring")]


def test_a_part_of_the_steps_is_dropped():
    steps = STEPS.partition("Therefore")[0]
    assert drop_part(steps, last=False).split("\n")[0] == "Picture one: blue ring B2."
    assert drop_part(STEPS.partition("\nPicture two")[0], last=True) == "Picture one: red star A1."
    assert drop_part("One thing.\n", last=True) is None
    assert _shorten("A star, red. A ring. Therefore, ") == {"a sentence": "A star, red. Therefore, "}


Tokens = namedtuple("Tokens", "tokenizer")


def test_hints_suggest_both_answers():
    model = Tokens(lambda word, add_special_tokens: {"input_ids": [{"Yes": 90, "No": 91}[word]]})
    choice = find_choice(model, written("Yes. Nothing changed."), [])
    assert (choice.step, choice.words, choice.tokens) == (0, ("yes", "no"), (0, 91))
    red, blue = written("The star is red."), written("The star is blue.")._replace(ids=[0, 1, 2, 9, 4])
    assert find_choice(model, red, [red, blue])[:2] == (3, (3, 9))
    assert find_choice(model, red, [red, blue]).words == ("red", "blue")
    assert find_choice(model, red, [red]) is None
    assert suggest("Are the two pictures the same?", "no", WORDINGS[2]) == (
        "Are the two pictures the same? An expert says that the two pictures are not the same."
    )


def test_alike_questions_have_the_other_answer_of_a_choice(tmp_path):
    """The ring is blue, so the star could be; not where more words differ, or the answer is read otherwise than it was written."""
    words = ["What", "colour", "is", "the", "star", "?", "ring", "The", "red", ".", "blue", "at", "A1"]

    def encode(text, add_special_tokens):
        return {"input_ids": [words.index(word) for word in re.findall(r"\w+|[.?]", text)]}

    def answer(name, text):
        sample = draw_sample(tmp_path, "red").model_copy(update={"question": f"What colour is the {name}?"})
        return written(text, sample)._replace(ids=encode(text, False)["input_ids"])

    star, ring = answer("star", "The star is red."), answer("ring", "The ring is blue.")
    choice = find_choice(Tokens(encode), star, [star], [ring])
    assert choice == Choice(3, (words.index("red"), words.index("blue")), ("red", "blue"))
    assert find_choice(Tokens(encode), star, [], [answer("ring", "The ring is red.")]) is None
    assert find_choice(Tokens(encode), star, [], [answer("ring", "The ring is blue at A1.")]) is None
    assert find_choice(Tokens(encode), star._replace(ids=[0, *star.ids]), [], [ring]) is None


def test_a_hint_of_the_question_itself_is_flipped():
    asked = "Is there a star? An expert says that the answer is Yes."
    assert flip_suggestion(asked, ("no", "yes")) == (asked.replace("Yes", "No"), asked)
    assert flip_suggestion("Is the answer yes or no?", ("yes", "no")) is None


def test_attributes_and_changes_are_compared_with_the_images():
    metadata = {
        "type": "steps",
        "objects": [["red star A1", "blue ring B2"], ["red star A1", "green ring B2"]],
        "differences": [{"type": "color", "sentence": "The ring changed from blue to green."}],
    }
    sample = Sample(id="a", question="?", metadata=metadata)
    text = "Picture one: red star A1, cyan ring B2.\nPicture two: red star C1, red cross D4.\nTherefore: Nothing changed."
    found = measure_attributes(sample, text)
    wrong = [(claim.attribute, claim.source, claim.said) for claim in found if claim.wrong]
    assert wrong == [
        ("colour", "steps", "cyan"),
        ("place", "steps", "C1"),
        ("invented", "steps", "cross"),
    ], "a change that is left out is not a claim about an attribute"
    assert find_claims(sample, text)[1].false == ["cross"]


def test_a_claim_is_about_the_thing_that_it_shares_most_with():
    """The place that is said wrongly is that of another thing, whose colour and shape are not claimed."""
    sample = Sample(id="a", question="?", metadata={"objects": [["red star A1", "blue ring B2"], []]})
    found = measure_attributes(sample, "A red star at B2.")
    assert [(each.attribute, each.wrong) for each in found] == [
        ("colour", False),
        ("shape", False),
        ("place", True),
    ]
    assert measure_attributes(sample, "Yes, the star is at B2.") == [], "the star or the thing at B2"
    changed = measure_attributes(sample, "The star changed from green to blue.")
    assert [(each.source, each.said, each.wrong) for each in changed if each.attribute == "colour"] == [
        ("changes", "green", True)
    ]


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("Where is the shoe?", "In the lower right-hand corner.", [("bottom right", False)]),
        ("Where is the shoe?", "bottom center", [("bottom center", True)]),
        ("Where is the shoe?", "It is left of the truck.", []),
        ("Where is the shoe?", "Somewhere on the floor.", []),
        ("What is there?", "A red shoe in the top left and a truck in the bottom left.", [("top left", True), ("bottom left", False)]),
        ("What is there?", "The shoe is not on the left.", []),
        ("What is there?", "In the bottom left is a truck, and in the top left a shoe.", []),
        ("What is there?", "The shoe is to the left of the red truck.", []),
    ],
)  # fmt: skip
def test_places_of_annotated_things_are_read_as_the_benchmarks_read_them(question, text, expected):
    objects = [[{"name": "shoe", "place": "bottom right"}, {"name": "truck", "place": "Lower left"}]]
    sample = Sample(id="a", question=question, metadata={"objects": objects})
    found = measure_attributes(sample, text)
    assert [(each.said, each.wrong) for each in found if each.attribute == "place"] == expected
    assert find_unclaimed(sample, found) == ("" if expected or "Where" not in question else "place")


def test_a_letter_is_no_unread_place():
    sample = Sample(
        id="a", question="Where is it?\nA. left\nB. right", metadata={"objects": [["red star B2"]]}
    )
    assert find_unclaimed(sample, []) == ""
    assert find_unclaimed(sample.model_copy(update={"question": "Where is it?"}), []) == "place"


def test_a_thing_that_moved_is_where_it_was_and_is():
    objects = [[{"name": "shoe", "place": place}] for place in ("top left", "center")]
    sample = Sample(id="a", question="What changed?", metadata={"objects": objects})
    found = measure_attributes(sample, "The shoe moved from the top left to the top right.")
    assert [(each.said, each.wrong, each.source) for each in found] == [
        ("top left", False, "changes"),
        ("top right", True, "changes"),
    ]


def test_annotations_of_photographs_are_contents(tmp_path):
    """Names of several words, annotations of data sets, and an attribute that nobody annotated."""
    listed = [
        {"category": "dog", "bbox": [0, 0, 9, 9], "color": "brown"},
        "traffic light",
        {"bbox": [1, 1, 2, 2]},
    ]
    sample = Sample(id="a", question="?", images=[tmp_path / "a.png"], metadata={"objects": listed})
    assert read_contents(sample) == [[("brown", "dog", None), (None, "traffic light", None)]]
    two = sample.model_copy(
        update={"metadata": {"objects": [listed, ["a big cat"]]}, "images": sample.images * 2}
    )
    assert [[thing.shape for thing in image] for image in read_contents(two)][1] == ["a big cat"]
    found = measure_attributes(sample, "The dog is red. The dog is running. The light is on.")
    assert [(each.said, each.wrong) for each in found if each.attribute == "colour"] == [("red", True)]
    other = Sample(id="b", question="?", images=[tmp_path / "b.png"], metadata={"objects": ["orange"]})
    asked = draw_questions([sample, other])
    assert [each.sample.question for each in asked["b"]] == ["Is there a dog?", "Is there a traffic light?"]
    assert [each.sample.question for each in asked["a"]] == ["Is there an orange?"]


def test_conclusions_follow_from_what_the_steps_list():
    assert follows_from_steps(STEPS)
    assert follows_from_steps(STEPS + " I hope it helps."), "what does not speak of changes is left out"
    assert follows_from_steps(STEPS.replace("removed", "moved from B2 to C3")) is False
    assert follows_from_steps("First, a star.\nTherefore: Nothing changed.") is None


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("No. The star was removed. I hope it helps.", True),
        ("No. The star was removed. The ring was removed.", False),
        ("No. The star was removed. The ring is different.", False),
    ],
)
def test_polite_sentences_are_not_false(text, right):
    metadata = {"type": "same", "objects": [["red star A1", "red ring B1"], ["red ring B1"]]}
    metadata["differences"] = [{"type": "remove", "sentence": "The star was removed."}]
    sample = Sample(id="a", question="?", answer="No. The star was removed.", metadata=metadata)
    assert judge_answer(sample, text) is right
    assert judge_answer(Sample(id="a", question="?", answer="a cat"), "It is a cat.") is True


def test_absent_things_are_asked_for_on_every_image(tmp_path):
    samples = [
        Sample(id=name, images=[tmp_path / f"{number}.png"], question="?", metadata={"objects": [[text]]})
        for name, number, text in (("a", 0, "red star A1"), ("b", 0, "red star A1"), ("c", 1, "blue ring B2"))
    ]
    asked = draw_questions(samples)
    assert [(each.sample.question, each.cues) for each in asked["a"]] == [
        ("Is there a ring?", ["red", "star"])
    ]
    assert [each.thing for each in asked["c"]] == ["star"]


def list_texts(chat: Chat, role: str) -> list[str]:
    parts = [part for message in chat.messages if message["role"] == role for part in message["content"]]
    return [part["text"] for part in parts if part["type"] == "text"]


class Letters:
    """A tokenizer whose tokens 0 to 3 are the letters A to D after a blank."""

    unk_token_id = None

    def convert_ids_to_tokens(self, token: int) -> str:
        return "\u0120" + "ABCD"[token]

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return "ABCD".find(token[-1]) if len(token) == 2 else None


def test_options_that_change_places_tell_a_letter_from_its_content():
    question = "What is it? A. a cat B. a dog C. a cow"
    answer = ParsedAnswer(Sample(id="a", question=question), [1], " B", [" B"])
    readings = {"own": read([2.0]), "alike": read([1.0])}
    for says, moved in (
        (lambda chat: 1, True),  # always B
        (lambda chat: "ABC".index(list_texts(chat, "user")[0].split("a dog")[0].strip()[-2]), False),
    ):
        asked = case(answer, readings=readings, model=Tokens(Letters()))
        places = drive(Order().ask(asked), saying(says)).places
        assert (places.kind, places.moved) == ("options", moved)
    unsteady = {"own": read([2.0]), "alike": read([-1.0])}
    asked = case(answer, readings=unsteady, model=Tokens(Letters()))
    assert drive(Order().ask(asked), None).places is None
    assert order.exchange_options("Is a cat on it? A. a cat B. a dog", "B") == (
        "Is a cat on it? A. a dog B. a cat",
        "A",
    ), "a cat of the question stays"


@pytest.mark.parametrize(
    ("question", "words", "moved"),
    [
        ("Are both of one kind?", ("yes", "no"), (True, False)),
        ("Is the first picture red?", ("yes", "no"), (True, False)),
        ("Which of them is red?", ("first", "second"), (False, True)),
        ("Is there more of it now?", ("yes", "no"), None),  # the true answer may be another one
    ],
)
def test_images_that_change_places_change_no_true_answer(tmp_path, question, words, moved):
    """One model says the first word where the first image is red, and the other one always."""
    images = [draw_sample(tmp_path, colour).images[0] for colour in ("red", "blue")]
    answer = ParsedAnswer(Sample(id="a", question=question, images=images), [4], words[0], [words[0]])
    asked = case(answer, 0, Choice(0, (4, 5), words), readings={"own": read([1.0])})

    def follow_first(chat):
        return 4 if np.asarray(chat.images[0]).sum(axis=(0, 1))[0] else 5

    for says, expected in zip((follow_first, lambda chat: 4), moved or (), strict=False):
        found = drive(Order().ask(asked), saying(says)).places
        assert (found.kind, found.moved) == ("images", expected)
    if moved is None:
        assert drive(Order().ask(asked), saying(follow_first)).places is None


def test_names_of_images_change_places_with_them():
    assert order.exchange_names("Is the left photo of a cat, and image 2 too?") == (
        "Is the right photo of a cat, and image 1 too?"
    )
    assert find_names("Is the picture a photo of one cat on the left?") == []
    assert order.exchange_names("Is picture three red?") is None


def ask_turns(asked: Case, says: Callable[[Chat], int]) -> tuple[Followed | None, Followed | None]:
    """Return whether an answer follows the claim and the example that it gets; None for one that it does not get."""
    claim = drive(UnsureAgreeable().ask(asked), saying(says))
    example = drive(CopiesContext().ask(asked), saying(says))
    return claim and claim.claimed, example and example.copied


def test_an_answer_follows_an_earlier_turn_if_it_does_so_whichever_it_is(tmp_path):
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "blue", "green")]
    answers = [written("Yes.", sample) for sample in samples]
    others = [answers[1], answers[2], None]
    choice = Choice(0, (4, 5), ("yes", "no"))
    chats = []

    def cases(numbers):
        rows = zip(answers, numbers, others, strict=True)
        return [case(answer, number, choice, other) for answer, number, other in rows]

    def agree(chat):
        chats.append(chat)
        return 4 if list_texts(chat, "assistant")[-1] == "Yes." else 5

    found = [ask_turns(each, agree) for each in cases([0, 1, 7])]
    assert [claim.followed for claim, _ in found] == [True] * 3
    assert [example and example.followed for _, example in found] == [True, True, None]
    again = ("{question}", "{question}", "Are you sure? {question}")
    assert [claim.wording for claim, _ in found] == [f"one word, then: {words}" for words in again]
    assert {list_texts(chat, "user")[-1] for chat in chats[-2:]} == {"Are you sure? What colour is it?"}
    example = next(chat for chat in chats if len(chat.images) == 2)
    own = [Image.open(answers[number].sample.images[0]).convert("RGB") for number in (1, 0)]
    assert [image.tobytes() for image in example.images] == [image.tobytes() for image in own], (
        "the own image is last"
    )

    chats.clear()
    steady = [ask_turns(each, lambda chat: chats.append(chat) or 4)[0] for each in cases([0, 1, 7])]
    assert [(each.followed, each.own, each.passes) for each in steady] == [(False, False, 1)] * 3
    assert {list_texts(chat, "assistant")[-1] for chat in chats} == {"No."}, "the own answer decides nothing"


def test_an_earlier_turn_says_a_whole_answer_of_the_model_itself(tmp_path):
    """Each second answer gets one: the model's own, and another's to the same question, or to one with another word."""
    texts = {"star": "Yes, the star is at C4.", "ring": "No, there is no ring."}
    answers = [
        written(text, draw_sample(tmp_path, "red").model_copy(update={"question": f"Is there a {name}?"}))
        for name, text in texts.items()
    ]
    choices = [Choice(0, (4, 5), ("yes", "no")), Choice(0, (5, 4), ("no", "yes"))]
    chats = []

    def repeat(chat):
        chats.append(chat)
        said = list_texts(chat, "assistant")[-1]
        return 4 if said.startswith("Yes, ") else 5

    for answer, choice, number in zip(answers, choices, (1, 1), strict=True):
        claim, _ = ask_turns(case(answer, number, choice, given=answers), repeat)
        assert claim.wording == "a whole answer, then: {question}" and claim.followed
    assert {list_texts(chat, "assistant")[-1] for chat in chats} == {
        "Yes, the star is at C4.",
        "No, there is no star.",
        "Yes, the ring is at C4.",
        "No, there is no ring.",
    }
    alone, _ = ask_turns(case(answers[0], 1, choices[0], given=answers[:1]), repeat)
    assert alone.wording == "one word, then: {question}", "no answer has the other reading"


def test_wordings_of_a_claim_take_turns(tmp_path):
    answer, choice = written("Yes.", draw_sample(tmp_path, "red")), Choice(0, (4, 5), ("yes", "no"))
    given = [answer, written("No.", answer.sample)]
    found = [
        ask_turns(case(answer, number, choice, given[1], given), lambda chat: 4)[0]
        for number in range(3 * len(CLAIMS))
    ]
    assert Counter(each.wording for each in found) == dict.fromkeys(CLAIMS, 3)


def test_an_example_asks_another_question_or_the_same(tmp_path):
    """The example's answer is of the question that it asks."""
    texts = {"star": "Yes, the star is at C4.", "ring": "No, there is no ring."}
    answers = [
        written(text, draw_sample(tmp_path, colour).model_copy(update={"question": f"Is there a {name}?"}))
        for colour, (name, text) in zip(("red", "blue"), texts.items(), strict=True)
    ]
    choice = Choice(0, (4, 5), ("yes", "no"))

    def show(example, wording):
        chats = []
        study = case(answers[0], 0, choice, example, answers).study
        task = CopiesContext().suggest(study, answers[0], choice, wording)
        found = drive(task, saying(lambda chat: chats.append(chat) or 4))
        return chats[0], found

    asked = []
    for wording in COPIES:
        chat, found = show(answers[1], wording)
        assert found.wording == wording
        asked.append((list_texts(chat, "user")[0], list_texts(chat, "assistant")[0]))
        own = Image.open(answers[1].sample.images[0]).convert("RGB")
        assert chat.images[0].tobytes() == own.tobytes(), "the other images"
    assert asked == [
        ("Is there a ring?", "No."),
        ("Is there a ring?", "No, there is no ring."),
        ("Is there a star?", "No."),
        ("Is there a star?", "No, there is no star."),
    ]
    parts = [{"type": "image", "image": answers[1].sample.images[0]}, {"type": "text", "text": "Is it day?"}]
    talk = written("Yes.", Sample(id="b", messages=[{"role": "user", "content": parts}]))
    chat, _ = show(talk, COPIES[2])
    assert list_texts(chat, "user") == ["Is it day?", "Is there a star?"], "a conversation keeps its question"


def test_a_template_without_earlier_turns_is_not_tested(tmp_path):
    answer, choice = written("Yes.", draw_sample(tmp_path, "red")), Choice(0, (4, 5), ("yes", "no"))
    asked = case(answer, 0, choice, answer, [answer])
    tasks = [UnsureAgreeable().ask(asked), CopiesContext().ask(asked)]
    found = drive(together(tasks), lambda request: InputError("the template takes one turn"))
    assert [tuple(each) for each in found] == [(None, 1)] * 2


def test_alike_questions_are_found_without_comparing_all(toy, tmp_path):
    """Answers to questions that differ in one word, about as many images; a long question has none."""
    long = "Look " + "very " * LONG
    names = [
        "Is there a star?",
        "Is there a ring?",
        "Is there no ring?",
        "Is there a star?",
        f"{long}here",
        f"{long}there",
    ]
    answers = [
        written("Yes.", draw_sample(tmp_path, "red").model_copy(update={"question": name})) for name in names
    ]
    study = Study(toy, answers)
    assert [each.sample.question for each in study.alike(answers[0])] == [names[1]]
    assert sorted(each.sample.question for each in study.alike(answers[1])) == [names[0], names[0], names[2]]
    assert study.alike(answers[4]) == []


def test_an_option_is_followed_by_its_place_whichever_word_stands_there(tmp_path):
    """A model that always says the first option goes by the place, in all wordings."""
    answer, choice = written("Yes.", draw_sample(tmp_path, "red")), Choice(0, (4, 5), ("yes", "no"))
    asked = []

    def say_first(chat):
        question = list_texts(chat, "user")[-1].lower()
        asked.append(question)
        return 4 if question.index("yes") < question.index("no") else 5

    def add(number, says, answer=answer):
        own = case(answer, number, choice, readings={"own": read([1.0])}, model=Tokens(Letters()))
        return drive(Order().ask(own), saying(says)).options

    found = [add(number, say_first) for number in range(len(ADDED))]
    assert {each.wording: each.followed for each in found} == dict.fromkeys(ADDED, True)
    assert (
        "what colour is it? answer with no or yes." in asked and "what colour is it? (1) yes (2) no" in asked
    )
    assert not add(0, lambda chat: 4).followed, "the same word in both orders"
    turns = iter([4, 3])
    assert not add(0, lambda chat: next(turns)).followed, "something else in one order"
    own = answer.sample.model_copy(update={"question": "Is it red? A. yes B. no"})
    assert add(2, lambda chat: 4, written("So", own)) is None


def test_the_last_earlier_answer_of_a_conversation_is_exchanged():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Is it day?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is."}]},
        {"role": "user", "content": [{"type": "text", "text": "Is it red?"}]},
    ]
    answer = written("Yes.", Sample(id="a", messages=messages))
    chat = show_example(answer, None, "No.")
    assert list_texts(chat, "assistant") == ["No."] and list_texts(chat, "user") == [
        "Is it day?",
        "Is it red?",
    ]
    asked = case(answer, 1, Choice(0, (4, 5), ("yes", "no")))
    _, found = ask_turns(asked, lambda chat: 4 if list_texts(chat, "assistant")[-1] == "Yes." else 5)
    assert (found.wording, found.followed, found.own, found.passes) == ("one word", True, True, 2)


def test_one_image_is_exchanged_at_a_time(toy, tmp_path):
    cells = [(("red", (1, 2)), ("blue", (0, 1))), (("green", (1, 1)), ("red", (0, 1)))]
    samples = [
        Sample(
            id=str(number),
            images=[draw_sample(tmp_path, *place).images[0] for place in pair],
            question="Are they one?",
            answer=" red",
        )
        for number, pair in enumerate(cells)
    ]
    found = OtherImages(answers_of(toy, samples)).find(answers_of(toy, samples)[0])
    own, other = ([Image.open(path).convert("RGB").tobytes() for path in each.images] for each in samples)
    shown = {kind: [image.tobytes() for image in found[kind]] for kind in ("alone 1", "alone 2", "unrelated")}
    assert shown == {"alone 1": [other[0], own[1]], "alone 2": [own[0], other[1]], "unrelated": other}
    named = [each.model_copy(update={"question": "Is the second picture red?"}) for each in samples]
    assert not any(
        "alone" in kind for kind in OtherImages(answers_of(toy, named)).find(answers_of(toy, named)[0])
    )


def test_each_image_has_a_loss_of_its_own():
    readings = {
        "own": read([4.0]),
        "unrelated": read([-4.0]),
        "alone 1": read([-4.0]),
        "alone 2": read([4.0]),
    }
    found = measure_images(written("Red"), readings)
    loss = lose(found)
    assert loss.net_alone == {1: 2.0, 2: 0.0}


def test_one_difference_is_undone_or_added():
    """The edited pair has the number that it is said to have, counted from the drawings' own edits."""
    seen = set()
    for seed in range(40):
        pair = draw_pair(np.random.default_rng(seed), DIFFICULTIES[seed % 3], seed % 4)
        found = count_differences(pair.first, pair.second)
        assert found.true == len(pair.edits)
        if found.by:
            changed = np.abs(np.asarray(found.images[0], int) - np.asarray(found.images[1], int)).max(2) > 0
            boxes = {box for edit in pair.edits for _, box in edit_boxes(edit)}
            outside = changed.copy()
            for x, y, width, height in boxes:
                outside[y : y + height, x : x + width] = False
            assert outside.any() == (found.by == 1), (
                "a further thing is removed, or nothing but the edits differs"
            )
            assert changed.any() == (found.true + found.by > 0)
            seen.add((found.true, found.by))
    assert {(0, 1), (1, -1), (2, -1), (3, -1), (1, 1), (2, 1)} <= seen


def photograph(tmp_path, boxes: list[list[int]]) -> Sample:
    """Return a question about grey squares at these boxes of a white image."""
    pixels = np.full((64, 64, 3), 255, np.uint8)
    for x, y, width, height in boxes:
        pixels[y : y + height, x : x + width] = 90
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    objects = [{"category": "dog", "bbox": box} for box in boxes] + ["cat"]
    fields = {"images": [tmp_path / "photo.png"], "question": "How many dogs are there?"}
    return Sample(id="a", **fields, metadata={"objects": objects})


def test_a_cue_is_painted_over_in_photographs_with_boxes(tmp_path):
    pytest.importorskip("cv2")
    pixels = np.full((64, 64, 3), 255, np.uint8)
    pixels[2:14, 2:14], pixels[40:50, 40:50] = 90, 30
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    objects = [{"name": "dog", "bbox": [2, 2, 12, 12]}, {"name": "sofa", "bbox": [40, 40, 10, 10]}]
    sample = Sample(id="a", images=[tmp_path / "photo.png"], question="What?", metadata={"objects": objects})
    edits = plan_edits([sample, sample.model_copy(update={"id": "b"})], [("sofa", "cat")])
    assert [(each.has_cue, asked(each)) for each in edits] == [
        (True, "Is there a cat?"),
        (False, "Is there a cat?"),
        (None, "Is there a sofa?"),
    ], "an image is edited once"
    with_cue, without = (np.asarray(each.chat.images[0]) for each in edits[:2])
    assert with_cue[45, 45, 0] == 30 and with_cue[8, 8, 0] > 200, "the dog is painted over"
    assert without[45, 45, 0] > 200 and without[8, 8, 0] == 90
    assert plan_edits([sample], [("sofa", "dog")]) == [], "a dog is there"
    unknown = sample.model_copy(update={"metadata": {"objects": ["dog", "sofa"]}})
    assert plan_edits([unknown], [("sofa", "cat")]) == [], "no boxes"


@pytest.mark.parametrize(
    ("text", "false"),
    [
        ("A puppy sleeps on a couch beside a bicycle.", ["bicycle"]),
        ("There is a dog. There is no bicycle.", []),
        ("It might be a bicycle.", None),
        ("Yes, there is a bicycle.", None),  # read as an answer to a closed question
        ("Nice weather.", None),
    ],
)
def test_objects_that_prose_claims_are_compared_with_the_annotations(text, false):
    sample = Sample(id="a", images=["a.png"], question="Describe it.", metadata={"objects": ["dog", "couch"]})
    found = find_claims(sample, text)
    assert [each.false for each in found] == ([] if false is None else [false])
    other = sample.model_copy(update={"metadata": {"objects": ["dog", "red star B2"]}})
    assert find_claims(other, text) == [], "things without a category may be there by another name"


def test_one_of_the_things_that_are_counted_is_painted_over(tmp_path):
    pytest.importorskip("cv2")
    sample = photograph(tmp_path, [[2, 2, 12, 12], [8, 8, 12, 12], [40, 40, 10, 10]])
    found = find_counted(sample)
    pixels = np.asarray(found.images[0])
    assert (found.true, found.by) == (3, -1)
    assert pixels[40:50, 40:50].min() > 200 and pixels[5, 5, 0] == 90, "the two that overlap stay"
    assert find_counted(photograph(tmp_path, [[2, 2, 12, 12], [8, 8, 12, 12]])) == Counted(2)
    for question in ("Is there a dog?", "How many dogs and cats are there?", "How many cows are there?"):
        assert find_counted(sample.model_copy(update={"question": question})) is None
    region = {"image": 0, "box": [40, 40, 10, 10]}
    boxed = Sample(id="a", images=sample.images, question="How many cows?", answer="One.", regions=[region])
    assert find_counted(boxed).true == 1
    assert find_counted(boxed.model_copy(update={"answer": "2"})) is None, "a region may be another thing"


def test_a_count_that_follows_is_told_from_one_that_does_not(tmp_path):
    """tiny-spd counts the differences of drawn pairs; an answer that was given need not be its own."""
    tiny = load_model("tiny-spd", device="cpu")
    samples = [each for each in load_samples(make_pairs(tmp_path / "pairs", 6, 5)) if "count" in each.id]
    answers = [make_answer(tiny, each, tiny.tokenizer(each.answer)["input_ids"]) for each in samples]
    found = [each.value.count for each in run(tiny, count(tiny, answers), 4)]
    assert all(each.said == each.true for each in found)
    assert sum(each.followed == each.by for each in found) >= 4
    words = [make_answer(tiny, each, tiny.tokenizer("Nothing changed.")["input_ids"]) for each in samples]
    assert [each.value.count for each in run(tiny, count(tiny, words), 4)] == [None] * 6


def count(model, answers):
    return [WrongQuantity().ask(case(answer, model=model)) for answer in answers]


def claim(attribute: str, true: str = "", source: str = "things", wrong: bool = True) -> AttributeClaim:
    return AttributeClaim(attribute=attribute, source=source, said="", true=true, wrong=wrong)


def test_attributes_are_suspected_by_the_claims_outside_of_steps():
    claims = [claim("colour", wrong=n < 2) for n in range(10)]
    claims += [claim("place", source="changes", wrong=n < 1) for n in range(10)]
    claims += [claim("shape") for _ in range(4)]
    claims += [claim("shape", source="steps") for _ in range(9)]
    claims += [claim("invented") for _ in range(9)]
    assert find_suspected(claims, least=5, share=0.2) == ["colour"]


def test_values_that_are_mostly_claimed_wrongly_come_first():
    said = {"red": (1, 1, 0), "blue": (1, 0, 0), "cyan": (1, 1, 1, 0), "black": (0,)}
    claims = [claim("colour", value, wrong=bool(wrong)) for value, own in said.items() for wrong in own]
    assert rank_values(claims, "colour") == ["cyan", "red"]
    assert rank_values(claims, "place") == []


@pytest.mark.parametrize("attribute", ["colour", "shape", "place"])
def test_one_thing_is_altered_in_one_attribute_and_a_model_that_sees_says_so(tmp_path, attribute):
    """Claims of things are compared with what a second drawing of the image shows."""
    tiny = load_model("tiny-spd", device="cpu")
    samples = [each for each in load_samples(make_pairs(tmp_path / "pairs", 8, 5)) if "describe" in each.id]
    samples += [each.model_copy(update={"id": f"{each.id} again"}) for each in samples]
    answers = [make_answer(tiny, each, tiny.tokenizer(each.answer)["input_ids"]) for each in samples]
    values = {"colour": tuple(COLOURS), "shape": SHAPES, "place": [f"{c}{r}" for c in "ABCD" for r in "1234"]}
    wrong = [claim(attribute, value) for value in values[attribute]]
    altered = plan_alterations(answers, wrong, [attribute])
    assert len(altered) == MOST_ALTERED < len(answers)
    number = ("colour", "shape", "place").index(attribute)
    for each in altered:
        before, after = read_contents(each.answer.sample)[0], each.contents[0]
        ((old, new),) = ((a, b) for a, b in zip(before, after, strict=True) if a != b)
        assert [a == b for a, b in zip(old, new, strict=True)] == [place != number for place in range(3)]
        assert new[number] not in {thing[number] for thing in before}
        assert each.before == each.was == old[number] and new[number] in values[attribute]
        own = Image.open(each.answer.sample.images[0]).convert("RGB")
        x0, y0, x1, y1 = ImageChops.difference(own, each.draw_images()[0]).getbbox()
        columns = {"ABCD".index(thing.place[0]) for thing in (old, new)}
        assert min(columns) * 28 <= x0 and x1 <= 28 * (max(columns) + 1) and y1 > y0
    said = [each.value[0] for each in run(tiny, [ask_altered(tiny, each) for each in altered], 8)]
    assert sum(each["said"] == each["true"] for each in said) >= 11
    assert {each["attribute"] for each in said} == {attribute}


def test_things_in_one_and_in_two_images_are_altered_together(tmp_path):
    """In a pair, the first image alone changes, so the claim about the second one stays; each text goes to its own question."""
    tiny = load_model("tiny-spd", device="cpu")
    every = load_samples(make_pairs(tmp_path / "pairs", 12, 5))
    pairs = [each for each in every if each.id.endswith("-same") and "changed from" in each.answer]
    alone = [each for each in every if each.id.endswith("-describe")]
    mixed = [each for both in zip(alone, pairs, strict=False) for each in both]
    answers = [make_answer(tiny, each, tiny.tokenizer(each.answer)["input_ids"]) for each in mixed]
    wrong = [claim("colour", value) for value in COLOURS]
    altered = plan_alterations(answers, wrong, ["colour"])
    kinds = [len(each.draw_images()) for each in altered]
    assert kinds[:4] == [1, 2, 1, 2] and kinds.count(2) >= 3
    for each in altered:
        assert each.contents[1:] == read_contents(each.answer.sample)[1:]
        for path, image in list(zip(each.answer.sample.images, each.draw_images(), strict=True))[1:]:
            assert ImageChops.difference(Image.open(path).convert("RGB"), image).getbbox() is None
    said = [each.value[0] for each in run(tiny, [ask_altered(tiny, each) for each in altered], 8)]
    right = [one["said"] == one["true"] != one["was"] for one in said]
    assert sum(right) >= len(right) - 1


def test_nothing_is_altered_where_no_image_can_be_drawn_again(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    fields = {"images": [tmp_path / "a.png"], "metadata": {"objects": ["red star B2"]}}
    answer = written("The star is blue.", Sample(id="a", question="What colour is the star?", **fields))
    wrong = [claim("colour", "cyan")]
    assert plan_alterations([answer], wrong, ["colour"]) == []


@pytest.mark.exhaustive
def test_further_conclusions_are_as_if_their_questions_had_been_asked(tmp_path):
    """Half of the pairs are asked for steps. The others are, too, where what was measured is open; then nothing is asked again."""
    tiny = load_model("tiny-spd", device="cpu")
    every = load_samples(make_pairs(tmp_path / "pairs", 8, 5))
    pairs = list(dict.fromkeys(sample.metadata["scene"] for sample in every))
    asked = [
        sample
        for sample in every
        if sample.metadata["type"] == ("steps" if pairs.index(sample.metadata["scene"]) % 2 else "same")
    ]
    ledger = diagnosis_ledger(tmp_path / "out")
    ledger.folder.mkdir()
    ledger.begin({}, {})
    records = run_battery(tiny, asked, ledger)
    assert not ledger.lines(CONCLUSIONS), "tiny-spd's conclusions follow from its steps"
    said = {line["id"]: line["ids"] for line in ledger.lines(ANSWERS)}
    answers = [make_answer(tiny, sample, said[sample.id]) for sample in asked]
    study = Study(tiny, answers)
    first = ledger.lines(MEASURES)
    for number, line in enumerate(line for line in first if line["steps"]):
        line["steps"] |= {
            "conclusion": str(number),
            "follows": False,
            "moved_by_images": number % 2 > 0,
            "lost": {"all": 0.0},
        }
    (asked_further,) = DecidedFirst().follow_up(1, study, [AnswerRecord(line) for line in first])
    ledger.append(CONCLUSIONS, run(tiny, [asked_further.task], 3)[0].value)
    lines = ledger.lines(CONCLUSIONS)
    shown = [sample.id for sample in asked if sample.metadata["type"] == "same"]
    assert [line["id"] for line in lines] == shown and all(line["passes"] > 3 for line in lines)
    steps = {sample.metadata["scene"]: sample for sample in every if sample.metadata["type"] == "steps"}
    whole = [*asked, *(steps[sample.metadata["scene"]] for sample in asked if sample.id in shown)]
    other = diagnosis_ledger(tmp_path / "whole")
    other.folder.mkdir()
    other.begin({}, {})
    for line, record in zip(lines, run_battery(tiny, whole, other)[len(asked) :], strict=True):
        for name in ("conclusion", "follows"):
            assert line["steps"][name] == record.line["steps"][name]
        own = record.of(StepsRecord).steps
        assert line["steps"]["moved"].keys() == own.moved.keys()
        assert line["steps"]["lost"]["first part"] == pytest.approx(own.lost["first part"], abs=1e-3)
    again = run_battery(tiny, asked, ledger)
    assert ledger.lines(CONCLUSIONS) == lines, "they are not asked for twice"
    assert sum(len(record.of(StepsRecord).conclusions) for record in again) == len(lines)
    assert sum(record.passes for record in again) > sum(record.passes for record in records)


class EchoRecord(MeasuredPart):
    echoed: bool | None = None


@dataclass(frozen=True)
class Echo(CausalTest):
    """Is an answer read as before?"""

    name = about = effect = needs = "echo"
    files = MappingProxyType({"heard": "heard.jsonl"})

    def ask(self, case):
        (reading,) = yield from read_requests([Read(build_chat(case.answer.sample), case.answer.ids)])
        own = case.readings["own"].logprobs
        return EchoRecord(echoed=np.allclose(reading.logprobs, own, atol=1e-4))

    def follow_up(self, turn, study, records):
        echoed = [record.id for record in records if record.of(EchoRecord).echoed]
        return [FollowUp("heard.jsonl", self.hear(name)) for name in echoed[:2]]

    def hear(self, name):
        return [{"id": name, "passes": 0}]
        yield []

    def score(self, table):
        scores = [float(bool(record.echoed)) for record in table.of(EchoRecord)]
        return CauseScore(table.mean(self.effect, scores), scores)


def test_a_test_of_another_package_has_its_own_readings_passes_and_files(tmp_path, monkeypatch):
    """It is one class. What it asks is read in a batch with what the others ask."""
    tiny = load_model("tiny-spd", device="cpu")
    samples = [
        sample
        for sample in load_samples(make_pairs(tmp_path / "pairs", 5, 5))
        if sample.metadata["type"] == "describe"
    ]
    plain = diagnose(tiny, samples, tmp_path / "plain")
    monkeypatch.setattr(CAUSES, "_registered", {"echo": Echo})
    found = diagnose(tiny, samples, tmp_path / "echo")
    of_examples = sum(each.passes for each in found.examples) / found.n
    assert found.causes["echo"].effect.value == 1 and found.passes == pytest.approx(
        plain.passes + 1 + of_examples
    )
    assert {name: each.effect for name, each in found.causes.items() if name != "echo"} == {
        name: each.effect for name, each in plain.causes.items()
    }
    heard = (tmp_path / "echo" / "heard.jsonl").read_text()
    assert len(heard.splitlines()) == 2, "the second turn finds the lines of the first"
    diagnose(tiny, samples, tmp_path / "echo", resume=True)
    assert (tmp_path / "echo" / "heard.jsonl").read_text() == heard
    diagnose(tiny, samples, tmp_path / "echo", overwrite=True)
    assert (tmp_path / "echo" / "heard.jsonl").read_text() == heard


class Broken(Echo):
    name = "broken"

    def ask(self, case):
        yield from read_requests([Read(build_chat(case.answer.sample), case.answer.ids)])
        return 1 / 0


def test_a_test_of_another_package_that_fails_is_left_out_of_an_answer(toy, tmp_path, monkeypatch, caplog):
    entry = EntryPoint("broken", f"{__name__}:Broken", "mmprobe.causes")
    monkeypatch.setattr(registry, "_added_packages", lambda: {__name__.partition(".")[0]: entry})
    monkeypatch.setattr(CAUSES, "_registered", {"broken": Broken})
    answers = answers_of(toy, [draw_sample(tmp_path, colour) for colour in ("red", "green", "blue")])
    study = Study(toy, answers)
    found = run(toy, [measure_answer(study, answer) for answer in answers], 4)
    assert all("images" in each.value and "echoed" not in each.value for each in found)
    assert "Broken of mmprobe.causes: ZeroDivisionError" in caplog.text


def test_answers_share_the_images_of_their_example(toy, tmp_path):
    """All get the first images, but for those that are asked about these."""
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "green", "blue")]
    study = Study(toy, answers_of(toy, samples))
    shown = [example.sample.images for each in study.answers if (example := study.example(each)) is not None]
    assert shown == [samples[1].images, *[samples[0].images] * (len(samples) - 1)]
