"""The live page: a thread that plays, and a web server on 127.0.0.1 that shows what it plays.

    Session (thread)  game.step() ─> frames ─> Server (aiohttp) ─> websockets of all open pages
                      <─ pause, speed, step, next, a person's answers ──────────────────────────┘

Nobody is played for nobody: without an open page the game stands still. What is kept is the game under way, so memory
stays level."""

import asyncio
import json
import sys
import threading
import time
import traceback
from pathlib import Path

from aiohttp import WSMsgType, web

from cleanrl_games.tools import watch_pages

HOST = "127.0.0.1"
MAX_MESSAGE = 64 * 1024
MAX_FRAMES = 6000  # of the game under way, for pages that are opened later
SEND_SECONDS = 20.0  # a page that takes nothing for so long is closed
END_SECONDS = 2.5
SPEEDS = (0, 0.25, 0.5, 1, 2, 4, 16)
MAIN_CURVES = (
    "charts/episodic_return",
    "charts/episodic_length",
    "charts/SPS",
    "losses/entropy",
    "losses/value_loss",
    "losses/explained_variance",
)
CURVE_GROUPS = ("eval/", "win_rate/", "elo/")
MAX_CURVES, MAX_POINTS = 16, 300


class NextGame(Exception):
    """Somebody asked for the next game, or for other players."""


class Stop(Exception):
    """The server closes."""


# --------------------------------------------------------------------------------------------------------------- curves


class Curves:
    """The main curves of a run's metrics.jsonl, read on from where the last look ended."""

    def __init__(self, path):
        self.path, self.offset = Path(path), 0
        self.series = {}  # name → {"points", "newest", "stride", "count"}

    def read(self):
        """→ whether there was anything new. A half-written last line waits for its end."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return False
        data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        for line in data.splitlines():
            try:
                row = json.loads(line)
                step = row["global_step"]
            except (ValueError, KeyError, TypeError):
                continue  # a line that a crash cut short
            for name, value in row.items():
                if self.is_main(name) and isinstance(value, int | float) and value == value:
                    self.add(name, step, value)
        return bool(data)

    def is_main(self, name):
        if name.endswith(("_n", "_low", "_high")):
            return False
        return name in MAIN_CURVES or name.startswith(CURVE_GROUPS)

    def add(self, name, step, value):
        """Keeps every stride-th point, so that a long run's curve stays as small as a short one's."""
        curve = self.series.setdefault(name, {"points": [], "newest": None, "stride": 1, "count": 0})
        curve["newest"] = [step, value]
        if curve["count"] % curve["stride"] == 0:
            curve["points"].append([step, value])
        curve["count"] += 1
        if len(curve["points"]) > MAX_POINTS:
            curve["points"] = curve["points"][::2]
            curve["stride"] *= 2

    def shown(self):
        order = sorted(self.series, key=lambda name: (not name.startswith(CURVE_GROUPS), name))
        shown = {}
        for name in order[:MAX_CURVES]:
            points, newest = self.series[name]["points"], self.series[name]["newest"]
            shown[name] = points if points[-1] == newest else [*points, newest]
        return shown


# -------------------------------------------------------------------------------------------------------------- session


class Session(threading.Thread):
    """Plays one game after another and obeys. `make_game(person, team)` opens a game; `refresh()` takes up newer models
    before each game and returns sentences about it; `publish(message)` brings a message to all pages and returns when
    they have it."""

    def __init__(self, make_game, refresh, publish, info, speed=1.0, person=False, team="", check_team=None):
        super().__init__(name="watch-session", daemon=True)
        self.make_game, self.refresh, self.publish_now, self.base_info = make_game, refresh, publish, info
        self.person, self.team, self.check_team = person, team, check_team
        self.condition = threading.Condition()
        self.paused, self.speed, self.steps, self.pages = False, speed, 0, 0
        self.wish, self.closing, self.answer, self.answered = None, False, None, False
        self.score = {"games": 0, "won": 0, "tied": 0, "lost": 0}
        self.game, self.frames, self.question, self.info, self.failure = None, [], None, None, None
        self.record, self.shown_at = False, 0.0

    # ------------------------------------------------------------------------------------ called by the server's thread

    def hello(self):
        """What a page that has just been opened needs to know"""
        return {
            "type": "hello",
            "info": self.info,
            "score": self.score,
            "frames": self.frames,
            "question": self.question,
        } | self.state()

    def state(self):
        return {"paused": self.paused, "speed": self.speed}

    def hear(self, message):
        """One message of a page → what to tell all pages, or None. A bad one is a ValueError with a sentence."""
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ValueError('A message is a JSON object with a "type".')
        handler = self.HANDLERS.get(message["type"])
        if handler is None:
            raise ValueError(
                f"There are no messages of type {message['type']!r}; there are {', '.join(self.HANDLERS)}."
            )
        with self.condition:
            told = handler(self, message)
            self.condition.notify_all()
        return told

    def on_pause(self, message):
        self.paused = True
        return {"type": "state", **self.state()}

    def on_resume(self, message):
        self.paused, self.steps = False, 0
        return {"type": "state", **self.state()}

    def on_step(self, message):
        self.paused = True
        self.steps = 1
        return {"type": "state", **self.state()}

    def on_next(self, message):
        self.wish = "next"

    def on_speed(self, message):
        if message.get("value") not in SPEEDS or isinstance(message["value"], bool):
            raise ValueError(f"A speed is one of {', '.join(map(str, SPEEDS))}; 0 is as fast as it goes.")
        self.speed = message["value"]
        return {"type": "state", **self.state()}

    def on_answer(self, message):
        if self.game is None or not self.person:
            raise ValueError("Nobody plays here: press “Play yourself” first.")
        if self.game.waits and self.question is None:
            raise ValueError("No choice is asked for now.")
        self.answer = self.game.check(message.get("answer"))
        self.answered = True

    def on_seat(self, message):
        if not isinstance(message.get("person"), bool):
            raise ValueError('A seat is taken or left with "person": true or false.')
        if message["person"] != self.person:
            self.person, self.wish = message["person"], "players"

    def on_team(self, message):
        if self.check_team is None:
            raise ValueError("Only VGC is played with a team of one's own.")
        if not isinstance(message.get("text"), str):
            raise ValueError('A team is a PokePaste in "text".')
        self.team, self.wish = self.check_team(message["text"]), "players"
        return {"type": "note", "text": "Your team is legal: a new battle begins with it."}

    def on_record(self, message):
        if not isinstance(message.get("on"), bool) or not hasattr(self.game, "record"):
            raise ValueError('Recording is for a person on the GBA: "on" is true or false.')
        self.record = self.game.record = message["on"]
        return {"type": "note", "text": "The episode will be kept." if self.record else "The episode will not be kept."}

    HANDLERS = {  # noqa: RUF012 (a table, never changed)
        "pause": on_pause, "resume": on_resume, "step": on_step, "next": on_next, "speed": on_speed,
        "answer": on_answer,
        "seat": on_seat, "team": on_team, "record": on_record,
    }  # fmt: skip

    def set_pages(self, count):
        with self.condition:
            self.pages = count
            self.condition.notify_all()

    def close(self):
        with self.condition:
            self.closing = True
            self.condition.notify_all()

    # ----------------------------------------------------------------------------------------- the session's own thread

    def publish(self, message):
        if self.closing:
            raise Stop
        self.publish_now(message)

    def obey(self):
        if self.closing:
            raise Stop
        if self.wish:
            raise NextGame

    def wait_turn(self, seconds):
        """Until the next frame may be shown."""
        with self.condition:
            while True:
                self.obey()
                due = self.shown_at + (seconds / self.speed if self.speed else 0.0)
                if not self.pages:
                    self.condition.wait()
                elif self.steps:
                    self.steps -= 1
                    return
                elif self.paused:
                    self.condition.wait()
                elif due > time.monotonic():
                    self.condition.wait(due - time.monotonic())
                else:
                    return

    def show(self, frames):
        for frame in frames:
            self.wait_turn(self.game.frame_seconds if self.frames else 0.0)
            self.shown_at = time.monotonic()
            with self.condition:
                self.frames.append(frame)
                del self.frames[:-MAX_FRAMES]
            self.publish({"type": "frame", "frame": frame})

    def ask(self, question):
        with self.condition:
            self.question = question
        self.publish({"type": "question", "question": question})

    def person_answer(self):
        """A person's answer: waited for, or what is held at this moment"""
        if not self.person:
            return None
        question = self.game.question()
        if not self.game.waits:
            self.ask(question)
            with self.condition:
                answer = self.answer
                self.answer = self.game.rest(answer) if hasattr(self.game, "rest") else answer
            return answer
        if question is None:
            return None
        with self.condition:
            self.answered = False
        self.ask(question)
        with self.condition:
            while not self.answered:
                self.obey()
                self.condition.wait()
            answer, self.answer, self.question = self.answer, None, None
        return answer

    def open_game(self):
        if self.game is not None:
            self.game.close()
        self.game = None
        self.game = self.make_game(self.person, self.team)
        if hasattr(self.game, "record"):
            self.game.record = self.record

    def begin(self):
        for text in self.refresh():
            self.publish({"type": "note", "text": text})
        names = [seat.name for seat in self.game.seats]
        you = next((side for side, seat in enumerate(self.game.seats) if seat.kind == "person"), None)
        info = self.base_info | {"names": names, "you": you, "frame_seconds": self.game.frame_seconds}
        frames = self.game.begin()
        info |= self.game.info()
        with self.condition:
            self.frames, self.question, self.answer, self.info = [], None, None, info
        self.publish({"type": "begin", "info": info, "score": self.score})
        return frames

    def play(self):
        """One game to its end"""
        frames = self.begin()
        self.show(frames)
        while "over" not in frames[-1]:
            frames = self.game.step(self.person_answer())
            self.show(frames)
        winner = frames[-1]["over"]["winner"]
        score = dict(self.score)
        score["games"] += 1
        score["tied" if winner is None else "lost" if winner else "won"] += 1
        self.score = score
        self.publish({"type": "score", "score": score})
        self.wait_turn(END_SECONDS)

    def run(self):
        try:
            while True:
                try:
                    if self.game is None:
                        self.open_game()
                    self.play()
                except NextGame:
                    wish, self.wish = self.wish, None
                    if wish == "players":
                        self.open_game()
                    else:
                        self.game.skip()
                except Stop:
                    raise
                except Exception as error:
                    # The page lives on and says what happened; the whole story is in the terminal.
                    traceback.print_exc()
                    self.failed(error)
        except Stop:
            pass
        finally:
            if self.game is not None:
                self.game.close()

    def failed(self, error):
        if self.game is not None:
            self.game.close()
        self.game = None
        with self.condition:
            self.paused = True
        self.publish({"type": "state", **self.state()})
        self.publish({"type": "error", "text": f"The game broke off: {error} “Next game” tries again."})
        with self.condition:
            while not self.wish and self.paused:
                self.obey()
                self.condition.wait()
            self.wish = None
            self.paused = False


# --------------------------------------------------------------------------------------------------------------- server


class Server:
    """Serves the page, its files, the websocket and the game under way as a file; nothing else, and to this machine
    only."""

    def __init__(self, port=0):
        self.port, self.sockets, self.loop, self.session = port, set(), None, None
        self.curves, self.curves_note = None, ""
        self.hosts = set()

    # --------------------------------------------------------------------------------------------------------- requests

    @web.middleware
    async def guard(self, request, handler):
        """A page of another site must not talk to this server, under whatever name it found its address."""
        origin = request.headers.get("Origin")
        if request.headers.get("Host") not in self.hosts:
            return web.Response(status=403, text=f"This server answers to {' and '.join(sorted(self.hosts))} only.\n")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return web.Response(status=403, text="Pages of other origins are refused.\n")
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = f"{watch_pages.LIVE_POLICY}; frame-ancestors 'none'"
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Cache-Control"] = "no-store"
            response.headers["Referrer-Policy"] = "no-referrer"
        return response

    async def index(self, request):
        return web.Response(text=watch_pages.index_html(), content_type="text/html")

    async def file(self, request):
        name = request.match_info["name"]
        if name not in watch_pages.FILES:  # a list, not a folder: no path leads anywhere else
            raise web.HTTPNotFound
        return web.Response(
            body=(watch_pages.FOLDER / name).read_bytes(), content_type=watch_pages.FILES[name], charset="utf-8"
        )

    async def save(self, request):
        session = self.session
        if not session.frames:
            raise web.HTTPNotFound(text="There is no game yet.\n")
        frames, info = list(session.frames), session.info | {"you": None}
        text = await asyncio.to_thread(watch_pages.replay_html, info, frames)
        return web.Response(
            text=text, content_type="text/html", headers={"Content-Disposition": 'attachment; filename="game.html"'}
        )

    async def socket(self, request):
        if request.headers.get("Origin") is None:
            return web.Response(status=403, text="A websocket without an origin is refused.\n")
        socket = web.WebSocketResponse(heartbeat=30.0, max_msg_size=MAX_MESSAGE)
        await socket.prepare(request)
        await socket.send_json(self.session.hello() | {"curves": self.shown_curves()})
        self.sockets.add(socket)
        self.session.set_pages(len(self.sockets))
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    await self.hear(socket, message.data)
                elif message.type == WSMsgType.BINARY:
                    await socket.send_json({"type": "error", "text": "A message is text."})
        finally:
            self.sockets.discard(socket)
            self.session.set_pages(len(self.sockets))
        return socket

    async def hear(self, socket, data):
        try:
            told = await asyncio.to_thread(self.session.hear, json.loads(data))
        except (ValueError, RecursionError) as error:
            await socket.send_json({"type": "error", "text": str(error) or "This is not JSON."})
            return
        if told is not None:
            await self.broadcast(told)

    # ---------------------------------------------------------------------------------------------------------- sending

    async def broadcast(self, message):
        text = json.dumps(message)
        for socket in list(self.sockets):
            try:
                await asyncio.wait_for(socket.send_str(text), SEND_SECONDS)
            except (TimeoutError, ConnectionError):
                self.sockets.discard(socket)
                self.session.set_pages(len(self.sockets))
                await socket.close()

    def publish(self, message):
        """For the session's thread: back when all pages have taken the message, so a slow page slows the game, not the
        memory."""
        future = asyncio.run_coroutine_threadsafe(self.broadcast(message), self.loop)
        while not self.session.closing:
            try:
                return future.result(0.5)
            except TimeoutError:
                if future.done():
                    raise
        future.cancel()
        return None

    def shown_curves(self):
        return {"series": self.curves.shown() if self.curves else {}, "note": self.curves_note}

    async def watch_curves(self):
        while True:
            if self.curves is not None and await asyncio.to_thread(self.curves.read):
                await self.broadcast({"type": "curves", "curves": self.shown_curves()})
            await asyncio.sleep(2.0)

    # ---------------------------------------------------------------------------------------------------------- running

    async def start(self):
        app = web.Application(middlewares=[self.guard])
        app.router.add_get("/", self.index)
        app.router.add_get("/ws", self.socket)
        app.router.add_get("/save.html", self.save)
        app.router.add_get("/page/{name}", self.file)
        self.loop = asyncio.get_running_loop()
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        site = web.TCPSite(self.runner, HOST, self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.hosts = {f"{HOST}:{self.port}", f"localhost:{self.port}"}
        return f"http://{HOST}:{self.port}/"

    async def serve(self, session, ready):
        """Until the task is cancelled. `ready(address)` is called when pages can be opened."""
        self.session = session
        address = await self.start()
        session.start()
        curves = asyncio.create_task(self.watch_curves())
        try:
            ready(address)
            while session.is_alive():
                await asyncio.sleep(0.5)
            print("The session has ended.", file=sys.stderr, flush=True)
        finally:
            curves.cancel()
            session.close()
            for socket in list(self.sockets):
                await socket.close()
            await self.runner.cleanup()
            await asyncio.to_thread(session.join, 10.0)
