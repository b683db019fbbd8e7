"""The live page: ask a question about images, click a region or a head, and see what the answer loses.

A `LiveSession` asks and measures with the functions that anyone can call: `trace`, `image_interchange`, `scale_components`,
`attribute`. `build_page` shows it in Dash, and `serve` opens it to this machine alone, at an address with a token.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import redact
from mmprobe.registry import report_unforeseen
from mmprobe.samples import Region, Sample, check_image, read_picture
from mmprobe.stats.estimate import format_number

if TYPE_CHECKING:
    from mmprobe.models import Model

log = logging.getLogger("mmprobe")

HOST = "127.0.0.1"
SIZES = (1, 2, 4)  # cells along the side of a region; our choice
LARGEST_UPLOAD = 50_000_000  # bytes of one image; our choice
LARGEST_REQUEST = 4 * LARGEST_UPLOAD  # bytes: images in base64, and what is shown of them; our choice
_LEAST_FULL = 1.0  # nat at which a region's colour is full, or more, as in the report
_SEEN = 3.0  # nat at which a token's colour is full, as in the report


class DeskAnswer(NamedTuple):
    """An answer that the session can measure.

    Attributes:
        sample: its question and images.
        run: the run with its trace.
        ids: its token ids.
        texts: the text of each token.
    """

    sample: Sample
    run: Run
    ids: tuple[int, ...]
    texts: list[str]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of visual tokens, for each image; those of its first view."""
        with closing(self.run[self.sample.id]) as trace:
            sources, grids = (trace.array(f"images/{name}").values.tolist() for name in ("source", "grid"))
        return [tuple(grids[sources.index(number)]) for number in range(len(self.sample.images))]

    def attention(self) -> xr.DataArray | None:
        """The attention on visual tokens, [layer, head], the mean over the answer; None where it was not captured."""
        with closing(self.run[self.sample.id]) as trace:
            if "attention/mass" not in trace.captured:
                return None
            return trace.attention_mass.sel(group="visual").mean("step").load()


class LiveSession:
    """Answers questions and measures the answers, one at a time.

    Args:
        model: the model that answers.
        folder: where asked questions are traced.
        run: a run of the model, whose answers are there to be measured; None for none.

    Example:
        >>> session = LiveSession(model, folder, run)                          # doctest: +SKIP
        >>> session.exchange(session.find("0001"), Region(image=0, box=(0, 0, 28, 28)), "blank").effect_per_token  # doctest: +SKIP
        0.41
    """

    def __init__(self, model: Model, folder: Path, run: Run | None = None):
        from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages

        self.model, self.folder, self.run = model, folder, run
        self.samples = [] if run is None else [run.sample(name) for name in run.ids]
        self._others = CounterfactualImages(self.samples)
        self._asked: dict[str, DeskAnswer] = {}
        self._lock = (
            threading.Lock()
        )  # the page's requests come in threads, and a model answers one at a time

    def ask(self, sample: Sample, max_new_tokens: int = 64) -> DeskAnswer:
        """Return the model's own greedy answer, traced.

        Raises:
            InputError: an image cannot be read, or the model cannot answer.
        """
        from mmprobe.traces import trace

        with self._lock:
            number = len(self._asked)
            sample = sample.model_copy(update={"id": f"asked-{number}"})
            run = trace(self.model, [sample], self.folder / f"run-{number}", max_new_tokens=max_new_tokens)
            if not run.ids:
                raise InputError(f"the question failed: {run.failures[0]['message']}")
            self._asked[sample.id] = _read_answer(run, sample.id)
            return self._asked[sample.id]

    def find(self, name: str) -> DeskAnswer:
        """Return an answer that was asked, or one of the run.

        Raises:
            InputError: there is none of this name.
        """
        if name in self._asked:
            return self._asked[name]
        if self.run is None or name not in self.run.ids:
            raise InputError(f"sample {name}: the page has no answer of this name")
        return _read_answer(self.run, name)

    def exchange(self, answer: DeskAnswer, region: Region | None, kind: str) -> xr.Dataset:
        """Return the `image_interchange` of an answer with one region exchanged, or all images for None.

        Args:
            kind: of counterfactual images, such as `blank`.

        Raises:
            InputError: the sample has no such images.
        """
        from mmprobe.probes import image_interchange
        from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, show_others

        known = answer.sample in self.samples
        source = self._others if known else CounterfactualImages([answer.sample])
        with self._lock, show_others(answer.sample, source.find(answer.sample, kind)) as other:
            if other is None:
                raise InputError(f"this question has no {kind} images; choose another kind")
            regions = [] if region is None else [region]
            return image_interchange(self.model, answer.sample, other, regions, list(answer.ids))

    def scale(self, answer: DeskAnswer, layer: int, head: int, scale: float) -> xr.Dataset:
        """Return the `scale_components` of one head."""
        from mmprobe.probes import scale_components

        with self._lock:
            return scale_components(
                self.model, answer.sample, f"head {layer}.{head}", scale, answer=list(answer.ids)
            )

    def occlude(self, answer: DeskAnswer, block: int) -> xr.Dataset:
        """Return the `attribute` of an answer by occlusion, a block of visual tokens at a time."""
        from mmprobe.probes import attribute

        with self._lock:
            return attribute(self.model, answer.sample, block=block, answer=list(answer.ids))


def _read_answer(run: Run, name: str) -> DeskAnswer:
    with closing(run[name]) as trace:
        return DeskAnswer(
            run.sample(name), run, tuple(trace.steps["id"].values.tolist()), list(trace.step_texts)
        )


def find_region(answer: DeskAnswer, image: int, column: int, row: int, size: int) -> Region:
    """Return the square of `size` cells around a cell of an image, in pixels, moved inside the image.

    Example:
        >>> find_region(answer, 0, 3, 0, 2)                          # doctest: +SKIP
        Region(image=0, box=(56, 0, 56, 56))
    """
    rows, columns = answer.grids[image]
    width, height = check_image(answer.sample.images[image], answer.sample.id)[::-1]
    across, down = min(size, columns), min(size, rows)
    left = int(np.clip(column - (across - 1) // 2, 0, columns - across))
    top = int(np.clip(row - (down - 1) // 2, 0, rows - down))
    x, y = round(left * width / columns), round(top * height / rows)
    end_x, end_y = round((left + across) * width / columns), round((top + down) * height / rows)
    return Region(image=image, box=(x, y, end_x - x, end_y - y))


# ---------------------------------------------------------------- the page


def check_extra() -> None:
    """Check that Dash is installed.

    Raises:
        InputError: the extra `serve` is missing.
    """
    if find_spec("dash") is None:
        raise InputError("serve needs Dash; install it with: pip install 'mmprobe[serve]'")


def build_page(session: LiveSession, token: str) -> Any:
    """Return the Dash app of a session. Every path of it begins with the token.

    Raises:
        InputError: Dash is not installed.
    """
    check_extra()
    import dash
    from flask import Flask, Response, abort, request
    from werkzeug.exceptions import HTTPException

    from mmprobe.viz.report.elements import read_asset

    server = Flask(__name__, static_folder=None)
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    settings: dict[str, Any] = {  # Dash declares narrower types than it documents
        "server": server,
        "title": f"Ask {session.model.name}",
        "update_title": None,
        "serve_locally": True,
        "routes_pathname_prefix": f"/{token}/",
        "requests_pathname_prefix": f"/{token}/",
        "assets_folder": str(session.folder / "assets"),  # an empty name means the package's own folder
        "include_assets_files": False,
        "suppress_callback_exceptions": True,
    }
    app = dash.Dash(__name__, **settings)
    app.index_string = (
        "<!DOCTYPE html><html lang='en'><head>{%metas%}<meta name='viewport' content='width=device-width'>"
        "<title>{%title%}</title>{%css%}<style>"
        + read_asset("report.css").replace("{%", "")
        + read_asset("serve.css")
        + "</style></head><body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}<script>"
        + read_asset("uploads.js").replace("{%", "")
        + "</script></footer></body></html>"
    )
    app.layout = lambda: _layout(session)

    @server.before_request
    def refuse_other_hosts() -> None:
        """Refuse what pages of other sites ask for, also of one whose name was pointed at this machine."""
        if request.host.partition(":")[0] not in (HOST, "localhost"):
            abort(403)
        if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
            abort(403)

    @server.errorhandler(Exception)
    def say_error(error: Exception) -> Any:
        """Answer with one line in place of a traceback: a request that the page never makes, or an error of ours."""
        if isinstance(error, HTTPException):
            return error
        if isinstance(error, InputError):
            return Response(redact(str(error)), 400, mimetype="text/plain")
        log.warning("serve: %s", report_unforeseen(error))
        return Response("this request failed; the terminal says why", 500, mimetype="text/plain")

    @server.after_request
    def keep_secrets(response: Response) -> Response:
        """Keep the address, which has the token, from other sites, and keys off the page."""
        if response.is_json:
            response.set_data(redact(response.get_data(as_text=True)))
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        return response

    @server.get(f"/{token}/report")
    def show_report() -> Response:
        from mmprobe.reports import report

        run, file = session.run, session.folder / "report.html"
        if run is None:
            abort(404)
        if not file.exists():
            report(run, out=file)
        return Response(file.read_bytes(), mimetype="text/html")

    _add_callbacks(app, session)
    return app


def _layout(session: LiveSession) -> Any:
    from dash import dcc, html

    options = [{"label": f"{each.id}: {each.question}", "value": each.id} for each in session.samples]
    kinds = ["blank", "minimal", "unrelated", "mean"] if session.samples else ["blank", "minimal"]
    of_run = [
        html.Label(["An answer of the run", dcc.Dropdown(options, id="sample", placeholder="choose")]),
        html.A("The run's report", href="report", className="muted"),
    ]
    return html.Main(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Store(id="answer"),
            dcc.Store(id="uploads", data=[]),
            html.H1(["Ask ", html.Span(session.model.name)]),
            html.Div(of_run if session.samples else [dcc.Dropdown(id="sample")], hidden=not session.samples),
            html.Label(["Question", dcc.Textarea(id="question", rows=2)]),
            html.Div(
                [
                    dcc.Upload(html.Button("Images …", type="button"), id="upload", multiple=True,
                               max_size=LARGEST_UPLOAD, accept="image/*"),
                    html.Span("", id="files", className="muted"),
                    html.Button("Ask", id="ask", type="button"),
                ],
                className="row",
            ),  # fmt: skip
            html.P("", id="problem", role="alert"),
            html.Div(
                [
                    html.H2("Answer"),
                    html.Div(id="tokens", className="answer"),
                    html.P("", id="loss", role="status"),
                    html.Div(
                        [
                            html.Label(["Replace with ", dcc.RadioItems(kinds, "blank", id="kind", inline=True)]),
                            html.Label(["Cells of a region ", dcc.RadioItems(list(SIZES), 1, id="size", inline=True)]),
                            html.Button("All images", id="all", type="button"),
                            html.Button("Every region", id="map", type="button"),
                        ],
                        className="row",
                    ),
                    html.P("Click a region of an image to exchange it.", className="muted"),
                    html.Div(id="images", className="images"),
                    html.H2("Heads"),
                    html.P("Attention of each head on the images, the mean over the answer. Click a head to scale what "
                           "it writes.", className="muted"),
                    html.Label(["Scale ", dcc.Input(id="scale", type="number", value=0, min=-10, max=10, step=0.5)]),
                    dcc.Graph(id="heads", config={"displayModeBar": False}),
                ],
                id="shown", hidden=True,
            ),
        ]
    )  # fmt: skip


def _add_callbacks(app: Any, session: LiveSession) -> None:
    from dash import ALL, Input, Output, State, ctx, no_update

    @app.callback(Output("sample", "value"), Input("address", "search"))
    def choose_linked(search: str | None) -> Any:
        from urllib.parse import parse_qs

        name = parse_qs((search or "").lstrip("?")).get("sample", [""])[0]
        return name if name in {sample.id for sample in session.samples} else no_update

    @app.callback(
        Output("uploads", "data"), Output("files", "children"),
        Input("upload", "contents"), State("upload", "filename"), prevent_initial_call=True,
    )  # fmt: skip
    def keep_uploads(contents: list[str], names: list[str]) -> Any:
        try:
            files = [_save_upload(session.folder, text) for text in contents]
        except InputError as error:
            return [], str(error)
        return [file.name for file in files], ", ".join(names)

    @app.callback(
        Output("answer", "data"), Output("question", "value"), Output("images", "children"), Output("heads", "figure"),
        Output("shown", "hidden"), Output("problem", "children"), Output("files", "children", allow_duplicate=True),
        Input("sample", "value"), Input("ask", "n_clicks"),
        State("question", "value"), State("uploads", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def show_answer(name: str | None, _: int | None, question: str | None, uploads: list[str]) -> Any:
        try:
            if ctx.triggered_id == "ask":
                sample = _make_sample(session, name, question or "", uploads)
                answer = session.ask(sample)
            elif name:
                answer = session.find(name)
            else:
                return [no_update] * 7
        except InputError as error:
            return [*[no_update] * 5, str(error), no_update]
        shown = "" if uploads else f"{len(answer.sample.images)} images of the run"
        figures = [_image_graph(answer, number) for number in range(len(answer.sample.images))]
        return (
            answer.sample.id, answer.sample.question, figures, _draw_heads(answer.attention()), False, "",
            no_update if uploads else shown,
        )  # fmt: skip

    @app.callback(
        Output("tokens", "children"), Output("loss", "children"), Output("problem", "children", allow_duplicate=True),
        Output({"image": ALL}, "figure"),
        Input("answer", "data"), Input({"image": ALL}, "clickData"), Input("heads", "clickData"),
        Input("all", "n_clicks"), Input("map", "n_clicks"),
        State("kind", "value"), State("size", "value"), State("scale", "value"), prevent_initial_call=True,
    )  # fmt: skip
    def measure(
        name: str | None,
        clicks: list[Any],
        head: Any,
        _: Any,
        __: Any,
        kind: str,
        size: int,
        scale: float | None,
    ) -> Any:
        if not name:
            return [no_update] * 3 + [[no_update] * len(clicks)]
        answer, chosen = session.find(name), ctx.triggered_id
        keep: list[Any] = [no_update] * len(clicks)
        try:
            if chosen == "heads" and head:
                layer, column = head["points"][0]["y"], head["points"][0]["x"]
                ds = session.scale(answer, int(layer), int(column), 0.0 if scale is None else float(scale))
                return _show(
                    ds, "effect", f"with head {layer}.{column} scaled by {format_number(scale or 0)}"
                ) + (
                    "",
                    keep,
                )
            if chosen == "map":
                ds = session.occlude(answer, size)
                figures = [_draw_image(answer, number, ds) for number in range(len(clicks))]
                return (
                    no_update,
                    "Each region by what the answer loses without it, in nat (occlusion).",
                    "",
                    figures,
                )
            if isinstance(chosen, dict) and clicks[chosen["image"]]:
                number, point = chosen["image"], clicks[chosen["image"]]["points"][0]
                region = find_region(answer, number, int(point["x"]), int(point["y"]), size)
                ds = session.exchange(answer, region, kind).isel(region=0)
                keep[number] = _draw_image(answer, number, region=region)
                x, y, width, height = ds["region_box"].values.tolist()
                what = f"with {width} x {height} pixels at {x}, {y} of image {number + 1} {_in_place(kind)}"
                return _show(ds, "effect_by_region", what) + ("", keep)
            if not answer.sample.images:
                return _plain(answer), "", "", keep
            return _show(
                session.exchange(answer, None, kind), "effect", f"with all images {_in_place(kind)}"
            ) + ("", keep)
        except InputError as error:  # NotApplicable is one
            return _plain(answer), "", str(error), keep


def _in_place(kind: str) -> str:
    return {"blank": "grey", "mean": "in the mean of all"}.get(kind, f"exchanged for {kind} ones")


def _make_sample(session: LiveSession, name: str | None, question: str, uploads: Sequence[str]) -> Sample:
    """Return the question with the uploaded images, or with those of the chosen sample."""
    if not question.strip():
        raise InputError("the question is empty; write one")
    files = [session.folder / Path(file).name for file in uploads]
    if name and not files:
        return session.find(name).sample.model_copy(
            update={"question": question, "messages": [], "answer": None}
        )
    return Sample(id="asked", question=question, images=files)


def _save_upload(folder: Path, content: str) -> Path:
    """Write an uploaded image, a data: URI, into the folder.

    Raises:
        InputError: it is not an image.
    """
    if len(content) > LARGEST_UPLOAD * 4 // 3 + 100:  # base64, after its head
        raise InputError(f"the upload is over {LARGEST_UPLOAD // 1_000_000} MB; make the image smaller")
    file = folder / f"upload-{secrets.token_hex(8)}"
    try:
        file.write_bytes(base64.b64decode(content.partition(",")[2], validate=True))
    except binascii.Error:
        raise InputError("the upload is damaged; try again") from None
    check_image(file, "upload")
    return file


def _plain(answer: DeskAnswer) -> list[Any]:
    from dash import html

    return [html.Span(text) for text in answer.texts]


def _show(ds: xr.Dataset, variable: str, what: str) -> tuple[Any, str]:
    """Return the tokens, darker where they lose more, and the loss in words."""
    from dash import html

    loss = ds[variable].values
    tokens = [
        html.Span(
            text, title=f"{format_number(value)} nat", style={"--loss": f"{np.clip(value / _SEEN, 0, 1):.2f}"}
        )
        for text, value in zip(ds["token"].values.tolist(), loss.tolist(), strict=True)
    ]
    words = f"loses {format_number(float(loss.sum()), '.2f')} nat, {format_number(float(loss.mean()), '.2f')} a token (n = {loss.size})"
    return tokens, f"The answer {words}, {what}."


def _image_graph(answer: DeskAnswer, number: int) -> Any:
    from dash import dcc

    return dcc.Graph(
        id={"image": number}, figure=_draw_image(answer, number), config={"displayModeBar": False}
    )


def _draw_image(
    answer: DeskAnswer, number: int, maps: xr.Dataset | None = None, region: Region | None = None
) -> go.Figure:
    """Return an image with its cells to click: a map of what each one gives, or the chosen region outlined."""
    rows, columns = answer.grids[number]
    picture = read_picture(answer.sample.images[number])
    picture.thumbnail((800, 800))
    width, height = picture.size
    values = np.zeros((rows, columns))
    limit = _LEAST_FULL
    if maps is not None:
        view = maps["source"].values.tolist().index(number)
        values = maps["attribution"].sum("step").isel(image=view).values[:rows, :columns]
        limit = max(float(np.nanmax(np.abs(maps["attribution"].sum("step").values))), _LEAST_FULL)
    cells = go.Heatmap(
        z=values, zmin=-limit, zmax=limit, opacity=1 if maps is not None else 0, showscale=False, xgap=1, ygap=1,
        colorscale=[[0, "rgba(0,114,178,0.7)"], [0.5, "rgba(255,255,255,0)"], [1, "rgba(213,94,0,0.7)"]],
        hovertemplate="column %{x}, row %{y}" + (": %{z:.2f} nat" if maps is not None else "") + "<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(cells)
    axis: dict[str, Any] = {"visible": False, "fixedrange": True, "constrain": "domain"}
    figure.update_layout(
        images=[{"source": picture, "xref": "x", "yref": "y", "x": -0.5, "y": -0.5, "sizex": columns, "sizey": rows,
                 "sizing": "stretch", "layer": "below"}],
        xaxis={**axis, "range": [-0.5, columns - 0.5]},
        yaxis={**axis, "range": [rows - 0.5, -0.5], "scaleanchor": "x", "scaleratio": height * columns / (width * rows)},
        margin=dict.fromkeys("lrtb", 0), paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", height=340,
    )  # fmt: skip
    if region is not None:
        full_height, full_width = check_image(answer.sample.images[number], answer.sample.id)
        x, y, across, down = region.box
        left, top = x * columns / full_width - 0.5, y * rows / full_height - 0.5
        figure.add_shape(
            type="rect", x0=left, y0=top, x1=left + across * columns / full_width, y1=top + down * rows / full_height,
            line={"color": "#d55e00", "width": 3},
        )  # fmt: skip
    return figure


def _draw_heads(attention: xr.DataArray | None) -> go.Figure:
    """Return the attention of each head on the images, to click."""
    figure = go.Figure()
    if attention is not None:
        figure.add_heatmap(
            z=attention.values, y=attention["layer"].values, x=attention["head"].values, zmin=0, colorscale="Blues",
            xgap=1, ygap=1, colorbar={"title": "share"},
            hovertemplate="head %{y}.%{x}: %{z:.2f} on the images<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title": "head", "fixedrange": True, "dtick": 1 if attention is None or attention.sizes["head"] < 17 else 4},
        yaxis={"title": "layer", "fixedrange": True, "autorange": "reversed"},
        margin={"l": 50, "r": 10, "t": 10, "b": 40}, height=360, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", font={"color": "#8a919b"},
    )  # fmt: skip
    return figure


# ---------------------------------------------------------------- the server


def name_model(run: Run) -> str:
    """Return the name by which the model of a run is loaded."""
    about = run.config["model"]
    return str(about["name"] if str(about["source"]).startswith("embedded:") else about["source"])


def serve(
    model: Model,
    run: Run | None = None,
    *,
    port: int = 0,
    ready: Callable[[str, Callable[[], None]], None] | None = None,
) -> None:
    """Serve the live page to this machine alone until Ctrl-C. Its address has a new token.

    Args:
        model: the model that answers.
        run: a run of the model, whose answers are there to be measured; None for none.
        port: 0 for a free one.
        ready: is called with the address and with a function that ends the server; None prints the address.

    Raises:
        InputError: Dash is not installed, the port is taken, or another model made the run.

    Example:
        >>> serve(load_model("tiny-spd"))                            # doctest: +SKIP
        Open http://127.0.0.1:40213/LaZVDbJqvV8GcD1W0IAjSg/ on this machine; Ctrl-C ends it.
    """
    check_extra()
    from werkzeug.serving import WSGIRequestHandler, make_server

    from mmprobe.probes.answers import check_run

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Log nothing: each line would hold the token."""

    if run is not None:
        check_run(model, run)
    token = secrets.token_urlsafe(16)
    with TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        app = build_page(LiveSession(model, Path(folder), run), token)
        with _listen(port) as listening:  # werkzeug itself exits where a port is taken
            place = listening.getsockname()[1]
            server = make_server(
                HOST, place, app.server, threaded=True, request_handler=Quiet, fd=listening.fileno()
            )
            address = f"http://{HOST}:{place}/{token}/"
            if ready is None:
                print(f"Open {address} on this machine; Ctrl-C ends it.", flush=True)
            else:
                ready(address, server.shutdown)
            server.serve_forever()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError:
        raise InputError(f"--port {port}: is taken; choose another one") from None
