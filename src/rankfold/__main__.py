"""``python -m rankfold`` is the command ``rankfold``."""

from rankfold_command import main

if __name__ == "__main__":
    main()
