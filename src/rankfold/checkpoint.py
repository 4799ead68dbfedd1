"""Save and load: ``model.safetensors`` with the numbers, ``rankfold.json`` with what they mean.

Nothing is ever pickled, so loading a checkpoint runs no code from it. The ranks travel along: a
pruned model loads into freshly tensorized code.

The tensors' file carries the text of ``rankfold.json`` in its header as well. Each file is replaced
in one step, so a save that is interrupted between the two leaves a whole checkpoint: the new one.

Plain ``model.state_dict()`` and ``load_state_dict()`` carry the ranks too, but not the prior, the
initial ranks and the count of updates. Either way, an optimizer that already has state keeps it at
the old shapes, and its next step raises torch's error about them; load its state as well, or make
it anew.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.health import first_of, not_finite
from rankfold.manifest import Manifest
from rankfold.whole_files import errors_of_the_system, given_path, real_file, writing
from rankfold.wrapping import check_values, unwrapped, warn

TENSORS_FILE = "model.safetensors"
MANIFEST_FILE = "rankfold.json"
_EXAMPLE = "a folder, or '.' for the current one"
_HEADER_KEY = "rankfold"
_DIFFERENCES_SHOWN = 5

Model = TypeVar("Model", bound=nn.Module)


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write ``model`` into the folder ``path``: parameters, buffers, ranks and priors.

    An existing checkpoint there is replaced only once the new one is completely written. Other files
    in the folder are left alone. A tensor that several layers share is stored once. Of a model inside
    ``torch.compile``, DDP or DataParallel the model itself is saved, under its own names.

    Parameters that hold NaN or infinity are saved like any others, with a warning that names them.

    >>> import tempfile, torch, rankfold as rf
    >>> make = lambda: rf.Linear(8, 6, config=rf.TTM(max_rank=3)).eval()
    >>> model, x = make(), torch.ones(1, 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder)
    ...     torch.equal(load(make(), folder)(x), model(x))
    True
    """
    folder, model = given_path(path, _EXAMPLE), unwrapped(model)
    if os.path.isfile(folder):  # False, unlike the method, of a name that is too long
        raise NotADirectoryError(f"{folder} is a file; give a folder, and rankfold.save makes it if it is missing")
    state = _checked_state(model, "save")
    shared = sharing(state)
    text = Manifest.of(model, shared).to_json()
    stored = {name: _own_memory(value) for name, value in state.items() if name not in shared}
    _warn_of_broken("saving", [(n, value) for n, value in stored.items() if isinstance(state[n], nn.Parameter)])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(stored, text, folder)


def load(model: Model, path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Model:
    """Load a checkpoint into ``model``, which takes on its ranks, priors and counters.

    ``model`` comes from the same code as the saved one: same layers, formats and dims, at any ranks.
    If it does not, a ``ValueError`` names the first differences and the model is left as it was.
    Values are converted to the model's dtypes. A model inside ``torch.compile``, DDP or DataParallel is
    loaded like the model itself; wrap it in DDP again if its ranks have changed. Parameters that hold NaN or
    infinity, as they were saved or in the model's dtypes, are loaded too, with a warning that names them.

    Make the optimizer and ``RankDetermination`` *after* loading: the state of an optimizer made before
    has the shapes of the old ranks, and its next step fails unless that state is loaded too.

    Args:
        device: move the model there; it stays where it is if left out.

    Returns:
        ``model`` itself.

    >>> import tempfile, rankfold as rf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(rf.Linear(8, 6, config=rf.TTM(max_rank=2)), folder)
    ...     load(rf.Linear(8, 6, config=rf.TTM(max_rank=5)), folder)  # takes on the ranks
    Linear(in_features=8, out_features=6, bias=True, TTM [2, 4] x [3, 2], ranks [2])
    """
    folder = given_path(path, _EXAMPLE)
    manifest = read_manifest(folder)
    header, stored = _read_tensors(folder / TENSORS_FILE)
    if header is not None:  # the same text, or a newer one if saving was interrupted half way
        manifest = Manifest.from_json(header, f"the header of {folder / TENSORS_FILE}")
    inner = unwrapped(model)
    current = _checked_state(inner, "load into")
    _refuse(folder, list(_tensor_differences(inner, manifest)))
    state = {**stored, **{alias: stored[name] for alias, name in manifest.shared.items() if name in stored}}
    _refuse(folder, list(_state_differences(inner, manifest, current, state)))
    if device is not None:
        inner.to(device)
    inner.load_state_dict(state)
    manifest.restore(inner)
    _warn_of_broken("loading", inner.named_parameters())
    return model


def read_manifest(folder: Path) -> Manifest:
    """What the checkpoint in ``folder`` says of itself, without reading its tensors."""
    if folder.is_file():
        _refuse_pickle(folder)
        raise NotADirectoryError(f"{folder} is a file; a rankfold checkpoint is the folder that rankfold.save wrote")
    for file in (folder, folder / MANIFEST_FILE, folder / TENSORS_FILE):
        if not file.exists():
            raise FileNotFoundError(
                f"no rankfold checkpoint at {folder}: {file} does not exist; rankfold.save(model, folder) writes one"
            )
        if file != folder and not file.is_file():
            raise ValueError(f"no rankfold checkpoint at {folder}: {file} is no file; save the model again, elsewhere")
    return Manifest.from_json((folder / MANIFEST_FILE).read_bytes(), str(folder / MANIFEST_FILE))


# Tensors on disk ----------------------------------------------------------------------------------


def sharing(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Which names mean the same tensor: every further name, and the first one it stands for."""
    first: dict[object, str] = {}
    shared = {}
    for name, value in state.items():
        # distinct objects over the same memory are shared too; empty tensors have no memory
        memory = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        owner = first.setdefault(memory if value.numel() else id(value), name)
        if owner != name:
            shared[name] = owner
    return shared


def _checked_state(model: nn.Module, action: str) -> dict[str, Tensor]:
    """The model's state, all of it tensors with values."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is {type(value).__name__}, not a tensor, and rankfold never pickles; "
                f"keep it out of the model's state, for instance in a JSON file of your own"
            )
    check_values(state.items(), action)
    return state


def _own_memory(value: Tensor) -> Tensor:
    """``value`` on the CPU, contiguous, and alone in its memory."""
    plain = value.detach().cpu().contiguous()
    return plain.clone() if plain.untyped_storage().nbytes() > plain.nbytes else plain


def _warn_of_broken(action: str, parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Name the parameters that hold NaN or infinity; they may still be looked at."""
    if broken := not_finite(parameters):
        warn(f"{action} parameters that hold NaN or infinity: {first_of(broken)}")


def _write(stored: dict[str, Tensor], text: str, folder: Path) -> None:
    """Both files into ``folder``, which are replaced once they are complete."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        partial = Path(name)
        with errors_of_the_system():
            save_file(stored, partial / TENSORS_FILE, metadata={"format": "pt", _HEADER_KEY: text})
        (partial / MANIFEST_FILE).write_text(text, encoding="utf-8")
        shutil.copymode(partial / MANIFEST_FILE, partial / TENSORS_FILE)  # safetensors lets no one else read it
        for file in (TENSORS_FILE, MANIFEST_FILE):
            real_file(folder / file)
            _flush(partial / file)
        for file in (TENSORS_FILE, MANIFEST_FILE):
            os.replace(partial / file, folder / file)


def _flush(file: Path) -> None:
    """Wait until the file is on the disk, so that a power cut after the replacement loses nothing."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def _read_tensors(file: Path) -> tuple[str | None, dict[str, Tensor]]:
    """The manifest's text in the header, if there, and all tensors."""
    _refuse_pickle(file)
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            header = (opened.metadata() or {}).get(_HEADER_KEY)
            return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{file} is truncated or damaged ({error}); copy it again, or go back to an earlier checkpoint"
        ) from error


def _refuse_pickle(file: Path) -> None:
    """Name a pickle for what it is. Safetensors have ``{`` as their ninth byte."""
    with file.open("rb") as handle:
        head = handle.read(9)
    is_zip, is_pickle = head.startswith(b"PK\x03\x04"), head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"
    if (is_zip or is_pickle) and head[8:] != b"{":
        kind = "a zip file with a pickle in it, as torch.save writes" if is_zip else "a pickle"
        raise ValueError(
            f"{file} is {kind}, and rankfold never loads one: a pickle can run any code. If you trust it, read it "
            f"with torch.load(..., weights_only=True), model.load_state_dict and rankfold.save"
        )


# Does it fit? -------------------------------------------------------------------------------------


def _refuse(folder: Path, differences: list[str]) -> None:
    if not differences:
        return
    shown = "".join(f"\n  {difference}" for difference in differences[:_DIFFERENCES_SHOWN])
    more = len(differences) - _DIFFERENCES_SHOWN
    raise ValueError(
        f"the checkpoint {folder} does not fit this model, which is unchanged:{shown}"
        + (f"\n  and {more} more" if more > 0 else "")
        + "\nBuild the model with the code and the config that the checkpoint was saved with."
    )


def _tensor_differences(model: nn.Module, manifest: Manifest) -> Iterator[str]:
    """Where the tensors' names, formats, dims or kinds of inference differ."""
    named = _all_names(model)
    covered = {named[stored.name] for stored in manifest.tensors if stored.name in named}
    for stored in manifest.tensors:
        if stored.name in named:
            yield from stored.differences(named[stored.name])
        else:
            yield f"{stored.name}: {stored.format} in the checkpoint, missing in the model"
    for name, tensor in tensors_of(model).items():
        if tensor not in covered:
            yield f"{name}: {tensor.format} in the model, missing in the checkpoint"


def _state_differences(
    model: nn.Module, manifest: Manifest, current: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> Iterator[str]:
    """Where names, shapes or sharing of all that is stored differ from what the model will hold."""
    expected = {name: tuple(value.shape) for name, value in current.items()}
    expected.update(_shapes_at_stored_ranks(model, manifest))
    for name, shape in expected.items():
        if name not in state:
            yield f"{name}: shape {list(shape)} in the model, missing in the checkpoint"
        elif tuple(state[name].shape) != shape:
            yield f"{name}: shape {list(state[name].shape)} in the checkpoint, {list(shape)} expected"
    for name in state:
        if name not in expected:
            yield f"{name}: shape {list(state[name].shape)} in the checkpoint, missing in the model"
    ours, theirs = _groups(sharing(current)), _groups(manifest.shared)
    for group in sorted(ours ^ theirs, key=sorted):
        yield f"{', '.join(sorted(group))} are one tensor in the {'model' if group in ours else 'checkpoint'} only"


def _shapes_at_stored_ranks(model: nn.Module, manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors' states, under all their names, once they have the stored ranks."""
    named = _all_names(model)
    formats = {named[s.name]: named[s.name].format.with_ranks(s.ranks) for s in manifest.tensors}
    return {
        f"{name}.{key}".lstrip("."): shape
        for name, tensor in named.items()
        for key, shape in tensor.state_shapes(formats[tensor]).items()
    }


def _all_names(model: nn.Module) -> dict[str, BayesianTensor]:
    """Every tensor under every one of its names."""
    modules = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in modules if isinstance(module, BayesianTensor)}


def _groups(shared: Mapping[str, str]) -> set[frozenset[str]]:
    return {frozenset([first, *(n for n, f in shared.items() if f == first)]) for first in shared.values()}
