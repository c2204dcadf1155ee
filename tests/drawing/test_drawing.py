"""Drawings of graphs: what holds for every graph, and how some look.

LATCHWORK_GOLDEN=1 writes the golden files anew.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.drawing import CyclicGraph, Edge, Graph, GraphNode, lay_out, to_dot, to_mermaid, to_svg
from latchwork.drawing.layout import (
    MOST_BENDS,
    MOST_LETTERS,
    count_crossings,
    count_letter_widths,
    fit_nondecreasing,
    make_layers,
    shorten_label,
    sort_rows,
)

GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"


def graph_of(*edges, nodes=()):
    ids = dict.fromkeys([*nodes, *itertools.chain.from_iterable(edges)])
    return Graph([GraphNode(each) for each in ids], [Edge(*each) for each in edges])


@st.composite
def graphs(draw):
    count = draw(st.integers(0, 25))
    order = draw(st.permutations(range(count)))
    pairs = draw(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=60))
    edges = [Edge(f"n{order[a]}", f"n{order[b]}") for a, b in pairs if a < b < count]
    return Graph([GraphNode(f"n{each}", draw(st.text(max_size=40))) for each in range(count)], edges)


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_boxes_never_overlap_and_every_line_goes_down(graph):
    layout = lay_out(graph)
    assert list(layout.boxes) == [node.id for node in graph.nodes]
    rows = {}
    for box in layout.boxes.values():
        rows.setdefault(box.y, []).append(box)
        assert box.x >= 0
        assert box.x + box.width <= layout.width
        assert box.y + box.height <= layout.height
    tops = sorted(rows)
    assert all(lower - upper >= 32 for upper, lower in itertools.pairwise(tops))
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        assert all(right.x - (left.x + left.width) > 1 for left, right in itertools.pairwise(row))
    assert [line.edge for line in layout.lines] == list(graph.edges)
    for line in layout.lines:
        assert all(lower[1] > upper[1] for upper, lower in itertools.pairwise(line.points))
        assert line.points[0][1] == layout.boxes[line.edge.source].y + 32
        assert line.points[-1][1] == layout.boxes[line.edge.target].y


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_the_same_graph_has_the_same_drawing_and_it_is_well_formed(graph):
    again = Graph(graph.nodes, graph.edges)
    drawn = to_svg(graph)
    assert drawn == to_svg(again)
    root = ET.fromstring(drawn)
    assert len(root.findall(f"{SVG}g")) == len(graph.nodes)
    assert len(root.findall(f"{SVG}path")) == len(graph.edges)
    assert to_mermaid(graph).count("\n") == 1 + len(graph.nodes) + len(graph.edges)
    assert to_dot(graph).count("\n") == 3 + len(graph.nodes) + len(graph.edges)


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_sorting_rows_never_makes_more_lines_cross(graph):
    found = make_layers(graph)
    before = count_crossings(found)
    members = [set(row) for row in found.rows]
    sort_rows(found)
    assert count_crossings(found) <= before
    assert [set(row) for row in found.rows] == members


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
@settings(deadline=None)
def test_a_row_is_placed_at_the_nearest_sequence_that_does_not_fall(wanted):
    found = fit_nondecreasing(wanted)
    assert len(found) == len(wanted)
    assert all(right >= left - 1e-6 for left, right in itertools.pairwise(found))
    if wanted == sorted(wanted):
        assert found == pytest.approx(wanted)
    assert sum(found) == pytest.approx(sum(wanted), abs=1e-3)


def test_crossings_are_counted():
    assert count_crossings(make_layers(graph_of("ac", "bd", nodes="abcd"))) == 0
    assert count_crossings(make_layers(graph_of("ad", "bc", nodes="abcd"))) == 1
    assert count_crossings(make_layers(graph_of(*itertools.product("abc", "xyz")))) == 9


def test_lines_that_need_not_cross_do_not():
    found = make_layers(graph_of("ad", "bc", "ce", "df", nodes="abcdfe"))
    sort_rows(found)
    assert count_crossings(found) == 0


def test_a_node_stands_below_all_that_leads_to_it_and_near_to_what_it_leads_to():
    boxes = lay_out(graph_of("ab", "bc", "cd", "xd")).boxes
    assert boxes["a"].y < boxes["b"].y < boxes["c"].y < boxes["d"].y
    assert boxes["x"].y == boxes["c"].y


def test_a_new_node_at_the_end_leaves_the_others_in_their_order():
    edges = ["ab", "ac", "bd", "cd"]
    small, large = lay_out(graph_of(*edges)), lay_out(graph_of(*edges, "de", "cf"))
    order = [each for each in sorted(large.boxes, key=lambda each: large.boxes[each].x) if each in "bc"]
    assert order == sorted("bc", key=lambda each: small.boxes[each].x)


def test_a_line_over_several_layers_goes_around_the_boxes_between():
    layout = lay_out(graph_of("ab", "bc", "ac"))
    line = next(each for each in layout.lines if each.edge == Edge("a", "c"))
    middle = layout.boxes["b"]
    inside = [x for x, y in line.points if middle.y <= y <= middle.y + middle.height]
    assert inside
    assert all(x < middle.x or x > middle.x + middle.width for x in inside)


def test_a_cycle_is_named():
    with pytest.raises(CyclicGraph, match=r"'\w' -> '\w' -> '\w' -> '\w'") as caught:
        graph_of("ab", "bc", "ca", "cd")
    assert "'d'" not in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "edges", "why"),
    [
        ([GraphNode("a"), GraphNode("a")], [], "two nodes have the id 'a'"),
        ([GraphNode("a")], [Edge("a", "b")], "ends at 'b', which is no node"),
        ([GraphNode("a", kind="Not ok")], [], "'Not ok' is no kind"),
        ([GraphNode("a", kind='x"><script>')], [], "is no kind"),
    ],
)
def test_a_graph_that_cannot_be_drawn_says_why(nodes, edges, why):
    with pytest.raises(ValueError, match=why):
        Graph(nodes, edges)


def test_text_from_outside_stays_text():
    evil = '"]; end\n<script>alert(1)</script> & \x00\x1b[31m\ud800 "'
    graph = Graph([GraphNode("a", evil, title=evil), GraphNode(evil)], [Edge("a", evil)], evil)
    drawn = to_svg(graph)
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    ET.fromstring(drawn)
    mermaid = to_mermaid(graph)
    assert len(mermaid.splitlines()) == 4
    assert "<script" not in mermaid
    assert mermaid.count('"') == 4
    dot = to_dot(graph)
    assert len(dot.splitlines()) == 6
    assert "\x1b" not in dot


def test_long_labels_keep_both_ends_and_titles_keep_all():
    label = "a-very-long-module-path/with-many-segments/and-an-end"
    assert count_letter_widths(shorten_label(label)) <= MOST_LETTERS
    assert shorten_label(label).startswith("a-very")
    assert shorten_label(label).endswith("an-end")
    assert label in to_svg(Graph([GraphNode("a", label)]))
    assert count_letter_widths(shorten_label("漢字" * 40)) <= MOST_LETTERS


def test_an_empty_graph_is_a_drawing_too():
    assert ET.fromstring(to_svg(Graph([]))).find(f"{SVG}title").text == "0 nodes"


def spread(count, each):
    ids = [f"t{number:05}" for number in range(count)]
    edges = [
        Edge(ids[(number * 7919 + dep * 104729) % number], ids[number])
        for number in range(1, count)
        for dep in range(each)
    ]
    return Graph([GraphNode(each) for each in ids], edges)


def test_two_thousand_nodes_with_edges_all_over_are_drawn_in_seconds():
    graph = spread(2000, 3)
    began = time.process_time()
    layout = lay_out(graph)
    to_svg(graph, layout)
    assert time.process_time() - began < 15
    assert len(layout.boxes) == 2000


def test_a_fan_of_five_thousand_is_drawn_in_seconds():
    middle = [f"t{number}" for number in range(5000)]
    began = time.process_time()
    layout = lay_out(graph_of(*(("s", each) for each in middle), *((each, "e") for each in middle)))
    assert time.process_time() - began < 15
    source, end = layout.boxes["s"], layout.boxes["e"]
    assert abs((source.x + source.width / 2) - layout.width / 2) < layout.width * 0.02
    assert abs(source.x - end.x) < 200


def test_bends_are_bounded_where_every_line_passes_every_layer():
    ids = [f"t{number}" for number in range(400)]
    far = [(ids[a], ids[b]) for a in range(0, 400, 2) for b in range(a + 2, 400, 9)]
    graph = graph_of(*itertools.pairwise(ids), *far)
    found = make_layers(graph)
    assert sum(map(len, found.rows)) <= MOST_BENDS + 400
    assert len(lay_out(graph).lines) == len(graph.edges)


PICTURES = {
    "chain": graph_of("ab", "bc"),
    "diamond": graph_of("ab", "ac", "bd", "cd", "ad"),
    "apart": graph_of("ab", "xy", nodes="abz"),
    "states": Graph(
        [
            GraphNode("load-mon", "load mon", "done", "load mon: done after 1.2 s"),
            GraphNode("load-tue", "load tue", "failed", "load tue: ValueError: no such day"),
            GraphNode("load-wed", "load wed", "running"),
            GraphNode("total", "total", "skipped"),
            GraphNode("report", "report <all> & mail", "waiting"),
        ],
        [Edge("load-mon", "total"), Edge("load-tue", "total"), Edge("load-wed", "total"), Edge("total", "report")],
        "week 47",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize(("ending", "draw"), [("svg", to_svg), ("mmd", to_mermaid), ("dot", to_dot)])
def test_pictures_look_as_they_did(name, ending, draw):
    file = GOLDEN / f"{name}.{ending}"
    drawn = draw(PICTURES[name])
    if os.environ.get("LATCHWORK_GOLDEN"):
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8")


def test_a_node_without_edges_stands_beside_the_others():
    edges = [
        Edge(source, target) for source, target in ("ae", "be", "bf", "cf", "cg", "dg", "eh", "fh", "gh", "hi", "ai")
    ]
    names = {**{each: f"t0000{each}" for each in "abcdefgh"}, "i": "i" * 30, "j": "alone"}
    boxes = lay_out(Graph([GraphNode(each, text, "", "") for each, text in names.items()], edges)).boxes
    first = sorted((box.x, box.x + box.width) for box in boxes.values() if box.y == boxes["j"].y)
    assert [round(right[0] - left[1]) for left, right in itertools.pairwise(first)] == [20] * 4
