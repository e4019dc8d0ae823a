"""The measure of rooms, on a package that is made up; of the tree, that it is read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen import rooms

CONTRACT = """
[[tool.importlinter.contracts]]
id = "layers"
layers = ["upper", "left | right", "base"]
"""
MODULES = {
    "__init__": "",
    "base": "def ask():\n    from fastindex.upper.deep.inner import answer\n    return answer\n",
    "left/__init__": '"""Says what."""\nimport fastindex.base\n',
    "right": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from fastindex import upper\nx = 1  # one\n",
    "upper/deep/inner": "from fastindex import base, left, linear_index\nfrom fastindex.upper import other\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(CONTRACT)
    for name, text in MODULES.items():
        path = tmp_path / "fastindex" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_code_lines_are_those_with_code() -> None:
    text = '"""Doc."""\n\n# No.\ndef f(x):  # Yes.\n    """Doc\n    of two lines."""\n    return """a\nb"""\n'
    assert rooms.code_lines(text) == 3


def test_a_room_is_a_folder_or_a_module(tree: Path) -> None:
    found = rooms.measured(tree)
    assert found.sizes == {
        "__init__": (1, 0, 0),
        "base": (1, 3, 1),
        "left": (1, 1, 1),
        "right": (1, 4, 2),
        "upper": (1, 2, 2),
    }
    assert found.total == (5, 10, 6)


def test_imports_between_rooms_and_which_point_upwards(tree: Path) -> None:
    found = rooms.measured(tree)
    assert found.between == {
        ("base", "upper"): 1,
        ("left", "base"): 1,
        ("upper", "base"): 1,
        ("upper", "left"): 1,
        ("upper", "__init__"): 1,
    }
    assert found.upwards() == {("base", "upper"): 1}
    assert found.levels == {"base": 0, "left": 1, "right": 1, "upper": 2}


def test_a_table_of_two_trees_has_rooms_of_both(tree: Path) -> None:
    before = rooms.measured(tree)
    (tree / "fastindex" / "right.py").rename(tree / "fastindex" / "new.py")
    now = rooms.measured(tree)
    lines = [*rooms.table({"now": now, "3a89012": before})]
    assert [line.split()[0] for line in lines[2:]] == ["__init__", "base", "left", "new", "right", "upper", "in"]
    assert lines[5].split() == ["new", "1", "4", "2", "50.0%", "0", "0", "0", "0.0%"]


def test_every_room_of_this_tree_has_a_level() -> None:
    found = {rooms.room_of(module) for module in rooms.modules(rooms.ROOT)}
    assert found - set(rooms.levels(rooms.ROOT)) == {"__init__", "__main__"}
