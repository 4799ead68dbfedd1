"""The posterior-mean model as an ONNX file, checked with onnxruntime before it gets its name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from rankfold.export.int8 import Bytes, names_kept, round_, store_bytes_
from rankfold.export.layouts import Layout
from rankfold.export.posterior_mean import ExportError, posterior_mean_copy
from rankfold.export.program import BATCH, Inputs, checked_inputs, resized, silence, trace
from rankfold.whole_files import check_writable, given_path, write_whole

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Outputs of onnxruntime and torch may differ by this share of the largest output.
_TOLERANCE = 1e-4
# The format of the file, protocol buffers, ends at 2 GB.
_MAX_BYTES = 2**31 - 2**20


@final
@dataclass(frozen=True)
class OnnxFile:
    """A file that was written and checked.

    Attributes:
        path: where it is.
        num_bytes: its size.
        num_parameters: how many numbers of the model it holds, buffers such as running means included.
        difference: the largest difference between onnxruntime and torch that the check has seen, as a
            share of the largest output.
        num_as_bytes: how many arrays of weights are stored as bytes; 0 without quantization, and where all are small.
        rounding: how far int8 weights have moved the outputs from the model's: the root mean square of
            the change over that of the outputs; 0 without quantization.
    """

    path: Path
    num_bytes: int
    num_parameters: int
    difference: float
    num_as_bytes: int
    rounding: float


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Inputs,
    *,
    layout: Layout = "factors",
    quantize: Literal["int8"] | None = None,
) -> OnnxFile:
    """Write the posterior mean of ``model`` to an ONNX file that takes batches of any size.

    The file holds the factors themselves, 4 bytes a number, and nothing of training. It is run by
    onnxruntime on the example, on one of its examples and on a larger batch, and must give what the model
    gives. If it does not, :class:`ExportError` is raised and whatever ``path`` held before is still there.

    Args:
        model: at any ranks, in any mode, on any device; it is left as it is.
        path: of the file; its folder is made if it is missing.
        example_inputs: what the model is called with, one tensor or several, all with the batch as their
            first dimension. All other dimensions are fixed to those of the example.
        layout: ``factors``, the smallest file; ``halves``, two matrices for a linear layer, the fastest at small
            batches; ``dense``, plain ``torch.nn`` layers.
        quantize: ``"int8"`` stores weights of at least 128 entries as bytes with scales; computing stays in
            float32. Files shrink to about a third; those of tiny models, mostly graph, by less.

    >>> import tempfile, rankfold as rf
    >>> model = rf.Linear(784, 512, config=rf.TTM(max_rank=8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = export_onnx(model, folder + "/layer.onnx", torch.randn(8, 784))
    >>> file.num_parameters, file.num_bytes - 4 * file.num_parameters < 3000
    (3808, True)
    """
    _check_packages()
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize must be None or 'int8', got {quantize!r}")
    inputs, target = checked_inputs(example_inputs), given_path(path, "a file, such as model.onnx")
    check_writable(target)
    mean = posterior_mean_copy(model, layout)
    _check_size(mean)
    exact = _outputs(mean, inputs)
    stored = round_(mean) if quantize == "int8" else {}
    proto = _to_onnx(trace(mean, inputs), stored)
    kept = names_kept(proto.graph)
    num_parameters = sum(value.numel() for name, value in mean.state_dict().items() if name in kept)
    content: bytes = proto.SerializeToString()
    session = _session(content)
    difference = max(_difference(session, mean, resized(inputs, size)) for size in _batches(inputs))
    write_whole(target, content)
    rounding = _relative_change(_outputs(mean, inputs), exact) if stored else 0.0
    return OnnxFile(target, len(content), num_parameters, difference, len(kept & stored.keys()), rounding)


def _check_packages() -> None:
    for package in _PACKAGES:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"exporting to ONNX needs {package}; install it with: pip install 'rankfold[export]'", name=error.name
            ) from error


def _check_size(mean: nn.Module) -> None:
    num_bytes = sum(tensor.nbytes for tensor in mean.state_dict().values())
    if num_bytes > _MAX_BYTES:
        raise ExportError(
            f"the weights take {num_bytes:,} bytes, and an ONNX file holds at most 2 GB; "
            f'export the factors (layout="factors"), or use rankfold.export.export_program'
        )


# Making it ------------------------------------------------------------------------------------------


def _to_onnx(program: ExportedProgram, stored: Mapping[str, Bytes]) -> Any:
    """The program as an ONNX model, small and without what exporters note for debugging; ``stored`` are bytes in it."""
    import onnx_ir
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    names = _output_names(program)
    with silence():
        try:
            converted = torch.onnx.export(program, (), dynamo=True, optimize=False, verbose=False, output_names=names)
        except Exception as error:
            raise ExportError(f"torch.onnx cannot convert this model: {error}") from error
        assert converted is not None
        raw = onnx_ir.serde.serialize_model(converted.model)
        store_bytes_(raw.graph, stored)
        model = onnx_ir.serde.deserialize_model(raw)
        optimize_ir(model, should_fold=_should_fold)
        ClearMetadataAndDocStringPass()(model)
        proto = onnx_ir.serde.serialize_model(model)
    _tidy(proto)
    return proto


def _should_fold(node: Any) -> bool | None:
    """Not what is made of weights: multiplied out, the factors would be the dense weight again, and bytes floats."""
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    large = [constant.dtype for constant in constants if constant.size > 1]
    weights = any(dtype.is_floating_point() or dtype.name == "INT8" for dtype in large)
    return False if weights else None  # None: the optimizer decides


def _output_names(program: ExportedProgram) -> list[str]:
    count = len(program.graph_signature.user_outputs)
    return ["output"] if count == 1 else [f"output_{n}" for n in range(count)]


def _tidy(proto: Any) -> None:
    """Drop inferred shapes and notes, and give the batch its name."""
    graph = proto.graph
    del graph.value_info[:]
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        del value.metadata_props[:]
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{symbol}\b", BATCH, dim.dim_param)


# Checking it ----------------------------------------------------------------------------------------


def _batches(inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """The batch sizes to check: the example's, one, and one more than twice the example's."""
    batch = inputs[0].shape[0]
    return (batch, 1, 2 * batch + 1)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(model(*inputs)) if isinstance(leaf, Tensor)]


def _difference(session: Any, mean: nn.Module, inputs: Sequence[Tensor]) -> float:
    """How far onnxruntime is from torch, as a share of the largest output; too far is an error."""
    expected, found = _outputs(mean, inputs), _run(session, inputs)
    if [tuple(y.shape) for y in expected] != [tuple(y.shape) for y in found]:
        raise ExportError(
            f"onnxruntime gives outputs of shape {[tuple(y.shape) for y in found]} for a batch of "
            f"{inputs[0].shape[0]}, the model {[tuple(y.shape) for y in expected]}; nothing was written"
        )
    if not all(bool(y.isfinite().all()) for y in expected):
        raise ExportError(
            "the model gives NaN or infinity for the example, so that nothing can be compared; nothing was written. "
            "Give an example_inputs as in training, and look for NaN in the model's buffers"
        )
    share = max(
        (float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in _numbers(found, expected)), default=0.0
    )
    if not share <= _TOLERANCE:
        raise ExportError(
            f"onnxruntime and the model differ by {share:.1e} of the largest output for a batch of "
            f"{inputs[0].shape[0]}, more than {_TOLERANCE:.0e}; nothing was written. {_remedy(mean)}"
        )
    return share


def _remedy(mean: nn.Module) -> str:
    if all(parameter.dtype == torch.float32 for parameter in mean.parameters()):
        return 'Try another layout, such as layout="dense", or rankfold.export.export_program'
    return "A model in float32 may help: model.float()"


def _numbers(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(a.double(), b.double()) for a, b in zip(found, expected, strict=True) if b.numel()]


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is fatal is raised as well
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(
            f"onnxruntime cannot load the exported model; nothing was written: {error}\n"
            f"For a model in float16 or bfloat16, export model.float(); export outside autocast."
        ) from error


def _run(session: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    names = [entry.name for entry in session.get_inputs()]
    try:
        found = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    except Exception as error:
        raise ExportError(f"onnxruntime cannot run the exported model; nothing was written: {error}") from error
    return [torch.from_numpy(y) for y in found]


def _relative_change(rounded: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    pairs = _numbers(rounded, exact)
    change = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((change / max(1e-300, sum(float(b.square().sum()) for _, b in pairs))) ** 0.5)
