"""Files of other tools, read as what they are: questions as lines of samples, answers as ids and responses.

Known are LLaVA's JSON lines, OPERA's captions, lmms-eval's samples, VLMEvalKit's TSV, and its results as TSV or XLSX, and the
JSON files of VQA over COCO. A file is recognised by its fields, whatever its name.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.errors import InputError
from mmprobe.files import check_readable, json_lines, make_folders, read_text, write_whole

log = logging.getLogger("mmprobe")

PeerRow = dict[str, Any]
Place = tuple[str, PeerRow]
"""Where a row is, for messages, and the row."""
MOST_CHARACTERS = 2**28  # of one field of a TSV: an image in base64; our choice


class _Form(NamedTuple):
    """A form of files: its name, the fields that its rows have, and what they are read as.

    Attributes:
        question: makes the line of a sample of a row; None where the file holds no questions.
        response: returns id and text of a row's answer; None where the file holds none.
    """

    name: str
    fields: frozenset[str]
    question: Callable[[Path, str, PeerRow], PeerRow] | None
    response: Callable[[PeerRow], tuple[Any, Any]] | None


def read_questions(path: Path) -> list[Place] | None:
    """Return the lines of samples that a peer's file of questions makes; None if it is no peer's.

    Raises:
        InputError: the file is a peer's and holds answers alone, a row cannot be read, or its images are not there.
    """
    rows, form = _recognise(path)
    if form is None:
        return None
    make = form.question
    if make is None:
        raise InputError(
            f"{path}: holds {form.name}, which are answers; give the questions as data, and these as responses"
        )
    lines = [_convert(form, where, partial(make, path, where, row)) for where, row in rows]
    log.warning("%s: read as %s, %d questions", path, form.name, len(lines))
    return lines


def read_answers(path: Path) -> list[Place] | None:
    """Return lines of `id` and `response` of a peer's file of answers; None if it is no peer's.

    Raises:
        InputError: the file is a peer's and holds questions alone, or a row cannot be read.
    """
    rows, form = _recognise(path)
    if form is None:
        return None
    take = form.response
    if take is None:
        raise InputError(f"{path}: holds {form.name}, which are questions; give the answers to them")

    def make(row: PeerRow) -> PeerRow:
        name, text = take(row)
        return {"id": str(name), "response": None if text is None else str(text)}

    return [_convert(form, where, partial(make, row)) for where, row in rows]


def _convert(form: _Form, where: str, make: Callable[[], PeerRow]) -> Place:
    try:
        return where, make()
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{where}: cannot be read as a row of {form.name} ({reason})") from None


def _recognise(path: Path) -> tuple[list[Place], _Form | None]:
    """Return the rows of a file, and the first form whose fields they have; no form for mmprobe's own files."""
    rows = _read_rows(path)
    fields = set(rows[0][1]) if rows else set()
    return rows, None if "id" in fields else next((form for form in FORMS if form.fields <= fields), None)


def _read_rows(path: Path) -> list[Place]:
    """Return the rows of a table, of JSON lines, or of a JSON file of VQA; none of another file."""
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        return _read_sheet(path)
    if suffix == ".tsv":
        csv.field_size_limit(MOST_CHARACTERS)
        table = csv.DictReader(io.StringIO(read_text(path)), delimiter="\t")
        return [(f"{path}, row {number}", _drop_missing(row)) for number, row in enumerate(table, 1)]
    if suffix not in (".json", ".jsonl"):
        return []
    text = read_text(path).lstrip()
    if text.startswith("["):
        rows = _parse(text, path)
    elif text.startswith("{"):
        try:
            first, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return []  # who reads it as JSON lines says what is wrong
        if isinstance(first, dict) and ("questions" in first or "annotations" in first):
            return _read_vqa(path, first)
        try:
            return [
                (f"{path}, line {number}", row) for number, row in json_lines(path) if isinstance(row, dict)
            ]
        except InputError:
            return []
    else:
        return []
    return [(f"{path}, item {number}", row) for number, row in enumerate(rows, 1) if isinstance(row, dict)]


def _parse(text: str, path: Path) -> list[Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return content if isinstance(content, list) else []


def _parse_object(text: str) -> PeerRow:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _drop_missing(row: Mapping[str, Any]) -> PeerRow:
    return {name: value for name, value in row.items() if name and value not in (None, "")}


def _read_sheet(path: Path) -> list[Place]:
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise InputError(f"{path}: needs openpyxl; pip install 'mmprobe[xlsx]'") from None
    try:
        sheet = load_workbook(check_readable(path), read_only=True, data_only=True).worksheets[0]
        head, *rows = [list(values) for values in sheet.iter_rows(values_only=True)]
    except Exception as error:  # of zip, of XML, of openpyxl
        raise InputError(f"{path}: not an XLSX file that can be read ({error})") from None
    return [
        (f"{path}, row {number}", _drop_missing(dict(zip(map(str, head), row, strict=False))))
        for number, row in enumerate(rows, 2)
        if any(value is not None for value in row)
    ]


def _read_vqa(path: Path, content: PeerRow) -> list[Place]:
    """Return the questions of VQA, with the answers of the file of annotations beside it, if it is there."""
    if "questions" not in content:
        raise InputError(
            f"{path}: holds VQA's annotations; give the file of its questions, which finds them beside it"
        )
    name = (
        path.name.replace("OpenEnded_", "").replace("MultipleChoice_", "").replace("questions", "annotations")
    )
    annotations: dict[Any, PeerRow] = {}
    if name != path.name and path.with_name(name).is_file():
        beside = _parse_object(read_text(path.with_name(name)))
        listed = beside.get("annotations") or []
        annotations = {each.get("question_id"): each for each in listed if isinstance(each, dict)}
    if not isinstance(content["questions"], list):
        raise InputError(f"{path}: its 'questions' are no list")
    shared = {"data_subtype": content.get("data_subtype", "")}
    return [
        (f"{path}, question {number}", {**shared, **annotations.get(row.get("question_id"), {}), **row})
        for number, row in enumerate(content["questions"], 1)
        if isinstance(row, dict)
    ]


def _ask_vqa(path: Path, where: str, row: PeerRow) -> PeerRow:
    part = str(row["data_subtype"])
    name = f"COCO_{part}_{int(row['image_id']):012}.jpg" if part else f"{int(row['image_id']):012}.jpg"
    line: PeerRow = {"id": str(row["question_id"]), "question": row["question"]}
    line["images"] = [_find_image(path, where, name, part)]
    answer = row.get("answers") or row.get("multiple_choice_answer")
    metadata = {key: row[key] for key in ("question_type", "answer_type") if key in row}
    return line | ({"answer": answer} if answer else {}) | ({"metadata": metadata} if metadata else {})


def _find_image(path: Path, where: str, name: str, *folders: str) -> str:
    """Return the path of an image, relative to a file: in its folder, in `images`, or in one of the folders."""
    for folder in ("", "images", *folders, *(f"images/{each}" for each in folders)):
        if (path.parent / folder / name).is_file():
            return str(Path(folder) / name)
    raise InputError(
        f"{where}: image {name}: no such file beside {path.name} or in images/; put the images there"
    )


def _ask_llava(path: Path, where: str, row: PeerRow) -> PeerRow:
    images = row.get("image", [])
    images = [images] if isinstance(images, str) else list(images)
    line: PeerRow = {"id": str(row["question_id"]), "question": row["text"]}
    line["images"] = [_find_image(path, where, each) for each in images]
    if "label" in row:
        line["answer"] = row["label"]
    rest = {name: row[name] for name in ("category",) if name in row}
    return line | ({"metadata": rest} if rest else {})


def _ask_lmms(path: Path, where: str, row: PeerRow) -> PeerRow:
    stored = row.get("doc")
    doc: PeerRow = stored if isinstance(stored, dict) else {}
    question = doc.get("question") or row.get("input")
    images = [
        doc[name]
        for name in ("image", "image_path", "img_path", "image_file")
        if isinstance(doc.get(name), str)
    ]
    if not question or not images:
        raise InputError(
            f"{where}: lmms-eval wrote neither question nor image of this question there; give its data set"
        )
    line: PeerRow = {
        "id": str(row["doc_id"]),
        "question": question,
        "images": [_find_image(path, where, images[0])],
    }
    return line | ({} if row.get("target") is None else {"answer": row["target"]})


def _answer_lmms(row: PeerRow) -> tuple[Any, Any]:
    """Return the first of the answers, which lmms-eval keeps in lists of lists."""
    text = row.get("filtered_resps", row.get("resps"))
    while isinstance(text, list):
        text = text[0] if text else None
    return row["doc_id"], text


def _ask_vlmeval(path: Path, where: str, row: PeerRow) -> PeerRow:
    options = {letter: str(row[letter]) for letter in "ABCDEFGHIJ" if letter in row}
    question = f"{row['hint']}\n{row['question']}" if "hint" in row else row["question"]
    line: PeerRow = {"id": str(row["index"]), "question": question, "images": _write_images(path, where, row)}
    if "answer" in row:
        line["answer"] = row["answer"]
    metadata: PeerRow = {name: row[name] for name in ("category", "l2-category", "split") if name in row}
    metadata |= {"options": options} if options else {}
    return line | ({"metadata": metadata} if metadata else {})


def _write_images(path: Path, where: str, row: PeerRow) -> list[str]:
    """Return the files of a row's images. Those in base64 are written beside the TSV, as `NAME-images/INDEX.…`."""
    if "image" not in row:
        paths = row.get("image_path", "")
        return [_find_image(path, where, each) for each in _split_list(paths)]
    folder, files = path.with_name(f"{path.stem}-images"), []
    for number, code in enumerate(_split_list(row["image"])):
        name = re.sub(r"[^A-Za-z0-9._-]", "_", str(row["index"])) + (f"-{number}" if number else "")
        if len(code) <= 64:  # the index of a row with the same image
            earlier = re.sub(r"[^A-Za-z0-9._-]", "_", code)
            files.append(
                next((str(each.relative_to(path.parent)) for each in folder.glob(f"{earlier}.*")), "")
            )
            if not files[-1]:
                raise InputError(
                    f"{where}: image {code!r}: is neither an image in base64 nor the index of an earlier row"
                )
            continue
        try:
            content = base64.b64decode(code, validate=True)
        except (binascii.Error, ValueError):
            raise InputError(f"{where}: column 'image': is not an image in base64") from None
        ending = "png" if content.startswith(b"\x89PNG") else "webp" if content[8:12] == b"WEBP" else "jpg"
        file = folder / f"{name}.{ending}"
        if not file.is_file() or file.read_bytes() != content:
            make_folders(folder)
            write_whole({file: content})
        files.append(str(file.relative_to(path.parent)))
    return files


def _split_list(text: str) -> list[str]:
    """Return the texts of a list that a TSV holds as one text, or the only text."""
    if text.startswith("["):
        try:
            return [str(each) for each in json.loads(text.replace("'", '"'))]
        except ValueError:
            return [text]
    return [text] if text else []


FORMS: Sequence[_Form] = (
    _Form(
        "LLaVA's answers",
        frozenset({"question_id", "text", "prompt"}),
        None,
        lambda row: (row["question_id"], row["text"]),
    ),
    _Form(
        "LLaVA's questions",
        frozenset({"question_id", "text"}),
        _ask_llava,
        lambda row: (row["question_id"], row["text"]),
    ),
    _Form("VQA's questions", frozenset({"question_id", "image_id", "question"}), _ask_vqa, None),
    _Form(
        "VQA's results",
        frozenset({"question_id", "answer"}),
        None,
        lambda row: (row["question_id"], row["answer"]),
    ),
    _Form(
        "OPERA's captions",
        frozenset({"image_id", "caption"}),
        None,
        lambda row: (row["image_id"], row["caption"]),
    ),
    _Form("lmms-eval's samples", frozenset({"doc_id", "resps"}), _ask_lmms, _answer_lmms),
    _Form("lmms-eval's samples", frozenset({"doc_id", "filtered_resps"}), _ask_lmms, _answer_lmms),
    _Form(
        "VLMEvalKit's results",
        frozenset({"index", "prediction"}),
        None,
        lambda row: (row["index"], row.get("prediction")),
    ),
    _Form("VLMEvalKit's questions", frozenset({"index", "question"}), _ask_vlmeval, None),
)
