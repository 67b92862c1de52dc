"""Real Showdown servers on this machine, for battles over a websocket: `python -m cleanrl_games.envs.vgc servers
--num-servers 4`.

    servers.py ── process group ──> node pokemon-showdown start PORT ──> its network and simulator processes
                                       └── cwd: a scratch folder of links into the cached package, with its own config
                                       and logs

Everything listens on 127.0.0.1 only. A server writes next to its own code, so each runs in a folder of its own whose
code is links: the cached package stays as it was installed. Without security (no passwords, no throttle): for bots, not
for people."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from cleanrl_games.envs.vgc.install import InstallError, ensure_showdown, formats, node, node_env, regulations

HOST = "127.0.0.1"
# A public server gives each of these a process of its own; here they would only be memory.
IN_MAIN_PROCESS = (
    "localartemis remoteartemis battlesearch datasearch friends chatdb pm modlog validator verifier".split()
)
START_SECONDS = 90
STOP_SECONDS = 5
OWN_FOLDERS = ("config", "logs")
# Folders that the server expects and does not create; without them it dies with ENOENT.
NEEDED = (
    "config/chat-plugins",
    "config/ladders",
    "logs/chat",
    "logs/ladderip",
    "logs/modlog",
    "logs/randbats",
    "logs/repl",
)


class ServerError(RuntimeError):
    """A server could not be started or has stopped; the message says which and why."""


def server_config(port: int) -> str:
    """config.js: loopback only, one simulator process, and none of what a public server needs."""
    settings = {
        "port": port,
        "bindaddress": HOST,
        "subprocesses": dict.fromkeys(IN_MAIN_PROCESS, 0) | {"network": 1, "simulator": 1},
        "noipchecks": True,
        "nothrottle": True,
        "noguestsecurity": True,
        "crashguard": False,
        "repl": False,
        "watchconfig": False,
        "loginserver": f"http://{HOST}:1/",  # nobody answers there, so no name is ever looked up outside
        "backdoor": False,
        "disablehotpatchall": True,
    }
    return "".join(f"exports.{name} = {json.dumps(value)};\n" for name, value in settings.items())


def custom_formats() -> str:
    """The regulations that the package does not list, as formats of this server: what its base has, and rules on
    top."""
    entries = []
    for regulation in regulations().values():
        base = formats()[regulation["base"]]
        marks = {"-": "banlist", "*": "restricted"}
        entry = {"name": regulation["name"], "base": base, "banlist": [], "restricted": []}
        for rule in regulation["rules"]:
            entry[marks[rule[0]]].append(rule[1:])
        entries.append(entry)
    # The base's own fields, since a ruleset that names a format brings its rules but neither its mod nor its game type.
    return (
        "const {Formats} = require('./formats');\n"
        f"exports.Formats = [{{section: 'Regulations'}}, ...{json.dumps(entries)}.map(({{name, base, banlist, "
        f"restricted}}) => {{\n"
        "  const found = Formats.find(format => format.name === base);\n"
        # what its base limits is banned elsewhere: it is only no longer let in
        "  const limited = found.restricted || [];\n"
        "  const bans = banlist.filter(rule => !limited.includes(rule));\n"
        "  const kept = limited.filter(rule => !banlist.includes(rule));\n"
        "  return {...found, name, banlist: [...(found.banlist || []), ...bans], restricted: [...kept, "
        "...restricted]};\n"
        "})];\n"
    )


def link_all(source: Path, folder: Path, but: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name not in but:
            (folder / entry.name).symlink_to(entry)


class Server:
    def __init__(self, port: int):
        self.port = port
        self.address = f"ws://{HOST}:{port}/showdown/websocket"
        self.folder = Path(tempfile.mkdtemp(prefix=f"showdown-{port}-"))
        self.process: subprocess.Popen | None = None

    def start(self, installed: Path):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as error:
                raise ServerError(
                    f"Port {self.port} on {HOST} cannot be used ({error.strerror}): another program, perhaps another "
                    "server, has it. Stop that one or choose others with --first-port."
                ) from error
        package = installed / "node_modules" / "pokemon-showdown"
        link_all(package, self.folder, but=(*OWN_FOLDERS, "dist"))
        link_all(package / "dist", self.folder / "dist", but=("config",))
        link_all(package / "dist" / "config", self.folder / "dist" / "config", but=("custom-formats.js",))
        (self.folder / "dist" / "config" / "custom-formats.js").write_text(custom_formats(), encoding="utf-8")
        (self.folder / "node_modules").symlink_to(installed / "node_modules")
        for name in NEEDED:
            (self.folder / name).mkdir(parents=True)
        for entry in (package / "config").iterdir():
            if not (self.folder / "config" / entry.name).exists():
                (self.folder / "config" / entry.name).symlink_to(entry)
        (self.folder / "config" / "config.js").write_text(server_config(self.port), encoding="utf-8")
        # Links are kept as paths, so that the server takes this folder, not the cached one, for its home.
        flags = ["--preserve-symlinks", "--preserve-symlinks-main"]
        script = [str(self.folder / "pokemon-showdown"), "start", "--no-security", "--skip-build", str(self.port)]
        with open(self.folder / "server.log", "wb") as log:
            self.process = subprocess.Popen(
                [node(), *flags, *script],
                cwd=self.folder,
                env=node_env(installed),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own process group: the helpers it starts can be ended with it
            )

    def log_tail(self) -> str:
        lines = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-15:])

    def check(self):
        if self.process.poll() is not None:
            raise ServerError(
                f"The Showdown server on port {self.port} has stopped (exit code {self.process.returncode}). "
                f"Its last words:\n{self.log_tail()}"
            )

    def wait_until_ready(self, seconds: float = START_SECONDS):
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                with urllib.request.urlopen(f"http://{HOST}:{self.port}/showdown/info", timeout=2) as answer:
                    if answer.status == 200:
                        return
            if time.monotonic() > deadline:
                raise ServerError(
                    f"The Showdown server on port {self.port} did not answer within {seconds:.0f} s. Its last "
                    f"words:\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def stop(self):
        """Ends the server and every process it started, then its folder; safe to call more than once."""
        if self.process is not None:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)
            wait_for_group(self.process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for_group(group: int, seconds: float = STOP_SECONDS):
    """Until no process of the group is left; they have been killed, so this is a matter of milliseconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)


def start_servers(num_servers: int, first_port: int = 8000) -> list[Server]:
    """Servers on consecutive ports that answer. All or none: if one cannot start, the others are stopped again."""
    if num_servers < 1:
        raise ServerError(f"--num-servers {num_servers}: at least one server is needed.")
    installed = ensure_showdown()
    servers = []
    try:
        for index in range(num_servers):
            servers.append(Server(first_port + index))
            servers[-1].start(installed)
        for server in servers:
            server.wait_until_ready()
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


@contextlib.contextmanager
def local_servers(num_servers: int = 1, first_port: int = 8000):
    """`with local_servers(2) as addresses:` websocket addresses of servers that live as long as the block."""
    servers = start_servers(num_servers, first_port)
    try:
        yield [server.address for server in servers]
    finally:
        for server in servers:
            server.stop()


def client_words(port: int) -> str:
    """Where a person plays. The server itself has no client: its page sends the browser on to Showdown's own."""
    return (
        f"In a real client: open http://{HOST}:{port}/ (it leads to Showdown's client on the Internet; battles stay "
        f"here)"
    )


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--num-servers", type=int, default=1, help="how many servers, on consecutive ports")
    parser.add_argument("--first-port", type=int, default=8000, help="port of the first one")


def run(args: argparse.Namespace) -> int:
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    servers = []
    try:
        servers = start_servers(args.num_servers, args.first_port)
        for server in servers:
            print(f"ready {server.address}", flush=True)
        for server in servers:
            print(client_words(server.port), flush=True)
        print("Ctrl-C stops them.", flush=True)
        while True:
            for server in servers:
                server.check()
            time.sleep(1)
    except KeyboardInterrupt:
        return 0
    except (ServerError, InstallError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not leave half of them alive
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for server in servers:
            server.stop()
        if servers:
            print(f"stopped {len(servers)} server{'s' if len(servers) > 1 else ''}", flush=True)
