"""Videos: prompts, grids and numbers of every family that is shown them, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as tf
from helpers import tiny_types
from helpers.family_checks import CAPTURE, STEPS, compare_with_eager, is_close, read_visual_states
from helpers.tiny_models import load_tiny_model
from PIL import Image

import mmprobe as mp
from mmprobe import samples
from mmprobe.diagnosis import diagnose
from mmprobe.errors import InputError
from mmprobe.interventions.methods.icd import insert_instruction
from mmprobe.ledger import hash_images, hash_questions
from mmprobe.models import Group, Model
from mmprobe.models.families import Family
from mmprobe.models.pil_processor import PilVideoProcessor
from mmprobe.models.prompt import build_chat
from mmprobe.probes import image_interchange, image_interchange_run, patch_components_run
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages
from mmprobe.samples import Region, Sample, load_samples
from mmprobe.viz.figures import figures

SMALL = {"shortest_edge": 32 * 32, "longest_edge": 72 * 72 * 8}
TILE = {"height": 48, "width": 48}
OFFICIAL: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    **dict.fromkeys(
        ["qwen2_vl", "qwen2_5_vl"], ("Qwen2VLProcessor", {}, "Qwen2VLVideoProcessor", {"size": SMALL})
    ),
    **dict.fromkeys(
        ["qwen3_vl", "qwen3_vl_moe", "qwen3_5"],
        ("Qwen3VLProcessor", {}, "Qwen3VLVideoProcessor", {"size": SMALL}),
    ),
    "glm4v": ("Glm4vProcessor", {}, "Glm4vVideoProcessor", {"size": SMALL}),
    "internvl": ("InternVLProcessor", {"image_seq_length": 9}, "InternVLVideoProcessor", {"size": TILE}),
    "smolvlm": ("SmolVLMProcessor", {"image_seq_len": 9}, "SmolVLMVideoProcessor",
                {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 48}}),
    "llava_onevision": (
        "LlavaOnevisionProcessor",
        {"num_image_tokens": 9, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_4"},
        "LlavaOnevisionVideoProcessor",
        {"size": {"height": 24, "width": 24}},
    ),
}  # fmt: skip
"""Processor and video processor of tiny models whose own do without torchvision, and so without videos."""
DRAWN = ["qwen3_5_moe", "video_llama_3", "llava_next_video", "video_llava", "molmo2", "gemma4", "gemma4_e2b", "gemma4_moe",
         "gemma4_unified", "glm46v", "glm4v_moe", "glm_ocr", "glmga", "exaone4_5", "hyperclovax_vision_v2", "cosmos3_edge",
         "cosmos3_omni", "cohere_compass", "lfm3_vl", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"]  # fmt: skip
NAMES = ["tiny-spd", *OFFICIAL, *DRAWN]
OWN_SIZE = {
    "llava_next_video",
    "video_llava",
    "molmo2",
    "gemma4",
    "gemma4_e2b",
    "gemma4_moe",
    "gemma4_unified",
}


def load_watching(name: str) -> Model:
    """Return a tiny model with transformers' own video processor; the embedded model has mmprobe's."""
    if name == "tiny-spd":
        return mp.load_model("tiny-spd", device="cpu")
    if name == "llava_next_video":  # an even number of patches, of which squares of four are one token
        pytest.importorskip("torchvision")
        with pytest.MonkeyPatch.context() as patch:
            declared = tiny_types.read_declarations()
            patch.setitem(declared, name, _enlarge(declared[name]))
            model = load_tiny_model(name)
    else:
        model = load_tiny_model(name)
    if name in OFFICIAL:
        pytest.importorskip("torchvision")
        if name == "smolvlm":
            pytest.importorskip("num2words")
        processor, options, video, sizes = OFFICIAL[name]
        own, patches = model.processor, {"patch_size": 8, "merge_size": 2} if sizes["size"] is SMALL else {}
        new = getattr(tf, processor)(
            own.image_processor,
            own.tokenizer,
            getattr(tf, video)(**patches, **sizes),
            chat_template=own.chat_template,
            **options,
        )
        model = Model(name, name, None, model.hf, new, model.family)
    elif name == "llava_next_video":
        model.processor.video_processor.size = {"shortest_edge": 32}
        model.processor.video_processor.crop_size = {"height": 32, "width": 32}
    elif name not in OWN_SIZE:
        model.processor.video_processor.size = SMALL
    return model


def _enlarge(node: Any) -> Any:
    """Return a declaration with images of 32 pixels in place of 24."""
    if isinstance(node, dict):
        return {key: _enlarge(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_enlarge(value) for value in node]
    return {24: 32, 48: 64, 72: 96}.get(node, node) if isinstance(node, int) else node


def draw_frames(folder: Path, count: int, size: tuple[int, int] = (112, 56), seed: int = 0) -> list[Path]:
    """Write frames of coloured squares, no two alike, wide ones by default, and return their files."""
    rng, files = np.random.default_rng(seed), []
    for number in range(count):
        squares = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
        files.append(folder / f"{seed}-{number}.png")
        Image.fromarray(squares.repeat(8, 0).repeat(8, 1)).save(files[-1])
    return files


def make_forms(folder: Path, family: Family | None = None) -> list[Sample]:
    """Return samples with videos: odd numbers of frames, two of them, and an image before and after.

    Args:
        family: what it does not take is left out.
    """
    alike = family is not None and family.equal_videos
    five, two = draw_frames(folder, 5), draw_frames(folder, 5 if alike else 2, (56, 112), seed=1)
    (image,) = draw_frames(folder, 1, (64, 64), seed=2)
    text: Any = {"type": "text"}
    second: list[Any] = [{"type": "video", "video": two, "fps": 1}]
    shown: list[Any] = [{"type": "image", "image": image}]
    if family is not None and family.name == "molmo2":
        second = []
    if family is not None and family.videos_alone:
        shown = []
    mixed = [text | {"text": "Watch: "}, {"type": "video", "video": five, "fps": 2}, text | {"text": " then "},
             *shown, *second, text | {"text": "What moves?"}]  # fmt: skip
    return [
        Sample(id="short", videos=[{"frames": five, "fps": 2}], question="What moves?"),
        Sample(id="mixed", messages=[{"role": "user", "content": mixed}]),
        Sample(
            id="earlier",
            images=[image] if shown else [],
            videos=[{"frames": two, "fps": 1}],
            question="Is it the same?",
        ),
    ]


def apply_template(model: Model, sample: Sample) -> dict[str, Any]:
    """Return what transformers' own chat template and processor make of a sample."""
    chat = build_chat(sample, model)
    images = iter(chat.images[: chat.n_images])
    clips = iter(chat.clips)

    def fill(part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] == "image":
            return {"type": "image", "image": next(images)}
        if part["type"] == "video":
            frames = chat.images[next(clips).pictures]
            return {"type": "video", "video": np.stack([np.asarray(frame) for frame in frames])}
        return part

    messages = [each | {"content": [fill(part) for part in each["content"]]} for each in chat.messages]
    metadata = [{"total_num_frames": clip.total, "fps": clip.fps, "frames_indices": clip.indices}
                for clip in chat.clips]  # fmt: skip
    options = {"do_sample_frames": False, "video_metadata": metadata, **model.family.video_options}
    return model.processor.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"videos_kwargs": options},
    )  # fmt: skip


QUICK = {"tiny-spd"}  # the others need torchvision, which make families installs


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in QUICK else [pytest.mark.exhaustive]) for name in NAMES],
)
def model(request: pytest.FixtureRequest) -> Model:
    return load_watching(request.param)


def test_prompts_and_grids_are_those_of_the_processor(model, tmp_path):
    for sample in make_forms(tmp_path, model.family):
        expected, prompt, inputs = apply_template(model, sample), model.prompt(sample), model.prepare(sample)
        np.testing.assert_array_equal(prompt.ids, expected["input_ids"][0].numpy(), err_msg=sample.id)
        pixels = [name for name in expected if name.startswith("pixel_values")]
        assert pixels
        for key in pixels:
            np.testing.assert_array_equal(inputs[key], expected[key])
        of_videos = [view for view, source in zip(prompt.views, prompt.sources, strict=True)
                     if source >= len(sample.images)]  # fmt: skip
        if "video_grid_thw" in inputs:
            grids = expected["video_grid_thw"].numpy()
            wanted = [(rows // 2, columns // 2) for times, rows, columns in grids for _ in range(times)]
            assert [view.grid for view in of_videos] == wanted
        frames = [len(video.frames) for video in sample.videos]
        assert sum(view.pictures for view in of_videos) == sum(frames)
        assert sorted(prompt.sources)[-1] < len(sample.images) + sum(frames)
        video_ids = prompt.ids == model.family.video_token_id(model.hf.config)
        visual = prompt.group == Group.VISUAL
        beside = sum(  # line breaks and class tokens, which show nothing
            view.start_tokens + view.end_tokens + view.row_end_tokens * view.grid[0] for view in of_videos
        )
        assert (video_ids & ~visual).sum() == beside
        rest = [name for name in ("TEMPLATE", "SYSTEM", "USER") if (prompt.group == Group[name]).any()]
        assert set(np.unique(prompt.group)) == {Group.VISUAL, *(Group[name] for name in rest)}


def test_traces_equal_eager(model, tmp_path):
    samples = make_forms(tmp_path, model.family)
    run = mp.trace(model, samples, tmp_path / "run", capture=CAPTURE, max_new_tokens=STEPS)
    assert not run.failures, run.failures
    for sample in samples:
        compare_with_eager(model, sample, run[sample.id])
    if model.family.batches:
        both = mp.trace(model, [samples[0], samples[0].model_copy(update={"id": "again", "question": "Why?"})],
                        tmp_path / "both", capture=CAPTURE, max_new_tokens=STEPS, batch_size=2)  # fmt: skip
        assert not both.failures, both.failures
        one, two = run["short"], both["short"]
        masses = (np.nan_to_num(each.attention_mass.values) for each in (two, one))
        assert is_close(*masses)


def test_each_frame_is_shown_by_its_views_alone(model, tmp_path):
    (sample, *_), (other,) = make_forms(tmp_path), draw_frames(tmp_path, 1, seed=7)
    prompt, own = model.prompt(sample), read_visual_states(model, sample)
    for number in range(5):
        frames = list(sample.videos[0].frames)
        frames[number] = other
        changed = Sample(id="other", videos=[{"frames": frames, "fps": 2}], question=sample.question)
        moved = np.linalg.norm(read_visual_states(model, changed) - own, axis=-1) > 1e-6
        shows = [prompt.shows(view, number) for view in prompt.image[prompt.visual_positions]]
        assert moved.any() and not (moved & ~np.array(shows)).any(), number


def test_cells_of_a_frame_come_row_by_row(model, tmp_path):
    (sample, *_) = make_forms(tmp_path)
    prompt, own = model.prompt(sample), read_visual_states(model, sample)
    views = prompt.image[prompt.visual_positions]
    picture = np.asarray(Image.open(sample.videos[0].frames[2]))
    view = next(number for number in range(len(prompt.views)) if prompt.shows(number, 2))
    (rows, columns), (left, top, width, height) = prompt.views[view].grid, prompt.views[view].box
    for row, column in {(0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)}:
        painted = picture.copy()
        y, x = top + row * height / rows, left + column * width / columns
        painted[round(y) : round(y + height / rows), round(x) : round(x + width / columns)] = 255
        file = tmp_path / "painted.png"
        Image.fromarray(painted).save(file)
        frames = list(sample.videos[0].frames)
        frames[2] = file
        changed = Sample(id="painted", videos=[{"frames": frames, "fps": 2}], question=sample.question)
        moved = np.linalg.norm(read_visual_states(model, changed) - own, axis=-1)
        assert moved[views == view].argmax() == row * columns + column


@pytest.mark.parametrize("changed", [0, 1])
def test_interchange_finds_the_frame_that_changed(changed, tiny_spd, scenes):
    """Of a drawn video of two frames, which the encoder merges into one view, one is exchanged."""
    first, second = scenes
    own, other = [first, first], [first, first]
    other[changed] = second
    sample = Sample(id="own", videos=[own], question="Is there a red circle in the first picture?")
    found = image_interchange(
        tiny_spd, sample, sample.model_copy(update={"id": "other", "videos": _videos(other)})
    )
    effect, by_frame = found.effect.values, found.effect_by_region.values
    assert found.region_image.values.tolist() == [0, 1] and np.abs(effect).max() > 1e-4
    np.testing.assert_allclose(by_frame[changed], effect, atol=1e-6)
    assert not by_frame[1 - changed].any()


def test_interchange_by_frame_over_a_run(tiny_spd, scenes, tmp_path):
    """Each number is that of `image_interchange`, whatever the number of frames, beside samples of images."""
    first, second = scenes
    clips = {
        "a": [first, first, second],
        "b": [second, first, first, second, second],
        "c": [first, second, first],
    }
    copied = {name: [tmp_path / f"{name}{n}.png" for n in range(len(files))] for name, files in clips.items()}
    for name, files in clips.items():  # else the samples share files, and are not unrelated
        for file, copy in zip(files, copied[name], strict=True):
            copy.write_bytes(file.read_bytes())
    ask = {"question": "Is there a red circle in the first picture?"}
    samples = [Sample(id=name, videos=[{"frames": files, "fps": 2}], **ask) for name, files in copied.items()]
    samples += [Sample(id=name, images=[scenes[number]], **ask) for number, name in enumerate("de")]
    samples.append(
        samples[0].model_copy(update={"id": "f", "regions": [Region(image=1, box=(56, 56, 56, 56))]})
    )
    run = mp.trace(tiny_spd, samples, tmp_path / "run", max_new_tokens=4)
    found = image_interchange_run(tiny_spd, run, ["unrelated", "blank", "mean"], batch_size=3)
    assert found.sample.values.tolist() == list("abcdef")
    assert found.n_frame.values.tolist() == [3, 3, 3, 1, 1] and found.n_localisation == 1
    others = CounterfactualImages(samples, tiny_spd)
    for sample in samples[:3]:
        pictures = others.find(sample, "unrelated")
        other = [tmp_path / f"{sample.id}-other{number}.png" for number in range(len(pictures))]
        for file, picture in zip(other, pictures, strict=True):
            picture.save(file)
        changed = sample.model_copy(update={"id": "other", "videos": _videos(other)})
        one = image_interchange(tiny_spd, sample, changed, answer=run[sample.id].answer)
        row = found.sel(sample=sample.id)
        count, steps = one.sizes["region"], one.sizes["step"]
        assert count == len(sample.videos[0].frames) and np.abs(one.effect_by_region).max() > 1e-4
        np.testing.assert_allclose(row.effect_by_region_step[:count, :steps], one.effect_by_region, atol=1e-4)
        assert row.effect_by_region[count:].isnull().all()
        assert row.region_image[:count].values.tolist() == list(range(count))
    own = found.effect_by_region.values[:3]
    np.testing.assert_allclose(found.effect_by_frame.values[:3], own[:, :3].mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.effect_by_frame.values[3:], own[1, 3:], rtol=1e-5)
    assert (found.region_box.sel(sample="f")[0] == (56, 56, 56, 56)).all()  # its own region, and no frames
    assert "one other frame" in " ".join(panel.title for panel in figures(found))
    assert found.n == 6


def test_other_frames_are_spread_over_the_other_video(tiny_spd, tmp_path):
    six, two = draw_frames(tmp_path, 6), draw_frames(tmp_path, 2, (56, 112), seed=1)
    named = {"counterfactual": [[file.name for file in six[:3]]]}
    samples = [
        Sample(id="long", videos=[six], question="?"),
        Sample(id="short", videos=[two], question="?", metadata=named),
    ]
    others = CounterfactualImages(samples, tiny_spd)

    def pixels(files: list[Path], size: tuple[int, int]) -> list[bytes]:
        return [Image.open(file).convert("RGB").resize(size).tobytes() for file in files]

    def find(number: int, kind: str) -> list[bytes]:
        return [picture.tobytes() for picture in others.find(samples[number], kind)]

    assert find(0, "unrelated") == pixels([two[0]] * 3 + [two[1]] * 3, (112, 56))
    assert find(1, "unrelated") == pixels([six[0], six[5]], (56, 112))
    assert find(1, "minimal") == pixels([six[0], six[2]], (56, 112))
    assert others.find(samples[0], "minimal") is None
    with pytest.raises(InputError, match="sample long: field 'videos'"):
        CounterfactualImages(samples)


def _videos(*videos: Any) -> Any:
    return Sample(id="a", videos=list(videos), question="?").videos


@pytest.fixture
def scenes(tmp_path) -> list[Path]:
    """A red circle, and a blue square elsewhere."""
    from PIL import ImageDraw

    files = []
    for name, colour, corner in (("circle", "red", (10, 10)), ("square", "blue", (60, 56))):
        image = Image.new("RGB", (112, 112), "white")
        draw = ImageDraw.Draw(image)
        box = (*corner, corner[0] + 36, corner[1] + 36)
        (draw.ellipse if name == "circle" else draw.rectangle)(box, fill=colour)
        files.append(tmp_path / f"{name}.png")
        image.save(files[-1])
    return files


def test_traces_name_video_frames_and_times(tiny_spd, tmp_path):
    mixed = make_forms(tmp_path)[1]
    run = mp.trace(tiny_spd, [mixed], tmp_path / "run", max_new_tokens=3)
    shown = run["mixed"].images
    assert shown["video"].values.tolist() == [0, 0, 0, -1, 1]
    assert shown["frames"].values.tolist() == [[0, 1], [2, 3], [4, 4], [-1, -1], [0, 1]]
    assert shown["time"].values[:3].tolist() == [0, 1, 2] and np.isnan(shown["time"].values[3])
    assert shown["source"].values.tolist() == [1, 3, 5, 0, 6]
    found = mp.analyses.attention_by_frame(run)
    visual, grids = run["mixed"].attention_visual.values, shown["grid"].values.prod(1)
    second = visual[..., grids[0] : grids[0] + grids[1]].astype(float).sum(-1).mean(-1)
    np.testing.assert_allclose(found.attention.values[1], second, rtol=1e-6)
    assert found["first"].values.tolist() == [0, 2, 4, 0] and found["video"].values.tolist() == [0, 0, 0, 1]
    assert "video 2, frames 0 to 1 (0 s)" in mp.viz.plot(found).data[0].y
    patches = mp.analyses.regions.find_patches(run["mixed"], [Region(image=4, box=(0, 0, 112, 56))])
    assert {patch.view for patch in patches} == {1}  # of picture 4, the video's frame 3


def test_runs_continue_where_no_frame_changed(tiny_spd, tmp_path):
    (sample, *_) = make_forms(tmp_path)
    mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=2)
    file = tmp_path / "run" / "samples" / "short.h5"
    before = file.stat().st_mtime_ns
    mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=2, resume=True)
    assert file.stat().st_mtime_ns == before
    hashed = hash_images(sample)
    sample.videos[0].frames[1].write_bytes(sample.videos[0].frames[2].read_bytes())
    assert hash_images(sample) != hashed
    faster = Sample.model_validate(sample.model_dump() | {"videos": [sample.videos[0].frames]})
    assert hash_questions([faster]) != hash_questions([sample])


def test_report_shows_frames(tiny_spd, tmp_path):
    run = mp.trace(tiny_spd, make_forms(tmp_path)[:1], tmp_path / "run", max_new_tokens=2)
    page = mp.report(run, out=tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Video 1, frames 2 to 3 at 1 s" in page and "Attention by frame" in page


def test_who_sees_no_videos_says_so_before_it_runs(tmp_path):
    (sample, *_) = make_forms(tmp_path)
    for name, reason in (
        ("llava", "mmprobe shows llava no videos"),
        ("qwen2_5_vl", "has no video part"),
        ("smolvlm", "has no video part"),
    ):
        with pytest.raises(InputError, match=f"^sample short: videos: .*{reason}") as error:
            mp.trace(load_tiny_model(name), [sample], tmp_path / "run")
        assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_wrong_arguments_of_the_template_fail_the_call(tiny_spd, tmp_path):
    """Not each of its samples. One sample's own argument fails that sample alone."""
    samples = [Sample(id=name, question="Is there a star?") for name in "ab"]
    with pytest.raises(InputError, match="^template: .*tiny-spd .*'thinks'$"):
        mp.trace(tiny_spd, samples, tmp_path / "run", template={"thinks": True})
    assert not (tmp_path / "run").exists()
    own = samples[1].model_copy(update={"template": {"thinks": True}})
    run = mp.trace(tiny_spd, [samples[0], own], tmp_path / "run", max_new_tokens=2)
    assert run.ids == ["a"] and "sample b: template" in run.failures[0]["message"]
    taken = mp.trace(tiny_spd, samples, tmp_path / "taken", max_new_tokens=2, template={"message": 1})
    assert taken.sample("a").template == {"message": 1}


def test_turns_of_images_alone_can_be_asked_again(tiny_spd, tmp_path):
    (image,) = draw_frames(tmp_path, 1)
    turn = {"role": "user", "content": [{"type": "image", "image": image}]}
    sample = Sample(id="a", messages=[turn])
    for method in ("chi", "zoom-refine", "self-refine", "icd"):
        assert mp.generate(tiny_spd, sample, method=method, max_new_tokens=2).text is not None
    asked = insert_instruction(build_chat(sample), "Err.").messages[0]["content"]
    assert asked[1] == {"type": "text", "text": "Err."}


def test_reports_say_where_there_are_no_maps(tmp_path):
    model = load_tiny_model("idefics2")
    sample = Sample(id="a", images=draw_frames(tmp_path, 1), question="What?")
    run = mp.trace(model, [sample], tmp_path / "run", max_new_tokens=2)
    page = mp.report(run, out=tmp_path / "report.html").read_text(encoding="utf-8")
    assert "learned queries" in page


def test_methods_on_images_refuse_videos(tiny_spd, tmp_path):
    (sample, *_) = make_forms(tmp_path)
    with pytest.raises(InputError, match="method vcd: sample short .*videos"):
        mp.generate(tiny_spd, sample, method="vcd")
    assert mp.generate(tiny_spd, sample, method="self-consistency", max_new_tokens=2)


def test_runs_whose_images_are_exchanged_refuse_videos(tiny_spd, tmp_path):
    (sample, *_) = make_forms(tmp_path)
    with pytest.raises(InputError, match="sample short: field 'videos'"):
        patch_components_run(tiny_spd, [sample])
    with pytest.raises(InputError, match="sample short: field 'videos': diagnose"):
        diagnose(tiny_spd, [sample], tmp_path / "out")


def test_encoders_of_videos_are_not_recorded(tiny_spd, tmp_path):
    capture = mp.CaptureSpec(datasets=["vision/residual"])
    with pytest.raises(InputError, match="vision/residual: .* sample short"):
        mp.trace(tiny_spd, make_forms(tmp_path)[:1], tmp_path / "run", capture=capture)


def test_samples_files_have_videos(tmp_path):
    frames = [file.name for file in draw_frames(tmp_path, 2)]
    (odd,) = draw_frames(tmp_path, 1, (64, 64), seed=3)
    lines: list[dict[str, Any]] = [
        {"id": "a", "question": "?", "videos": [frames]},
        {"id": "b", "messages": [{"role": "user", "content": [{"type": "video", "video": frames, "fps": 4}]}]},
        {"id": "c", "question": "?", "videos": [{"frames": frames, "fps": 2}],
         "regions": [{"image": 1, "box": [0, 0, 8, 8]}]},
    ]  # fmt: skip
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third = load_samples(file)
    assert first.files == [tmp_path / name for name in frames] and second.videos[0].fps == 4
    assert second.transcript == "user: [video 1]" and third.videos[0].fps == 2
    for changed, message in (
        (
            {"videos": [[frames[0], odd.name]]},
            "line 1: frame .*3-0.png: has another size than the first .112 x 56 and 64 x 64",
        ),
        ({"videos": [["none.png"]]}, "none.png: no such file"),
        ({"videos": [[]]}, "a video is a file, or a list of one frame or more"),
        ({"videos": [{"frames": frames, "fps": 0}]}, "greater than 0"),
        ({"regions": [{"image": 2, "box": [0, 0, 8, 8]}]}, "image 2 of 2"),
    ):
        file.write_text(json.dumps(lines[0] | changed) + "\n")
        with pytest.raises(InputError, match=message):
            load_samples(file)


def test_pil_processor_equals_the_one_of_transformers(tmp_path):
    pytest.importorskip("torchvision")
    images = mp.load_model("tiny-spd", device="cpu").processor.image_processor
    frames = np.stack([np.asarray(Image.open(file)) for file in draw_frames(tmp_path, 3)])
    own = PilVideoProcessor(images)([frames], [{"fps": 2.0}])
    theirs = tf.Qwen2VLVideoProcessor(size={"shortest_edge": 56, "longest_edge": 10**6}, do_resize=False)
    expected = theirs([frames], return_tensors="pt", do_sample_frames=False)
    if own["video_grid_thw"].tolist() != expected["video_grid_thw"].tolist():
        images.size = {"shortest_edge": 56, "longest_edge": 10**6}
        own = PilVideoProcessor(images)([frames], [{"fps": 2.0}])
    np.testing.assert_array_equal(own["video_grid_thw"], expected["video_grid_thw"])
    np.testing.assert_allclose(own["pixel_values_videos"], expected["pixel_values_videos"], atol=1e-5)


def write_clip(path: Path, count: int = 24, fps: int = 8) -> Path:
    """Write a video whose frames get lighter."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = 112, 56, "yuv420p"
        for number in range(count):
            grey = np.full((56, 112, 3), 6 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_video_files_are_sampled_as_the_processor_does(model, tmp_path, monkeypatch):
    from transformers.video_utils import VideoMetadata, load_video

    clip = write_clip(tmp_path / "clip.mp4", 40)
    processor = model.processor.video_processor
    if model.family.name == "smolvlm":  # as its checkpoints say
        monkeypatch.setattr(processor, "num_frames", 6)
        monkeypatch.setattr(processor, "fps", 1)
    for fps in (None, 4):
        own = {} if fps is None else {"fps": fps}
        sample = Sample(id="clip", videos=[{"file": clip, **own}], question="What moves?")
        (shown,) = build_chat(sample, model).clips
        metadata = VideoMetadata(40, 8.0, 112, 56, 5.0)
        if fps and model.family.name in (
            "gemma4",
            "gemma4_unified",
        ):  # they heed no rate: 4 of 8 a second are 20
            expected = [int(each) for each in processor.sample_frames(metadata=metadata, num_frames=20)]
        elif processor.do_sample_frames or fps:
            expected = [int(each) for each in processor.sample_frames(metadata=metadata, **own)]
        else:
            expected = list(range(40))
        assert shown.indices == expected and (shown.total, shown.fps) == (40, 8.0)
        assert not fps or 6 <= len(expected) <= 30
        frames, _ = load_video(
            str(clip), backend="pyav", sample_indices_fn=lambda chosen=expected, **_: chosen
        )
        pictures = build_chat(sample, model).images
        np.testing.assert_array_equal(np.stack([np.asarray(each) for each in pictures]), frames)


MATRICES = {90: (0, -1, 1, 0), 180: (-1, 0, 0, -1), 270: (0, 1, -1, 0)}
"""The first four of a display matrix that turns a video by so many degrees, counterclockwise."""


def turn_clip(clip: Path, degrees: int) -> Path:
    """Write a video again with a rotation in its header, as telephones do."""
    content = clip.read_bytes()
    start = content.index(b"tkhd") + 4 + 4 + 20 + 16  # after the version, the times and the layers of a track
    assert struct.unpack(">9i", content[start : start + 36]) == (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    a, b, c, d = (65536 * each for each in MATRICES[degrees])
    turned = clip.with_name(f"{degrees}.mp4")
    turned.write_bytes(
        content[:start] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + content[start + 36 :]
    )
    return turned


@pytest.mark.parametrize("degrees", MATRICES)
def test_frames_of_a_turned_file_are_upright(tiny_spd, tmp_path, degrees):
    """As OpenCV turns them for transformers. Its colours differ by rounding."""
    av = pytest.importorskip("av")
    pytest.importorskip("cv2")
    from transformers.video_utils import load_video

    squares = np.random.default_rng(0).integers(0, 256, (24, 2, 4, 3), np.uint8).repeat(28, 1).repeat(28, 2)
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8, bit_rate=8_000_000)
        stream.width, stream.height, stream.pix_fmt = 112, 56, "yuv420p"
        for pixels in squares:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    clip = turn_clip(tmp_path / "clip.mp4", degrees)
    sample = Sample(id="clip", videos=[clip], question="What moves?")
    chat = build_chat(sample, tiny_spd)
    pictures = np.stack([np.asarray(each) for each in chat.images])
    chosen = chat.clips[0].indices
    expected, _ = load_video(str(clip), backend="opencv", sample_indices_fn=lambda **_: chosen)
    assert pictures.shape == expected.shape
    assert samples.read_video_info(clip, "here").size == expected.shape[1:3]
    assert np.abs(pictures.astype(int) - expected).mean() < 4
    assert samples.is_turned(clip) and not samples.is_turned(tmp_path / "clip.mp4")


def test_a_file_with_too_few_frames_says_what_to_do(tmp_path):
    """Gemma 4 takes 32 frames, and transformers refuses a file that has fewer."""
    model = load_watching("gemma4")
    clip = write_clip(tmp_path / "clip.mp4", 24)
    sample = Sample(id="clip", videos=[clip], question="What moves?")
    with pytest.raises(InputError, match="frames .* fps") as error:
        build_chat(sample, model)
    assert "\n" not in str(error.value)
    slower = sample.model_copy(update={"videos": _videos({"file": clip, "fps": 2})})
    assert len(build_chat(slower, model).clips[0].indices) == 6


def test_video_files_are_traced_and_shown(tiny_spd, tmp_path):
    sample = Sample(id="clip", videos=[write_clip(tmp_path / "clip.mp4")], question="What moves?")
    run = mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=2)
    assert run["clip"].images["frames"].values.tolist() == [[0, 5], [9, 14], [18, 23]]
    np.testing.assert_allclose(run["clip"].images["time"].values, [0, 9 / 8, 18 / 8])
    page = mp.report(run, out=tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        "Video 1, frames 9 to 14 at 1.12 s" in page and "cannot be shown" not in page.split("</script>")[-1]
    )


@pytest.mark.parametrize("content", [b"", b"#EXTM3U\nfile:///etc/passwd\n", b"\x89PNG\r\n\x1a\n"])
def test_other_files_are_not_videos(content, tmp_path):
    pytest.importorskip("av")
    file = tmp_path / "clip.mp4"
    file.write_bytes(content)
    (tmp_path / "samples.jsonl").write_text('{"id": "a", "question": "?", "videos": ["clip.mp4"]}\n')
    with pytest.raises(InputError, match="clip.mp4"):
        load_samples(tmp_path / "samples.jsonl")


def test_frames_that_do_not_fit_memory_are_refused(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "clip.mp4")
    assert len(samples.read_frames(clip, [0, 5, 99], "here")) == 3
    monkeypatch.setattr(samples, "MAX_VIDEO_PIXELS", 3 * 112 * 56 - 1)
    assert len(samples.read_frames(clip, [0, 5, 5, 0], "here")) == 4, "a frame that is shown twice is one"
    with pytest.raises(InputError, match="here: video .*clip.mp4: 3 frames of 112 x 56 pixels take over"):
        samples.read_frames(clip, [0, 5, 99], "here")
    monkeypatch.setattr(samples, "MAX_VIDEO_FRAMES", 23)
    with pytest.raises(InputError, match="has over 23 frames; cut it"):
        samples.read_video_info(clip, "here")
