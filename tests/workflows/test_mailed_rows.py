"""Rows of a query on their way to a mail: kept by the worker, before anybody hears that their task has succeeded."""

import sqlite3
import threading
from contextlib import closing

import pytest

from latchwork_workflows.alerts.messages import AlertRecord, Message, attach_query_result
from latchwork_workflows.alerts.sender import AlertSender
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.keys import build_result_file_name
from latchwork_workflows.logs.files import FileLogs
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.services import alerts as desk
from latchwork_workflows.services.context import ServiceContext
from latchwork_workflows.state import Outcome
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Identity, Role
from patience import eventually
from workflows.mail_servers import MailServer, running

from .working import log_of, put, result

pytestmark = pytest.mark.threads
MAIL = {"channel": "boss", "to": ["boss@example.org"], "subject": "Orders"}


@pytest.fixture
def shop(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as made:
        made.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
        made.executemany("INSERT INTO orders VALUES (?, ?)", [(1, "tea, black"), (2, None), (3, "Käse")])
        made.commit()
    return f"sqlite:///{tmp_path}/shop.db"


def query(store, task, shop, statement, **more):
    return put(store, task, {"connection": shop, "statement": statement, "mail": MAIL, **more}, type="sql")


def rows_of(logs, found, size=20_000_000):
    return logs.read(build_result_file_name(found.log_ref), 0, size).data.decode()


def test_all_rows_of_the_last_statement_are_kept_however_few_the_log_shows(store, logs, worker, shop):
    wanted = ["SELECT 7 AS seven", "SELECT id, name FROM orders ORDER BY id"]
    found = result(store, query(store, 1, shop, wanted, rows=1))
    assert (found.outcome, found.outputs["rows"]) == (Outcome.SUCCESS, 3), found.error
    assert rows_of(logs, found) == 'id,name\r\n1,"tea, black"\r\n2,\r\n3,Käse\r\n'
    assert "Käse" not in log_of(logs, found)


def test_secrets_are_masked_in_rows(store, logs, worker, shop):
    found = result(store, query(store, 1, shop, "SELECT :x AS x", parameters={"x": "a ${secret:x} b"}))
    assert rows_of(logs, found) == "x\r\na *** b\r\n"


def test_a_query_that_fails_or_mails_nothing_keeps_no_rows(store, logs, worker, shop):
    wrong = result(store, query(store, 1, shop, ["SELECT id FROM orders", "SELECT id FROM nothing"]))
    plain = result(store, put(store, 2, {"connection": shop, "statement": "SELECT id FROM orders"}, type="sql"))
    assert (wrong.outcome, plain.outcome) == (Outcome.FAILURE, Outcome.SUCCESS)
    for found in (wrong, plain):
        with pytest.raises(LookupError):
            rows_of(logs, found)


def test_rows_that_cannot_be_kept_fail_their_task_and_say_so(store, logs, worker, shop, monkeypatch):
    create = FileLogs.create

    def full(self, ref):
        if ref.endswith(".rows"):
            raise OSError(28, "No space left on device")
        return create(self, ref)

    monkeypatch.setattr(FileLogs, "create", full)
    found = result(store, query(store, 1, shop, "SELECT id FROM orders"))
    assert found.outcome is Outcome.FAILURE
    assert "its rows could not be stored for a mail: [Errno 28] No space left on device" in found.error


def test_of_more_rows_than_a_mail_takes_the_beginning_is_kept_and_told(store, logs, worker, shop):
    many = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 120000) "
    found = result(store, query(store, 1, shop, many + "SELECT id, printf('%0100d', id) AS text FROM n"))
    assert (found.outcome, found.outputs["rows"]) == (Outcome.SUCCESS, 120_000), found.error
    text = rows_of(logs, found)
    assert 8_900_000 < len(text) < 10_000_000
    assert text.endswith("\r\n")
    said = {"mail": MAIL, "log_ref": build_result_file_name(found.log_ref), "count_rows": 120_000}
    made = attach_query_result(
        Message("<1@x>", "s", "t", {}), AlertRecord(1, 1, 1, "rows", 1.0, 1, "orders", said), logs
    )
    assert "attached as orders.csv (only the first part)" in made.text
    whole = attach_query_result(
        Message("<1@x>", "s", "t", {}),
        AlertRecord(1, 1, 1, "rows", 1.0, 1, "orders", {**said, "count_rows": text.count("\n") - 1}),
        logs,
    )
    assert "beginning" not in whole.text


def test_rows_of_a_run_come_by_mail_as_a_table(stage, store, logs, worker, shop):
    """The whole way: master, worker, log store, sender, and a mail server."""
    with running(MailServer()) as server:
        context = ServiceContext(stage.database, DatabaseAccounts(stage.database))
        options = {"host": "127.0.0.1", "port": server.port, "security": "none", "sender": "flows@example.org"}
        desk.set_channel(context, Identity("ann", {"": Role.ADMIN}), "boss", "smtp", options)
        params = {"connection": shop, "statement": "SELECT id, name FROM orders ORDER BY id", "mail": MAIL}
        tasks = [{"name": "orders", "type": "sql", "params": params}]
        version = stage.apply(check_definition({"name": "report", "tasks": tasks}, TaskTypes()))
        with stage.master():
            stage.until(stage.start(version), "success")
        sender = AlertSender(stage.database, Secrets(environ={}, providers=()), token=1, logs=logs, poll_s=0.05)
        thread = threading.Thread(target=sender.run, name="sender")
        thread.start()
        try:
            eventually(lambda: server.mails, 30.0)
        finally:
            sender.stop()
            thread.join()
    (mail,) = server.mails
    assert (mail["Subject"], server.envelopes) == ("Orders", [["boss@example.org"]])
    assert "1   tea, black" in mail.get_content()
    assert "3   Käse" in mail.get_content()
