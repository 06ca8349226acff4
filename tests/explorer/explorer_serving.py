"""A running explorer for tests: the server in a thread, and plain requests to it."""

import contextlib
import http.client
import json
import threading
import time

from lossnav.cli.explore import listening
from lossnav.explorer import api, workers
from lossnav.explorer.server import Server, configuration, create_app

ENDLESS = {"gamma": 3.0}
"""Settings of a request that `endless` never answers."""


def endless(connection):
    """The life of a worker for which some work has no end, however quick the machine is."""
    answer = api.answer

    def never(question, request):
        return time.sleep(3600) if request.items() >= ENDLESS.items() else answer(question, request)

    api.answer = never
    workers.serve(connection)


class Running:
    """The address of a running explorer, its application, and a way to ask."""

    def __init__(self, app, port, server):
        self.app, self.port, self.server = app, port, server
        self.address = f"http://127.0.0.1:{port}/"

    def connections(self):
        """The connections that are open."""
        return [*self.server.server_state.connections]

    def send(self, method, path, body=None, headers=None, timeout=90):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def ask(self, question, request, **headers):
        """Status and JSON of an answer."""
        headers = {"Content-Type": "application/json"} | headers
        status, _, body = self.send("POST", f"/api/{question}", json.dumps(request), headers)
        return status, json.loads(body)


@contextlib.contextmanager
def running(**options):
    """An explorer on a free port."""
    listener = listening("127.0.0.1", 0)
    app = create_app(**options)
    server = Server(configuration(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    try:
        yield Running(app, listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
