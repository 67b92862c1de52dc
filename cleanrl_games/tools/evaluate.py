"""How well does it play? Scores with 95 % intervals for models of any game, against scripted players and each other.

    python cleanrl_games/tools/evaluate.py runs/<run> --against nh random runs/<other run> --episodes 1000
    python cleanrl_games/tools/evaluate.py runs/<run> --team my_team.txt        # VGC: my team against the field

A player is a run's folder, a model.zip, or the name of one of the game's scripted players. All fights of a pairing are
played at once. In the score a tie counts half, and the interval is Wilson's; wins, ties and losses stand beside it.
"""

import dataclasses
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import tyro

from cleanrl_games.runtime.files import write_atomically
from cleanrl_games.runtime.metrics import wilson
from cleanrl_games.runtime.settings import Count, Size, parse_flags
from cleanrl_games.tools import models, watch_pages


@dataclasses.dataclass
class Args:
    players: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL…")]
    """whom to judge: run folders, model.zip files, or scripted players by name"""
    against: tuple[str, ...] = ()
    """whom they play: the same kinds of players; empty = every scripted player of the game. Rocket League: also
    FILE.pt=ADAPTER.py, a TorchScript bot of another project with its adapter (tools/foreign_bot.py)"""
    episodes: Size = 1000
    """games per pairing"""
    seed: int = 1
    """seed of the games and of both players' dice; every pairing gets the same games"""
    deterministic: bool = False
    """models take the likeliest action instead of sampling"""
    loadouts: tuple[str, ...] = ()
    """OSRS: loadouts to fight with; empty = what the judged model was trained with"""
    server: str = ""
    """OSRS: HOST:PORT of a simulation server to play on, beside the simulator; `baseline` is then its own bot"""
    counts: bool = False
    """OSRS: also print what both do in the first 4,096 fights: attacks, styles, prayers that stop them, freezes"""
    battle_format: str = ""
    """VGC: the format to play, on its held-out teams; empty = what the judged model was trained on"""
    teams: str = ""
    """VGC: a folder of PokePaste files, teams for both sides, or `generated`; empty = the format's held-out teams"""
    team: str = ""
    """VGC: a PokePaste file, the team of whom we judge; the others play those of --teams"""
    search: str = ""
    """VGC: whom we judge looks one turn ahead, e.g. "worlds=4 actions=8" (docs/search.md)"""
    team_size: Count = 0
    """Rocket League: cars per team; 0 = those of the stage that the judged model had reached"""
    json: str = ""
    """also write the results to this JSON file"""
    save: str = ""
    """also write each pairing's first game to this .html or .gif file; with several pairings their names go into the
    file's name"""
    game: str = ""
    """the game, needed only when all players are scripted"""
    threads: Size = 1
    """torch threads"""
    trust_source: bool = False
    """rebuild a model with the script.py beside it when no script here has its hash; this runs that file's code"""


# ---------------------------------------------------------------------------------------------------------------- games


@dataclasses.dataclass
class Game:
    """What this tool needs to know of a game.

    `baselines()` names its scripted players. `matches(player, opponent, episodes, args, save, progress)` plays: players
    are Models or names of baselines, `progress(games done)` may be called at any time, and the scores come back as an
    array, one number per game in the player's favour: 1 won, 0.5 tied, 0 lost.
    """

    baselines: Callable
    matches: Callable


OSRS_FIGHTS_AT_ONCE = 4096  # some 12 kB each; more than this gain no speed
OSRS_SERVER_FIGHTS = 8  # at once on a simulation server, which plays some hundred ticks a second in all
OSRS_SERVERS_BOT = "baseline"


def osrs_baselines():
    from cleanrl_games.envs.osrs import BASELINES

    return BASELINES


def save_game(path, game, sides, scenes, over, **info):
    """The first game of a pairing as a page or a GIF, as tools/watch.py writes them."""
    names = [side.name if isinstance(side, models.Model) else side for side in sides]
    frames = [{"scene": scene} for scene in scenes]
    frames[-1]["over"] = {"winner": over, "text": "nobody wins" if over is None else f"{names[over]} wins"}
    watch_pages.write_game(path, {"game": game, "names": names, "detail": "", "value_means": "", **info}, frames)


def winner_of(score):
    return {1.0: 0, 0.0: 1}.get(float(score))


class Watched:
    """A player that tells how many fights of its batch are over, which is all `play_fights` lets one see."""

    def __init__(self, player, progress):
        self.player, self.progress = player, progress
        self.sees = getattr(player, "sees", False)

    def act(self, obs, masks, rows, actions):
        self.progress(len(obs) // 2 - len(rows))
        self.player.act(obs, masks, rows, actions)


def show_counts(counts, sides):
    """What both did, a line each"""
    names = [side.name if isinstance(side, models.Model) else side for side in sides]
    print(f"{'':46}{names[0]:>20}{names[1]:>20}")
    for what in counts[0]:
        print(f"{what:46}{counts[0][what]:20.3f}{counts[1][what]:20.3f}", flush=True)


def osrs_matches(player, opponent, episodes, args, save, progress):
    from cleanrl_games.envs.osrs import Baseline
    from cleanrl_games.envs.osrs.counts import Counted
    from cleanrl_games.envs.osrs.match import play_fights
    from cleanrl_games.envs.osrs.watch import OUTFITS, TICK_SECONDS, SceneRecorder

    # The judged model fights as it was trained; a scripted one as its opponent was.
    judged = next((side for side in (player, opponent) if isinstance(side, models.Model)), None)
    trained = judged.settings() if judged else {}
    settings = {name: trained[name] for name in ("mirror", "max_ticks") if name in trained}
    settings |= {
        "loadouts": args.loadouts or tuple(trained.get("loadouts", ("lms_med",))),
        "loadout_file": trained.get("loadout_file") or None,
    }

    def seat(side, fights, seed):
        if isinstance(side, models.Model):
            return side.script.Player(side.agent, seed, args.deterministic)
        return Baseline(side, 2 * fights, seed)

    if args.server:
        from cleanrl_games.envs.osrs.match import play_on_server

        at_once = min(OSRS_SERVER_FIGHTS, episodes)
        seeds = [int(seed) for seed in np.random.SeedSequence(args.seed).generate_state(2)]
        other = None if opponent == OSRS_SERVERS_BOT else seat(opponent, at_once, seeds[1])
        limits = {"at_once": at_once, "max_ticks": settings.get("max_ticks", 1000), "loadouts": settings["loadouts"]}
        scores, _ = play_on_server(
            seat(player, at_once, seeds[0]), other, episodes, args.server, **limits, progress=progress
        )
        return scores

    scores = []
    for done in range(0, episodes, OSRS_FIGHTS_AT_ONCE):
        fights = min(OSRS_FIGHTS_AT_ONCE, episodes - done)
        # Three seeds per batch: were both players' dice the same, equal players would move alike.
        seeds = [int(seed) for seed in np.random.SeedSequence([args.seed, done]).generate_state(3)]
        sides = [seat(player, fights, seeds[1]), seat(opponent, fights, seeds[2])]
        if args.counts and not done:
            sides = [Counted(side, fights) for side in sides]
        watched = Watched(sides[0], lambda over, done=done: progress(done + over))
        scenes = SceneRecorder() if save and not done else None
        batch, _ = play_fights(watched, sides[1], fights, seeds[0], "", scenes=scenes, **settings)
        if args.counts and not done:
            show_counts([side.summary(fights) for side in sides], (player, opponent))
        if scenes:
            info = {"frame_seconds": TICK_SECONDS, "outfits": list(OUTFITS)}
            save_game(save, "osrs", (player, opponent), scenes.scenes, winner_of(batch[0]), **info)
        scores.append(batch)
        progress(done + fights)
    return np.concatenate(scores)


def vgc_baselines():
    from cleanrl_games.envs.vgc.match import BASELINES

    return BASELINES


def vgc_teams(args, battle_format):
    """What `play_battles` takes: one pool for both, or a pair of those whom we judge and of the others"""
    from cleanrl_games.envs.vgc.teams import TeamPool
    from cleanrl_games.envs.vgc.watch import read_team

    field = TeamPool(args.teams or "shipped", battle_format, split="all" if args.teams else "eval")
    if not args.team:
        return field
    try:
        mine = read_team(Path(args.team).read_text(encoding="utf-8"), battle_format)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"--team {args.team}: {error}") from None
    return [mine], field


def vgc_matches(player, opponent, episodes, args, save, progress):
    from cleanrl_games.envs.vgc.match import play_battles
    from cleanrl_games.envs.vgc.search import SearchPlayer, parse_search

    sides = [side for side in (player, opponent) if isinstance(side, models.Model)]
    formats = [args.battle_format] if args.battle_format else [side.metadata["battle_format"] for side in sides]
    seeds = [int(seed) for seed in np.random.SeedSequence(args.seed).generate_state(3)]
    seats = [
        side.script.Player(side.agent, seed, args.deterministic) if isinstance(side, models.Model) else side
        for side, seed in zip((player, opponent), seeds[1:])
    ]
    battle_format = formats[0] if formats else "gen9vgc2023regc"
    searching = {}
    for place, side in enumerate((player, opponent)):
        if isinstance(side, models.Model) and side.searches:
            searching[place] = SearchPlayer(seats[place], parse_search(args.search), battle_format, seeds[1 + place])
            seats[place] = searching[place]
    logs = []
    try:
        scores, _ = play_battles(
            *seats,
            episodes,
            battle_format,
            vgc_teams(args, battle_format),
            seeds[0] >> 1,
            progress=progress,
            first_log=logs.append if save else None,
        )
    finally:
        for seat in searching.values():
            print(seat.search.report(), file=sys.stderr, flush=True)
            seat.close()
    if save:
        from cleanrl_games.envs.vgc.watch import page_of

        names = [side.name if isinstance(side, models.Model) else side for side in (player, opponent)]
        info, frames = page_of(logs[0], names)
        watch_pages.write_game(save, info, frames)
    return scores


KICKOFFS_AT_ONCE = 200  # some 2 MB each


def rocketleague_baselines():
    from cleanrl_games.envs.rocketleague.scripted import PLAYERS

    return PLAYERS


def rocketleague_matches(player, opponent, episodes, args, save, progress):
    from cleanrl_games.envs.rocketleague.contract import TICK_RATE
    from cleanrl_games.envs.rocketleague.match import play_kickoffs
    from cleanrl_games.envs.rocketleague.scripted import ScriptedPlayer
    from cleanrl_games.envs.rocketleague.watch import SceneRecorder
    from cleanrl_games.tools.foreign_bot import ForeignBot, ForeignPlayer

    judged = next((side for side in (player, opponent) if isinstance(side, models.Model)), None)
    trained = judged.settings() if judged else {}
    settings = {name: trained[name] for name in ("action_repeat", "mesh_dir", "generated_meshes") if name in trained}
    seconds, size = trained.get("eval_seconds", 60.0), args.team_size
    if not size and judged:
        reached = [stage for stage in judged.script.STAGES if stage.name == judged.metadata.get("stage")]
        size = max(reached[0].team_sizes) if reached else 0

    def seat(side, seed):
        if isinstance(side, ForeignBot):
            return ForeignPlayer(side)
        return (
            side.script.Player(side.agent, seed, args.deterministic)
            if isinstance(side, models.Model)
            else ScriptedPlayer(side, seed)
        )

    scores = []
    for done in range(0, episodes, KICKOFFS_AT_ONCE):
        seeds = [int(seed) for seed in np.random.SeedSequence([args.seed, done]).generate_state(3)]
        seats, count = (seat(player, seeds[1]), seat(opponent, seeds[2])), min(KICKOFFS_AT_ONCE, episodes - done)
        limits = {"max_seconds": seconds, "no_touch_seconds": seconds}
        scenes = SceneRecorder() if save and not done else None
        batch, _ = play_kickoffs(*seats, count, seeds[0], size or 1, scenes=scenes, **limits, **settings)
        if scenes:
            info = {
                "frame_seconds": settings.get("action_repeat", 8) / TICK_RATE,
                "pads": scenes.pads,
                "team_size": size or 1,
            }
            save_game(save, "rocketleague", (player, opponent), scenes.scenes, winner_of(batch[0]), **info)
        scores.append(batch)
        progress(done + count)
    return np.concatenate(scores)


def pokemon_baselines():
    from cleanrl_games.envs.pokemon.baselines import PLAYERS

    return tuple(PLAYERS)


def pokemon_matches(player, opponent, episodes, args, save, progress):
    """The quest has one player: both play the same held-out worlds one after the other, and who gets farther has won.
    More milestones are farther; of two that finish, the one with fewer steps. How often each finished is printed."""
    from cleanrl_games.envs.pokemon import QUEST_SEEDS, PokemonEnv
    from cleanrl_games.envs.pokemon.baselines import PLAYERS, play
    from cleanrl_games.envs.pokemon.picture import save_gif

    sides = (player, opponent)
    judged = next((side for side in sides if isinstance(side, models.Model)), None)
    trained = judged.settings() if judged else {}
    if trained.get("rom_path"):
        raise ValueError(
            "The model plays a cartridge of its own: its run's own evaluation (eval/*) is the one that counts."
        )
    if save and Path(save).suffix != ".gif":
        raise ValueError("An episode is saved as a .gif; tools/watch.py shows it as a page.")
    worlds = range(QUEST_SEEDS - trained.get("held_out_worlds", 64), QUEST_SEEDS)
    env = PokemonEnv(max_steps=trained.get("max_steps", 600), compass=trained.get("compass", "none"))
    networks = [
        side.script.ModelExpert(side.path, args.deterministic) if isinstance(side, models.Model) else None
        for side in sides
    ]
    scores, finished = np.zeros(episodes), [0, 0]
    try:
        for number in range(episodes):
            reached = []
            for place, (side, network) in enumerate(zip(sides, networks)):
                seed = int(np.random.SeedSequence([args.seed, number, place]).generate_state(1)[0])
                seat = network or PLAYERS[side](seed)
                if network:
                    network.reset()
                    network.generator.manual_seed(seed)
                pictures = [] if save and not number and not place else None
                success, milestones, steps, _ = play(env, seat, worlds[number % len(worlds)], pictures)
                if pictures:
                    save_gif(save, pictures, milliseconds=110)
                finished[place] += success
                reached.append((milestones, -steps if success else 0))
            scores[number] = 0.5 if reached[0] == reached[1] else float(reached[0] > reached[1])
            progress(number + 1)
    finally:
        env.close()
    for side, count in zip(sides, finished):
        name = side.name if isinstance(side, models.Model) else side
        print(f"{name}: finished {count} of {episodes} ({count / episodes:.1%})", flush=True)
    return scores


GAMES = {
    "osrs": Game(osrs_baselines, osrs_matches),
    "vgc": Game(vgc_baselines, vgc_matches),
    "rocketleague": Game(rocketleague_baselines, rocketleague_matches),
    "pokemon": Game(pokemon_baselines, pokemon_matches),
}


# ------------------------------------------------------------------------------------------------------------- the tool


def load_player(word, game, trust_source):
    """A run's folder, a model.zip, or a foreign bot of Rocket League as FILE.pt=ADAPTER.py"""
    if ".pt=" not in word:
        return models.load(word, game or None, trust_source)
    if game not in ("", "rocketleague"):
        raise models.ModelError(f"{word} is a bot of Rocket League; here only players of {game} can play.")
    from cleanrl_games.tools.foreign_bot import ForeignBot

    return ForeignBot.load(word, trust_source)


def find_players(args):
    """Words of the command line → (game, players, opponents), each a dict from a name for the table to a Model or
    baseline."""
    known = {name for game in GAMES.values() for name in game.baselines()}
    if args.server:
        known.add(OSRS_SERVERS_BOT)
    loaded, game = {}, args.game
    if game and game not in GAMES:
        raise models.ModelError(f"--game should be one of {', '.join(GAMES)}, found {game!r}.")
    for word in (*args.players, *args.against):
        if word not in known and word not in loaded:
            loaded[word] = load_player(word, game, args.trust_source)
            game = loaded[word].game
    if game not in GAMES:
        what = (
            f"There is no way yet to evaluate {game!r}"
            if game
            else "All players are scripted: say which game with --game"
        )
        raise models.ModelError(f"{what}; there are: {', '.join(GAMES)}.")
    baselines = GAMES[game].baselines()
    if args.counts and game != "osrs":
        raise models.ModelError(f"--counts is for OSRS, these are players of {game}.")
    if args.server:
        if game != "osrs":
            raise models.ModelError(f"--server is for OSRS, these are players of {game}.")
        if OSRS_SERVERS_BOT in args.players:
            raise models.ModelError(f"{OSRS_SERVERS_BOT} is the server's own bot: it can only stand under --against.")
        baselines = (*baselines, OSRS_SERVERS_BOT)

    def named(words):
        found = {}
        for word in words:
            if word in loaded:
                name = loaded[word].name
                if any(model.name == name and model.path != loaded[word].path for model in loaded.values()):
                    name = str(loaded[word].path)  # two runs of one name in different folders
                found[name] = loaded[word]
            elif word in baselines:
                found[word] = word
            else:
                raise models.ModelError(
                    f"{word!r} is a scripted player of another game; {game} has: {', '.join(baselines)}."
                )
        return found

    players = named(args.players)
    if args.search:
        if game != "vgc":
            raise models.ModelError(f"--search is for VGC, these are players of {game}.")
        players = {
            f"{name} + search" if isinstance(side, models.Model) else name: with_search(side)
            for name, side in players.items()
        }
    return (
        game,
        players,
        named(args.against or (baselines if not args.server else (OSRS_SERVERS_BOT, "nh"))),
    )


def with_search(side):
    return dataclasses.replace(side, searches=True) if isinstance(side, models.Model) else side


def save_path(save, player, opponent, several):
    if not save or not several:
        return save
    words = re.sub(r"[^\w.-]+", "_", f"{player}_vs_{opponent}")
    return str(Path(save).with_name(f"{Path(save).stem}_{words}{Path(save).suffix}"))


def play_all(args, game, players, opponents, progress):
    """Every player against every opponent; yields a result after each pairing, ready for JSON."""
    pairings = [(*pairing, args) for pairing in itertools.product(players.items(), opponents.items())]
    if args.server:  # on the server, and the same in the simulator; the server's own bot lives there only
        here = dataclasses.replace(args, server="")
        both = [(side, other, where) for side, other, _ in pairings for where in (args, here)]
        pairings = [pairing for pairing in both if pairing[2].server or pairing[1][0] != OSRS_SERVERS_BOT]
    for number, ((name, player), (other, opponent), where) in enumerate(pairings):
        save = save_path(where.save if not where.server else "", name, other, len(pairings) > 1)
        start, before = time.perf_counter(), number * args.episodes
        try:
            scores = GAMES[game].matches(
                player, opponent, args.episodes, where, save, lambda done, before=before: progress(before + done)
            )
        except (ValueError, OSError) as error:  # a loadout that is not there, a game that cannot be written
            raise models.ModelError(f"{name} against {other}: {error}") from None
        score, low, high = wilson(float(scores.mean()), len(scores))
        yield {
            "player": name, "opponent": other, "where": where.server or "simulator", "game": game,
            "episodes": len(scores), "seed": args.seed, "deterministic": args.deterministic,
            "score": score, "low": low, "high": high, "win_rate": float((scores == 1).mean()),
            "won": int((scores == 1).sum()), "tied": int((scores == 0.5).sum()), "lost": int((scores == 0).sum()),
            "seconds": round(time.perf_counter() - start, 2), "save": save,
        }  # fmt: skip


def show(console, results, title):
    from rich.table import Table

    table = Table(title=title)
    on_a_server = any(result["where"] != "simulator" for result in results)
    for column in ("player", "opponent", *(["where"] if on_a_server else [])):
        table.add_column(column, overflow="fold")
    for column in ("score", "95 % interval", "won", "tied", "lost"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        numbers = [f"{result[key]:,}" for key in ("won", "tied", "lost")]
        interval = f"{result['low']:.1%} – {result['high']:.1%}"
        names = [result["player"], result["opponent"], *([result["where"]] if on_a_server else [])]
        table.add_row(*names, f"{result['score']:.1%}", interval, *numbers)
    console.print(table)


def check(args):
    """Settings and places to write to, before minutes are spent on games."""
    if not args.players:
        raise models.ModelError("There is nobody to judge: give run folders or model.zip files.")
    for flag, path in (("--json", args.json), ("--save", args.save)):
        if path and not Path(path).absolute().parent.is_dir():
            raise models.ModelError(f"{flag} {path}: there is no folder {Path(path).absolute().parent} to write to.")
    if args.counts and args.server:
        raise models.ModelError("--counts is for fights in the simulator: leave --server out.")
    if args.search:
        from cleanrl_games.envs.vgc.search import parse_search

        parse_search(args.search)
    if args.server:
        from cleanrl_games.envs.osrs.remote import parse_address

        try:
            parse_address(args.server)
        except ValueError as error:
            raise models.ModelError(f"--server: {error}") from None
    if args.save and Path(args.save).suffix not in watch_pages.SUFFIXES:
        raise models.ModelError(f"--save should name a .html or .gif file, found {args.save}.")


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Without a terminal rich assumes 80 columns and would break long run names over several lines.
    console = Console(width=None if sys.stdout.isatty() else 160)
    results, stopped, game = [], False, args.game
    try:
        check(args)
        torch.set_num_threads(args.threads)
        game, players, opponents = find_players(args)
        pairings = len(players) * len(opponents)
        if args.server:  # each also in the simulator
            pairings += len(players) * sum(name != OSRS_SERVERS_BOT for name in opponents)
        total = pairings * args.episodes
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("games", total=total)
            for result in play_all(args, game, players, opponents, lambda done: bar.update(task, completed=done)):
                results.append(result)
                if bar.disable:  # no terminal: a line per pairing says that it is alive
                    print(f"{len(results)} of {pairings} pairings done", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        stopped = True
    show(
        console,
        results,
        f"{game}, {args.episodes:,} games each, seed {args.seed}{', deterministic' if args.deterministic else ''}",
    )
    if args.json:
        write_atomically(args.json, lambda path: path.write_text(json.dumps({"results": results}, indent=1) + "\n"))
    if stopped:
        raise SystemExit("Stopped: these are the pairings that were finished.")
    return results


if __name__ == "__main__":
    main()
