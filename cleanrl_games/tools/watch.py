"""Watch a model play, see what it thinks, and play against it: one page for all games.

    python cleanrl_games/tools/watch.py runs/<run>                        a run, also one that is still training
    python cleanrl_games/tools/watch.py runs/<run> --against heuristics   or another run, a model.zip, "self"
    python cleanrl_games/tools/watch.py runs/<run> --play                 you against it
    python cleanrl_games/tools/watch.py runs/<run> --save game.html       one game as one page; or game.gif
    python cleanrl_games/tools/watch.py battle.log --save battle.html     any Showdown log

The page is on 127.0.0.1 and asks nobody else for anything.
"""

import asyncio
import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import tyro

from cleanrl_games.envs.vgc.install import InstallError
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import models, watch_pages


@dataclasses.dataclass
class Args:
    player: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_OR_RUN")]
    """whom to watch: a run's folder, a model.zip, a scripted player by name (with --game), or a Showdown log (.log)"""
    against: str = ""
    """the opponent: a scripted player, a run, a model.zip, or self; empty = the game's strongest scripted player"""
    play: bool = False
    """you take the opponent's seat; on the GBA the buttons"""
    save: str = ""
    """do not open a page: play one game and write it to this .html or .gif file"""
    game: str = ""
    """osrs, vgc, rocketleague or pokemon: needed only when nobody is a model"""
    seed: int = 1
    """seed of the games and of the players' dice"""
    deterministic: bool = False
    """models take the likeliest action instead of sampling"""
    speed: float = 1.0
    """of the page at its start: 0.25, 0.5, 1, 2, 4, 16, or 0 = as fast as it goes"""
    port: int = 0
    """of the page; 0 = any that is free"""
    browser: bool = True
    """open the page in a browser; with --no-browser its address is only printed"""
    camera: str = ""
    """GIF: which camera; Rocket League has stands, ball, "blue car", "orange car", above; OSRS both, blue, orange,
    above"""
    pace: float = 1.0
    """GIF: how many times faster than the game itself"""
    width: int = 0
    """GIF: pixels; 0 = what suits the game"""
    last_seconds: float = 0.0
    """GIF and page: only the end of the game, 0 = all of it"""
    team: str = ""
    """VGC: a PokePaste file, the team that you play with"""
    battle_format: str = ""
    """VGC: the format, on its held-out teams; empty = what the model was trained on"""
    loadouts: tuple[str, ...] = ()
    """OSRS: loadouts to fight with; empty = what the model was trained with"""
    team_size: int = 0
    """Rocket League: cars per team; 0 = those of the stage that the model had reached"""
    record_dir: str = "expert_data/mine"
    """GBA: where an episode that you record goes"""
    threads: int = 1
    """torch threads"""
    trust_source: bool = False
    """rebuild a model with the script.py beside it when no script here has its hash; this runs that file's code"""


@dataclasses.dataclass
class Seat:
    """Who plays: a model, a scripted player, or a person."""

    kind: str
    name: str
    model: Any = None
    follow: Path | None = None  # a run's folder, whose newer models are taken up
    stamp: int = 0  # of the model's file when it was read


# ---------------------------------------------------------------------------------------------------------------- games


def osrs_settings(args, model):
    trained = model.settings() if model else {}
    settings = {name: trained[name] for name in ("mirror", "max_ticks") if name in trained}
    return settings | {
        "loadouts": args.loadouts or tuple(trained.get("loadouts", ("lms_med",))),
        "loadout_file": trained.get("loadout_file") or None,
    }


def rocketleague_settings(args, model):
    trained = model.settings() if model else {}
    settings = {name: trained[name] for name in ("action_repeat", "mesh_dir", "generated_meshes") if name in trained}
    size = 1 if args.play else args.team_size
    if not size and model:
        reached = [stage for stage in model.script.STAGES if stage.name == model.metadata.get("stage")]
        size = max(reached[0].team_sizes) if reached else 0
    return settings | {"team_size": size or 1, "max_seconds": trained.get("eval_seconds", 60.0)}


def vgc_settings(args, model):
    return {"battle_format": args.battle_format or (model.metadata["battle_format"] if model else "gen9vgc2024regg")}


def pokemon_settings(args, model):
    trained = model.settings() if model else {}
    settings = {name: trained[name] for name in ("max_steps", "backend", "compass") if name in trained}
    return settings | {"rom_path": trained.get("rom_path") or None, "record_dir": args.record_dir}


# game: the module of its adapter, its class, the settings, what its value means
GAMES = {
    "osrs": ("cleanrl_games.envs.osrs.watch", "Fight", osrs_settings, "expected discounted return"),
    "vgc": ("cleanrl_games.envs.vgc.watch", "Battle", vgc_settings, "-1 = sure to lose, 1 = sure to win"),
    "rocketleague": (
        "cleanrl_games.envs.rocketleague.watch",
        "Match",
        rocketleague_settings,
        "expected discounted return",
    ),
    "pokemon": ("cleanrl_games.envs.pokemon.watch", "Episode", pokemon_settings, "expected discounted return"),
}


def adapter_of(game):
    return importlib.import_module(GAMES[game][0])


def scripted_players(game):
    adapter = adapter_of(game)
    return (*adapter.OPPONENTS, *getattr(adapter, "SCRIPTED", ()))


# -------------------------------------------------------------------------------------------------------------- players


def wait_for_model(folder):
    """A run that has just begun has no model yet."""
    if folder.is_dir() and not (folder / "model.zip").is_file() and (folder / "config.yaml").is_file():
        print(f"{folder} has no model yet; waiting for its first one (Ctrl-C stops).", flush=True)
        while not (folder / "model.zip").is_file():
            time.sleep(1.0)


def model_seat(word, game, args):
    path = Path(word)
    wait_for_model(path)
    model = models.load(path, game or None, args.trust_source)
    follow = path if path.is_dir() else None
    return Seat("model", model.name, model, follow, model.path.stat().st_mtime_ns)


def find_seats(args):
    """Words of the command line → (game, [player's seat, opponent's seat]); the GBA has one seat"""
    if args.game and args.game not in GAMES:
        raise models.ModelError(f"--game should be one of {', '.join(GAMES)}, found {args.game!r}.")
    known = {name for game in GAMES for name in scripted_players(game)} if args.game else set()
    seats, game = [], args.game
    if args.player in known:
        seats.append(Seat("scripted", args.player))
    else:
        seats.append(model_seat(args.player, game, args))
        game = seats[0].model.game
    if game not in GAMES:
        raise models.ModelError(f"There is no way yet to watch {game!r}; there are: {', '.join(GAMES)}.")
    names = scripted_players(game)
    for seat in seats:
        if seat.kind == "scripted" and seat.name not in names:
            raise models.ModelError(
                f"{seat.name!r} is a scripted player of another game; {game} has: {', '.join(names)}."
            )
    if game == "pokemon":
        if args.against:
            raise models.ModelError("On the GBA there is no opponent: leave --against out.")
        return game, seats
    word = args.against or adapter_of(game).DEFAULT_OPPONENT
    if word == "self" and seats[0].kind == "model":
        seats.append(dataclasses.replace(seats[0], name=f"{seats[0].name} too"))
    elif word in names:
        seats.append(Seat("scripted", word))
    else:
        seats.append(model_seat(word, game, args))
    if seats[0].name == seats[1].name and seats[1].kind == "model":
        seats[1].name = f"{seats[1].name} (2)"
    return game, seats


def take_up(seats, trust_source):
    """Newer models of runs that are training → sentences about them. A model that cannot be read leaves the old one in
    its seat."""
    said = []
    for seat in seats:
        if seat.follow is None:
            continue
        path = seat.follow / "model.zip"
        try:
            stamp = path.stat().st_mtime_ns
            if stamp == seat.stamp:
                continue
            seat.stamp = stamp
            seat.model = models.load(path, seat.model.game, trust_source)
            said.append(f"{seat.name}: its newest model plays from now on.")
        except (models.ModelError, OSError) as error:
            said.append(f"{seat.name}: the newest model cannot be taken up, the one before plays on. {error}")
    return said


class Table:
    """Who plays what: makes games for a session, with a person in the last seat or without."""

    def __init__(self, args, game, seats):
        self.args, self.game, self.seats = args, game, seats
        self.module = adapter_of(game)
        _, class_name, settings, self.value_means = GAMES[game]
        self.make = getattr(self.module, class_name)
        judged = next((seat.model for seat in seats if seat.kind == "model"), None)
        self.settings = settings(args, judged)
        self.opened = 0

    def open(self, person, team=""):
        seats = [*self.seats[:-1], Seat("person", "you")] if person else self.seats
        settings = dict(self.settings)
        if self.game == "vgc":
            settings["team"] = team
        if self.game == "pokemon" and person:
            settings["adviser"] = self.seats[0].model
        if self.game == "rocketleague" and person:
            settings["team_size"] = 1
        self.opened += 1
        return self.make(
            seats, seed=self.args.seed + 1000 * (self.opened - 1), deterministic=self.args.deterministic, **settings
        )

    def info(self):
        detail = {
            "vgc": self.settings.get("battle_format", ""),
            "osrs": ", ".join(self.settings.get("loadouts", ())),
        }.get(self.game, "")
        return {"game": self.game, "detail": detail, "value_means": self.value_means}

    def check_team(self, text):
        return self.module.read_team(text, self.settings["battle_format"])


# ---------------------------------------------------------------------------------------------------------------- files


def play_game(table):
    """One game to its end → (info, frames)"""
    game = table.open(person=False)
    try:
        frames = game.begin()
        while "over" not in frames[-1]:
            frames += game.step()
        names = [seat.name for seat in game.seats]
        return table.info() | {"names": names, "frame_seconds": game.frame_seconds} | game.info(), frames
    finally:
        game.close()


def read_battle(path):
    """A Showdown log → (info, frames)"""
    from cleanrl_games.envs.vgc import watch as vgc

    try:
        return vgc.page_of(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise models.ModelError(f"{path} cannot be read as a battle log: {error}") from None


def end_of(info, frames, seconds):
    """The last seconds of a game. A VGC board is told by changes, so there the first event keeps all before it."""
    count = round(seconds / info["frame_seconds"])
    if not seconds or count >= len(frames):
        return frames
    kept = [dict(frame) for frame in frames[-count:]]
    if info["game"] == "vgc":
        changes = {}
        for frame in frames[: len(frames) - count + 1]:
            changes |= frame["scene"]["event"]["changes"]
        event = kept[0]["scene"]["event"]
        kept[0]["scene"] = {"event": event | {"changes": changes}}
    return kept


def save(args, info, frames):
    frames = end_of(info, frames, args.last_seconds)
    gif = {"width": args.width, "camera": args.camera, "pace": args.pace} if args.save.endswith(".gif") else {}
    watch_pages.write_game(args.save, info, frames, **gif)
    print(
        f"Wrote {args.save}: {frames[-1]['over']['text']}, {len(frames)} scenes, "
        f"{Path(args.save).stat().st_size // 1000} kB",
        flush=True,
    )


# ----------------------------------------------------------------------------------------------------------------- page


def serve(args, table, team):
    from cleanrl_games.tools import watch_server

    server = watch_server.Server(args.port)
    followed = next((seat.follow for seat in table.seats if seat.follow is not None), None)
    if followed is not None:
        server.curves, server.curves_note = watch_server.Curves(followed / "metrics.jsonl"), followed.resolve().name
        server.curves.read()
    session = watch_server.Session(
        make_game=table.open,
        refresh=lambda: take_up(table.seats, args.trust_source),
        publish=server.publish,
        info=table.info(),
        speed=args.speed,
        person=args.play,
        team=team,
        check_team=table.check_team if table.game == "vgc" else None,
    )

    def ready(address):
        print(f"{address}  (Ctrl-C stops)", flush=True)
        if args.browser:
            webbrowser.open(address)

    async def main():
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve(session, ready)

    try:
        asyncio.run(main())
    except OSError as error:
        raise models.ModelError(
            f"Port {args.port} on 127.0.0.1 cannot be used ({error.strerror}): choose another with --port."
        ) from None


def check(args):
    """What is wrong with the settings, before anything is loaded"""
    from cleanrl_games.tools.watch_server import SPEEDS

    if args.speed not in SPEEDS:
        raise models.ModelError(f"--speed should be one of {', '.join(map(str, SPEEDS))}, found {args.speed:g}.")
    if not 0 <= args.port < 65536:
        raise models.ModelError(f"--port should be from 0 to 65535, found {args.port}.")
    if args.save and args.play:
        raise models.ModelError(
            "--save plays a game without a person: leave --play out, and save from the page instead."
        )
    if args.pace <= 0 or args.width < 0 or args.last_seconds < 0 or args.threads < 1:
        raise models.ModelError("--pace and --threads should be above 0, --width and --last-seconds not below it.")
    if args.save:
        try:
            watch_pages.check_path(args.save)
        except ValueError as error:
            raise models.ModelError(str(error)) from None


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    try:
        check(args)
        torch.set_num_threads(args.threads)
        if Path(args.player).suffix == ".log":
            if not args.save:
                args.save = str(Path(args.player).with_suffix(".html"))
            save(args, *read_battle(args.player))
            return
        game, seats = find_seats(args)
        table = Table(args, game, seats)
        if args.team and game != "vgc":
            raise models.ModelError("--team is for VGC.")
        try:
            team = table.check_team(Path(args.team).read_text(encoding="utf-8")) if args.team else ""
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise models.ModelError(f"--team {args.team}: {error}") from None
        try:
            if args.save:
                save(args, *play_game(table))
            else:
                serve(args, table, team)
        except ValueError as error:  # a loadout that is not there, a team size that no person can drive
            raise models.ModelError(str(error)) from None
    except (models.ModelError, BadInput, InstallError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped.") from None


if __name__ == "__main__":
    main()
