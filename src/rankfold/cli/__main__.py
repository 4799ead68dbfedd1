"""``python -m rankfold.cli`` is the command ``rankfold``."""

from rankfold.cli import app

if __name__ == "__main__":
    app()
