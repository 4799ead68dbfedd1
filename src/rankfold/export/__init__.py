"""Export of the pruned posterior-mean model: a ``torch.export`` program, or an ONNX file."""

from rankfold.export.onnx_file import OnnxFile, export_onnx
from rankfold.export.posterior_mean import ExportError
from rankfold.export.program import export_program

__all__ = ["ExportError", "OnnxFile", "export_onnx", "export_program"]
