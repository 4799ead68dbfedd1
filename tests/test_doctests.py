"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import rankfold

MODULES = ["rankfold", *(m.name for m in pkgutil.walk_packages(rankfold.__path__, "rankfold."))]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    torch.manual_seed(0)
    failures, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


def test_the_public_face_has_examples():
    finder = doctest.DocTestFinder()
    examples = [t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(examples) > 20
