#!/usr/bin/env python3
"""Runs schemathesis against the control socket of live runs.

    python3 -m venv /tmp/schemathesis && /tmp/schemathesis/bin/pip install schemathesis
    /tmp/schemathesis/bin/python scripts/schemathesis/run.py HYPROBE RUN_OPTION… [-- SCHEMATHESIS_OPTION…]

schemathesis speaks TCP, and the control socket is a Unix socket: a bridge passes every byte on. `POST /machine/stop` ends the run, so the
bridge starts the next run before it passes on the next connection: no operation is left out.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
DESCRIPTION = HERE.parent.parent / "docs" / "openapi.json"
START_SECONDS = 120
STOP = (b"POST /machine/stop ", b"POST /machine/stop?")
# The hooks ask for as many events, which must be there.
EVENTS = 5


class Runs:
    """One live run after another, at the same socket."""

    def __init__(self, command, folder):
        self.path = folder / "control.sock"
        self.command = [*command, "--control", str(self.path)]
        self.log = open(folder / "log", "w+")
        self.lock = threading.Lock()
        self.process = None
        self.ends_soon = False
        self.started = 0

    def connect(self):
        """A connection to a run that goes on."""
        with self.lock:
            if self.ends_soon:
                self.process.wait(START_SECONDS)
                self.ends_soon = False
            if self.process is None or self.process.poll() is not None:
                self.start()
            try:
                return self.open()
            except (FileNotFoundError, ConnectionRefusedError):
                # The run has ended in another way: `start` looks how.
                self.process.wait(START_SECONDS)
                self.start()
                return self.open()

    def start(self):
        if self.process is not None and self.process.returncode != 0:
            self.fail(f"a run ended with {self.process.returncode}")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log
        )
        self.started += 1
        began = time.monotonic()
        while not self.path.exists():
            if self.process.poll() is not None or time.monotonic() - began > START_SECONDS:
                self.fail("a run does not start")
            time.sleep(0.01)
        with self.open() as stream:
            stream.settimeout(START_SECONDS)
            request = f"GET /events?from=1&limit={EVENTS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            stream.sendall(request.encode())
            while stream.recv(65536):
                pass

    def open(self):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(str(self.path))
        return stream

    def stop(self):
        with self.lock:
            if self.process is not None and self.process.poll() is None:
                self.process.terminate()
                self.process.wait(START_SECONDS)

    def fail(self, why):
        self.log.seek(0)
        print(f"{why}: {' '.join(self.command)}\n{self.log.read()}", file=sys.stderr, flush=True)
        os._exit(3)


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone: so is the other.
        for stream in (source, target):
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def serve(client, runs):
    first = client.recv(65536)
    with client, runs.connect() as server:
        if first.startswith(STOP):
            runs.ends_soon = True
        server.sendall(first)
        upward = threading.Thread(target=copy, args=(client, server), daemon=True)
        upward.start()
        copy(server, client)


def accept(listener, runs):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, runs), daemon=True).start()


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    if not arguments:
        sys.exit(__doc__)
    hyprobe, *run_options = arguments
    with tempfile.TemporaryDirectory() as folder:
        command = [hyprobe, "run", "--console", "none", "--output", "/dev/null", *run_options]
        runs = Runs(command, pathlib.Path(folder))
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=accept, args=(listener, runs), daemon=True).start()
        port = listener.getsockname()[1]
        program = pathlib.Path(sys.executable).parent / "schemathesis"
        tested = subprocess.run(
            [program, "--config-file", HERE / "schemathesis.toml", "run", DESCRIPTION]
            # A connection for each request: the bridge sees where a request begins.
            + ["--url", f"http://127.0.0.1:{port}", "--header", "Connection: close", *options],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        runs.stop()
        print(f"{runs.started} runs of {' '.join(command)}")
        sys.exit(tested.returncode)


main()
