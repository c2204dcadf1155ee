"""Lineage: which workflows start others or wait for them, seen by those who may see both."""

import pytest

from latchwork_workflows.model.lineage import WorkflowReference
from latchwork_workflows.services.lineage import LineageEdge, LineageGraph
from latchwork_workflows.ui.lineage import draw_lineage_svg, find_back_edges
from workflows.web.seeds import apply, shell


def starts(name, other):
    return {"name": name, "type": "sub_process", "params": {"workflow": other}}


def waits(name, *others):
    on = {"all": [{"workflow": each, "window": "today"} for each in others]}
    return {"name": name, "type": "dependent", "params": {"on": on}}


@pytest.fixture(scope="module", autouse=True)
def family(seeds):
    """morning starts nightly, waits for billing.close and for itself; report waits for morning; ghost is not there."""
    itself = {"name": "again", "type": "dependent", "params": {"on": {"workflow": "morning", "window": "yesterday"}}}
    tasks = [starts("load", "nightly"), waits("books", "billing.close", "billing.ghost"), itself, shell("done")]
    apply(seeds.database, {"name": "morning", "tasks": tasks})
    apply(seeds.database, {"name": "report", "tasks": [waits("ready", "morning"), shell("write", ["ready"])]})


def links(found):
    return {(each["workflow"], each["kind"], each["other"]) for each in found["links"]}


ALL = {
    ("default.morning", "sub_process", "default.nightly"),
    ("default.morning", "dependent", "billing.close"),
    ("default.morning", "dependent", "billing.ghost"),
    ("default.morning", "dependent", "default.morning"),
    ("default.report", "dependent", "default.morning"),
}


def test_who_names_whom_is_told_with_the_task_and_the_window(ask):
    found = ask("admin").get("/api/v1/lineage").json()
    assert links(found) == ALL
    (itself,) = (each for each in found["links"] if each["other"] == "default.morning" and each["task"] == "again")
    assert (itself["window"], itself["other_task"]) == ("yesterday", "")
    known = {each["workflow"]: each["version"] for each in found["workflows"]}
    assert (known["billing.ghost"], known["default.morning"]) == (None, 1)


def test_what_somebody_may_not_see_is_left_out_whether_it_is_there_or_not(ask):
    found = ask("viewer-of-default").get("/api/v1/lineage").json()
    assert links(found) == {each for each in ALL if not each[2].startswith("billing.")}
    assert "billing" not in ask("viewer-of-default").get("/lineage").text
    assert ask("stranger").get("/api/v1/lineage").json()["links"] == []
    assert ask("stranger").get("/api/v1/lineage?project=default&workflow=morning").status_code == 404


def test_a_project_is_shown_with_its_neighbours_and_a_workflow_with_all_above_and_below(ask):
    client = ask("admin")
    assert links(client.get("/api/v1/lineage?project=billing").json()) == {e for e in ALL if "billing" in e[2]}
    of_report = client.get("/api/v1/lineage?project=default&workflow=report").json()
    assert {each["workflow"] for each in of_report["workflows"]} == {
        "default.report", "default.morning", "default.nightly", "billing.close", "billing.ghost",
    }  # fmt: skip
    of_nightly = client.get("/api/v1/lineage?project=default&workflow=nightly").json()
    assert {each["workflow"] for each in of_nightly["workflows"]} == {
        "default.report", "default.morning", "default.nightly",
    }  # fmt: skip
    assert client.get("/api/v1/lineage?workflow=nightly").status_code == 422


def test_a_new_version_names_what_it_says(ask, seeds):
    apply(seeds.database, {"name": "late", "tasks": [starts("a", "nightly")]})
    assert ("default.late", "sub_process", "default.nightly") in links(ask("admin").get("/api/v1/lineage").json())
    apply(seeds.database, {"name": "late", "tasks": [shell("a")]})
    assert "default.late" not in {each[0] for each in links(ask("admin").get("/api/v1/lineage").json())}


def test_the_page_draws_who_is_waited_for_above_who_waits(browser):
    shown = browser().get("/lineage?project=default&workflow=morning").text
    assert 'class="dag"' in shown
    assert "billing.ghost: there is no such workflow" in shown
    assert "itself" in shown
    assert 'class="edge state-dependent"' in shown
    assert 'href="/lineage?project=default&amp;workflow=morning"' in browser().get("/workflows/default/morning").text


def test_circles_are_drawn_with_one_arrow_that_points_back():
    names = ("a", "b", "c", "d")
    pairs = (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"))
    assert find_back_edges(names, pairs) == {("c", "a")}
    assert find_back_edges(names, (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))) == set()
    circle = [LineageEdge(target, WorkflowReference(source, "dependent", "t", "today")) for source, target in pairs[:3]]
    drawn = draw_lineage_svg(LineageGraph(dict.fromkeys(names[:3]), circle, 0))
    assert drawn.count('class="edge state-back"') == 1
    assert drawn.count("marker-start") == 1


def test_two_that_name_each_other_and_themselves_are_drawn(ask, seeds):
    apply(seeds.database, {"name": "ping", "tasks": [waits("a", "pong")]})
    apply(seeds.database, {"name": "pong", "tasks": [waits("a", "ping", "pong"), starts("b", "ping")]})
    answer = ask("admin").get("/lineage?project=default&workflow=ping", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert (answer.text.count("marker-start"), answer.text.count("marker-end")) == (1, 1)  # one line, two arrows
