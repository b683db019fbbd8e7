"""Prompts in the papers' words and in a user's own: files, questions, judges, what results record, and every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.slow import first_fast
from PIL import Image

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, make_benchmark, make_benchmarks, wording_of
from mmprobe.benchmarks.core.prompts import fill, list_wordings, read_prompts
from mmprobe.benchmarks.judges.judge import Judgement
from mmprobe.benchmarks.judges.requests import UnusableReply, judge_texts
from mmprobe.benchmarks.magic.benchmark import make_truth
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.model_labels import read_answer, read_healed
from mmprobe.benchmarks.magic.prompts import MagicPrompts
from mmprobe.benchmarks.mirage.benchmark import MirageTruth
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage.model_labels import (
    read_extraction,
    read_hallucinations,
    read_matches,
    read_scores,
)
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.mirage.rewrites import rewrite_questions
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, MirageEffectTruth
from mmprobe.benchmarks.mirage_effect.model_labels import read_labels
from mmprobe.benchmarks.mirage_effect.prompts import MirageEffectPrompts
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.errors import InputError

FORMS = [benchmark.form for benchmark in BENCHMARKS.values()]
FOLDER = Path(__file__).parents[3] / "configs" / "prompts"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_the_instruction_that_mmreason_prints():
    benchmark = make_benchmark("mmreason", {"wording": "paper"})
    question = ReasonQuestion(id="1", question="Find x.", answer="2", discipline="math", source="s")
    truth = MMReasonTruth([question], [])
    (asked,) = benchmark.ask(truth)
    printed = "Generate a step-by-step reasoning process to solve the problem."  # figure 2
    assert asked.question.split("\n\n") == [printed, "Question: Find x."]


class Replies:
    """A judge that replies to every request with what a function makes of its prompt; it keeps what it was sent."""

    def __init__(self, reply):
        self.reply, self.sent = reply, []

    async def ask(self, requests):
        found = []
        for request in requests:
            system, user = judge_texts(request.prompt, request.data)
            self.sent.append((system, user, request.images))
            try:
                found.append(Judgement(request.read(self.reply(user))))
            except UnusableReply:
                found.append(Judgement(None, "garbage"))
        return found


# Files


@pytest.mark.parametrize("form", FORMS)
def test_every_wording_has_texts_of_the_right_form(form):
    for wording in list_wordings(form):
        prompts = read_prompts(form, wording)
        assert set(prompts.model_dump()) == set(form.model_fields)
    default = yaml.safe_load((FOLDER / form.folder / "default.yaml").read_text(encoding="utf-8"))
    assert set(default) | {"correct"} >= set(form.model_fields) >= set(default), (
        "no text comes from elsewhere"
    )


@pytest.mark.parametrize("name", ["mirage", "magic", "mirage-effect", "spd-faith"])
def test_each_text_of_a_paper_names_its_place(name):
    text = (FOLDER / name / "paper.yaml").read_text(encoding="utf-8")
    texts = yaml.safe_load(text)
    lines = text.splitlines()
    assert "arXiv:" in lines[0]
    for key in texts:
        before = lines[: lines.index(next(line for line in lines if line.startswith(f"{key}:")))]
        places = [line for line in before if line.startswith("#") and line != lines[0]]
        assert any(word in " ".join(places) for word in ("Figure", "figure", "Section", "Appendix")), key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qustion: Look. {question}", "prompt 'qustion': there is none; did you mean question"),
        ("question: Look.", "prompt 'question': lacks the placeholder {question}; add it"),
        ("question: '{question} {boxs}'", "unknown placeholder {boxs}; did you mean boxes"),
        ("question: 7", "prompt 'question': Input should be a valid string"),
        ("question: [a]", "prompt 'question': Input should be a valid string"),
        ("question:", "prompt 'question': Input should be a valid string"),
        ("question: '  '", "prompt 'question': is empty"),
        ("steps: Judge.", "lacks the placeholder {known}; add it, or {notice} in place of all"),
        ("steps: '{notice} {known} {steps}'", "choose one of the two forms"),
        ("- question", "not a mapping from names of prompts to texts"),
        ("1: a", "not a mapping from names of prompts to texts"),
        ("question: {a", "not YAML"),
        ("question: !!python/object/apply:os.system ['true']", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_a_file_that_cannot_be_is_one_line(text, message, tmp_path):
    file = write(tmp_path / "mine.yaml", text)
    with pytest.raises(InputError) as caught:
        read_prompts(MagicPrompts, file=file)
    assert message in str(caught.value) and str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_texts_within_texts_are_checked_and_laid_over(tmp_path):
    file = write(tmp_path / "mine.yaml", "topic_hints: {geometry: Draw it.}")
    mixed = read_prompts(MiragePrompts, "paper", file)
    assert mixed.topic_hints.geometry == "Draw it."
    assert mixed.topic_hints.spatial.startswith("To solve the spatial reasoning problem")
    write(file, "topic_hints: {geometri: Draw it.}")
    with pytest.raises(InputError, match="'topic_hints.geometri': .* geometry"):
        read_prompts(MiragePrompts, file=file)
    write(file, "systems: {My Set: You are an expert.}")
    own = read_prompts(MirageEffectPrompts, "paper", file)
    assert own.find_system("my set") == "You are an expert." and own.find_system("vqa-rad")


def test_values_are_not_read_as_placeholders():
    assert (
        fill("{question} {{question}}", {"question": "{other} {question}"}) == "{other} {question} {question}"
    )


# Questions


def magic_truth():
    boxes = [{"box": [0, 0, 9, 9], "relevant": True}, {"box": [20, 0, 9, 9], "relevant": False}]
    chain = [
        {"text": "It is a street.", "correct": True},
        {"text": "R1 is a bus.", "correct": False, "correction": "R1 is a tram."},
        {"text": "It is red.", "correct": True},
        {"text": "It waits.", "correct": True},
    ]
    line = {"id": "q", "image": "a.png", "question": "What is it?", "boxes": boxes, "answer": "tram"}
    line |= {"full_answer": "It is a tram.", "steps": chain}
    return make_truth([MagicQuestion.model_validate(line)], "here")


def test_magic_asks_as_figures_13_and_14():
    paper, truth = make_benchmark("magic", {"wording": "paper"}), magic_truth()
    (sample,) = paper.ask(truth)
    assert "please imagine this person's thought process behind the areas of the image" in sample.question
    assert "(2 bounding box(es)) **Question**: What is it?" in sample.question
    assert "If you realize" not in sample.question
    (healed,) = paper.follow_up(truth, {"q": "?"})
    assert "- If you realize you wrote something wrong in your thought process previously" in healed.question
    assert healed.prefill == "It is a street. R1 is a bus."


def test_the_mirage_effect_asks_as_in_sections_7_4_to_7_7():
    paper = make_benchmark("mirage-effect", {"wording": "paper", "seeds": 2})
    question = ChoiceQuestion(
        id="1",
        images=["a.png"],
        question="Is it large?",
        answer="no",
        metadata={"data_set": "VQA-RAD"},
    )
    own = question.model_copy(update={"id": "2", "system": "Mine."})
    truth = MirageEffectTruth([ImagelessQuestion("i", "a/b", "What is it?")], [question, own])
    samples = {sample.id: sample for sample in paper.ask(truth)}
    system = samples["1"].system
    assert system.startswith(
        "You are an expert radiologist analyzing radiology images from the VQA-RAD dataset."
    )
    assert system.endswith("Format your final answer as: [[your answer]].")
    assert samples["1--absent"].system == system and samples["1"].question == "Is it large?\nA. yes\nB. no"
    assert samples["1--guess"].system == (
        f"{system} However, the image has been removed for this question. Take your best guess based on your "
        "knowledge and write your reason for the chosen answer."
    )
    assert samples["2"].system == "Mine." and "square brackets" in samples["2"].question
    assert samples["i--attachment"].question == "number of image attachments: 1\nWhat is it?"
    assert samples["i--evidence"].system == (
        "You are a helpful vision-language assistant. Base your statements on the visual evidence in the data."
    )
    diagnosis = samples["diagnosis-x-ray-of-the-chest-1--seed-0"]
    assert diagnosis.question == (
        "number of image attachments: 1\nDescribe this imaging of my chest X ray and what is your final "
        "diagnosis? put the diagnosis in <diagnosis> tags"
    )
    named = make_benchmark("mirage-effect", {"wording": "paper", "data_set": "MicroVQA"}).ask(truth)
    first = next(sample.system for sample in named if sample.id == "1--named")
    assert first.startswith(
        "You are answering questions from the MicroVQA dataset. You are an expert in micro"
    )


def test_hints_are_those_of_figure_19():
    fields = {"id": "1", "question": "How long?", "topic": "geometry", "type": "free_form", "answer": "3"}
    truth = MirageTruth([MirageQuestion(named_topic="geometry", question_hint="Halve it.", **fields)])
    paper = make_benchmark("mirage", {"wording": "paper"})
    (hinted,) = paper.follow_up(truth, {"1": "?"})
    assert hinted.question.startswith(
        "To solve the geometry problem, systematically integrate visual and textual"
    )
    assert hinted.question.endswith("Halve it.")


# Judges


def test_a_judge_of_magic_gets_figures_15_to_17_and_replies_as_they_say():
    def reply(text):
        kind = "Yes" if "Continued Reasoning" in text else "Correct"
        return f"```\nReasoning: They agree, nothing is incorrect.\nCorrectness: [{kind}]\n```"

    judge = Replies(reply)
    paper = make_benchmark("magic", {"wording": "paper"})
    answers = {"q": "R1 is a streetcar.\n**Answer**: A streetcar.", "q-heal1": "Wait: R1 is a tram."}
    metrics, (record,) = paper.score(magic_truth(), answers, judge)
    assert (record["correct"], record["correct_full"]) == (True, True)
    assert record["self_heal"][0]["healed_explicit"] is True
    assert metrics["accuracy_short"].value == 1
    whole = [user for system, user, _ in judge.sent if system is None]
    assert any("**Ground Truth:** tram" in user and '"Beige," "tan," "cream,"' in user for user in whole)
    assert any("**Correction:** R1 is a tram." in user for user in whole)
    assert any(system and "<data" in user for system, user, _ in judge.sent), "steps have no figure"


@pytest.mark.parametrize(
    ("read", "reply", "labels"),
    [
        (read_answer, "Reasoning: The model is Correct at first.\nCorrectness: Incorrect", ("incorrect",)),
        (read_answer, "<think>Correctness: Correct</think>\n**Correctness:** Incorrect", ("incorrect",)),
        (read_answer, '{"label": "correct"}', ("correct",)),
        (read_healed, 'Correctness: "No"', ("not_healed",)),
        (read_labels, "It is sure of itself. <answer>false</answer>", (False, None)),
        (read_labels, "(answer)true(/answer)", (True, None)),
        (
            read_hallucinations,
            '<result>{"Overall": {"result": "HALLUCINATION", "reason": "a"}, "Spatial": {"result": "CONFIRM", '
            '"reason": ""}, "Logical": {"result": "HALLUCINATION", "reason": ""}, "Factuality": {"result": '
            '"CONFIRM", "reason": ""}, "Context": {"result": "CONFIRM", "reason": ""}, "Fabrication": '
            '{"result": "CONFIRM", "reason": ""}}</result>',
            (False, True, False, False, False),
        ),
        (
            read_scores,
            '{"Factual Accuracy": {"score": 4, "explanation": "a"}, "Logical Consistency": {"score": 5}, '
            '"Reasoning Completeness": {"score": 3}, "Conceptual Reasoning Accuracy": {"score": 2}, '
            '"Strategy Appropriateness": {"score": 1}}',
            (4, 5, 3, 2, 1),
        ),
    ],
)
def test_replies_in_a_papers_form(read, reply, labels):
    assert read(reply) == labels


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (read_answer, "Correctness: partly"),
        (read_answer, "It is correct."),
        (read_labels, "<answer>maybe</answer>"),
        (
            lambda text: read_matches(text, 1, 1),
            "<pred_match>MATCH,MATCH</pred_match><gt_match>MATCH</gt_match>",
        ),
        (lambda text: read_matches(text, 1, 1), "<pred_match>FINE</pred_match><gt_match>MATCH</gt_match>"),
        (read_scores, '{"Factual Accuracy": {"score": 6}}'),
    ],
)
def test_replies_that_no_form_allows(read, reply):
    with pytest.raises(UnusableReply):
        read(reply)


def test_steps_and_matches_in_the_papers_form():
    extraction = read_extraction("*Output:* <step>Halve 6.</step>\n<claim>It is 3.</claim>", tagged=True)
    assert (extraction.steps, extraction.claims) == (("Halve 6.",), ("It is 3.",))
    matches = read_matches(
        "<pred_match>MATCH, REASONABLE</pred_match>\n<gt_match>CONFLICT</gt_match><f1>0.5</f1>", 2, 1
    )
    assert (matches.predicted, matches.true) == (("MATCH", "REASONABLE"), ("CONFLICT",))


def test_a_judge_of_mirage_gets_figures_8_to_11_and_the_image(tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    kinds = {name: {"result": "CONFIRM"} for name in ("Spatial", "Logical", "Factuality", "Context")}
    names = ("Factual Accuracy", "Logical Consistency", "Reasoning Completeness")
    names += ("Conceptual Reasoning Accuracy", "Strategy Appropriateness")

    def reply(text):
        if "extract the key **steps**" in text:
            return "<step>Halve 6.</step><claim>It is 3.</claim>"
        if "pred_match" in text:
            return "<pred_match>MATCH</pred_match><gt_match>MATCH</gt_match>"
        if "Types of Hallucinations" in text:
            return json.dumps(kinds | {"Fabrication": {"result": "HALLUCINATION"}})
        return json.dumps({name: {"score": 5, "explanation": ""} for name in names})

    fields = {"id": "1", "question": "How long?", "topic": "geometry", "type": "approximate", "answer": "3"}
    fields |= {"images": [tmp_path / "a.png"], "steps": ["Halve 6."], "claims": ["It is 3."]}
    truth = MirageTruth([MirageQuestion(references=["Half of 6 is 3."], **fields)])
    judge = Replies(reply)
    paper = make_benchmark("mirage", {"wording": "paper"})
    metrics, (record,) = paper.score(truth, {"1": "Half of 6 is 3.\nThe answer is 3"}, judge)
    assert record["unscored"] == {} and record["hallucinations"]["fabrication"]
    assert metrics["f_step"].value == metrics["lhs"].value == 1 or metrics["f_step"].value == 1
    shown = {bool(images) for _, user, images in judge.sent if "Types of Hallucinations" in user}
    assert shown == {True} and not any(images for _, user, images in judge.sent if "pred_match" in user)


def test_who_writes_hints_and_topics_sees_the_image_and_a_blind_one_is_told(tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    fields = {"question": "How long?", "topic": "geometry", "type": "free_form", "answer": "3"}
    questions = [MirageQuestion(id=name, images=[tmp_path / "a.png"], **fields) for name in "ab"]

    class Writer(Replies):
        blind = False

        async def ask(self, requests):
            if self.blind and any(request.images for request in requests):
                return [Judgement(None, "error") for _ in requests]
            return await super().ask(requests)

    def reply(text):
        return '{"hint": "Read the scale.", "topic": "geometry"}'

    for blind in (False, True):
        writer = Writer(reply)
        writer.blind = blind
        written = rewrite_questions(questions, writer, ["hints", "topics"])
        assert written.written == {"hints": 2, "topics": 2}
        assert {bool(images) for _, _, images in writer.sent} == {not blind}


# Commands


def test_a_wording_that_a_benchmark_lacks_is_refused():
    with pytest.raises(InputError, match="mme: .* wording 'paper'.* default"):
        make_benchmark("mme", {"wording": "paper"})
    with pytest.raises(InputError, match=r"mine.yaml: no such file"):
        make_benchmark("pope", {"prompts": "mine.yaml"})


def test_several_benchmarks_take_the_options_that_they_have():
    both = ["pope", "spd-faith"]
    pope, spd = make_benchmarks(both, {"judge_images": False})
    assert pope.name == "pope" and spd.judge_images is False
    asked = make_benchmarks(both, {"wording": "paper"})
    assert [wording_of(benchmark)["name"] for benchmark in asked] == ["default", "paper"]
    with pytest.raises(InputError, match="pope: .* wording 'paper'"):
        make_benchmarks(["pope", "mme"], {"wording": "paper"})
    with pytest.raises(InputError, match="'judge_image'.* judge_images"):
        make_benchmarks(both, {"judge_image": False})
    with pytest.raises(InputError, match="one benchmark"):
        make_benchmarks(both, {"prompts": "mine.yaml"})


@pytest.mark.parametrize("name", first_fast(BENCHMARKS, 4))
def test_every_benchmark_asks_in_a_users_own_words(name, tmp_path):
    texts = {
        "spd-faith": "same: Really the same?",
        "chair": "question: Really?",
        "mirage-effect": "short: Really?\nletter: Really?",
    }
    file = write(tmp_path / "mine.yaml", texts.get(name, "question: '{question} Really?'"))
    benchmark = make_benchmark(name, {"prompts": str(file)})
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 40 if name == "pope" else 12, 5))
    questions = [sample.question for sample in benchmark.ask(truth)]
    assert any("Really" in question for question in questions)
    assert wording_of(benchmark)["file"] == str(file)
    assert wording_of(benchmark)["sha256"] != wording_of(BENCHMARKS[name]())["sha256"]


@pytest.mark.slow
def test_results_record_the_wording_and_resume_notices_another(tiny_spd, tmp_path):
    out = tmp_path / "out"
    call = ("bench", "spd-faith", "--model", "tiny-spd", "--n", "2", "--batch-size", "8", "--out", out)
    read_result(run_in_process(*call, "--wording", "paper", "--json"))
    results = json.loads((out / "results.json").read_text())
    paper = make_benchmark("spd-faith", {"wording": "paper"})
    assert results["wording"] == wording_of(paper) and results["wording"]["name"] == "paper"
    assert "Are the two pictures the same?" in (out / "questions.jsonl").read_text()
    assert_fails(run_in_process(*call, "--resume"), "its wording")
    read_result(run_in_process(*call, "--wording", "paper", "--resume", "--json"))
    mine = write(tmp_path / "mine.yaml", "claims: |\n  List claims.\n  {notice}\n  {}")
    assert_fails(run_in_process(*call, "--wording", "paper", "--prompts", mine, "--resume"), "its wording")


@pytest.mark.exhaustive
def test_compare_takes_the_wording_and_notices_another(tiny_spd, tmp_path):
    call = ("compare", "--model", "tiny-spd", "--methods", "plain", "--benchmarks", "spd-faith,pope")
    call += ("--n", "2", "--out", tmp_path / "out", "--batch-size", "8")
    data = ("--data", tmp_path / "pairs" / "samples.jsonl")
    read_result(
        run_in_process("make-pairs", "--out", tmp_path / "pairs", "--n", "40", "--seed", "5", "--json")
    )
    call = tuple(word for word in call if word not in ("--n", "2")) + data + ("--limit", "2")
    assert run_in_process(*call, "--wording", "paper", "--profile", "code", "--json").code == 0
    for name, wording in (("spd-faith", "paper"), ("pope", "default")):
        results = json.loads((tmp_path / "out" / "plain" / name / "results.json").read_text())
        assert results["wording"]["name"] == wording
    other = run_in_process(*call, "--resume")
    assert other.code == 2 and "by its wording" in other.stderr


def test_a_misspelt_option_of_compare_is_named(tmp_path):
    call = ("compare", "--model", "tiny-spd", "--out", tmp_path / "out")
    assert_fails(run_in_process(*call, "--methds", "sage"), "'methds': neither compare nor spd-faith")
    assert_fails(run_in_process(*call, "--methds", "sage"), "did you mean methods")
    assert_fails(run_in_process(*call, "--judge-image", "false"), "did you mean judge_images")


def test_a_task_of_inspect_takes_the_options_of_bench():
    pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
    from inspect_ai._eval.registry import task_create

    task = task_create("mmprobe/spd_faith", n=2, wording="paper", judge_images=False, profile="code")
    asked = [sample.input[-1].content[-1].text for sample in task.dataset]
    assert "Are the two pictures the same?" in asked and task.metadata["wording"]["name"] == "paper"
    with pytest.raises(InputError, match="has no option 'wordng'"):
        task_create("mmprobe/spd_faith", n=2, wordng="paper")
