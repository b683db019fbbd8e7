"""The report's overview: the share of faithful answers, what they depend on, findings, and the run's facts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xarray as xr
from markupsafe import Markup

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import set_keys
from mmprobe.stats.estimate import estimate_mean, format_interval, format_number, read_estimate
from mmprobe.stats.sets import Sets
from mmprobe.viz.report.answers import Answers, LabelledAnswer
from mmprobe.viz.report.elements import WORDLESS, render

HOW = "mmprobe analyze RUN --only image-interchange --model MODEL"
_OTHERS = {
    "unrelated": "unrelated images",
    "minimal": "images that differ in little",
    "mean": "the mean image",
    "blank": "blank images",
}
VERDICTS = {
    "holds": ("yes", "✓"),
    "does not hold": ("no", "✗"),
    "undecided": ("open", "?"),
    "no such pairs": ("open", "–"),
    "none known": ("open", "–"),
    "not measured": ("open", "–"),
}
_FINDING_COLUMNS = ("Verdict", "Measure", "Value", "Interval", "n", "Source")
_NUMBERS = ("verdict", "measure", "value", "low", "high", "n")
_FINDING_FIELDS = (
    "claim",
    *_NUMBERS,
    "source",
    "intervention",
    "agree",
    *(f"causal_{name}" for name in _NUMBERS),
)
_AGREEMENT = {
    "yes": "both verdicts agree",
    "no": "the verdicts disagree",
    "open": "not both verdicts are decided",
}
_MAX_FAILURES = 20
_MAX_KINDS = 12  # types of questions with a row each
_PAPER = "SPD-Faith Bench"  # whose claims mmprobe.analyses.findings tests
_FINDINGS_NOTE = (
    "A claim holds if the whole 95 % interval is on its side of 0. It does not hold if the interval is on the "
    "other side. It is undecided if the interval contains 0 or there are too few answers. The claim that something "
    "stays the same holds if the whole interval is within its margin. A claim about pairs that the run does not have "
    "is not tested. Faithful and unfaithful answers may also differ in their questions."
)
_CAUSES_NOTE = (
    " What correlates need not be the cause: the second row of a claim says what happens under the intervention that "
    "the claim implies. None known: no intervention that tests the claim is known."
)

Findings = xr.Dataset | Sequence[Mapping[str, Any]]


def faithful_share(answers: Iterable[LabelledAnswer]) -> dict[str, Any] | None:
    """Return the share of faithful or right answers with its interval, for all and by type of question; None without any.

    Example:
        >>> from mmprobe.samples import Sample
        >>> sample = Sample(id="a", question="?")
        >>> share = faithful_share([LabelledAnswer(True, "", sample), LabelledAnswer(False, "", sample)])
        >>> share["right"], share["n"], share["percent"]
        (1, 2, '50%')
    """
    sets, labels, kinds = Sets(), [], []
    for answer in answers:
        sets.add(answer.sample.id, set_keys(answer.sample))
        labels.append(answer.faithful)
        kinds.append(answer.kind)
    if not labels:
        return None
    groups, values = sets.number(), np.array(labels, float)
    whole = _share_row("all", values, groups)
    rows = [whole]
    if 1 < len(set(kinds)) <= _MAX_KINDS:
        for kind in dict.fromkeys(kinds):
            chosen = np.array([each == kind for each in kinds])
            rows.append(_share_row(kind.replace("_", " ") or "other", values[chosen], groups[chosen]))
    interval = f", {whole['ends']} over sets of images" if whole["ends"] else ""
    right = int(values.sum())
    return {
        "right": right,
        "wrong": len(values) - right,
        "n": len(values),
        "percent": f"{format_number(whole['value'] / 100, '.0%')}{interval}",
        "rows": rows,
        "one_set": len(values) > 1 and len(set(groups.tolist())) == 1,
    }


def _share_row(name: str, values: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    mean = estimate_mean(values, groups)
    value, low, high = mean.value, mean.low, mean.high
    ends = f"{format_number(low, '.0%')} to {format_number(high, '.0%')}" if math.isfinite(low) else ""
    return {
        "name": name,
        "n": len(values),
        "value": 100 * value,
        "low": 100 * (low if ends else value),
        "high": 100 * (high if ends else value),
        "ends": ends,
        "text": format_number(value, ".0%") + (f" [{ends}]" if ends else ""),
    }


def find_diagnoses(run: Run | None) -> list[dict[str, Any]]:
    """Return the diagnosis of the run's model that is in or beside the run, as `diagnosis.json` has it."""
    if run is None:
        return []
    for folder in (run.path, run.path.parent):
        for file in (folder / "diagnosis.json", folder / "diagnosis" / "diagnosis.json"):
            if file.is_file():
                try:
                    content = json.loads(file.read_text(encoding="utf-8"))
                    if content["model"] == run.config["model"]["name"]:
                        return [
                            {
                                "verdict": [str(name) for name in content["verdict"]],
                                "why": _sentence(str(content["why"])),
                            }
                        ]
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # not a diagnosis; the report leaves it out
    return []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def run_facts(run: Run) -> dict[str, str]:
    """Return the model of a run, and the settings and versions of the trace.

    Example:
        >>> run_facts(run)["Model"]                                 # doctest: +SKIP
        'tiny-spd (embedded:tiny_spd)'
    """
    config, model = run.config, run.config["model"]
    layers = config["capture"]["layers"]
    return {
        "Model": f"{model['name']} ({model['source']})",
        **({"Revision": model["revision"]} if model["revision"] else {}),
        "Family": f"{model['family']}, {model['layers']} layers, {model['dtype']}",
        "Captured": ", ".join(config["capture"]["datasets"])
        + (" in all layers" if layers is None else f" in layers {', '.join(map(str, layers))}"),
        **({"Maps": NO_MAPS} if _lacks_maps(run) else {}),
        "Generation": _format_settings(config["generate"]) + f", engine {config['engine']}",
        "Versions": _format_settings(config["versions"]),
    }


NO_MAPS = "none, since the model's visual tokens are learned queries, which show no part of an image"


def _lacks_maps(run: Run) -> bool:
    """Return whether the traces have visual tokens, but no views of the images."""
    with suppress(InputError, OSError):  # one damaged sample must not stop the report
        shown = next((name for name in run.ids if run.sample(name).files), None)
        return shown is not None and not run[shown].images.sizes["image"]
    return False


def _format_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def count_answers(
    run: Run | None, answers: Answers, is_scored: bool
) -> tuple[list[tuple[int, str, str]], str]:
    """Return the counts below the overview, and a sentence on answers that are not in the run.

    Args:
        answers: those that every page counts.
        is_scored: whether they come from a benchmark's results.
    """
    words = Counter(answers.words)
    counts = [(words[name], name, name) for name in answers.names.values()]
    if any(answers.wordless):
        counts.append((sum(answers.wordless), WORDLESS, "bad"))
    note = ""
    if is_scored:
        counts.insert(0, (len(answers.rows), "answers", ""))
        others = [row.id for row in answers.rows if run is not None and row.id not in run]
        if run is not None and others:
            note = (
                f"The figures and the explorer are of the {len(run)} answers of this run. The other {len(others)}, "
                f"such as {others[0]}, have their own run or no traces."
            )
    if run is not None:
        counts.insert(0, (len(run), f"of {len(run.config['order'])} samples finished", ""))
        counts.append((len(run.failures), "failed", "bad" if run.failures else ""))
    return counts, note


def count_shown_errors(answers: Answers, links: Mapping[str, str]) -> int:
    """Return how many of the unfaithful or wrong answers the explorer shows: those with a trace that it has room for.

    Args:
        links: of the samples in the explorer.
    """
    labelled = zip(answers.rows, answers.labels, strict=True)
    return sum(label is False and row.id in links for row, label in labelled)


def find_interchange(datasets: Iterable[xr.Dataset]) -> xr.Dataset | None:
    """Return the data set of `image_interchange_run`, or None."""
    named = (ds for ds in datasets if ds.attrs.get("analysis") == "image_interchange")
    return next((ds for ds in named if "sample" in ds.dims and "effect" in ds), None)


def dependence_line(run: Run, ds: xr.Dataset | None) -> Markup:
    """Return one line on how much the answers depend on their images; nothing for a run without images.

    Example:
        >>> dependence_line(run, image_interchange_run(model, run))          # doctest: +SKIP
        Markup("<p class='dependence'>With unrelated images in place of their own, the median answer loses …</p>")
    """
    if ds is None:
        if not any(run.sample(name).images for name in run.ids):
            return Markup()
        return render("dependence.html", how=HOW)
    median = read_estimate(ds, "median")
    numbers = {
        "median": format_number(median.value),
        "median_interval": format_interval(median.low, median.high),
        "share": "",
    }
    if "unused" in ds:  # earlier versions asked something else
        share = read_estimate(ds, "unused_share")
        numbers["share"] = format_number(share.value, ".0%")
        numbers["share_interval"] = format_interval(share.low, share.high, ".0%")
    others = _OTHERS[ds.attrs["kind"]]
    return render("dependence.html", how="", others=others, n=int(ds["n"]), count=len(run), **numbers)


def overview_page(previews: Iterable[str], **parts: Any) -> Markup:
    """Return the page. `parts` are the values of overview.html."""
    return render("overview.html", previews=list(previews), most_failures=_MAX_FAILURES, **parts)


MOST_DEGENERATE = 1 / 3  # of the answers; with more of them no claim has a verdict; our choice


def findings_table(findings: Findings | None, degenerate: float = 0.0) -> Markup:
    """Return a table of claims and verdicts, or nothing without findings.

    A claim has a second row if the interventions that the claims imply were measured.

    Args:
        findings: mappings, or a data set of variables with one dimension. Keys are `claim`, `verdict` (one
            of `VERDICTS`), and optionally `measure`, `value`, `low`, `high`, `n`, `source`; for the
            intervention `intervention`, `agree`, and `causal_` with verdict, measure, value, low, high and n.

        degenerate: share of the answers that have no words or repeat themselves. With a third of them, claims have no
            verdict.

    Raises:
        InputError: a claim is missing, or a verdict is none of `VERDICTS`.

    Example:
        >>> "<td data-label='n'>24</td>" in findings_table([{"claim": "A", "verdict": "holds", "n": 24}])
        True
    """
    listed = _list_findings(findings)
    if not listed:
        return Markup()
    if degenerate >= MOST_DEGENERATE:
        return render("findings.html", degenerate=f"{degenerate:.0%}", count=len(listed), paper="")
    verdicts = {row.get("causal_verdict", "none known") for row in listed}
    measured = bool(verdicts - {"none known", "not measured"})
    rows = [_claim_rows(row, number, measured) for number, row in enumerate(listed, 1)]
    reasons = [_why_untested(row) for row in listed]
    return render(
        "findings.html",
        degenerate="",
        paper=_PAPER
        if isinstance(findings, xr.Dataset) and findings.attrs.get("analysis") == "findings"
        else "",
        advice="not measured" in verdicts and not measured,
        measured=measured,
        columns=_FINDING_COLUMNS,
        rows=[row for row, reason in zip(rows, reasons, strict=True) if not reason],
        untested=[row for row, reason in zip(rows, reasons, strict=True) if reason],
        why="; ".join(f"{reason} ({count})" for reason, count in Counter(filter(None, reasons)).items()),
        note=_FINDINGS_NOTE + (_CAUSES_NOTE if measured else ""),
    )


def _why_untested(row: Mapping[str, Any]) -> str:
    """Return why a claim has no verdict by these data, or nothing if it has one, or one under its intervention."""
    if VERDICTS[row.get("causal_verdict") or "none known"][0] != "open":
        return ""
    if row["verdict"] == "no such pairs":
        return "needs pairs that the data do not have"
    if row["verdict"] != "undecided" or all(_format_cell(row.get(name)) != "–" for name in ("value", "low")):
        return ""
    count = row.get("n")
    return f"too few answers for an interval{f': {count}' if isinstance(count, str) and count else ''}"


def _claim_rows(row: Mapping[str, Any], number: int, measured: bool) -> dict[str, Any]:
    """Return a claim, its row, and the row of the intervention if any was measured."""
    if not row.get("claim"):
        raise InputError(_wrong_finding(number, row))
    cells: dict[str, Any] = {"claim": row["claim"], "first": _finding_cells(row, number)}
    if measured:
        causal = {
            name.removeprefix("causal_"): value for name, value in row.items() if name.startswith("causal_")
        }
        if row.get("intervention"):
            causal["measure"] = f"If {row['intervention']}: {causal['measure']}"
        cells["agreement"] = _AGREEMENT.get(str(row.get("agree")), "")
        cells["second"] = _finding_cells(causal, number)
    return cells


def _list_findings(findings: Findings | None) -> Sequence[Mapping[str, Any]]:
    if not isinstance(findings, xr.Dataset):
        return findings or []
    if "claim" not in findings or len(findings["claim"].dims) != 1:
        raise InputError("findings: the data set needs a variable claim with one dimension")
    fields = [name for name in _FINDING_FIELDS if name in findings]
    columns = [findings[name].broadcast_like(findings["claim"]).values.tolist() for name in fields]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _wrong_finding(number: int, row: Mapping[str, Any]) -> str:
    return f"finding {number}: needs a claim, and a verdict of {', '.join(VERDICTS)}; it has {row.get('verdict')!r}"


def _finding_cells(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """Return a row's cells by column."""
    verdict = row.get("verdict")
    if verdict not in VERDICTS:
        raise InputError(_wrong_finding(number, row))
    kind, sign = VERDICTS[verdict]
    low, high = _format_cell(row.get("low")), _format_cell(row.get("high"))
    return {
        "kind": kind,
        "sign": sign,
        "verdict": verdict,
        "Measure": _format_cell(row.get("measure")),
        "Value": _format_cell(row.get("value")),
        "Interval": f"{low} to {high}" if "–" not in (low, high) else "–",
        "n": _format_cell(row.get("n")),
        "Source": _format_cell(row.get("source")),
    }


def _format_cell(value: Any) -> str:
    """Return a number as people write it, or a dash if it is unknown."""
    return (value or "–") if isinstance(value, str) else format_number(value)
