"""Where the numbers come from: settings, machine, versions, time, memory, files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankfold.counts_table import bytes_text
from rankfold.experiments.spec import OF_RANK_DETERMINATION
from rankfold.reporting.cautions import cautions
from rankfold.reporting.markup import Html, element, section
from rankfold.reporting.run import Run
from rankfold.reporting.wording import count, duration

_NAMES = {
    "lr": "learning rate",
    "log_std_lr": "learning rate of log-stds, relative",
    "kl_weight": "KL weight",
    "warmup": "warm-up, share of the steps",
    "decay": "decay, share of the steps",
    "max_rank": "rank at the start",
    "fine_tune_epochs": "epochs of fine-tuning",
}
# These hold only for some methods; where they are not used they would mislead.
_ONLY_FOR = {
    "fine_tune_epochs": ("tc-mr", "tc-or"),
    **dict.fromkeys(OF_RANK_DETERMINATION, ("ard",)),
}


def facts(run: Run, sizes: Mapping[str, int]) -> Html:
    """Lists of names and values, and warnings of the run."""
    lists = [
        ("Settings", settings(run)),
        ("Machine and time", _machine(run.record)),
        ("Code", _code(run.record)),
        ("Data", _data(run.record)),
        ("Files", {name: bytes_text(size) for name, size in sizes.items()}),
    ]
    shown = element("div", {"class": "facts"}, *(_list(title, values) for title, values in lists if values))
    return section("facts", "Settings and circumstances", _warnings(run), shown)


def settings(run: Run) -> dict[str, str]:
    """The settings that this run's method uses."""
    method = run.spec.get("method")
    return {
        _NAMES.get(key, key.replace("_", " ")): _plain(value)
        for key, value in run.spec.items()
        if value is not None and (key not in _ONLY_FOR or method in _ONLY_FOR[key])
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _machine(record: Mapping[str, Any]) -> dict[str, str]:
    timing, memory, device = (record.get(key) or {} for key in ("timing", "peak_memory", "device"))
    values = {
        "device": device.get("name"),
        "training": _maybe(duration, timing.get("training_seconds")),
        "one step": _maybe(duration, timing.get("seconds_per_step")),
        "evaluation": _maybe(duration, timing.get("evaluation_seconds")),
        "peak memory on the device": _maybe(bytes_text, memory.get("device_bytes")),
        "peak memory of the process": _maybe(bytes_text, memory.get("process_bytes")),
    }
    return {name: str(value) for name, value in values.items() if value}


def _code(record: Mapping[str, Any]) -> dict[str, str]:
    versions = {str(name): str(version) for name, version in (record.get("versions") or {}).items()}
    commit = record.get("commit") or {}
    if commit.get("hash"):
        versions["commit"] = commit["hash"][:12] + (", with changes" if commit.get("dirty") else "")
    return versions


def _data(record: Mapping[str, Any]) -> dict[str, str]:
    data = record.get("data") or {}
    names = {"num_train": "training examples", "num_evaluation": "evaluation examples"}
    names["num_unfamiliar"] = "examples of another kind"
    return {name: count(data[key]) for key, name in names.items() if data.get(key)}


def _maybe(text: Any, value: Any) -> str | None:
    return None if value is None else str(text(value))


def _list(title: str, values: Mapping[str, str]) -> Html:
    pairs = [
        element("div", None, element("dt", None, name), element("dd", None, value)) for name, value in values.items()
    ]
    return element("div", None, element("h3", None, title), element("dl", None, *pairs))


def _warnings(run: Run) -> Html | None:
    found = cautions([str(warning) for warning in run.record.get("warnings") or ()], len(run.ranks_after))
    if not found:
        return None
    items = [element("li", None, warning) for warning in found]
    return element("div", {"class": "warning"}, element("b", None, "Warnings of the run"), element("ul", None, *items))
