"""Live updates, the server itself, and the small machines that pages are made of."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from latchwork.drawing import Edge, Graph, GraphNode
from latchwork.errors import LatchworkError
from latchwork_workflows.app import create_admin_link, make_web_app
from latchwork_workflows.model.definition import build_plan
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.model.yaml_format import parse_yaml
from latchwork_workflows.services import ServiceContext
from latchwork_workflows.state import Claimed, Ended, Outcome
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.base import ParamsModel
from latchwork_workflows.types.shell import Shell
from latchwork_workflows.ui.editor import editor
from latchwork_workflows.ui.editor.editor import add_task_text
from latchwork_workflows.ui.editor.yaml_positions import find_line
from latchwork_workflows.web import Bar, FormInvalid, GanttChart, HttpServer, build_fields, draw_graph_svg, parse_values
from latchwork_workflows.web.pages import clean_value, format_duration
from patience import eventually
from workflows.web.seeds import HALF, NIGHTLY, TYPES


@pytest.fixture(scope="module")
def server(seeds):
    found = HttpServer(make_web_app(seeds.database, logs=seeds.logs))
    found.start()
    yield found
    found.close()


def opened(server, path, token):
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {token}"})
    return urllib.request.urlopen(request, timeout=30)


class Lines:
    """What a stream has sent, read by a thread."""

    def __init__(self, response):
        self.response = response
        self.seen = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        try:
            for line in self.response:
                self.seen.append(line.decode().rstrip("\n"))
        except (OSError, ValueError):
            pass

    def close(self):
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_a_page_is_told_of_a_change_of_its_run_and_of_no_other(server, seeds):
    mine, other = seeds.run(HALF), seeds.run(HALF)
    told = Lines(opened(server, f"/api/v1/events?topic=run:{mine}", seeds.tokens["viewer-of-default"]))
    quiet = Lines(opened(server, f"/api/v1/events?topic=run:{other}", seeds.tokens["viewer-of-default"]))
    eventually(lambda: told.seen and quiet.seen and len(server._app.state.site.live._seen) == 2)
    found = check_definition(NIGHTLY, TYPES)
    seeds.tell(mine, build_plan(found.definition, found.order), [Ended("load", 1, Outcome.SUCCESS)], 2e9)
    eventually(lambda: "event: change" in told.seen)
    assert "event: change" not in quiet.seen


def test_a_log_is_followed_to_its_end(server, seeds):
    seeds.run([(0.1, [Claimed("extract-orders", 1)])])
    key, file = next(reversed(seeds.files.items()))
    with seeds.database.read() as connection:
        claim = connection.exec_driver_sql(f"SELECT claim FROM attempt WHERE task = {key[0]}").scalar()
    stream = Lines(opened(server, f"/api/v1/attempts/{key[0]}.1.{claim}/log/stream", seeds.tokens["admin"]))

    def text():
        return "".join(json.loads(each[6:]).get("text", "") for each in stream.seen if each.startswith("data: {"))

    eventually(lambda: "read 1,200 rows" in text())
    file.append(b"and more\n")
    eventually(lambda: text().endswith("and more\n"))
    file.end()
    eventually(lambda: "event: end" in stream.seen)
    stream.close()


def test_a_server_that_is_closed_ends_its_streams_and_is_gone(seeds):
    site = make_web_app(seeds.database)
    server = HttpServer(site)
    server.start()
    link = create_admin_link(site, server.url)
    assert urllib.request.urlopen(link, timeout=30).status == 200
    stream = Lines(opened(server, "/api/v1/events", seeds.tokens["admin"]))
    eventually(lambda: stream.seen)
    server.close()
    server.close()
    stream.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=5)


def test_a_port_that_is_taken_is_one_clear_error(server, seeds):
    with pytest.raises(LatchworkError, match=rf"127\.0\.0\.1:{server.port}.*--port"):
        HttpServer(make_web_app(seeds.database), port=server.port)


def test_a_form_of_a_task_type_gives_the_values_that_were_meant():
    fields = build_fields(TYPES.get("shell").params.model_json_schema())
    assert [(each.name, each.kind, each.required) for each in fields] == [
        ("script", "area", True),
        ("interpreter", "lines", False),
    ]
    assert parse_values(fields, {"script": "a\r\nb", "interpreter": "sh\n-e"}) == {"script": "a\nb"}
    assert parse_values(fields, {"script": "x", "interpreter": "bash"})["interpreter"] == ["bash"]
    with pytest.raises(FormInvalid, match="script: this is required"):
        parse_values(fields, {})
    fields = build_fields(TYPES.get("python").params.model_json_schema())
    with pytest.raises(FormInvalid, match="args"):
        parse_values(fields, {"function": "a:b", "args": "{"})
    assert parse_values(fields, {"function": "a:b", "args": '{"n": 1}'}) == {"function": "a:b", "args": {"n": 1}}


def test_the_form_of_a_task_type_is_made_once_and_is_that_of_the_types_that_are_asked(monkeypatch):
    class Greeting(ParamsModel):
        whom: str

    class Farewell(ParamsModel):
        when: int

    class Greet(Shell):
        name, params = "greet", Greeting

    class Leave(Shell):
        name, params = "greet", Farewell

    made = []
    schema = ParamsModel.model_json_schema.__func__
    monkeypatch.setattr(
        ParamsModel, "model_json_schema", classmethod(lambda model, **how: made.append(model) or schema(model, **how))
    )
    first, second = (ServiceContext(None, None, TaskTypes([each()])) for each in (Greet, Leave))
    shown = [
        [each.name for each in editor.get_type_fields(context, "greet")] for context in (first, second, first, second)
    ]
    assert shown == [["whom"], ["when"]] * 2
    assert made == [Greeting, Farewell]
    filled = editor.get_type_fields(first, "greet", {"greet-p-whom": "you"})
    assert ([each.value for each in filled], [each.value for each in editor.get_type_fields(first, "greet")]) == (
        ["you"],
        [""],
    )


TEXT = """\
# what it is for
name: nightly
tasks:
- name: a   # first
  type: shell
  params:
    script: x
"""


@pytest.mark.parametrize("indent", ["", "  "])
def test_a_task_that_a_form_puts_in_leaves_comments_as_they_are(indent):
    head, tasks = TEXT.split("tasks:\n")
    text = f"{head}tasks:\n" + "".join(f"{indent}{line}\n" for line in tasks.splitlines())
    task = {"name": "b", "type": "shell", "params": {"script": "one\ntwo"}, "after": ["a"]}
    longer = add_task_text(text, task)
    assert longer.startswith(text)
    assert parse_yaml(longer)["tasks"] == [*parse_yaml(text)["tasks"], task]
    first = add_task_text("name: nightly\n", task)
    assert parse_yaml(first) == {"name": "nightly", "tasks": [task]}


def test_a_problem_is_shown_by_the_line_where_it_is():
    assert find_line(TEXT, "tasks[0].params.script") == 7
    assert find_line(TEXT, "tasks[0].retries") == 4
    assert find_line(TEXT, "line 3, column 1") == 3
    assert find_line(TEXT, "nothing") is None
    assert find_line("a: [", "a") is None


def test_drawings_escape_and_link(seeds):
    svg = draw_graph_svg(
        Graph([GraphNode("<a>", kind="running"), GraphNode("b")], [Edge("<a>", "b")]), links={"b": '/x"y'}
    )
    assert "<a>" not in svg
    assert "&lt;a&gt;" in svg
    assert 'href="/x&#34;y"' in svg
    assert "state-running" in svg
    bars = GanttChart([("<row>", [Bar(10.0, None, "running", "<t>", "/l")])]).svg(now=12.0)
    assert "&lt;row&gt;" in bars
    assert "2.0 s" in bars
    assert GanttChart([]).svg(now=0.0) == ""


def test_words_for_people():
    assert [format_duration(each) for each in (0.04, 12.7, 65, 3725, 90_000, None)][:5] == [
        "0.0 s",
        "12 s",
        "1 min 05 s",
        "1 h 02 min",
        "1 d 1 h",
    ]
    assert clean_value("a\x1b[1m\tb\r\nc\u202e") == "a\\x1b[1m\tb\nc\\u202e"
