"""A mail server and a web server for tests: real sockets, and the faults that a test asks for."""

import email
import email.policy
import json
import socketserver
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What a server does instead of taking a message.
FAULTS = ("hang", "hang at the end", "refuse", "reject", "drop at the end", "slow")


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mail by SMTP: ``mails`` are what it has accepted, ``seen`` what came, accepted or not."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, *, user="", password="", tls=None):
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.mails, self.envelopes, self.commands = [], [], []
        self.fault, self.refused = "", set()
        self.user, self.password, self.tls = user, password, tls
        self.gate = threading.Event()
        self.on_data = lambda: None

    @property
    def port(self):
        return self.server_address[1]

    def handle_error(self, request, client_address):
        """A client that went away."""


class _Conversation(socketserver.StreamRequestHandler):
    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())
        self.wfile.flush()

    def handle(self):
        fault = self.server.fault
        if fault == "hang":
            self.server.gate.wait(30)
            return
        if fault == "slow":
            for each in "220 slowly\r\n" * 100:
                self.wfile.write(each.encode())
                self.wfile.flush()
                if self.server.gate.wait(0.1):
                    return
        self.say("220 test")
        self.to, self.is_known = [], not self.server.user
        while line := self.rfile.readline():
            word = line.decode("latin-1").strip()
            self.server.commands.append(word)
            if not self.answer(word.split(" ")[0].split(":")[0].upper(), word):
                return

    def answer(self, verb, word):
        server = self.server
        if verb == "EHLO":
            more = (["STARTTLS"] if server.tls else []) + (["AUTH PLAIN"] if server.user else [])
            for each in ["test", *more][:-1]:
                self.say(f"250-{each}")
            self.say(f"250 {['test', *more][-1]}")
        elif verb == "STARTTLS":
            self.say("220 go")
            self.connection = server.tls.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        elif verb == "AUTH":
            import base64

            given = base64.b64decode(word.split(" ")[2]).split(b"\0")[1:]
            self.is_known = given == [server.user.encode(), server.password.encode()]
            self.say("235 hello" if self.is_known else f"535 no, not {given[1].decode()}")
        elif verb == "MAIL":
            self.say("250 yes" if self.is_known else "530 who are you")
        elif verb == "RCPT":
            address = word.partition("<")[2].partition(">")[0]
            if address in server.refused:
                self.say("550 nobody of this name")
            else:
                self.to.append(address)
                self.say("250 yes")
        elif verb == "DATA":
            return self.data()
        elif verb == "QUIT":
            self.say("221 bye")
            return False
        else:
            self.say("250 whatever")
        return True

    def data(self):
        server = self.server
        if server.fault in {"refuse", "reject"}:
            self.say("451 later, hunter2" if server.fault == "refuse" else "554 never")
            return True
        self.say("354 go on")
        lines = []
        while (line := self.rfile.readline()) not in {b".\r\n", b""}:
            lines.append(line[1:] if line.startswith(b".") else line)
        server.on_data()
        server.mails.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))
        server.envelopes.append(self.to)
        if server.fault == "hang at the end":
            server.gate.wait(30)
            return False
        if server.fault == "drop at the end":
            return False
        self.say("250 taken")
        return True


class HookServer(ThreadingHTTPServer):
    """Takes POSTs: ``posts`` has path, headers and JSON of each; answers as ``answer`` says."""

    daemon_threads = True

    def __init__(self, tls=None):
        super().__init__(("127.0.0.1", 0), _Hook)
        self.posts, self.answer, self.headers = [], 200, {}
        self.gate = threading.Event()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    @property
    def port(self):
        return self.server_address[1]

    def handle_error(self, request, client_address):
        """A client that went away."""


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, dict(self.headers), raw, json.loads(raw)))
        answer = self.server.answer
        if answer == "hang":
            self.server.gate.wait(30)
            return
        if answer == "drop":
            return
        self.send_response(answer)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"said hunter2")

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def running(server):
    """A server while a test asks it."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="test-server")
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def tls_of(certificate, key):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate, key)
    return made
