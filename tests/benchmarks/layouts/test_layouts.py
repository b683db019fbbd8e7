"""Published layouts: each on a small folder of its form, the questions that are asked, and what is refused."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, answer_lengths, make_benchmark
from mmprobe.benchmarks.core.evaluate import load_truth, score
from mmprobe.benchmarks.layouts import find_layout, unpack
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.samples import image_sets
from mmprobe.settings import DataSettings

pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
pq = pytest.importorskip("pyarrow.parquet")

HARD = {"A": "an asthma", "B": "a cough", "C": "a fever"}


def image_bytes(grey: int, kind: str = "PNG", size: tuple[int, int] = (12, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, grey).save(file, kind)
    return file.getvalue()


def cell(grey: int, kind: str = "PNG") -> dict:
    return {"bytes": image_bytes(grey, kind), "path": None}


def grey_of(path: Path) -> int:
    with Image.open(path) as image:
        return int(np.asarray(image.convert("L"))[0, 0])


def write_parquet(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


def mmmu_pro(folder: Path) -> None:
    rows = [
        {
            "id": f"test_Art_{number}",
            "question": f"Which of <image 1> and <image 2> is {number}?",
            "options": "['it\\'s <image 1>', \"the second\", 'none, of these']",
            "explanation": None,
            "image_1": cell(number),
            "image_2": cell(100 + number, "JPEG"),
            "image_3": None,
            "answer": "ABC"[number],
            "subject": "Art",
        }
        for number in range(3)
    ]
    for part in range(2):  # a split in two files
        write_parquet(folder / f"test-0000{part}-of-00002.parquet", rows[2 * part : 2 * part + 2])


def mmmu_pro_vision(folder: Path) -> None:
    row = {"id": "test_Art_1", "image": cell(7), "options": "['a', 'b']", "answer": "B", "subject": "Art"}
    write_parquet(folder / "test-00000-of-00001.parquet", [row])


def microvqa(folder: Path) -> None:
    rows = [
        {
            "key_question": 40 + number,
            "images_list": [cell(number), cell(90)][: number + 1],
            "question": "What would stain it?",
            "choices": ["water", "a dye", "light"],
            "correct_index": 2 - number,
            "task_str": "hypothesis_gen",
        }
        for number in range(2)
    ]
    write_parquet(folder / "data" / "train-00000-of-00001.parquet", rows)


def vqa_rad_parquet(folder: Path) -> None:
    for split, grey in (("test", 20), ("train", 200)):
        rows = [{"image": cell(grey), "question": "Is it large?", "answer": "yes"}]
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", rows)


def vqa_rad(folder: Path) -> None:
    images = folder / "VQA_RAD Image Folder"
    images.mkdir(parents=True)
    common = {"image_organ": "HEAD", "question_type": "SIZE, ABN", "answer_type": "CLOSED "}
    rows = []
    for number, (phrase, answer) in enumerate(
        [("freeform", "No"), ("test_freeform", "Yes"), ("test_para", 3)]
    ):
        (images / f"syn{number}.jpg").write_bytes(image_bytes(number, "JPEG"))
        row = {"qid": number, "phrase_type": phrase, "image_name": f"syn{number}.jpg", "answer": answer}
        rows.append(common | row | {"question": f"Question {number}? "})
    (folder / "VQA_RAD Dataset Public.json").write_text(json.dumps(rows))


def medxpertqa(folder: Path) -> None:
    (folder / "MM").mkdir(parents=True)
    (folder / "images").mkdir()
    for letter, grey in (("a", 10), ("b", 20)):
        (folder / "images" / f"MM-5-{letter}.jpeg").write_bytes(image_bytes(grey, "JPEG"))
    text = "What is it?\nAnswer Choices: (A) an asthma (B) a cough (C) a fever"
    row = {
        "question": text,
        "medical_task": "Diagnosis",
        "body_system": "Lungs",
        "question_type": "Reasoning",
    }
    as_object = row | {"id": "MM-5", "options": HARD, "label": "B", "images": ["MM-5-a.jpeg", "MM-5-b.jpeg"]}
    listed = [{"letter": letter, "content": content} for letter, content in HARD.items()]
    as_list = row | {
        "id": "MM-6",
        "options": listed,
        "label": ["C"],
        "images": [{"image_path": "MM-5-b.jpeg"}],
    }
    lines = [json.dumps(as_object), json.dumps(as_list)]
    (folder / "MM" / "test.jsonl").write_text("\n".join(lines) + "\n")


def gqa(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    for name in ("2405722", "88"):
        Image.new("RGB", (200, 100), (0, 80, 0)).save(folder / "images" / f"{name}.jpg")

    def ask(image: str, objects: list[str], answer_objects: list[str] = []) -> dict:  # noqa: B006
        annotations = {
            "question": {f"{place}:{place + 1}": name for place, name in enumerate(objects)},
            "answer": dict.fromkeys(["0"], *answer_objects) if answer_objects else {},
            "fullAnswer": {"3": objects[0]} if objects else {},
        }
        texts = {"question": "Is the bird red?", "answer": "no", "fullAnswer": "No, the bird is blue."}
        return texts | {"imageId": image, "annotations": annotations, "types": {"structural": "verify"}}

    questions = {
        "001": ask("2405722", ["bird"], ["tree"]),
        "002": ask("2405722", ["bush"]),
        "003": ask("2405722", []),  # about nothing that is annotated
        "004": ask("88", ["car"]),
    }
    bird, tree = {"x": 0, "y": 0, "w": 40, "h": 40}, {"x": 100, "y": 0, "w": 30, "h": 50}
    bush, car = {"x": 170, "y": 70, "w": 90, "h": 50}, {"x": 10, "y": 10, "w": 50, "h": 50}
    size = {"width": 200, "height": 100}
    graphs = {
        "2405722": size | {"objects": {"bird": bird, "tree": tree, "bush": bush}},
        "88": size | {"objects": {"car": car}},
    }
    (folder / "val_balanced_questions.json").write_text(json.dumps(questions))
    (folder / "val_sceneGraphs.json").write_text(json.dumps(graphs))


def tsv_text(rows: list[tuple[str, ...]]) -> str:
    header = ("index", "image", "question", "answer", "discipline")
    return "".join("\t".join(row) + "\n" for row in (header, *rows))


def mmreason(folder: Path) -> None:
    folder.mkdir(parents=True)
    one, two = (base64.b64encode(image_bytes(grey)).decode() for grey in (30, 60))
    rows = [
        ("1", "3", "How long is AB?", "None", "Math"),  # the image of a later row, and an answer pandas drops
        ("2", f"['{one}', '{two}']", '"Two lines,\nin ""quotes"""', "2 A", "Engineering"),
        ("3", two, "And BC?", "NA", "Social Science"),
    ]
    (folder / "MMReason_testmini.tsv").write_text(tsv_text(rows))


def lines_of(file: Path) -> dict[str, dict]:
    return {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}


def read(benchmark: str, tmp_path: Path, write, name: str = "") -> tuple[dict[str, dict], Path]:
    published = tmp_path / "published"
    write(published)
    file = unpack(benchmark, published / name if name else published, tmp_path / "data")
    assert file == tmp_path / "data" / "samples.jsonl"
    BENCHMARKS[benchmark]()  # its reader takes the file, but magic's, whose boxes come later
    if benchmark != "magic":
        assert load_truth(BENCHMARKS[benchmark](), DataSettings(data=file), tmp_path / "unused")
    return lines_of(file), tmp_path / "data"


def test_mmmu_pro(tmp_path):
    lines, data = read("mirage-effect", tmp_path, mmmu_pro)
    assert list(lines) == ["test_Art_0", "test_Art_1", "test_Art_2"]
    line = lines["test_Art_1"]
    assert line["choices"] == {"A": "it's <image 1>", "B": "the second", "C": "none, of these"}
    assert [each["answer"] for each in lines.values()] == ["A", "B", "C"] and line["category"] == "Art"
    assert line["images"] == ["images/test_Art_1-1.png", "images/test_Art_1-2.jpg"]
    assert [grey_of(data / image) for image in line["images"]] == [1, 101]


def test_mmmu_pro_vision_shows_its_question(tmp_path):
    lines, _ = read("mirage-effect", tmp_path, mmmu_pro_vision)
    line = lines["test_Art_1"]
    assert line["choices"] == {"A": "a", "B": "b"} and "b" not in line["prompt"].split()
    assert "the image shows" in line["prompt"] and line["images"] == ["images/test_Art_1-1.png"]


def test_microvqa(tmp_path):
    lines, data = read("mirage-effect", tmp_path, microvqa)
    assert [(name, line["answer"], len(line["images"])) for name, line in lines.items()] == [
        ("40", "C", 1),
        ("41", "B", 2),
    ]
    assert [grey_of(data / image) for image in lines["41"]["images"]] == [1, 90]


def test_vqa_rad_takes_the_test_questions(tmp_path):
    lines, _ = read("mirage-effect", tmp_path, vqa_rad)
    assert {name: (line["question"], line["answer"]) for name, line in lines.items()} == {
        "1": ("Question 1?", "Yes"),
        "2": ("Question 2?", "3"),
    }
    assert lines["2"]["category"] == "HEAD/SIZE,ABN" and grey_of(Path(lines["2"]["images"][0])) == 2


def test_vqa_rad_in_parquet_takes_the_test_split(tmp_path):
    lines, data = read("mirage-effect", tmp_path, vqa_rad_parquet)
    assert [line["answer"] for line in lines.values()] == ["yes"]
    assert grey_of(data / lines["0001"]["images"][0]) == 20


def test_medxpertqa_in_both_forms_of_options(tmp_path):
    lines, _ = read("mirage-effect", tmp_path, medxpertqa)
    assert [(line["question"], line["answer"], line["choices"]) for line in lines.values()] == [
        ("What is it?", "B", HARD),
        ("What is it?", "C", HARD),
    ]
    assert [grey_of(Path(image)) for image in lines["MM-5"]["images"]] == [10, 20]
    assert lines["MM-6"]["category"] == "Lungs/Diagnosis"


def test_gqa_boxes(tmp_path):
    lines, _ = read("magic", tmp_path, gqa)
    assert list(lines) == ["001", "002", "004"]
    first, second, other_image = lines.values()
    assert first["objects"] == [[0, 0, 40, 40], [100, 0, 30, 50]]
    assert first["distractors"] == [[170, 70, 30, 30]], "cut off at the edge of the image"
    assert second["objects"] == first["distractors"] and second["distractors"] == first["objects"]
    assert other_image["distractors"] == [] and first["type"] == "verify"
    with pytest.raises(InputError, match="'boxes'.* mmprobe data number-boxes"):
        load_truth(BENCHMARKS["magic"](), DataSettings(data=tmp_path / "published"), tmp_path / "again")


def test_number_boxes_makes_data_of_gqa(tmp_path):
    from typer.testing import CliRunner

    gqa(tmp_path / "gqa")
    arguments = [
        "data",
        "number-boxes",
        "--data",
        tmp_path / "gqa",
        "--out",
        tmp_path / "out",
        "--limit",
        "2",
    ]
    arguments += ["--rule", "iou", "--count", "2", "--areas", "0.001", "0.5", "--json"]
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    truth = BENCHMARKS["magic"]().read(Path(json.loads(result.stdout)["samples"]))
    assert [question.id for question in truth.questions] == ["001", "002"]
    assert [sorted(box.source for box in question.boxes) for question in truth.questions] == [
        ["distractor", "object", "object", "random"],
        ["distractor", "distractor", "object"],
    ]


def test_mmreason_table(tmp_path):
    lines, data = read("mmreason", tmp_path, mmreason, "MMReason_testmini.tsv")
    assert [(line["answer"], line["discipline"]) for line in lines.values()] == [
        ("None", "math"),
        ("2 A", "engineering"),
        ("NA", "social science"),
    ]
    assert (
        lines["2"]["question"] == 'Two lines,\nin "quotes"' and lines["1"]["images"] == lines["3"]["images"]
    )
    assert [grey_of(data / image) for image in lines["2"]["images"]] == [30, 60]


def test_a_limit_and_a_second_call(tmp_path):
    mmmu_pro(tmp_path / "published")
    first = unpack("mirage-effect", tmp_path / "published", tmp_path / "data", limit=2)
    before = first.stat().st_mtime_ns
    assert len(lines_of(first)) == 2 and len(list((tmp_path / "data" / "images").iterdir())) == 4
    assert unpack("mirage-effect", tmp_path / "published", tmp_path / "data", limit=2) == first
    assert first.stat().st_mtime_ns == before, "what was unpacked is kept"
    with pytest.raises(InputError, match="another --limit"):
        unpack("mirage-effect", tmp_path / "published", tmp_path / "data")


def test_score_reads_published_files(tmp_path):
    mmreason(tmp_path / "published")
    file = tmp_path / "published" / "MMReason_testmini.tsv"
    scored = score("mmreason", file, {"1": "The answer is None", "2": "3 A"}, tmp_path / "out")
    assert [record["id"] for record in scored.records] == ["1", "2", "3"]
    assert scored.records[0]["answer"] == "None" and (tmp_path / "out" / "data" / "images").is_dir()


def base64_image(grey: int) -> str:
    return base64.b64encode(image_bytes(grey)).decode()


def options_set(name: str, folder: Path) -> Path:
    """Write two questions of a set in a form in which users have it, and return its file or folder."""
    dots = {"A": "one dot", "B": "two dots"}
    tables = {
        "MMBench": [
            {"index": "3", "question": "Which?", "hint": "Look.", **dots, "answer": "B", "category": "count", "l2-category": "x"},
            {"index": "9", "question": "Now?", "hint": "nan", **dots, "C": "", "answer": "A", "category": "", "l2-category": "x"},
        ],
        "MathVista": [
            {"index": "1", "question": "How long?", "answer": "two dots", "choices": "['one dot', 'two dots']", "question_type": "multi_choice", "answer_type": "text"},
            {"index": "2", "question": "How many?", "answer": "14", "choices": "", "question_type": "free_form", "answer_type": "integer"},
        ],
    }  # fmt: skip
    if name.endswith("table"):
        rows = tables[name.split()[0]]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        images = [base64_image(1), rows[0]["index"]]  # the second row names the first one's image
        lines = ["\t".join(["image", *columns])]
        lines += [
            "\t".join([image, *(row.get(key, "") for key in columns)])
            for image, row in zip(images, rows, strict=True)
        ]
        (folder / "set.tsv").write_text("\n".join(lines) + "\n")
        return folder / "set.tsv"
    rows = {
        "MMBench": [
            {"index": 3, "question": "Which?", "hint": None, **dots, "C": None, "answer": "B", "category": "count", "image": cell(1)}
        ],
        "MMStar": [
            {"index": 0, "question": "Which?\nOptions: A: one dot, B: two dots", "answer": "B", "category": "c", "l2_category": "x", "image": image_bytes(1)}
        ],
        "MathVista": [
            {"pid": "1", "question": "How long?", "choices": ["one dot", "two dots"], "answer": "two dots", "image": "images/1.jpg", "decoded_image": cell(1)},
            {"pid": "2", "question": "How many?", "choices": None, "answer": "14", "image": "images/2.jpg", "decoded_image": cell(2)},
        ],
        "MathVision": [
            {"id": "7", "question": "Which? <image1>", "options": ["one dot", "two dots"], "answer": "B", "level": 3, "subject": "counting", "image": "images/7.jpg", "decoded_image": cell(1)},
            {"id": "8", "question": "How many?\n<image1>", "options": [], "answer": "14", "level": 1, "subject": "algebra", "image": "images/8.jpg", "decoded_image": cell(2)},
        ],
    }[name]  # fmt: skip
    write_parquet(folder / "data" / "testmini.parquet", rows)
    return folder


@pytest.mark.parametrize(
    "name", ["MMBench", "MMStar", "MathVista", "MathVision", "MMBench table", "MathVista table"]
)
def test_sets_of_questions_with_options(name, tmp_path):
    path, out = options_set(name, tmp_path), tmp_path / "out"
    layout = find_layout("vqa", path)
    assert layout is not None and layout.name == name.split()[0]
    truth = load_truth(BENCHMARKS["vqa"](), DataSettings(data=path), out)
    questions = truth.questions
    first = questions[0]
    assert first.kind == "options" and first.accepted == ("B",)
    assert list(first.options.values()) == ["one dot", "two dots"] and grey_of(first.sample.images[0]) == 1
    assert "<image" not in first.sample.question and "one dot" not in first.sample.question
    (asked, *_) = BENCHMARKS["vqa"]().ask(truth)
    assert asked.question.count("one dot") == 1
    if len(questions) > 1 and name != "MMBench table":
        assert questions[1].kind == "number" and questions[1].accepted == ("14",)
    if name == "MMBench table":
        assert first.sample.question == "Look.\nWhich?" and questions[1].sample.question == "Now?"
        assert questions[1].sample.images == first.sample.images


@pytest.mark.parametrize(("change", "named"), [({"answer": "D"}, "'D'"), ({"answer": ""}, "no answer")])
def test_rows_without_an_answer_among_the_options_are_named(change, named, tmp_path):
    row = {"index": 3, "question": "Which?", "A": "one", "B": "two", "answer": "B", "image": cell(1)} | change
    write_parquet(tmp_path / "a.parquet", [row])
    with pytest.raises(InputError, match=f"row 1: .*{named}"):
        load_truth(BENCHMARKS["vqa"](), DataSettings(data=tmp_path), tmp_path / "out")


def test_own_files_have_no_layout(tmp_path):
    own = tmp_path / "questions.tsv"
    own.write_text("index\tquestion\n")
    for path in (own, tmp_path, tmp_path / "missing.jsonl"):
        for benchmark in ("mirage-effect", "magic", "mmreason", "pope"):
            assert find_layout(benchmark, path) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("1", "not base64! " * 9, "?", "1", "math"), "row 1: its image is not base64"),
        (("1", "aGkh" * 30, "?", "1", "math"), "row 1: image .*not a readable image"),
        (
            ("1", base64.b64encode(image_bytes(0, size=(10_000, 10_001))).decode(), "?", "1", "math"),
            "100 megapixels, over 100",
        ),
        (("1", "[" * 5000, "?", "1", "math"), "row 1: its image is not a list"),
        (
            ("1", "[1," + "1," * 5000 + "1]", "?", "1", "math"),
            "row 1: its image is not a list of at most 100",
        ),
        (("1", "9", "?", "1", "math"), "row 1: its image '9' is neither"),
        (("../1", "", "?", "1", "math"), "row 1: id '../1' must be"),
        (("1", "", "?", "", "math"), "row 1: field 'answer'"),
        (("1", "", "", "1", "math"), "row 1: field 'question'"),
    ],
)
def test_bad_rows_of_the_table_are_named(row, message, tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text(tsv_text([row]))
    with pytest.raises(InputError, match=message):
        unpack("mmreason", file, tmp_path / "data")
    assert not any((tmp_path / "data").glob("*")), "nothing half-written"


def test_two_rows_of_one_index_are_refused(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text(tsv_text([("1", "", "?", "1", "math"), ("1", "", "?", "2", "math")]))
    with pytest.raises(InputError, match="row 2: id '1' was used before"):
        unpack("mmreason", file, tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "D"}, "row 1: 'answer' is 'D'"),
        ({"options": "__import__('os')"}, "row 1: its options are not a list"),
        ({"options": "['one']"}, "row 1: its options are not a list of 2"),
        ({"image_1": {"bytes": b"GIF89a", "path": None}}, "row 1: image .*not a readable image"),
        ({"image_1": None}, "row 1: has no image"),
    ],
)
def test_bad_rows_of_parquet_are_named(change, message, tmp_path):
    row = {
        "id": "1",
        "question": "?",
        "options": "['a', 'b']",
        "image_1": cell(1),
        "answer": "A",
        "subject": "x",
    }
    write_parquet(tmp_path / "in" / "test-0.parquet", [row | change])
    with pytest.raises(InputError, match=message):
        unpack("mirage-effect", tmp_path / "in", tmp_path / "data")


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    (tmp_path / "test-0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="parquet"):
        unpack("mirage-effect", tmp_path, tmp_path / "data")
    mmmu_pro_vision(tmp_path / "cut")
    (file,) = (tmp_path / "cut").iterdir()
    content = bytearray(file.read_bytes())
    content[20:60] = bytes(40)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"cut/test-00000-of-00001\.parquet"):
        unpack("mirage-effect", tmp_path / "cut", tmp_path / "data")


@pytest.mark.parametrize("name", ["val_sceneGraphs.json", "images/88.jpg"])
def test_missing_files_of_gqa_are_named(name, tmp_path):
    gqa(tmp_path / "gqa")
    (tmp_path / "gqa" / name).unlink()
    with pytest.raises(InputError, match=f"{name}: no such file"):
        file = unpack("magic", tmp_path / "gqa", tmp_path / "data")
        BENCHMARKS["magic"]().read(file)


def spd_rows(merged: bool) -> list[dict]:
    """Two pairs of one photograph, one with a move: both its places are given, and the caption is of the whole pair."""
    caption = "The dog is gone and the cup moved."
    moved = {"type": "position", "category": "cup", "description": "", "original_bbox": [1, 1, 2, 2]}
    rows = []
    for number in (1, 2):
        differences = [
            {"type": "remove", "category": "dog", "description": caption, "bbox": [0, 0, 3, 3]},
            moved | {"new_bbox": [8, 4, 2, 2]},
        ]
        row = {
            "image_id": f"2153_{number}",
            "num_differences": 2,
            "differences": differences,
            "difficulty": "multi",
        }
        if merged:
            picture = Image.new("L", (12, 16), 40)
            picture.paste(40 + number, (0, 8, 12, 16))
            file = io.BytesIO()
            picture.save(file, "PNG")
            row["image"] = {"bytes": file.getvalue(), "path": None}
        else:
            row |= {"image1": cell(40), "image2": cell(40 + number)}
        rows.append(row)
    return rows


@pytest.mark.parametrize("merged", [False, True])
def test_parquet_files_of_spd_faith(tmp_path, merged):
    write_parquet(tmp_path / "data" / "data" / "test-00000-of-00001.parquet", spd_rows(merged))
    layout = find_layout("spd-faith", tmp_path / "data")
    assert layout is not None and layout.name == "SPD-Faith Bench, parquet"
    truth = load_truth(BENCHMARKS["spd-faith"](), DataSettings(data=tmp_path / "data"), tmp_path / "out")
    assert [pair.id for pair in truth.pairs] == ["2153_1", "2153_2"]
    first = truth.pairs[0]
    assert [grey_of(image) for image in first.images] == [40, 41] and first.difficulty == "multi"
    assert first.caption.startswith("The dog is gone")
    boxes = {(region.image, tuple(region.box)) for region in first.differences[1].regions}
    assert boxes == {(image, box) for image in (0, 1) for box in ((1, 1, 2, 2), (8, 4, 2, 2))}
    assert len(set(image_sets(truth.samples).tolist())) == 1, "both pairs show one photograph"
    answers = {f"{pair.id}/count": "There are 2 differences." for pair in truth.pairs}
    metrics, _ = BENCHMARKS["spd-faith"]().score(truth, answers)
    assert metrics["dqr_exact[set=multi]"].value == 1 and metrics["dqr_exact[set=multi]"].n == 2


def test_both_images_can_be_one_picture_as_in_the_released_scripts(tmp_path):
    write_parquet(tmp_path / "data" / "test.parquet", spd_rows(merged=False))
    benchmark = make_benchmark("spd-faith", {"images": "merged"})
    truth = load_truth(benchmark, DataSettings(data=tmp_path / "data"), tmp_path / "out")
    pair, sample = truth.pairs[0], truth.samples[0]
    (picture,) = sample.images
    with Image.open(picture) as image:
        assert image.size == (12, 16)
        assert [image.convert("L").getpixel((5, y)) for y in (2, 12)] == [40, 41]
    assert len(pair.images) == 2, "a judge sees the pair"
    assert {region.image for region in sample.regions} == {0}
    assert (8, 4 + 8, 2, 2) in [tuple(region.box) for region in sample.regions]
    assert all(len(each.images) == 1 for each in benchmark.follow_up(truth, {"2153_1-count": "2"}))


def test_the_command_says_which_layout_it_took(tmp_path):
    write_parquet(tmp_path / "data" / "test.parquet", spd_rows(merged=False))
    (tmp_path / "answers.jsonl").write_text('{"id": "2153_1-count", "response": "2"}\n')
    words = [
        "--data",
        tmp_path / "data",
        "--responses",
        tmp_path / "answers.jsonl",
        "--out",
        tmp_path / "out",
    ]
    said = CliRunner().invoke(app, ["score", "spd-faith", *map(str, words)], catch_exceptions=False)
    assert "Data read as: SPD-Faith Bench, parquet" in said.output
    assert json.loads((tmp_path / "out" / "results.json").read_text())["layout"] == "SPD-Faith Bench, parquet"


MIRAGE_ROWS = [
    {
        "prompt": "Which bar is tallest?\n(A) red\n(B) blue",
        "answer": "B",
        "question_type": "multiple_choice",
        "classification": "Statistical",
    },
    {
        "prompt": "What is the area in cm^2?",
        "answer": "24",
        "question_type": "free_form",
        "classification": "Geometry",
        "refine_thinking": "The sides are 4 and 6. So the area is 24.",
        "rephrase_thinking_10": "Tenth.",
        "rephrase_thinking_2": "Multiply 4 by 6.",
    },
    {
        "prompt": "About how heavy is it?",
        "answer": "3.5",
        "question_type": "approximate",
        "classification": "Scientific",
    },
]


def test_the_table_of_mirage(tmp_path):
    import pandas as pd

    image = base64.b64encode(image_bytes(9)).decode()
    rows = [row | {"image": image} for row in MIRAGE_ROWS]
    pd.DataFrame(rows).to_csv(tmp_path / "mirage.tsv", sep="\t", index=False)
    truth = load_truth(BENCHMARKS["mirage"](), DataSettings(data=tmp_path / "mirage.tsv"), tmp_path / "out")
    choice, free, near = truth.questions
    assert [each.type for each in truth.questions] == ["multiple_choice", "free_form", "approximate"]
    assert [each.topic for each in truth.questions] == ["statistical", "geometry", "scientific"]
    assert (choice.question, choice.choices, choice.answer) == (
        "Which bar is tallest?",
        {"A": "red", "B": "blue"},
        "B",
    )
    assert free.references == ["The sides are 4 and 6. So the area is 24.", "Multiply 4 by 6.", "Tenth."]
    assert grey_of(near.images[0]) == 9
    rows[0]["classification"] = "Poetry"
    pd.DataFrame(rows).to_csv(tmp_path / "other.tsv", sep="\t", index=False)
    with pytest.raises(InputError, match="row 1: .*topics"):
        load_truth(BENCHMARKS["mirage"](), DataSettings(data=tmp_path / "other.tsv"), tmp_path / "other")


def test_lists_of_questions_about_missing_images(tmp_path):
    rows = [
        {
            "id": number,
            "category": f"medical/kind {number % 20}",
            "question": f"What does image {number} show?",
        }
        for number in range(200)
    ]
    (tmp_path / "phantom.json").write_text(json.dumps(rows))
    benchmark = BENCHMARKS["mirage-effect"]()
    truth = load_truth(benchmark, DataSettings(data=tmp_path / "phantom.json"), tmp_path / "out")
    assert len(truth.imageless) == 200 and not truth.choices

    def n_varied(truth, options=None):
        asked = make_benchmark("mirage-effect", options or {}).ask(truth)
        return sum(sample.metadata.get("variant") == "evidence" for sample in asked)

    assert n_varied(truth) == 40
    assert n_varied(truth, {"varied": 200}) == 200
    limited = load_truth(
        benchmark, DataSettings(data=tmp_path / "phantom.json", limit=120), tmp_path / "limited"
    )
    assert n_varied(limited) == 120, "as many as --limit"
    answers = {sample.id: "There is no image attached." for sample in benchmark.ask(limited)}
    metrics, _ = benchmark.score(limited, answers)
    assert metrics["mirage_rate_evidence"].n == 120 and metrics["mirage_rate"].value == 0
    assert answer_lengths(benchmark) == 512
    (tmp_path / "bare.json").write_text(json.dumps({"questions": [{"prompt": "Who is this?"}]}))
    bare = load_truth(benchmark, DataSettings(data=tmp_path / "bare.json"), tmp_path / "bare")
    assert bare.imageless[0] == ("phantom-001", "phantom-0", "Who is this?")


def test_a_table_that_is_read_in_part_is_closed(tmp_path):
    from mmprobe.benchmarks.layouts.mmreason import read_table

    file = tmp_path / "table.tsv"
    file.write_text("index\ttext\n" + "".join(f"{number}\tx\n" for number in range(100)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    rows = read_table(file)
    assert next(rows)[1]["index"] == "0"
    rows.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
