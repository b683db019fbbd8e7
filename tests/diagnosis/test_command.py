"""`mmprobe diagnose` and `mmprobe bench diagnosis` from the command line."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.command_line import assert_fails, run_in_process
from helpers.slow import first_fast
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.diagnosis.bench.run import ROUNDS, SEEDS
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.diagnose import diagnose, diagnosis_ledger
from mmprobe.diagnosis.run import list_kept
from mmprobe.samples import load_samples


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("diagnose") / "pairs", n=8, seed=SEEDS["development"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        ("organism:blind-rolled-0", "blind"),
        ("organism:control-true-0", "control"),
    ],
)
def test_an_organism_is_named_and_a_control_is_a_control(pairs, tmp_path, model, verdict):
    every = [json.loads(line) for line in pairs.read_text().splitlines()]
    lines = [json.dumps(line) for line in every if line["metadata"]["type"] in sum(ROUNDS, ())]
    data = pairs.parent / "some.jsonl"
    data.write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    options = ("--model", model, "--data", data, "--out", out, "--device", "cpu")
    done = run_in_process("diagnose", *options, "--fail-on", "blind")
    assert done.code == (1 if verdict == "blind" else 0), done.stderr
    found = json.loads((out / "diagnosis.json").read_text())
    also = ["looks-unused"] if verdict == "blind" else []  # its attention still shifts with the images
    assert found["verdict"] == [verdict, *also] and found["model"] == model and found["n"] == len(lines)
    assert set(found["causes"]) == set(CAUSES)
    assert found["causes"]["blind"]["named"] == (verdict == "blind")
    of_objects = 8 / len(lines) if verdict == "blind" else 0  # a prompt of each set of images
    of_examples = sum(each["passes"] for each in found["examples"]) / len(lines)
    assert found["forward_passes_per_answer"] <= 18 + of_objects + of_examples  # as docs/diagnosis.md says
    assert [each["cause"] for each in found["examples"]] == [
        cause for cause in found["verdict"] if cause in CAUSES for _ in range(3)
    ]
    assert all(each["then"] == each["answer"] and each["changed"] for each in found["examples"]), (
        "it sees nothing"
    )
    unowned = {path.name for path in out.iterdir()} - set(diagnosis_ledger(out).owns)
    assert not unowned, "an --overwrite would leave what an earlier call measured"
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == len(lines)
    accused = sum("blind" in answer["causes"] for answer in answers)
    assert (
        accused >= len(lines) - 1 if verdict == "blind" else accused == 0
    )  # one answer is left to another cause
    report = (out / "report.html").read_text()
    assert report.index("Causes") < report.index("Evidence") < report.index("Tests")
    assert ("Answer then" in report) == bool(found["examples"])
    told, said = found["objects_in_visual_tokens"], "the image is read, the answer does not use it"
    if verdict == "blind":  # its visual tokens hold what its answers do not use
        assert told["low"] > 0.5 and told["n"] == 8 and told["layer"] == 4
        assert said in found["why"] and f"(AUC {told['value']:.2f} [" in found["why"]
        assert "after layer 4" in found["causes"]["blind"]["evidence"][-1]
        assert said in report and "after layer 4" in report
    else:
        assert set(told) == {"needs"} and said not in found["why"] + report
    assert_fails(run_in_process("diagnose", *options), "already contains a diagnosis; use --resume")
    measures = (out / "measures.jsonl").read_text()
    (out / "measures.jsonl").write_text(measures[: len(measures) * 9 // 10])  # a killed call
    assert run_in_process("diagnose", *options, "--resume").code == 0
    again = json.loads((out / "diagnosis.json").read_text())
    assert (again["causes"], again["examples"]) == (found["causes"], found["examples"])
    assert_fails(
        run_in_process("diagnose", *options, "--resume", "--limit", "3"), "another call, by its samples"
    )


@pytest.mark.slow
def test_photographs_alone_do_not_make_a_control(pairs, tmp_path):
    """Without `metadata.objects` some tests cannot run. Nothing may pass them by."""
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    kept = [line | {"metadata": {}} for line in lines if line["metadata"]["type"] in ("same", "different")][
        :6
    ]
    data, out = pairs.parent / "plain.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps(line) + "\n" for line in kept))
    options = ("--model", "tiny-spd", "--data", data, "--device", "cpu")
    done = run_in_process("diagnose", *options, "--out", out, "--fail-on", "misperceives")
    assert done.code == 1 and "--fail-on misperceives: not tested" in done.stderr
    few = "6 answers about 3 sets of images are too few; it takes 4 sets or more"
    assert (done.stderr + done.stdout).count(few) == 1 and "no cause" in done.stderr
    found = json.loads((out / "diagnosis.json").read_text())
    assert found["verdict"] == ["unknown"] and found["causes"]["misperceives"]["tested"] is False
    assert "not run" in (out / "report.html").read_text()


def test_given_answers_are_diagnosed(pairs, tmp_path):
    """The results of a benchmark say what was asked and answered. One answer holds a special token, one is missing."""
    every = load_samples(pairs)
    asked = [sample for sample in every if sample.metadata["type"] in ("same", "different")][:6]
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    fields = [json.loads(sample.model_dump_json()) for sample in asked]
    (results / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in fields))
    texts = {sample.id: sample.answer or "No." for sample in asked[:-1]}
    texts[asked[1].id] = "Yes.<|im_end|> No."
    lines = [{"response": text, "id": name, "judge": None} for name, text in texts.items()]
    (results / "responses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--model", "tiny-spd", "--answers", results, "--device", "cpu")
    done = run_in_process("diagnose", *options, "--out", out)
    assert done.code == 0, done.stderr
    found = json.loads((out / "diagnosis.json").read_text())
    assert found["n"] == 4 and set(found["unread"]) == {asked[1].id, asked[5].id}
    assert "special token '<|im_end|>'" in found["unread"][asked[1].id]
    assert "2 of 6 given answers" in found["why"]
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert {each["id"]: each["answer"] for each in answers} == {
        name: text for name, text in texts.items() if name != asked[1].id
    }
    resumed = run_in_process("diagnose", *options, "--out", out, "--resume", "--json")
    assert resumed.code == 0 and json.loads(resumed.stdout)["unread"] == found["unread"]
    (results / "responses.jsonl").write_text(json.dumps(lines[0] | {"response": "Maybe."}) + "\n")
    assert_fails(
        run_in_process("diagnose", *options, "--out", out, "--resume"), "another call, by its answers"
    )
    alone = ("--model", "tiny-spd", "--data", results / "questions.jsonl", "--device", "cpu")
    assert_fails(run_in_process("diagnose", *alone, "--out", out, "--resume"), "another call, by its answers")
    assert_fails(run_in_process("diagnose", *options, "--out", results), "is read, too")


def test_bad_input_is_one_line(pairs, tmp_path):
    options = ("--model", "tiny-spd", "--data", pairs, "--out", tmp_path / "out")
    assert_fails(run_in_process("diagnose", *options, "--fail-on", "blnd"), "did you mean blind")
    assert_fails(run_in_process("diagnose", *options, "--resume", "--overwrite"), "choose one")
    assert_fails(
        run_in_process("diagnose", "--model", "tiny-spd", "--data", pairs, "--out", pairs.parent),
        "is read, too",
    )
    image, text = tmp_path / "a.png", tmp_path / "text.jsonl"
    Image.new("RGB", (28, 28)).save(image)
    text.write_text('{"id": "a", "question": "Why?"}\n')
    assert_fails(
        run_in_process("diagnose", "--model", "tiny-spd", "--data", text, "--out", tmp_path / "t"),
        "no sample has images",
    )
    text.write_text('{"id": "a", "images": ["a.png"], "question": "Why?", "prefill": "Yes"}\n')
    assert_fails(
        run_in_process(
            "diagnose", "--model", "tiny-spd", "--data", text, "--out", tmp_path / "t", "--overwrite"
        ),
        "prefill",
    )


def test_the_score_of_tools_takes_no_model(tmp_path):
    out = ("--out", tmp_path / "out")
    assert_fails(run_in_process("bench", "diagnosis", "--model", "tiny-spd", *out), "leave out --model; see")
    assert_fails(run_in_process("bench", "diagnosis", *out, "--tool", "x"), "did you mean tools")
    assert_fails(run_in_process("bench", "diagnosis", *out, "--tools", "x"), "there is none")
    assert_fails(run_in_process("bench", "pope", *out), "give --model")


@pytest.mark.slow
def test_a_cause_that_is_not_in_the_list_is_unknown(pairs, tmp_path):
    """This model says no where it sees yes, and the reverse. It looks, and takes no hint: no cause of the list."""
    model = mp.load_model("tiny-spd", device="cpu")
    yes, no = (model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("Yes", "No"))

    def contradict(module, args, logits):
        logits[..., [yes, no]] = logits[..., [no, yes]]
        return logits

    model.hf.lm_head.register_forward_hook(contradict)
    samples = [each for each in mp.load_samples(pairs) if each.metadata["type"] == "exists"]
    found = diagnose(model, samples, tmp_path / "out")
    assert found.verdict == ["unknown"], found.why
    assert not any(each.named for each in found.causes.values())
    assert any(line.startswith("answers that say something false: 100 %") for line in found.tests)


@pytest.mark.exhaustive
def test_an_image_that_the_model_cannot_see_is_ignored(tmp_path):
    """The second of two images reaches the model as grey, whatever it shows. The model as it is uses both."""
    samples = load_samples(make_pairs(tmp_path / "pairs", n=8, seed=SEEDS["development"]))
    asked = [
        sample.model_copy(update={"metadata": {}})
        for sample in samples
        if sample.metadata["type"] in ("same", "different")
    ]
    model = mp.load_model("tiny-spd", device="cpu")
    found = diagnose(model, asked, tmp_path / "whole").causes["ignores-an-image"]
    assert found.named is False and found.effect.value <= 0.2 and found.effect.n >= 12

    def hide(module, args, options):
        pixels, grid = args[0], options["grid_thw"] if "grid_thw" in options else args[1]
        parts = list(pixels.split(grid.prod(1).tolist()))
        parts[1::2] = [0 * part for part in parts[1::2]]
        return (torch.cat(parts), *args[1:]), options

    model.hf.model.visual.register_forward_pre_hook(hide, with_kwargs=True)
    hidden = diagnose(model, asked, tmp_path / "hidden")
    assert "ignores-an-image" in hidden.verdict and "image 2" in hidden.causes["ignores-an-image"].evidence


def test_a_refused_first_call_is_not_in_the_way(pairs, tmp_path):
    """None of its answers can be read, so nothing was found out that another call would replace."""
    asked = load_samples(pairs)[:4]
    lines = [{"id": sample.id, "response": "Yes.<|im_end|> No."} for sample in asked]
    answers, out = tmp_path / "answers.jsonl", tmp_path / "out"
    call = ["diagnose", "--model", "tiny-spd", "--data", pairs, "--limit", 4, "--device", "cpu", "--out", out]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = run_in_process(*call, "--answers", answers)
    assert refused.code == 2 and "nothing can be tested" in refused.stderr
    answers.write_text("".join(json.dumps(line | {"response": "Yes."}) + "\n" for line in lines))
    done = run_in_process(*call, "--answers", answers)
    assert done.code == 0, done.stderr
    assert_fails(run_in_process(*call, "--answers", answers), "already contains a diagnosis")


def test_what_is_measured_of_an_earlier_call_is_not_measured_by_an_overwriting_one(tmp_path):
    ledger = diagnosis_ledger(tmp_path)
    for name in list_kept():
        (tmp_path / name).write_text("{}\n")
    ledger.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_diagnosis_whose_records_lack_a_later_test_is_resumed(tmp_path):
    """Records of an earlier version have other options, readings without images are missing, and a file of further hints is left."""
    call = ("diagnose", "--model", "tiny-spd", "--n", "4", "--out", tmp_path / "out")
    assert run_in_process(*call).code == 0
    file = tmp_path / "out" / "measures.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["options"] = {"wording": "the first, of: {question}", "followed": False, "shift": 0.1}
        assert record.pop("without")
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    followed = {"id": records[0]["id"], "kind": "hints", "wording": "Hint", "followed": True, "passes": 2}
    (tmp_path / "out" / "again.jsonl").write_text(json.dumps(followed) + "\n")
    resumed = run_in_process(*call, "--resume")
    assert resumed.code == 0, resumed.stderr
    causes = json.loads((tmp_path / "out" / "diagnosis.json").read_text())["causes"]
    assert not causes["language-prior"]["tested"] and causes["follows-hints"]["tested"]


@pytest.mark.slow
@pytest.mark.parametrize("given", first_fast([{"batch_size": 2}, {}]))
def test_no_pass_has_more_rows_than_the_batch_size_says(tiny_spd, tmp_path, given):
    samples = load_samples(make_pairs(tmp_path / "pairs", 2, 5))
    rows = []

    def count(module, args, kwargs):
        shown = kwargs.get("input_ids", kwargs.get("inputs_embeds"))
        rows.append(len(args[0] if shown is None else shown))

    handle = tiny_spd.hf.register_forward_pre_hook(count, with_kwargs=True)
    try:
        diagnose(tiny_spd, samples, tmp_path / "out", **given)
    finally:
        handle.remove()
    assert max(rows) == given.get("batch_size", 8)
