"""What comes before torch is imported, where the package is the command: ``python -m rankfold`` imports it first."""

from __future__ import annotations

import sys

# while Python looks for what to run, the first argument is -m; what follows the module's name are the others
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("rankfold", "rankfold.cli"):
    from rankfold_command import leave_at_ctrl_c

    leave_at_ctrl_c()
