"""Tests of every method: neutral parameters, clean-up, composition and errors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
import torch
import yaml
from helpers.answers import FAMILIES, STEPS, generate_plain, make_sample, prepare, run_methods, snapshot
from helpers.asking import answer_batch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.interventions import METHODS, generate, load_method, load_methods
from mmprobe.interventions.base import Method, MethodContext
from mmprobe.interventions.contrast import ContrastPath, ContrastState
from mmprobe.interventions.generate import GeneratedAnswer
from mmprobe.interventions.methods.self_consistency import elect_answer
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import parse_settings
from mmprobe.samples import Sample

NEUTRAL = {name: METHODS[name].neutral_parameters for name in METHODS}
STRONG = {name: METHODS[name].strong_parameters for name in METHODS if METHODS[name].strong_parameters}


@pytest.fixture(scope="module", params=first_fast([*FAMILIES, "tiny-spd"]))
def model(request):
    return (
        mp.load_model("tiny-spd", device="cpu")
        if request.param == "tiny-spd"
        else load_tiny_model(request.param)
    )


def test_every_method_has_a_neutral_case():
    assert all(load_method(name, **parameters).neutral for name, parameters in NEUTRAL.items())
    assert [name for name in METHODS if load_method(name).neutral] == ["plain"]
    assert set(STRONG) >= {"sage", "vcd", "icd", "pai", "agla"}


@pytest.fixture(scope="module")
def plain_tokens(model, image_paths):
    return generate_plain(model, prepare(model, make_sample(image_paths[:2]))[1], 12)[0].tolist()


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_neutral_parameters_give_the_plain_tokens(model, name, image_paths, plain_tokens):
    answer = generate(model, make_sample(image_paths[:2]), method=name, max_new_tokens=12, **NEUTRAL[name])
    assert answer.token_ids == plain_tokens
    assert answer.text == model.tokenizer.decode(plain_tokens, skip_special_tokens=True)


@pytest.mark.parametrize("name", sorted(STRONG))
def test_strong_parameters_change_the_logits(model, name, image_paths):
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    _, changed, _ = run_methods(model, [load_method(name, **STRONG[name])], chats, batch, 3)
    _, plain, _ = run_methods(model, [], chats, batch, 3)
    assert (changed[:, 0] - plain[:, 0]).abs().max() > 0.01


@pytest.mark.parametrize(
    "name", sorted(set(NEUTRAL) - {"plain", "steer", "features"})
)  # their own tests have the files
def test_a_method_leaves_the_model_unchanged(name, image_paths):
    model = load_tiny_model("qwen2_5_vl")
    sample = make_sample(image_paths[:2])
    expected = generate_plain(model, prepare(model, sample)[1])[0].tolist()
    before = snapshot(model)
    parameters = STRONG.get(name, {})
    generate(model, sample, method=name, max_new_tokens=4, **parameters)
    assert snapshot(model) == before
    generate(model, make_sample(image_paths[1:2]), method=name, max_new_tokens=2, **parameters)
    assert generate_plain(model, prepare(model, sample)[1])[0].tolist() == expected


@pytest.mark.parametrize("name", sorted(STRONG))
def test_an_error_leaves_the_model_unchanged(name, image_paths):
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    before = snapshot(model)

    def fail(ids, scores):
        raise KeyError("during generation")

    with pytest.raises(KeyError, match="during generation"), torch.inference_mode():
        from mmprobe.interventions import intervene

        method = load_method(name, **STRONG[name])
        with intervene(model, [method], chats, batch) as intervention:
            ((_, state),) = intervention.states
            acts_within = [
                *state.attention_layers(),
                *state.observers(),
                *state.changes(),
            ] or method.has_contrast_path
            assert (snapshot(model) != before) == bool(acts_within)
            processors = [*intervention.processors, fail]
            model.hf.generate(**batch.inputs, max_new_tokens=3, do_sample=False, logits_processor=processors)
    assert snapshot(model) == before


@dataclass(frozen=True)
class SamePrompt(Method):
    """Logits z + (z - z'), where z' comes from the answer's own prompt, so they stay z."""

    name: ClassVar[str] = "same-prompt"

    def create_state(self, context: MethodContext) -> ContrastState:
        return ContrastState(
            lambda: ContrastPath(context.model, context.batch.inputs), lambda z, other: 2 * z - other
        )


def test_a_checkpoints_penalty_of_repetitions_comes_behind_the_methods(image_paths):
    """With two equal paths the answer stays the plain one, with the penalty and in padded rows too."""
    model = load_tiny_model("qwen2_5_vl")
    samples = [make_sample(image_paths[:2]), make_sample(image_paths[:1], "Why?", "b")]
    unpenalised = [answer.token_ids for answer in answer_batch(model, samples, max_new_tokens=12)]
    model.hf.generation_config.repetition_penalty = 1.8
    plain = generate_plain(model, prepare(model, *samples)[1], 12).tolist()
    assert plain != unpenalised, "the test is void: the penalty changes nothing"
    answers = answer_batch(model, samples, SamePrompt(), max_new_tokens=12)
    assert [answer.token_ids for answer in answers] == plain


def test_sampling_ignores_the_top_k_and_top_p_of_a_checkpoint(image_paths):
    model = load_tiny_model("qwen2_5_vl")
    model.hf.generation_config.top_k, model.hf.generation_config.top_p = 1, 0.001
    answers = {
        tuple(
            generate(
                model, make_sample(image_paths[:1]), temperature=1.5, seed=seed, max_new_tokens=6
            ).token_ids
        )
        for seed in range(4)
    }
    assert len(answers) > 1


@pytest.mark.parametrize("name", ["sage", "vcd"])
def test_reports_end_with_the_answer(name, image_paths):
    model = load_tiny_model("qwen2_5_vl")
    samples = [make_sample(image_paths[:2]), make_sample(image_paths[1:3], name="b")]
    first, second = (answer.token_ids for answer in answer_batch(model, samples, name, max_new_tokens=8))
    end = next(step for step, token in enumerate(first) if step and token not in first[:step] + second)
    model.hf.generation_config.eos_token_id = first[end]
    short, long = answer_batch(model, samples, name, max_new_tokens=8)
    diagnostics = short.diagnostics[name]
    assert len(short.token_ids) < len(long.token_ids)
    assert all(step < len(short.token_ids) for step in diagnostics["changed"])
    for series in {"visual_attention", "alpha", "conflict", "suppressed"} & set(diagnostics):
        assert len(diagnostics[series]) == len(short.token_ids)


def test_a_number_may_have_an_exponent():
    """YAML reads 1e-3 as a text."""
    assert load_method("sage", **parse_settings(["alpha=1e-3"])).alpha == 0.001


def test_methods_compose(image_paths):
    """The second contrast combines the logits of the first with those of its contrast path."""
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    vcd, icd = load_method("vcd", alpha=0.5, beta=0), load_method("icd", alpha=0.25, beta=0)
    _, both, report = run_methods(model, [vcd, icd], chats, batch, 1)
    _, vcd_only, _ = run_methods(model, [vcd], chats, batch, 1)
    _, plain, _ = run_methods(model, [], chats, batch, 1)
    _, icd_only, _ = run_methods(model, [icd], chats, batch, 1)
    contrast = (1.25 * plain - icd_only) / 0.25
    torch.testing.assert_close(both, 1.25 * vcd_only - 0.25 * contrast, rtol=1e-3, atol=1e-3)
    assert set(report(0)) == {"vcd", "icd"}


def test_the_attention_biases_of_two_methods_add_up(image_paths):
    """SAGE's first stage twice adds 2 log(1 + alpha), which is log((1 + alpha)^2)."""
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    stage = {"beta": 1, "eta": 0, "shallow": 1}
    _, twice, _ = run_methods(
        model, [load_method("sage", alpha=0.5, **stage) for _ in range(2)], chats, batch
    )
    _, once, _ = run_methods(model, [load_method("sage", alpha=1.25, **stage)], chats, batch)
    torch.testing.assert_close(twice, once, rtol=1e-4, atol=1e-4)


def test_prompt_methods_ask_with_the_decoding_methods(image_paths):
    model = load_tiny_model("qwen2_5_vl")
    sample = make_sample(image_paths[:2])
    answer = generate(
        model, sample, method=[load_method("self-refine"), load_method("vcd", alpha=2)], max_new_tokens=3
    )
    assert set(answer.diagnostics) == {"self-refine", "vcd"}
    assert len(answer.diagnostics["self-refine"]["answers"]) == 1
    alone = generate(model, sample, method="vcd", alpha=2, max_new_tokens=3)
    assert answer.diagnostics["self-refine"]["answers"][0] == alone.text


def test_elect_answer():
    assert elect_answer(["No", "Yes, a star", "yes: a", "Yes, a star"]) == 1
    assert elect_answer(["b", "a", "a"]) == 1
    assert elect_answer(["only"]) == 0
    assert elect_answer(["", "", "no"]) == 0


def test_self_consistency_returns_one_of_its_answers(tiny_spd, image_paths):
    answer = generate(tiny_spd, make_sample(image_paths[:2]), "self-consistency", answers=3, max_new_tokens=5)
    diagnostics = answer.diagnostics["self-consistency"]
    assert len(diagnostics["answers"]) == 3
    assert diagnostics["answers"][diagnostics["chosen"]] == answer.text
    again = generate(tiny_spd, make_sample(image_paths[:2]), "self-consistency", answers=3, max_new_tokens=5)
    assert again == answer


def test_zoom_refine_shows_a_part_of_an_image(tiny_spd, image_paths):
    answer = generate(tiny_spd, make_sample(image_paths[:2]), "zoom-refine", max_new_tokens=5)
    left, top, right, bottom = answer.diagnostics["zoom-refine"]["box"]
    assert 0 <= left < right <= 140 and 0 <= top < bottom <= 112


@pytest.mark.parametrize(
    ("name", "prefills"), [("self-refine", ["So", "", "So"]), ("zoom-refine", ["So", "So"])]
)
def test_a_prefill_is_part_of_the_refined_answer(name, prefills, tiny_spd, image_paths):
    sample = make_sample(image_paths[:1]).model_copy(update={"prefill": "So"})
    (chat,), batch = prepare(tiny_spd, sample)
    ids = tiny_spd.tokenizer(" it is.", add_special_tokens=False)["input_ids"]
    diagnostics = {"attention-recorder": {"attention": [1.0] * len(batch.prompts[0].visual_positions)}}
    asked_chats = []

    def ask(chats, **options):
        asked_chats.extend(chats)
        return [GeneratedAnswer(" it is.", ids, diagnostics)]

    (answer,) = load_method(name).answer(tiny_spd, [chat], ask, 0, 4)
    assert answer.text == " it is." and [asked.prefill for asked in asked_chats] == prefills
    for asked in asked_chats[1:]:
        (text,) = [part["text"] for part in asked.messages[-1]["content"] if part["type"] == "text"]
        assert "\nAnswer: So it is.\n" in text


def test_sampling_follows_the_seed(tiny_spd, image_paths):
    sample = make_sample(image_paths[:2])
    first, second = (
        generate(tiny_spd, sample, "vcd", temperature=1.5, seed=4, max_new_tokens=8) for _ in range(2)
    )
    assert isinstance(first, GeneratedAnswer) and first == second


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_shipped_parameters_are_the_defaults(name, request):
    file = request.config.rootpath / "configs" / "methods" / f"{name}.yaml"
    data = yaml.safe_load(file.read_text())
    method = METHODS[name]()
    assert data["method"] == name == method.name
    assert list(data.get("parameters", {})) == [field.name for field in fields(method)]
    assert load_method(name) == method
    assert method.reference
    for field in fields(method):
        assert f"{field.name}:" in (type(method).__doc__ or ""), field.name


def test_load_method_from_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("method: sage\nparameters: {eta: 2}\n")
    assert load_method(file).eta == 2.0 and load_method(str(file), eta=1).eta == 1.0
    assert load_method(load_method(file), alpha=0.3).eta == 2.0


@pytest.mark.parametrize(
    ("source", "parameters", "message"),
    [
        ("sgae", {}, "method 'sgae': there is none; did you mean sage"),
        ("sage", {"etta": 1}, "method sage: parameter 'etta': there is none; did you mean eta or beta"),
        ("sage", {"eta": -1}, "method sage: eta=-1.0: must be a number from 0 to 10"),
        ("sage", {"eta": float("nan")}, "eta=nan: must be"),
        ("sage", {"eta": "much"}, "eta='much': must be a number"),
        ("sage", {"eta": True}, "eta=True: must be a number"),
        ("sage", {"eta": None}, "eta=None: must be a number"),
        ("sage", {"refresh": 1.5}, "refresh=1.5: must be a whole number from 0"),
        ("sage", {"see": 1}, "see=1: must be true or false"),
        ("sage", {"rule": "add"}, "rule='add': must be one of scale, take"),
        ("sage", {"prompt": True, "rule": "take"}, "prompt=true needs rule=scale"),
        ("icd", {"instruction": " "}, "instruction=' ': must be a text"),
        ("pai", {"gamma": 0.5}, "gamma=0.5: must be a number from 1 to 10"),
        ("pai+vcd", {"alpha": 1}, "parameters alpha: there are several methods"),
        ("vcd+vcd", {}, "method vcd: it is given twice"),
        ([], {}, "method: none is given"),
        ("nowhere.yaml", {}, "nowhere.yaml: cannot be read"),
    ],
)
def test_bad_input_is_reported_in_one_line(source, parameters, message):
    with pytest.raises(InputError) as caught:
        load_methods(source, **parameters)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["- a", "method: 3", "method: sage\nparameter: {}", "method: sage\nparameters: [1]", "a: [", "\0"],
)
def test_bad_files_are_reported_in_one_line(content, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(InputError, match="mine.yaml") as caught:
        load_method(file)
    assert "\n" not in str(caught.value)


def test_parse_settings():
    assert parse_settings(["eta=0.5", "see=false", "tau=null", "instruction=a=b"]) == {
        "eta": 0.5, "see": False, "tau": None, "instruction": "a=b",
    }  # fmt: skip
    for pairs, message in (
        (["eta"], "write NAME=VALUE"),
        (["a=1", "a=2"], "set twice"),
        (["a=["], "cannot be read"),
        (["a=2024-13-45"], "parameter a: the value '2024-13-45' cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            parse_settings(pairs)


@pytest.mark.parametrize("name", [name for name in sorted(NEUTRAL) if METHODS[name].needs_images])
def test_a_missing_image_is_reported_before_the_model_runs(name, tiny_spd, monkeypatch):
    monkeypatch.setattr(type(tiny_spd.hf), "generate", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(InputError, match=f"method {name}: sample x has no image"):
        generate(tiny_spd, Sample(id="x", question="Why?"), method=name)


@pytest.mark.parametrize("name", [name for name in sorted(NEUTRAL) if METHODS[name].needs_visual_tokens])
def test_methods_that_need_visual_tokens_refuse_cross_attention(name, image_paths):
    with pytest.raises(InputError, match=f"method {name}: mllama .*cross-attention"):
        generate(load_tiny_model("mllama"), make_sample(image_paths[:1]), method=name)


def test_pai_needs_a_family_that_reads_prompts_without_images(image_paths):
    model = load_tiny_model("paligemma")
    with pytest.raises(InputError, match="method pai: paligemma .*gamma=1"):
        generate(model, make_sample(image_paths[:1]), method="pai", max_new_tokens=2)
    assert (
        len(generate(model, make_sample(image_paths[:1]), method="pai", gamma=1, max_new_tokens=2).token_ids)
        == 2
    )


def test_methods_that_cannot_act_together_are_refused(tiny_spd, image_paths):
    with pytest.raises(InputError, match="method opera"):
        generate(tiny_spd, make_sample(image_paths[:1]), method="opera+vcd")
    with pytest.raises(InputError, match="method opera"):
        generate(tiny_spd, make_sample(image_paths[:1]), method="opera", temperature=0.5)
    with pytest.raises(InputError, match="self-refine and zoom-refine"):
        generate(tiny_spd, make_sample(image_paths[:1]), method="self-refine+zoom-refine")
    assert issubclass(METHODS["zoom-refine"], PromptMethod)


def test_other_bad_arguments(tiny_spd, image_paths):
    sample = make_sample(image_paths[:1])
    for options, message in (
        ({"max_new_tokens": 0}, "max_new_tokens 0"),
        ({"temperature": -1}, "temperature -1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**63}, "seed 9223372036854775808: must be"),
        ({"repetition_penalty": 0}, "repetition_penalty 0: must be a number above 0"),
    ):
        with pytest.raises(InputError, match=message):
            generate(tiny_spd, sample, **options)


def test_hooks_observe_the_changed_residual_stream(tiny_spd, image_paths, tmp_path):
    """Within `intervene`, hooks observe the changed residual stream, and never the contrast path."""
    from mmprobe.interventions import intervene
    from mmprobe.models.hooks import observe

    chats, batch = prepare(tiny_spd, make_sample(image_paths[:2]))
    method = load_method("sage", alpha=0, eta=1, k=0.8, beta=0, tau=0)
    layer = tiny_spd.family.decoder(tiny_spd.hf).layers[3]
    mids, posts = [], []
    with torch.inference_mode(), intervene(tiny_spd, [method], chats, batch) as intervention:
        parts = tiny_spd.family.parts(layer)
        with observe(layer, outputs=posts.append), observe(parts.mid, inputs=mids.append):
            out = tiny_spd.hf.generate(
                **batch.inputs,
                max_new_tokens=STEPS,
                do_sample=False,
                logits_processor=intervention.processors,
            )
    steps = out.shape[1] - batch.inputs["input_ids"].shape[1]
    assert len(posts) == len(mids) == steps
    for mid, post in zip(mids, posts, strict=True):
        assert torch.equal(mid[:, -1], post[:, -1])  # with beta 0 nothing of the FFN's update is left


@pytest.mark.parametrize(
    "name", first_fast(["plain", "self-refine", "attention-prompting", "zoom-refine", "icd"])
)
def test_a_batch_is_answered_like_its_samples_alone(tiny_spd, image_paths, name):
    samples = [
        make_sample(image_paths[:2]),
        make_sample(image_paths[1:3]).model_copy(update={"id": "other", "question": "Why?"}),
    ]
    together = answer_batch(tiny_spd, samples, name, max_new_tokens=12)
    alone = [generate(tiny_spd, sample, name, max_new_tokens=12) for sample in samples]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert together[0].diagnostics.keys() == alone[0].diagnostics.keys()
