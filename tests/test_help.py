"""`help()` of what is written in Rust has text; for what users call, the text of the interface, `_core.pyi`."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import latchwork
from latchwork import _core

#: The classes that users have in their hands; of the others the text in Rust is for who reads Rust.
OF_USERS = {"Assignment", "Board", "Delta", "ItemSet", "Moves", "RendezvousHasher"}
TREE = ast.parse((Path(latchwork.__file__).parent / "_core.pyi").read_text())


def documented():
    """Every function, class and method of the interface that has a text, with the object and the text."""
    for node in TREE.body:
        if not (isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in OF_USERS)):
            continue
        found = getattr(_core, node.name)
        if ast.get_docstring(node):
            yield node.name, found, ast.get_docstring(node)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("__") and ast.get_docstring(member):
                yield f"{node.name}.{member.name}", getattr(found, member.name), ast.get_docstring(member)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in documented()))
def test_help_says_what_the_interface_says(name):
    same = [(found, text) for each, found, text in documented() if each == name]  # an overloaded one has several
    assert inspect.getdoc(same[0][0]) in [text for _, text in same]


def test_every_public_class_and_method_has_help():
    for name, each in vars(_core).items():
        if inspect.isclass(each) and not name.startswith("_"):
            members = [each, *(getattr(each, member) for member in dir(each) if not member.startswith("_"))]
            assert all(inspect.getdoc(member) for member in members), name
