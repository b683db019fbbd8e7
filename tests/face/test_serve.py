"""The live page: its numbers are those of the API, and a browser clicks through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process
from PIL import Image
from playwright.sync_api import Browser, expect

import mmprobe as mp
from mmprobe import serve as live
from mmprobe.errors import InputError
from mmprobe.probes import image_interchange, patch_components, scale_components
from mmprobe.samples import Region, Sample


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, mp.Run, mp.Model]]:
    """The address of a page, its run of three answers about pairs of images, and its model."""
    pytest.importorskip("dash", reason="the extra serve is not installed")
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    folder = tmp_path_factory.mktemp("serve")
    make_pairs(folder / "pairs", 2, 7)
    model = mp.load_model("tiny-spd", device="cpu")
    samples = mp.load_samples(folder / "pairs" / "samples.jsonl")[:3]
    run = mp.trace(model, samples, folder / "run", max_new_tokens=24)
    found: list = []
    began = threading.Event()

    def ready(address: str, stop: object) -> None:
        found.extend([address, stop])
        began.set()

    own = mp.load_model(
        "tiny-spd", device="cpu"
    )  # the page may still measure while a test reads the API's numbers
    thread = threading.Thread(target=live.serve, args=(own, run), kwargs={"ready": ready}, daemon=True)
    thread.start()
    assert began.wait(60)
    yield found[0], run, model
    found[1]()
    thread.join(10)


def fetch(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(address, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


def test_only_the_address_with_the_token_and_of_this_machine_answers(served):
    address, *_ = served
    root = address.rsplit("/", 2)[0]
    assert address.startswith("http://127.0.0.1:") and len(address.rsplit("/", 2)[1]) > 20
    assert fetch(address)[0] == 200
    for other in ("/", "/wrong/", "/_dash-layout", "/report", "/assets/x.css"):
        assert fetch(root + other)[0] == 404, other
    assert fetch(address, Host="example.org")[0] == 403
    assert fetch(address, Origin=root)[0] == 200
    for origin in ("https://example.org", "http://127.0.0.1:1", "null"):
        assert fetch(address, Origin=origin)[0] == 403, origin


def test_requests_that_the_page_never_makes_are_short_answers(tmp_path, monkeypatch, capsys):
    """Without a run; its model is not used."""
    pytest.importorskip("dash", reason="the extra serve is not installed")
    monkeypatch.setenv("MADE_UP_API_KEY", "sk-0123456789")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = SimpleNamespace(name="sk-0123456789")
    server = live.build_page(live.LiveSession(model, tmp_path), "token").server
    client = server.test_client()
    call, size = "/token/_dash-update-component", {"CONTENT_LENGTH": str(live.LARGEST_REQUEST + 1)}
    assert client.post(call, json={}, environ_overrides=size).status_code == 413
    broken = client.post(call, json={"output": "nobody.value"})
    assert broken.status_code == 500 and "nobody" not in broken.text
    assert list((tmp_path / "cache").rglob("mmprobe-error-*.txt"))
    layout = client.get("/token/_dash-layout").text
    assert "[MADE_UP_API_KEY]" in layout and "sk-0123456789" not in layout
    with pytest.raises(InputError, match="over 50 MB"):
        live._save_upload(tmp_path, "data:image/png;base64," + "A" * (live.LARGEST_UPLOAD * 4 // 3 + 101))


def test_the_page_shows_the_numbers_of_the_api(served, browser: Browser, tmp_path: Path):
    address, run, model = served
    sample = run.sample(run.ids[1])
    ids = run[sample.id].steps["id"].values.tolist()
    grey = [Image.new("RGB", Image.open(path).size, (127,) * 3) for path in sample.images]
    for number, image in enumerate(grey):
        image.save(tmp_path / f"{number}.png")
    other = Sample(
        id="grey", images=[tmp_path / f"{n}.png" for n in range(len(grey))], question=sample.question
    )
    whole = image_interchange(model, sample, other, [], ids)
    rows, columns = live.DeskAnswer(sample, run, (), []).grids[1]
    width, height = grey[1].size
    region = Region(image=1, box=(2 * width // columns, 0, width // columns, height // rows))
    one = image_interchange(model, sample, other, [region], ids)
    scaled = scale_components(model, sample, "head 5.1", 0.0, answer=ids)
    other_hosts: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 1400})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((address, "data:", "blob:")) or other_hosts.append(request.url)
        ),
    )
    page.goto(f"{address}?sample={sample.id}")

    def loss(words: str) -> float:
        expect(page.locator("#loss")).to_contain_text(words, timeout=60_000)
        return float(page.locator("#loss").inner_text().split(" loses ")[1].split(" nat")[0])

    assert abs(loss("all images grey") - float(whole.effect.sum())) < 0.006
    assert abs(float(whole.effect.sum())) > 0.5

    # the second image, third column, first row of its 4 x 4 cells
    box = page.locator("#images .js-plotly-plot").nth(1).locator(".nsewdrag").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / columns, box["y"] + box["height"] * 0.5 / rows)
    assert abs(loss("of image 2") - float(one.effect_by_region.sum())) < 0.006

    heads = page.locator("#heads .nsewdrag")
    heads.scroll_into_view_if_needed()
    box = heads.bounding_box()
    page.mouse.click(
        box["x"] + box["width"] * 1.5 / model.n_heads, box["y"] + box["height"] * 5.5 / model.n_layers
    )
    assert abs(loss("with head 5.1") - float(scaled.effect.sum())) < 0.006
    tokens = page.locator("#tokens span")
    assert "".join(tokens.all_inner_texts()).split() == "".join(run[sample.id].step_texts).split()

    page.fill("#question", "Are the two pictures the same?")
    page.click("#ask")
    expect(page.locator("#loss")).to_contain_text("all images", timeout=60_000)
    page.fill("#question", "   ")
    page.click("#ask")
    expect(page.locator("#problem")).to_contain_text("the question is empty", timeout=60_000)
    assert other_hosts == [] and problems == []

    page.goto(f"{address}report#explorer/{sample.id}")
    link = page.locator("#live a")
    expect(link).to_be_visible(timeout=60_000)
    link.click()
    expect(page.locator("#question")).to_have_value(sample.question, timeout=60_000)
    page.close()


def test_every_region_and_every_kind_of_change_have_the_numbers_of_the_api(served, browser: Browser):
    from mmprobe.probes import attribute
    from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, show_others

    address, run, model = served
    sample = run.sample(run.ids[0])
    ids = run[sample.id].steps["id"].values.tolist()
    source = CounterfactualImages([run.sample(name) for name in run.ids])
    expected = {}
    for kind in ("mean", "minimal", "unrelated"):
        with show_others(sample, source.find(sample, kind)) as other:
            if other is not None:
                expected[kind] = float(image_interchange(model, sample, other, [], ids).effect.sum())
    assert "mean" in expected and len(set(expected.values())) == len(expected) < 3, "both cases are here"
    regions = attribute(model, sample, block=2, answer=ids)
    doubled = scale_components(model, sample, "head 3.0", 2.0, answer=ids)
    page = browser.new_page(viewport={"width": 1200, "height": 1400})
    page.goto(f"{address}?sample={sample.id}")
    loss, problem = page.locator("#loss"), page.locator("#problem")
    expect(loss).to_contain_text("all images grey", timeout=60_000)
    for kind in ("mean", "minimal", "unrelated"):
        page.click(f"#kind label:has-text('{kind}')")
        page.click("#all")
        if kind in expected:
            words = "in the mean of all" if kind == "mean" else f"exchanged for {kind} ones"
            expect(loss).to_contain_text(words, timeout=60_000)
            shown = float(loss.inner_text().split(" loses ")[1].split(" nat")[0])
            assert abs(shown - expected[kind]) < 0.006, kind
        else:
            expect(problem).to_contain_text(f"this question has no {kind} images", timeout=60_000)

    page.click("#size label:has-text('2')")
    page.click("#map")
    expect(loss).to_contain_text("Each region by what the answer loses without it", timeout=60_000)
    read = "plot => Array.from(plot.calcdata[0][0].z, (row) => Array.from(row))"
    for number, image in enumerate(sample.images):
        plot = page.locator("#images .js-plotly-plot").nth(number)
        view = regions["source"].values.tolist().index(number)
        rows, columns = regions["grid"].values[view].tolist()
        values = regions["attribution"].sum("step").isel(image=view).values[:rows, :columns]
        np.testing.assert_allclose(np.array(plot.evaluate(read)), values, atol=1e-4, err_msg=str(image))
    assert np.ptp(regions["attribution"].sum("step").values) > 0.1, "the map shows something"

    page.fill("#scale", "2")
    page.locator("#scale").press("Tab")
    heads = page.locator("#heads .nsewdrag")
    heads.scroll_into_view_if_needed()
    box = heads.bounding_box()
    page.mouse.click(
        box["x"] + box["width"] * 0.5 / model.n_heads, box["y"] + box["height"] * 3.5 / model.n_layers
    )
    expect(loss).to_contain_text("with head 3.0 scaled by 2", timeout=60_000)
    shown = float(loss.inner_text().split(" loses ")[1].split(" nat")[0])
    assert abs(shown - float(doubled.effect.sum())) < 0.006
    page.close()


SLOW_FIRST = """
const read = FileReader.prototype.readAsDataURL;
FileReader.prototype.readAsDataURL = function (file) { setTimeout(() => read.call(this, file), file.name === "a.png" ? 400 : 0); };
"""


def test_uploaded_images_are_asked_about_in_their_order(served, browser: Browser, tmp_path: Path):
    """The first one takes longer to load."""
    address, *_ = served
    rng = np.random.default_rng(0)
    for name, shape in (("a", (112, 84, 3)), ("b", (84, 112, 3))):
        Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(tmp_path / f"{name}.png")
    page = browser.new_page()
    page.add_init_script(SLOW_FIRST)
    page.goto(address)
    page.set_input_files("#upload input[type=file]", [tmp_path / "a.png", tmp_path / "b.png"])
    expect(page.locator("#files")).to_have_text("a.png, b.png", timeout=30_000)
    page.fill("#question", "Are the two pictures the same?")
    page.click("#ask")
    expect(page.locator("#loss")).to_contain_text("all images grey", timeout=60_000)
    plots = page.locator("#images .js-plotly-plot")
    is_wide = "plot => plot.layout.images[0].sizex > plot.layout.images[0].sizey"  # in cells
    assert [plots.nth(number).evaluate(is_wide) for number in range(plots.count())] == [False, True]
    page.close()


def test_a_region_covers_whole_cells_inside_its_image(served):
    _, run, _ = served
    answer = live.DeskAnswer(run.sample(run.ids[0]), run, (), [])
    rows, columns = answer.grids[0]
    width, height = Image.open(answer.sample.images[0]).size
    corner = live.find_region(answer, 0, columns - 1, 0, 2)
    assert corner.box == (width - 2 * width // columns, 0, 2 * width // columns, 2 * height // rows)
    assert live.find_region(answer, 0, 0, 0, 99).box == (0, 0, width, height)


def test_scaling_a_head_by_zero_is_its_ablation_and_by_one_nothing(tiny_spd, tmp_path):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    make_pairs(tmp_path / "pairs", 1, 7)
    sample = mp.load_samples(tmp_path / "pairs" / "samples.jsonl")[0]
    patched = patch_components(
        tiny_spd, sample, sample, layers=[5], replacement="zero", answer="No, the star moved."
    )
    losses = []
    for head in range(tiny_spd.n_heads):
        ds = scale_components(tiny_spd, sample, f"head 5.{head}", answer="No, the star moved.")
        np.testing.assert_allclose(ds.effect, patched.effect_by_step.isel(layer=0, head=head), atol=2e-5)
        losses.append(ds.effect_per_token)
    assert np.ptp(losses) > 1e-3
    assert not scale_components(tiny_spd, sample, "head 5.1", 1.0, answer="No").effect.values.any()


def test_without_the_extra_serve_says_so(monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(live, "find_spec", lambda name: None if name == "dash" else found(name))
    assert_fails(run_in_process("serve", "--model", "tiny-spd"), "pip install 'mmprobe[serve]'")


def test_serve_needs_a_run_or_a_model(tmp_path):
    assert_fails(run_in_process("serve"), "give a run, --model or both")
    assert_fails(run_in_process("serve", str(tmp_path / "none")), "no such run")
