"""Lenses on visual tokens: against transformers' own hidden states, closed forms, and counts made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command_line import run_in_process
from helpers.family_checks import paint
from helpers.tiny_models import load_tiny_model
from PIL import Image

import mmprobe as mp
from mmprobe.analyses import export
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.contents import DeclaredObject
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens import run as module
from mmprobe.probes.visual_tokens.cells import cell_boxes, read_cells
from mmprobe.probes.visual_tokens.lenses import (
    TextBank,
    fit_jacobian,
    fit_states,
    identity_jacobian,
    jacobian_lens,
    make_bank,
    nearest_embeddings,
    unembedding_lens,
)
from mmprobe.probes.visual_tokens.run import (
    SampleCells,
    find_captured,
    find_ids,
    visual_tokens_run,
    visual_words,
)
from mmprobe.samples import Region, Sample
from mmprobe.viz.figures import figures

SIZES = [(56, 140), (112, 84)]  # height and width: wide, then tall


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    folder, rng = tmp_path_factory.mktemp("cells"), np.random.default_rng(3)
    paths = []
    for number, (height, width) in enumerate(SIZES):
        paths.append(folder / f"{number}.png")
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(paths[-1])
    return Sample(id="a", images=paths, question="What changed?")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> list[Sample]:
    samples = mp.load_samples(make_pairs(tmp_path_factory.mktemp("drawn") / "pairs", n=6, seed=5))
    return [sample for sample in samples if sample.metadata["type"] == "describe"]


def eager_states(model: Model, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return transformers' hidden states after each layer but the last [layer, token, hidden], and the last normed."""
    kept = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model.hf(**model.prepare(sample), output_hidden_states=True)
    finally:
        model.hf.set_attn_implementation(kept)
    states = torch.stack(output.hidden_states[1:])[:, 0].double().numpy()
    return states[:-1], states[-1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["tiny-spd", "gemma3"])
def test_the_words_are_those_of_eager_hidden_states(name, tiny_spd, sample):
    model = tiny_spd if name == "tiny-spd" else load_tiny_model(name)
    ds = visual_words(model, sample, top=3)
    states, last = eager_states(model, sample)
    norm = model.family.final_norm(model.hf)
    gain = norm.weight.detach().double().numpy() + (name == "gemma3")  # Gemma's gain is 1 + weight
    epsilon = norm.variance_epsilon if name == "tiny-spd" else norm.eps
    normed = states / np.sqrt((states**2).mean(-1, keepdims=True) + epsilon) * gain
    weight = model.hf.get_output_embeddings().weight.detach().double().numpy()
    expected = log_softmax(np.concatenate([normed, last[None]]) @ weight.T)
    ids = model.prepare(sample)["input_ids"][0].numpy()
    visual = np.flatnonzero(ids == model.family.image_token_id(model.hf.config))
    expected = np.sort(expected[:, visual], -1)[..., ::-1][..., :3]
    assert expected.shape == (model.n_layers, ds.sizes["cell"], 3)
    np.testing.assert_allclose(ds.score.values[0, 0], expected, atol=5e-4)
    best = model.tokenizer.decode([int(np.argmax(normed[1, visual[4]] @ weight.T))])
    assert ds.word.values[0, 0, 1, 4, 0] == best


def test_a_painted_cell_is_where_its_box_says(tiny_spd, sample, tmp_path):
    """Rows are rows and columns are columns, in the second image of two that are not square."""
    boxes = cell_boxes(tiny_spd.prompt(sample))
    own = read_cells(tiny_spd, [sample], [0])[0].values[0]
    chosen = [cell for cell in range(len(boxes)) if boxes[cell, 0] == 1][1::3]
    assert len(chosen) >= 4
    for cell in chosen:
        x, y, width, height = boxes[cell, 1:]
        changed = paint(sample.images[1], (x, y, x + width, y + height), tmp_path)
        other = sample.model_copy(update={"images": [sample.images[0], changed]})
        moved = (read_cells(tiny_spd, [other], [0])[0].values[0] - own).norm(dim=-1)
        assert int(moved.argmax()) == cell
        region = Region(image=1, box=(int(x) + 2, int(y) + 2, int(width) - 3, int(height) - 3))
        assert np.flatnonzero(touched_cells(tiny_spd.prompt(sample), region)).tolist() == [cell]


def test_a_batch_reads_what_single_prompts_read(tiny_spd, sample):
    longer = sample.model_copy(
        update={"id": "b", "images": sample.images[::-1], "question": "What changed, and where is it now?"}
    )
    together = read_cells(tiny_spd, [sample, longer], [0, 7])
    for each, states in zip([sample, longer], together, strict=True):
        alone = read_cells(tiny_spd, [each], [0, 7])[0]
        torch.testing.assert_close(states.values, alone.values, atol=1e-4, rtol=1e-4)
    assert together[0].prompt.padding > together[1].prompt.padding == 0


def test_the_identity_is_the_logit_lens_exactly(tiny_spd, sample):
    states = read_cells(tiny_spd, [sample], [2, 7])[0].values
    plain = unembedding_lens(tiny_spd)
    identity = jacobian_lens(tiny_spd, identity_jacobian([2, 7], states.shape[-1]))
    for index, layer in enumerate((2, 7)):
        assert torch.equal(identity.read(layer, states[index]), plain.read(layer, states[index]))


def test_the_jacobian_is_the_ridge_regression_towards_the_identity(tiny_spd, drawn):
    fitted = fit_jacobian(tiny_spd, drawn[:3], layers=[1, 7], ridge=0.1)
    parts = [read_cells(tiny_spd, [each], [1, 7])[0].values.double().numpy() for each in drawn[:3]]
    early, late = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    centred, moved = early - early.mean(0), (late - early) - (late - early).mean(0)
    gram = centred.T @ centred / len(early)
    penalty = 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram))
    matrix = np.eye(len(gram)) + np.linalg.solve(gram + penalty, centred.T @ moved / len(early))
    np.testing.assert_allclose(fitted.matrices[0], matrix, atol=1e-5)
    np.testing.assert_allclose(fitted.bias[0], late.mean(0) - early.mean(0) @ matrix, atol=1e-4)
    np.testing.assert_allclose(fitted.matrices[1], np.eye(len(gram)), atol=1e-6)
    strong = fit_states([(torch.from_numpy(early)[None], torch.from_numpy(late))], ridge=1e9)
    np.testing.assert_allclose(strong.matrices[0], np.eye(len(gram)), atol=1e-6)
    with pytest.raises(InputError, match="ridge 0: must be above 0"):
        fit_states([], ridge=0)


def test_a_bank_has_the_states_of_its_texts_and_shared_beginnings_once(tiny_spd):
    texts = ["The star is red.", "The star is blue, and it moved.", "The star is red."]
    bank = make_bank(tiny_spd, texts, layers=[3, 5])
    own = tiny_spd.tokenizer(texts[0])["input_ids"], tiny_spd.tokenizer(texts[1])["input_ids"]
    shared = next(place for place, pair in enumerate(zip(*own, strict=False)) if len(set(pair)) > 1)
    assert bank.ids.tolist() == [*own[0], *own[1][shared:]] * 2
    states, _ = eager_states(tiny_spd, Sample(id="a", question=texts[1]))
    prompt = tiny_spd.prompt(Sample(id="a", question=texts[1]))
    last = states[5, np.flatnonzero(prompt.group == mp.models.Group.USER)[-1]]
    np.testing.assert_allclose(bank.states[-1], last / np.linalg.norm(last), atol=1e-5)
    assert bank.layers[-1] == 5
    scores = nearest_embeddings(bank).read(0, torch.from_numpy(last)[None])
    assert scores.argmax() == own[1][-1]
    assert scores.max() == pytest.approx(1, abs=1e-5)
    assert torch.isinf(scores[0, [token for token in range(504) if token not in bank.ids]]).all()


def test_a_token_scores_by_its_nearest_entry():
    states = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    bank = TextBank(states, torch.tensor([2, 0, 2]), torch.tensor([0, 0, 4]), 4)
    scores = nearest_embeddings(bank).read(1, torch.tensor([[0.0, 3.0], [5.0, 0.0]]))
    expected = torch.tensor([[0.8, -torch.inf, 1.0, -torch.inf], [0.6, -torch.inf, 1.0, -torch.inf]])
    torch.testing.assert_close(scores, expected)


def test_words_of_one_token_and_of_pieces(tiny_spd):
    whole, is_piece = find_ids(tiny_spd, "circle")
    assert not is_piece and tiny_spd.tokenizer.decode([whole[0]]) == " circle"
    ids, is_piece = find_ids(tiny_spd, "rhinoceros")
    assert is_piece and "rhinoceros".startswith(tiny_spd.tokenizer.decode(ids).strip())


def test_measures_counted_by_hand(tiny_spd, drawn):
    """A 4 by 4 grid: a red star in cell 5, a red ring in cell 6, and an image of a blue star in cell 9."""
    prompt = tiny_spd.prompt(drawn[0])
    cells = np.arange(16)

    def make(words: list[tuple[int, str, str]]) -> SampleCells:
        things = [
            (
                DeclaredObject(shape, 0, colour=colour),
                cells == cell,
            )
            for cell, colour, shape in words
        ]
        return SampleCells(drawn[0], prompt, torch.zeros(1, 16, 2), things)

    shown, other = make([(5, "red", "star"), (6, "red", "ring")]), make([(9, "blue", "star")])
    named = {
        "red": np.isin(cells, [5, 0, 1]),
        "star": np.isin(cells, [9]),
        "ring": np.isin(cells, [6]),
        "blue": np.isin(cells, [9, 2]),
    }
    score = {"red": -1.0 * cells, "star": 1.0 * cells, "ring": np.zeros(16), "blue": np.zeros(16)}
    colour = module._measure_kind(shown, other, "colour", named, score)
    # red is said at one of two cells; at 2 of 14 other cells; blue is said at the other image's cell; cells 5 and 6
    # score above cells 7 to 15, which are 9 of 14
    np.testing.assert_allclose(colour, [1 / 2, 2 / 14, 1, 9 / 14])
    thing = module._measure_kind(shown, other, "thing", named, score)
    np.testing.assert_allclose(thing, [1 / 2, 1 / 2 * (1 / 15), 1, (5 / 15 + 0.5) / 2])
    alone = module._measure_kind(shown, None, "all", named, score)
    np.testing.assert_allclose(alone[[0, 2]], [2 / 4, np.nan])
    # a word that is true at the cell by chance is not a false positive
    same = module._measure_kind(shown, make([(6, "red", "star")]), "all", named, score)
    assert same[2] == 0


def test_words_that_were_not_fitted_are_left_out_and_counted(tiny_spd, drawn):
    """Each cell's state is its word's. `heart` and `cross` are in one half of the images only, so the probe cannot know them."""
    prompt, rng = tiny_spd.prompt(drawn[0]), np.random.default_rng(0)
    cells = np.arange(16)
    names = [
        ("star", "ring"),
        ("ring", "star"),
        ("star", "heart"),
        ("ring", "star"),
        ("ring", "heart"),
        ("star", "cross"),
    ]
    directions = {name: rng.normal(size=24) for name in ("star", "ring", "heart", "cross")}
    shown = []
    for pair in names:
        states = 0.1 * rng.normal(size=(1, 16, 24))
        for cell, name in enumerate(pair):
            states[:, 3 * cell] += 3 * directions[name]
        things = [(DeclaredObject(name, 0), cells == 3 * cell) for cell, name in enumerate(pair)]
        shown.append(SampleCells(drawn[0], prompt, torch.from_numpy(states).float(), things))
    half = np.arange(6) % 2
    linear = module._score_linear(tiny_spd, shown, half, 1)
    plain = [lambda index: torch.zeros(16, len(tiny_spd.hf.get_output_embeddings().weight))] * 6
    tokens = {name: find_ids(tiny_spd, name)[0] for name in directions}
    read = [module._read_words([linear[row], plain[row]], 1, 5, tokens) for row in range(6)]
    rows, counts = module._measure_names(shown, read, tokens)
    auc = rows[:, 0, 0, module.KINDS.index("thing"), module.MEASURES.index("cell_auc")]
    assert np.nanmin(auc) > 0.95, "a word without a probe would be .5"
    assert counts[:, 0].tolist() == [[9, 0, 9], [3, 0, 3]]  # by kind: all, colour, thing
    assert counts[:, 1].tolist() == [[12, 0, 12], [0, 0, 0]], "the logit lens names every word"


def test_words_that_share_a_token_keep_the_larger_score(tiny_spd, drawn, monkeypatch):
    monkeypatch.setattr(module, "find_ids", lambda model, word: ([7], True))
    prompt, cells = tiny_spd.prompt(drawn[0]), np.arange(16)
    shown = []
    for pair in (("ant", "bee"), ("ant", "bee"), ("ant", "wasp"), ("ant", "bee")):
        states = torch.zeros(1, 16, 2)
        states[:, 0, 0] = states[:, 3, 1] = 5.0
        things = [(DeclaredObject(name, 0), cells == 3 * cell) for cell, name in enumerate(pair)]
        shown.append(SampleCells(drawn[0], prompt, states, things))
    scores = module._score_linear(tiny_spd, shown, np.arange(4) % 2, 1)
    assert all(torch.isfinite(scores[row](0)[:, 7]).all() for row in range(4))


@pytest.fixture(scope="module")
def measured(tiny_spd, drawn):
    return visual_tokens_run(tiny_spd, drawn, layers=[3, 7])


def test_lenses_are_fitted_on_other_images(tiny_spd, drawn, measured):
    """The third sample is in the half of the first: without it, the first's words stay and the second's change."""
    changed = [*drawn[:2], drawn[4], *drawn[3:4]]
    before, after = (
        visual_tokens_run(tiny_spd, each, layers=[3, 7], lenses=["jacobian", "nearest", "linear"])
        for each in (drawn[:4], changed)
    )
    for lens in ("jacobian", "nearest", "linear"):
        first, second = (
            (before.score.sel(lens=lens).values[place], after.score.sel(lens=lens).values[place])
            for place in (0, 1)
        )
        np.testing.assert_array_equal(*first, err_msg=lens)
        assert not np.array_equal(*second, equal_nan=True), lens


def test_the_run_has_measures_with_intervals_and_words(tiny_spd, drawn, measured):
    assert measured.lens.values.tolist() == ["logit", "jacobian", "nearest", "linear"]
    for name in module.MEASURES:
        finite = np.isfinite(measured[name].values)
        assert finite.all()
        low, value, high = (measured[f"{name}{end}"].values for end in ("_low", "", "_high"))
        assert ((low <= value + 1e-9) & (value <= high + 1e-9)).all()
    assert (measured.cell_auc.sel(lens="linear", kind="colour") > 0.8).all()  # the colours are there
    one = visual_words(tiny_spd, drawn[0], layers=[3, 7])
    np.testing.assert_allclose(measured.score.values[0, 0], one.score.values[0, 0], atol=1e-3)
    words = measured.word.sel(lens="logit").values[0]
    assert (words == one.word.values[0, 0]).mean() > 0.99
    assert measured.attrs["pieces"] == "" and int(measured.n_images) == 6


def test_figures_show_each_layer_and_list_a_cells_words(measured, sample, tiny_spd, tmp_path):
    first, *others = figures(measured)
    assert "false positives" in first.caption and len(others) == 6
    ds = visual_words(tiny_spd, sample, layers=[0, 5], top=2)
    (panel,) = figures(ds)
    assert [step["label"] for step in panel.figure.layout.sliders[0].steps] == ["0", "5"]
    assert [trace.visible for trace in panel.figure.data] == [False, False, True, True]
    assert panel.figure.layout.sliders[0].steps[0].args[0]["visible"] == [True, True, False, False]
    assert len(panel.figure.layout.images) == 2 and panel.figure.layout.images[1].sizey == 112
    wide = panel.figure.data[2]
    cell = 7  # of the wide image, whose first row has fewer cells than 8
    centre = ds.cell_box.values[0, cell, :2] + ds.cell_box.values[0, cell, 2:] / 2
    assert (wide.x[cell], wide.y[cell]) == pytest.approx(tuple(centre)) and centre[1] > 18
    lines = wide.customdata[cell].split("<br>")
    assert [line.partition(":")[0] for line in lines] == ["layer 0", "layer 5"]
    gone = ds.assign(image_path=(("sample", "image"), [["gone.png", str(tmp_path / "b.png")]]))
    texts = [note.text for note in figures(gone)[0].figure.layout.annotations]
    assert texts == ["gone.png no longer exists", "b.png no longer exists"]


def test_what_has_no_visual_tokens_is_refused(tiny_spd, drawn, tmp_path):
    with pytest.raises(NotApplicable, match="no visual token"):
        visual_words(tiny_spd, Sample(id="a", question="What?"))
    with pytest.raises(NotApplicable, match="sees images by cross-attention"):
        visual_words(load_tiny_model("mllama"), drawn[0])
    with pytest.raises(NotApplicable, match="two sets .*it has 1"):
        visual_tokens_run(tiny_spd, [drawn[0], drawn[0].model_copy(update={"id": "again"})])
    both = drawn[0].model_copy(update={"id": "both", "images": [*drawn[0].images, *drawn[1].images]})
    with pytest.raises(NotApplicable, match="two sets .*it has 1"):
        visual_tokens_run(tiny_spd, [drawn[0], both])
    with pytest.raises(InputError, match="lens 'tuned': .* logit, jacobian, nearest, linear"):
        visual_tokens_run(tiny_spd, drawn, lenses=["tuned"])
    with pytest.raises(InputError, match="top 0: must be 1 to 504"):
        visual_words(tiny_spd, drawn[0], top=0)
    with pytest.raises(InputError, match="last layer, 7"):
        visual_tokens_run(tiny_spd, drawn[:2], layers=[3])


def test_what_was_read_is_kept(tiny_spd, drawn, measured, tmp_path: Path, monkeypatch):
    folder = tmp_path / "finished"
    kept = visual_tokens_run(tiny_spd, drawn, layers=[3, 7], finished=folder)
    assert len(list(folder.iterdir())) == len(drawn)
    monkeypatch.setattr(module, "read_cells", None)
    again = visual_tokens_run(tiny_spd, drawn, layers=[3, 7], finished=folder)
    assert json.dumps(again.to_dict(), default=str) == json.dumps(kept.to_dict(), default=str)


def test_a_run_that_has_the_streams_is_not_read_again(tiny_spd, drawn, measured, tmp_path: Path, monkeypatch):
    spec = mp.CaptureSpec(
        datasets=["residual/post"], positions="prompt", groups=["visual"], layers=[3, 7], dtype="float32"
    )
    run = mp.trace(tiny_spd, drawn, tmp_path / "run", capture=spec, max_new_tokens=40)
    monkeypatch.setattr(module, "read_cells", None)
    ds = visual_tokens_run(tiny_spd, run, layers=[3, 7])
    np.testing.assert_allclose(
        ds.score.sel(lens="logit"), measured.score.sel(lens="logit"), atol=1e-3, rtol=1e-3
    )
    assert find_captured(run[run.ids[0]], [0, 7]) is None  # a layer that was not captured


def test_a_click_on_a_cell_lists_its_words_by_layer(tiny_spd, drawn, tmp_path: Path, browser):
    run = mp.trace(tiny_spd, drawn[:2], tmp_path / "run", max_new_tokens=4)
    export(visual_tokens_run(tiny_spd, run, layers=[0, 7], lenses=["logit"]), tmp_path / "run" / "analyses")
    assert run_in_process("report", tmp_path / "run", "--out", tmp_path / "report.html").code == 0
    page = browser.new_page(viewport={"width": 1100, "height": 1400})
    page.goto(f"file://{tmp_path / 'report.html'}#visual-tokens")
    plot = page.locator("#visual-tokens .plot").nth(1)
    plot.scroll_into_view_if_needed()
    square = plot.locator(".points path").nth(5)
    square.wait_for()
    box = square.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    listed = page.locator("#visual-tokens p.clicked").first
    listed.filter(has_text="layer 7: ").wait_for()
    assert [line.partition(":")[0] for line in listed.inner_text().splitlines()] == ["layer 0", "layer 7"]
