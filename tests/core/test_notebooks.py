"""What notebooks show: every value, picture, report and plan, whole and well-formed.

Tests of: terminal, core.layout, sharding.sharding, show.shard_picture.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.show.shard_picture import ShardPicture, reshard_html

MODULE = """HloModule m, is_scheduled=true
ENTRY e { p = f32[1000,3]{1,0:T(8,128)} parameter(0)  ROOT n = f32[1000,3]{1,0:T(8,128)} negate(p) }"""
TILED = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"
SHOWN = {
    "shape": lambda: fi.Shape.parse(TILED),
    "tuple": lambda: fi.Shape.parse("(f32[2], token[])"),
    "layout": lambda: fi.Layout.parse("{1,0:T(8,128)(2,1)L(16)E(16)S(1)}"),
    "plain layout": lambda: fi.Layout(()),
    "sharding": lambda: fi.sharding.Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
    "replicated": lambda: fi.sharding.Sharding.parse("{replicated}"),
    "tuple of shardings": lambda: fi.sharding.Sharding.parse("{{replicated}, {devices=[2]<=[2]}}"),
    "picture": lambda: fi.draw("f32[3,5]{1,0:T(2,2)}"),
    "picture of shards": lambda: ShardPicture("f32[17,64]", "{devices=[4,2]<=[8]}"),
    "report": lambda: fi.hlo.report(MODULE),
    "plan": lambda: fi.plan_relayout("f32[4,6]", "f32[4,6]{1,0:T(2,2)}"),
    "reshard plan": lambda: fi.sharding.plan_reshard("f32[64,64]", "{devices=[8,1]<=[8]}", "{devices=[2,4]<=[8]}"),
}


def cells(html: str) -> list[list[str]]:
    """Return the texts of the last table of a piece of HTML, row by row."""
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    table = list(tree.iter("table"))[-1]
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN.keys())
def test_bundle_holds_html_and_text(shown: Any) -> None:
    thing = shown()
    bundle = thing._repr_mimebundle_()
    assert sorted(bundle) == ["text/html", "text/plain"]
    assert bundle["text/plain"] == repr(thing)
    assert 0 < len(bundle["text/html"].encode()) < 300_000
    assert sorted(thing._repr_mimebundle_(include={"text/html"})) == ["text/html"]
    assert sorted(thing._repr_mimebundle_(exclude={"text/html"})) == ["text/plain"]


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "report"])
def test_html_is_well_formed(name: str) -> None:
    ElementTree.fromstring(f"<div>{SHOWN[name]()._repr_html_()}</div>")


def test_layout_says_its_order_its_tiles_and_what_is_not_usual() -> None:
    assert cells(fi.Layout.parse("{1,0:T(*,128)(2,1)L(16)S(1)}")._repr_html_()) == [
        ["order", "dimension 1 is the most minor, then 0"],
        ["tile, level 0", "* by 128; * combines a dimension with the next more minor one"],
        ["tile, level 1", "2 by 1"],
        ["memory space", "1"],
        ["tail padding alignment in elements", "16"],
    ]
    assert fi.Layout(())._repr_html_() == "<div><code>{}</code></div>"


def test_sharding_shows_the_devices_of_each_part() -> None:
    sharding = fi.sharding.Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")
    assert cells(sharding._repr_html_()) == [
        ["part 0 of dimension 0", "0, 1, 2, 3"],
        ["part 1 of dimension 0", "4, 5, 6, 7"],
    ]
    turned = fi.sharding.Sharding.parse("{devices=[2,3]<=[3,2]T(1,0)}")
    assert [row[1:] for row in cells(turned._repr_html_())] == [["0", "2", "4"], ["1", "3", "5"]]
    assert "8 devices" in sharding._repr_html_()


@pytest.mark.parametrize("text", ["{devices=[64,1]<=[64]}", "{devices=[1,64]<=[64]}", "{devices=[40,40,2]<=[3200]}"])
def test_tables_of_many_devices_are_cut(text: str) -> None:
    html = fi.sharding.Sharding.parse(text)._repr_html_()
    table = cells(html)
    assert len(table) <= 32
    assert max(len(row) for row in table) <= 34
    assert "more" in html


def test_reshard_plan_shows_who_sends_what() -> None:
    plan = fi.sharding.plan_reshard("f32[10,6]", "{devices=[4,1]<=[4]}", "{devices=[1,3]<=[3]}")
    html = plan._repr_html_()
    table = cells(html)
    assert table[0] == ["bytes", *(f"to {device}" for device in range(3))]
    assert [row[0] for row in table[1:]] == [f"from {device}" for device in range(4)]
    numbers = [[int(cell.replace(",", "") or 0) for cell in row[1:]] for row in table[1:]]
    assert numbers == plan.bytes_between.tolist()
    assert plan.describe().splitlines()[-1] in html
    assert "the first 32 of 40 by 2 devices" in reshard_html("", np.zeros((40, 2), np.int64))


def test_pictures_are_text_in_terminals() -> None:
    picture = fi.draw("f32[3,5]{1,0:T(2,2)}")
    assert repr(picture) == str(picture)
    assert "12  13│ 16  17│ 20" in repr(picture)
