"""AMBER: hallucinated, covered and expected objects of descriptions, and questions of yes or no.

Wang et al. (2023), "AMBER: An LLM-free Multi-dimensional Benchmark for MLLMs Hallucination Evaluation", arXiv:2311.07397,
and the authors' `inference.py`.

Profile `own` finds the listed words and their plurals, of two side by side the last, and reads yes or no as `answers.yes_no` does. Profile `code` takes the
nouns of NLTK's tagger, counts a noun as a listed word that spaCy finds similar, and answers that are exactly `Yes` or `No`, as
the authors' code. Both count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from mmprobe.benchmarks.amber.data import DIMENSIONS, GENERATIVE, Annotation, Words
from mmprobe.benchmarks.answers.coco import find_phrases, make_plurals
from mmprobe.benchmarks.core.results import (
    Combine,
    Direction,
    Metric,
    accuracy_metrics,
    count_metric,
    f1,
    mean_metric,
    metrics_by_group,
    share,
    with_ids,
)
from mmprobe.errors import InputError

FindNouns = Callable[[str], Sequence[str]]
Similar = Callable[[str, str], bool]
SIMILARITY = 0.8  # of spaCy's vectors, as in the authors' code

# Columns of a description's counts.
_HALLUCINATED, _NOUNS, _COVERED, _SHOWN, _EXPECTED, _IMAGINABLE, _HAS_HALLUCINATED, _DESCRIPTIONS = range(8)
_GENERATIVE: dict[str, tuple[Combine, Direction]] = {
    "chair": (share(_HALLUCINATED, _NOUNS), "lower"),
    "cover": (share(_COVERED, _SHOWN), "higher"),
    "hal": (share(_HAS_HALLUCINATED, _DESCRIPTIONS), "lower"),
    "cog": (share(_EXPECTED, _IMAGINABLE), "lower"),
}
# Of a question's counts. What is found is the absence, so the positive answer is no.
_RIGHT_NO, _SAID_NO, _TRUE_NO = range(3)
_DISCRIMINATIVE: dict[str, Combine] = {
    "precision": share(_RIGHT_NO, _SAID_NO),
    "recall": share(_RIGHT_NO, _TRUE_NO),
    "f1": f1,
}


def judge_description(
    nouns: Sequence[str], annotation: Annotation, words: Words, similar: Similar
) -> dict[str, list[str]]:
    """Return the nouns that are hallucinated, the shown objects that are named, and the imagined ones that are.

    A noun is looked up as the authors do: among the safe words, the words of shown objects, those of imagined objects, and
    then, with `similar`, in both. It is hallucinated if no shown object has it. The words of all objects come before the
    objects' own names, and the first word that fits counts. An object that is listed twice is named once at most, and counts twice among those shown.

    Args:
        nouns: of the description; those that name no object are left out.
        similar: whether two words are the same.

    Example:
        >>> annotation, words = Annotation(["dog"], ["cat"]), Words({"dog": ["puppy"], "cat": [], "sofa": []})
        >>> judge_description(["puppy", "cat", "sofa", "joy"], annotation, words, str.__eq__)["hallucinated"]
        ['cat', 'sofa']
    """
    known = words.all
    mentions = [noun for noun in nouns if noun in known]
    shown, imagined = (_list_words(objects, words) for objects in annotation)
    covered: set[str] = set()
    expected: set[str] = set()
    hallucinated = []
    for noun in mentions:
        if noun in words.safe:
            continue
        own = next((thing for word, thing in shown if word == noun), None)
        if own is None:
            for match in (str.__eq__, similar):
                expected |= {next((thing for word, thing in imagined if match(noun, word)), "")} - {""}
            own = next((thing for word, thing in shown if similar(noun, word)), None)
        if own is None:
            hallucinated.append(noun)
        else:
            covered.add(own)
    return {
        "mentions": mentions,
        "hallucinated": hallucinated,
        "covered": [each for each in dict.fromkeys(annotation.truth) if each in covered],
        "expected": [each for each in dict.fromkeys(annotation.hallu) if each in expected],
    }


def _list_words(objects: Sequence[str], words: Words) -> list[tuple[str, str]]:
    """Return each word for some objects with its object: first their other words, then their names."""
    others = [(word, each) for each in objects for word in words.association.get(each, ())]
    return others + [(each, each) for each in objects]


def list_finder(words: Words) -> FindNouns:
    """Return what finds the listed words of a text, in the singular.

    Example:
        >>> list_finder(Words({"dog": ["puppy"], "person": ["man"]}))("Two puppies beside a man.")
        ['puppy', 'man']
    """
    forms = {plural: word for word in sorted(words.all) for plural in make_plurals(word)}
    table = {
        form.replace("-", " "): word for form, word in (forms | {each: each for each in words.all}).items()
    }
    first = {form.split(" ")[0] for form in table if " " in form}
    return lambda text: [word for word, _ in find_phrases(text, table, first)]


@cache
def published_tools() -> tuple[FindNouns, Similar]:
    """Return the authors' way to find nouns and to compare words: NLTK's tagger and lemmas, spaCy's `en_core_web_lg`.

    Raises:
        InputError: they, or their data, are not installed.
    """
    try:
        import nltk
        import spacy
        from nltk.stem import WordNetLemmatizer

        language = spacy.load("en_core_web_lg")
        lemmatise = WordNetLemmatizer().lemmatize

        def find_nouns(text: str) -> list[str]:
            tagged = nltk.pos_tag(nltk.word_tokenize(text))
            return [lemmatise(word) for word, kind in tagged if kind.startswith("NN")]

        find_nouns("A test.")
    except (ImportError, LookupError, OSError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip(" *")), "").rstrip(".")
        raise InputError(
            f"amber: profile 'code' needs NLTK and spaCy with their data ({reason}); pip install nltk spacy, python -m spacy download "
            "en_core_web_lg, python -m nltk.downloader punkt_tab averaged_perceptron_tagger_eng wordnet; or leave the profile out"
        ) from None
    read = cache(language)
    return find_nouns, cache(lambda one, other: bool(read(one).similarity(read(other)) > SIMILARITY))


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute the metrics of descriptions and of questions of yes or no, those that there are.

    - chair: share of hallucinated nouns, of those that name an object
    - cover: share of the shown objects that are named
    - hal: share of descriptions with a hallucinated noun
    - cog: share of the objects that people expect to be imagined that are named
    - accuracy, precision, recall, f1: of the answers, where what is found is no; precision is of the answers no, recall of the
      questions whose answer is no. An answer that is neither yes nor no is wrong

    Counts are summed over images first. Those of answers are by dimension, and by attribute, too.
    """
    descriptions = [record for record in records if record["type"] == GENERATIVE]
    questions = [record for record in records if record["type"] != GENERATIVE]
    metrics: dict[str, Metric] = {}
    if descriptions:
        counts = [_count_objects(record) for record in descriptions]
        found = {name: count_metric(counts, combine, way) for name, (combine, way) in _GENERATIVE.items()}
        metrics |= with_ids(found, [record["id"] for record in descriptions])
    if questions:
        metrics |= _compute_answers(questions)
        kinds = [record["type"] for record in questions]
        attributes = [kind.rpartition("attribute-")[2] if "attribute" in kind else None for kind in kinds]
        for key, groups in (("dimension", [DIMENSIONS[kind] for kind in kinds]), ("attribute", attributes)):
            metrics |= metrics_by_group(
                key, groups, lambda indices: _compute_answers([questions[index] for index in indices]), 2
            )
    return metrics


def _count_objects(record: Mapping[str, Any]) -> list[int] | None:
    if record["answer"] is None:
        return None
    lists = [
        len(record[name])
        for name in ("hallucinated", "mentions", "covered", "shown", "expected", "imaginable")
    ]
    return [*lists, int(bool(record["hallucinated"])), 1]


def _compute_answers(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    asked = [record["said"] is not None for record in records]
    metrics = accuracy_metrics("accuracy", [record["correct"] for record in records], asked)
    counts = [
        [
            int(record["said"] == record["label"] == "no"),
            int(record["said"] == "no"),
            int(record["label"] == "no"),
        ]
        if was
        else None
        for record, was in zip(records, asked, strict=True)
    ]
    metrics |= {name: count_metric(counts, combine, "higher") for name, combine in _DISCRIMINATIVE.items()}
    unread = [
        float(record["said"] == "unknown") if was else None
        for record, was in zip(records, asked, strict=True)
    ]
    metrics["unread"] = mean_metric(unread, "lower")
    return with_ids(metrics, [record["id"] for record in records])
