"""Sentences in Chinese that state a difference between two images, and numbers in Chinese.

`SENTENCES` is the table of the forms, each with an example; a new form is a line in it.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

StatementKind = Literal["remove", "position", "color", "nothing", "count"]

_LISTS = yaml.safe_load(Path(__file__).with_name("coco.yaml").read_text(encoding="utf-8"))["chinese"]
_SHAPES = {
    **dict.fromkeys(("圆", "圆形", "圆圈"), "circle"),
    **dict.fromkeys(("正方形", "方块", "方形"), "square"),
    **dict.fromkeys(("三角形",), "triangle"),
    **dict.fromkeys(("菱形",), "diamond"),
    **dict.fromkeys(("星星", "星形", "五角星"), "star"),
    **dict.fromkeys(("十字", "十字形"), "cross"),
    **dict.fromkeys(("圆环", "环"), "ring"),
    **dict.fromkeys(("心形", "爱心"), "heart"),
}
_CATEGORIES: dict[str, str] = {word: name for name, words in _LISTS.items() for word in words} | _SHAPES
_LONGEST_FIRST = sorted(_CATEGORIES, key=len, reverse=True)
_HUES = {
    "红": "red",
    "橙": "orange",
    "橘": "orange",
    "黄": "yellow",
    "绿": "green",
    "青": "cyan",
    "蓝": "blue",
    "紫": "purple",
    "黑": "black",
    "白": "white",
    "灰": "gray",
    "棕": "brown",
    "褐": "brown",
    "咖啡": "brown",
    "粉": "pink",
    "粉红": "pink",
    "金": "gold",
    "银": "silver",
    "米": "beige",
}
_PLACES = {"左": "left", "右": "right", "上": "top", "下": "bottom", "中": "center"}
NUMBERS = dict(zip("零一二三四五六七八九十", range(11), strict=True)) | {"两": 2}
"""Numbers of one character."""

_HUE = rf"[深浅亮暗]?(?:{'|'.join(sorted(_HUES, key=len, reverse=True))})色"
_PLACE = r"(?:[左右][上下]?|上|下|中间|中央)(?:边|侧|方|面|角|部)?"
_IMAGE = r"(?:图片|图像|照片|图|画面|张)"
_IN = r"(?:中|里|内|上)?"
_FIRST = rf"(?:在)?(?:第一[张幅个]?{_IMAGE}?|{_IMAGE}[一1]|原图|左图){_IN}"
_SECOND = rf"(?:在)?(?:第二[张幅个]?{_IMAGE}?|{_IMAGE}[二2]|右图|修改后的{_IMAGE}){_IN}"
_LEAD = rf"(?:(?:{_SECOND}|与{_FIRST}相比)[,:]?)?(?:{_SECOND}[,:]?)?"
_T = r"(?P<thing>[\u4e00-\u9fff]{1,16}?)"
_NOUN = r"(?:不同|差异|区别|变化|差别)(?:之处|的地方|点)?"
_BOTH = rf"(?:(?:这|在这)?两[张幅个]?{_IMAGE}(?:片)?(?:之间)?{_IN})?"
_NUMBER = r"(?P<number>\d{1,3}|[一二两三四五六七八九十])"
_BECAME = r"(?:变成|变为|变到|改为|改成|换成|变)了?"
_GONE = r"(?:移除|去除|删除|去掉|移走|拿走|擦除|抹去)(?:了|掉了)?"

# A kind, a sentence without its stop and with plain commas, and an example.
_FORMS: tuple[tuple[StatementKind, str, str], ...] = (
    ("remove", rf"{_LEAD}{_T}(?:已|已经)?被{_GONE}", "椅子被移除了"),
    ("remove", rf"{_LEAD}{_T}(?:已经)?(?:不见了|消失了|没有了|没了|缺失了?|不存在了)", "在第二张图中,自行车不见了"),
    ("remove", rf"{_T}(?:从|在){_SECOND}(?:不见了|消失了|没有了|被{_GONE})", "狗在第二张图中消失了"),
    ("remove", rf"{_SECOND},?(?:缺少了?|少了|没有了?|缺失了?|缺了|{_GONE}){_T}", "第二张图中缺少了狗"),
    ("remove", rf"{_FIRST},?有{_T},(?:而|但是?)?(?:在)?{_SECOND}(?:则|却)?(?:没有|不见了|消失了)了?", "第一张图中有一只猫,而第二张图中没有"),
    ("position", rf"{_LEAD}{_T}(?:的位置)?(?:从(?P<before>{_PLACE}))?(?:被)?(?:移动|移|挪)(?:到了?|至)(?:了)?(?P<after>{_PLACE})", "杯子从左边移动到了右边"),
    ("position", rf"{_LEAD}{_T}(?:向|往)(?P<after>{_PLACE})(?:移动|移)了?", "椅子向右移动了"),
    ("position", rf"{_LEAD}{_T}(?:被移动了|移动了(?:位置)?|的位置(?:发生了?)?(?:变化|改变|变了|移动)了?)", "椅子的位置发生了变化"),
    ("color", rf"{_LEAD}{_T}(?:的颜色)?(?:从|由)(?P<before>{_HUE})(?:的)?{_BECAME}(?P<after>{_HUE})(?:的)?", "汽车的颜色从红色变成了蓝色"),
    ("color", rf"{_FIRST},?(?:的)?{_T}(?:是|为)(?P<before>{_HUE})的?,(?:而|但)?(?:在)?{_SECOND},?(?:的)?(?P<again>[\u4e00-\u9fff]{{0,16}}?)(?:则|却)?(?:是|为|变成了|变为)(?P<after>{_HUE})的?", "第一张图中的伞是红色的,第二张图中是蓝色的"),
    ("color", rf"{_LEAD}{_T}(?:的颜色)?(?:变成了|变为了?|现在是|改为了?)(?P<after>{_HUE})的?", "雨伞变成了绿色"),
    ("color", rf"{_LEAD}{_T}的颜色(?:发生了?)?(?:变化|改变|变了|不同)了?", "雨伞的颜色发生了变化"),
    ("nothing", rf"{_BOTH}(?:没有|无|不存在)(?:任何|明显的?|发现任何)?{_NOUN}", "两张图片没有任何区别"),
    ("nothing", rf"{_BOTH}(?:是)?(?:完全|一模一样|都)?(?:相同|一样|一致|一模一样)的?", "两张图片完全相同"),
    ("count", rf"{_BOTH}(?:一共|总共|共)?(?:有|存在){_NUMBER}(?:个|处|点)(?:主要的?|明显的?)?{_NOUN}", "两张图片之间有3处不同"),
    ("count", rf"{_NUMBER}(?:个|处)(?:{_NOUN})?", "三处"),
)  # fmt: skip
SENTENCES = tuple((kind, re.compile(pattern), example) for kind, pattern, example in _FORMS)
_UNSURE = re.compile(r"可能|也许|或许|大概|好像|似乎|不确定|或者|[?？]")
_MEASURE = re.compile(
    r"^(?:[一二两三四五六七八九十几那这]|\d+)[个只条张辆把朵棵匹头件块位名双座台根支架本顶盏艘列群杯瓶](?=.)"
)
_NO_THING = re.compile(r"[不没无是都也和与或了]|图|照片|颜色|位置|区别|差异|东西|物体|两")


class Statement(NamedTuple):
    """What a sentence states: the kind, the objects' categories (None for one that is unknown), values and number."""

    kind: StatementKind
    things: tuple[str | None, ...] = ()
    before: str | None = None
    after: str | None = None
    number: int | None = None


def read_statement(sentence: str) -> Statement | None:
    """Return what a sentence in Chinese states about two images; None for any other sentence.

    Example:
        >>> read_statement("第二张图中缺少了狗。")
        Statement(kind='remove', things=('dog',), before=None, after=None, number=None)
        >>> read_statement("狗可能被移除了。") is None
        True
    """
    text = re.sub(r"\s+", "", unicodedata.normalize("NFKC", sentence)).strip("。.!;、,")
    if _UNSURE.search(text) or not re.search(r"[\u4e00-\u9fff]", text):
        return None
    for kind, pattern, _ in SENTENCES:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        values = match.groupdict()
        if kind == "nothing":
            return Statement(kind)
        if kind == "count":
            written = values["number"]
            return Statement(kind, number=int(written) if written.isdigit() else NUMBERS[written])
        things = _find_things(values["thing"])
        again = _find_things(values["again"]) if values.get("again") else things
        if things is None or again != things:
            continue
        read = _read_hue if kind == "color" else _read_place
        before, after = (read(values.get(name)) for name in ("before", "after"))
        return Statement(kind, things, before, after)
    return None


def _find_things(words: str) -> tuple[str | None, ...] | None:
    """Return the categories of one or several objects; None for words that are not an object."""
    things = []
    for part in re.split(r"和|与|以及|、", words.removesuffix("都")):
        noun = _MEASURE.sub("", part.rsplit("的", 1)[-1])
        noun = re.sub(rf"^{_HUE}", "", noun)
        if not noun or len(noun) > 6 or (_NO_THING.search(noun) and noun not in _CATEGORIES):
            return None
        things.append(next((_CATEGORIES[word] for word in _LONGEST_FIRST if noun.endswith(word)), None))
    return tuple(things)


def _read_hue(words: str | None) -> str | None:
    if words is None:
        return None
    tone = {"深": "dark ", "暗": "dark ", "浅": "light ", "亮": "bright "}.get(words[0], "")
    return tone + _HUES[words.removesuffix("色").lstrip("深浅亮暗")]


def _read_place(words: str | None) -> str | None:
    if words is None:
        return None
    letters = [_PLACES[letter] for letter in words if letter in _PLACES]
    return " ".join(sorted(letters, key=("top", "bottom", "center", "left", "right").index)) or None
