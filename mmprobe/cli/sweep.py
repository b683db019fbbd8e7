"""The command `sweep`: a benchmark at several values of one setting."""

from __future__ import annotations

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    BenchmarkName,
    ModelName,
    OutFolder,
    Overwrite,
    Resume,
    check_data,
    parse_benchmark_options,
    print_result,
)
from mmprobe.errors import InputError
from mmprobe.ledger import check_earlier
from mmprobe.settings import AskSettings, DataSettings, ModelSettings


def sweep(
    context: typer.Context,
    name: BenchmarkName,
    model: ModelName,
    out: OutFolder,
    data: DataSettings = DataSettings(),  # noqa: B008
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate at several values of one setting of the model or of asking, which has commas between them.

    Each value gets a folder with its traces. One table and one figure have the accuracy, the attention to the images, what the answers
    lose without the images, and the time. Other settings are given as to bench.

    \b
    Examples:
      mmprobe sweep vqa --model qwen2.5-vl-7b --data mine.jsonl --max-pixels 256k,512k,1M --out results/pixels
      mmprobe sweep vqa --model tiny-spd --limit 4 --temperature 0,1,2 --out results/temperature
    """
    from mmprobe.benchmarks.core.benchmark import BENCHMARKS, option_names

    given = parse_benchmark_options(context.args)
    own = option_names(BENCHMARKS[name])
    known = [*ModelSettings.model_fields, *AskSettings.model_fields]
    options = {each: given.pop(each) for each in list(given) if each in own and each not in known}
    swept = [each for each, text in given.items() if "," in text]
    if len(swept) != 1:
        raise InputError("sweep: give one setting several values, as --max-pixels 256k,512k,1M")
    check_data(data.data)
    earlier = next(out.glob("*=*/responses.jsonl"), out / "responses.jsonl")
    check_earlier(earlier, "a sweep", resume, overwrite, TO_CONTINUE, out)
    import mmprobe
    from mmprobe.benchmarks.core.sweep import markdown, read_values
    from mmprobe.files import write_atomic

    (option,) = swept
    values = read_values(option, given.pop(option))
    fixed = {each: read_values(each, text)[0] for each, text in given.items()}
    ds = mmprobe.benchmarks.sweep(
        name,
        model,
        out,
        option,
        values,
        options=options,
        resume=resume,
        overwrite=overwrite,
        **data.chosen,
        **fixed,
    )
    files = [str(file) for file in mmprobe.analyses.export(ds, out)]
    table = markdown(ds)
    write_atomic(out / "sweep.md", table + "\n")
    files += [str(out / "sweep.md"), str(out / "sweep.html")]
    mmprobe.viz.plot(ds).write_html(out / "sweep.html")
    print_result({"files": files}, f"{table}\n\nFigure: {out / 'sweep.html'}", as_json)
