"""Episodes for cloning, one .npz each: played by the scripted expert, your own agent, a person or a trained model.

    python cleanrl_games/tools/collect_expert_data.py --episodes 200 --noise 0.2            # the scripted expert
    python cleanrl_games/tools/collect_expert_data.py --expert my_agent:choose              # choose(observation, info)
      → 0 … 9
    python cleanrl_games/tools/collect_expert_data.py --expert human                        # Z X Enter RShift arrows A
      S; Esc stops
    python cleanrl_games/tools/collect_expert_data.py --expert runs/<run>                   # or model.zip, weights.pth
    python cleanrl_games/tools/collect_expert_data.py --replay expert_data/pokemon_quest    # compares every frame
    python cleanrl_games/tools/collect_expert_data.py --to-minari gba/quest-v0              # and --from-minari

Several emulators play at once. A file appears when its episode is whole; Ctrl-C leaves no half of one.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Literal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: AMX bf16 crashes on some machines
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from cleanrl_games.envs.pokemon import ACTIONS, QUEST_SEEDS, PokemonEnv
from cleanrl_games.envs.pokemon.cache import progress_bar
from cleanrl_games.envs.pokemon.env import parse_timing
from cleanrl_games.envs.pokemon.episodes import (
    EpisodeError,
    Recording,
    describe,
    find_episodes,
    read_episode,
    read_frames,
    write_episode,
)
from cleanrl_games.envs.pokemon.experts import ExpertError, Noise, load_expert
from cleanrl_games.envs.pokemon.minari_data import export_episodes, import_episodes
from cleanrl_games.runtime.errors import BadInput, RunFailed, first_line
from cleanrl_games.runtime.settings import Fraction, Positive, Range, Size, parse_flags, ranged
from cleanrl_games.tools import models

# the keys of most GBA emulators
HUMAN_KEYS = {
    "A": "z", "B": "x", "START": "return", "SELECT": "right shift", "UP": "up", "DOWN": "down", "LEFT": "left",
    "RIGHT": "right",
    "L": "a", "R": "s",
}  # fmt: skip


@dataclasses.dataclass
class Args:
    expert: str = "scripted"
    """scripted, human, module:callable, or a model: a run's folder, model.zip or weights.pth"""
    output_dir: str = "expert_data/mine"
    """folder of the episodes; numbers go on after those that are there"""
    episodes: Size = 10
    """how many to play"""
    num_workers: Size = 2
    """emulator processes"""
    seed: int = 1
    """of noise and sampling; the same seed, expert and worlds give the same files"""
    worlds: str = "0-65471"
    """the quest's worlds to play, in order and again from the start: 0-191, or 3,7,9; the script evaluates in 65472 to
    65535"""
    noise: Fraction = 0.0
    """share of random actions, for coverage; the label stays what the expert said"""
    noise_length: ranged(float, "FLOAT", Range(1.0)) = 4.0
    """random actions in a row, on average"""
    max_steps: Size = 600
    """an episode longer than this is truncated"""
    rom_path: str = ""
    """a .gba file of your own; empty = the quest that comes along"""
    start_state: str = ""
    """a save state where episodes of a ROM of your own start"""
    timing: str = ""
    """fast, normal, slow, or frames held/released like 10/8; empty = fast for the quest, normal for others"""
    backend: Literal["auto", "libretro", "libmgba"] = "auto"
    """the emulator's door; recorded with the data"""
    expert_timeout: Positive = 60.0
    """seconds that a callable has for an answer"""
    deterministic: bool = False
    """a model takes the likeliest action instead of sampling"""
    trust_source: bool = False
    """run the script.py beside a model when no script of this repository has its hash"""
    keep_unfinished: bool = False
    """human: Esc keeps the episode so far, as truncated"""
    compass: Literal["none", "bearing", "path"] = "none"
    """the quest's needle"""
    start_states: str = ""
    """a folder of save states (*.state); each episode starts from one of them, in turn"""
    debug: bool = False
    """show the traceback of what goes wrong, of emulator processes too"""
    compression: ranged(int, "INT", Range(1, 9)) = 1
    """of the files, 1 (fast) to 9 (small)"""
    replay: str = ""
    """an episode or a folder of them: play the recorded buttons again and compare frame by frame"""
    to_minari: str = ""
    """export output_dir to this Minari dataset"""
    from_minari: str = ""
    """import this Minari dataset into output_dir"""


def make_env(args, max_steps=None):
    try:
        return PokemonEnv(
            args.rom_path or None,
            parse_timing(args.timing),
            args.max_steps if max_steps is None else max_steps,
            start_state=args.start_state or None,
            start_states=args.start_states or None,
            backend=args.backend,
            compass=args.compass,
        )
    except (ValueError, OSError) as error:
        raise BadInput(str(error)) from None


def parse_worlds(text):
    """'0-191' or '3,7,9' → list"""
    worlds = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not found:
            raise BadInput(f"--worlds should be like 0-191 or 3,7,9, found {text!r}.")
        worlds += range(int(found[1]), int(found[2] or found[1]) + 1)
    if not worlds or max(worlds) >= QUEST_SEEDS:
        raise BadInput(f"--worlds should be from 0 to {QUEST_SEEDS - 1}, found {text!r}.")
    return worlds


def episode_name(number):
    return f"episode_{number:04d}.npz"


# -------------------------------------------------------------------------------------------------------------- experts


def script():
    """The training script, for models and emulator processes; torch takes a second, so it is loaded when it is
    needed."""
    from cleanrl_games import bc_pokemon_impala

    return bc_pokemon_impala


def load_model_expert(args, seed):
    """A trained network at the buttons."""
    import torch

    torch.set_num_threads(1)
    path = Path(args.expert)
    if path.suffix != ".pth":
        try:
            model = models.load(path, "pokemon", args.trust_source)
        except models.ModelError as error:
            raise BadInput(str(error)) from None
        return model.script.ModelExpert(path, args.deterministic, seed)
    try:
        weights = torch.load(path, weights_only=True)
        stack, hidden = weights["stages.0.weight"].shape[1] // 3, weights["hidden.weight"].shape[0]
        agent = script().Agent(stack, hidden)
        agent.load_state_dict(weights)
    except Exception as error:  # torch raises many kinds for a file that is no state_dict
        raise BadInput(f"{path} is not weights of this script's network: {first_line(error)}") from None
    expert = script().ModelExpert.__new__(script().ModelExpert)
    expert.take(agent.eval(), path.name, 1.0, args.deterministic, seed)
    return expert


def is_model(spec):
    return Path(spec).suffix in (".pth", ".zip") or Path(spec).is_dir()


def make_expert(args, seed):
    return load_model_expert(args, seed) if is_model(args.expert) else load_expert(args.expert, args.expert_timeout)


# -------------------------------------------------------------------------------------------------------------- playing


class Collector:
    """One emulator and an expert. Runs in a process of its own; a job is an episode."""

    def __init__(self, args, index):
        self.args, self.env, self.expert = args, make_env(args), make_expert(args, args.seed)

    def play(self, job):
        """job: number, world, attempt → what happened; the file is there when this returns"""
        args, env = self.args, self.env
        seed = [args.seed, job["number"], job["attempt"]]
        noise = Noise(args.noise, args.noise_length, np.random.default_rng(seed))
        if hasattr(self.expert, "generator"):
            self.expert.generator.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        is_quest = env.reader.game == "quest"
        names = list(env.starts)
        start = {"quest_seed": job["world"]} if is_quest else {"start": names[(job["number"] - 1) % len(names)]}
        observation, info = env.reset(options=start)
        self.expert.reset()
        recording = Recording([observation])
        while not (recording.terminated or recording.truncated):
            try:
                label = self.expert.act(env, observation, info)
            except ExpertError as error:
                return {"dropped": str(error)}
            executed = noise.disturb(label)
            step = env.step(executed)
            recording.add(label, executed, step)
            observation, info = step[0], step[4]
        meta = describe(env, expert=args.expert, noise=args.noise, seed=seed, **start)
        write_episode(Path(args.output_dir) / episode_name(job["number"]), recording, meta, args.compression)
        return {"steps": len(recording.actions)}


def next_number(folder):
    numbers = [
        int(found[1])
        for path in folder.glob("episode_*.npz")
        if (found := re.fullmatch(r"episode_(\d+)\.npz", path.name))
    ]
    return max(numbers, default=0) + 1


def remove_halves(folder):
    """What processes that were stopped in the middle of writing left: never named like an episode, and not wanted
    either."""
    for path in folder.glob(".episode_*.tmp"):
        path.unlink(missing_ok=True)


def summary(path):
    """Of a whole file: one may have been finished in the very moment of Ctrl-C, and it counts."""
    episode = read_episode(path)
    return {
        "steps": len(episode),
        "milestones": episode.infos[-1]["milestones_reached"],
        "success": bool(episode.terminated[-1]),
    }


def collect(args):
    """→ results, one per whole episode"""
    folder, worlds = Path(args.output_dir), parse_worlds(args.worlds)
    folder.mkdir(parents=True, exist_ok=True)
    first, done, dropped = next_number(folder), 0, 0
    workers = script().ActorProcesses(min(args.num_workers, args.episodes), Collector, args)
    try:
        for index in range(args.episodes):
            workers.submit({"number": first + index, "world": worlds[(first - 1 + index) % len(worlds)], "attempt": 0})
        with progress_bar(args.episodes, "episodes") as bar:
            while workers.pending:
                for job, result in workers.poll(1.0):
                    if result is None or "dropped" in result:  # the emulator died, or the expert did not answer
                        if result:
                            print(
                                f"{result['dropped']} Episode {job['number']} is dropped and played again.", flush=True
                            )
                        dropped += 1
                        if dropped > 3 + args.episodes:
                            raise RunFailed(
                                f"{dropped} episodes had to be dropped: stopping. The {done} whole ones are in "
                                f"{folder}."
                            )
                        workers.submit({**job, "attempt": job["attempt"] + 1})
                        continue
                    done += 1
                    bar(done)
    except KeyboardInterrupt:
        print("\nStopped; what was being played is dropped.", flush=True)
    finally:
        workers.close()
        remove_halves(folder)
    return [
        summary(path)
        for number in range(first, first + args.episodes)
        if (path := folder / episode_name(number)).exists()
    ]


def play_human(args):
    """A window, one episode after the other. A step is taken when a key goes down (or repeats while it is held)."""
    import pygame

    folder, worlds = Path(args.output_dir), parse_worlds(args.worlds)
    folder.mkdir(parents=True, exist_ok=True)
    keys = {pygame.key.key_code(name): ACTIONS.index(button) for button, name in HUMAN_KEYS.items()}
    env = make_env(args)
    env.render_mode, is_quest, results = "human", env.reader.game == "quest", []
    number, stopping = next_number(folder), False
    try:
        while len(results) < args.episodes and not stopping:
            world = worlds[(number - 1) % len(worlds)]
            recording = Recording([env.reset(options={"quest_seed": world} if is_quest else None)[0]])
            pygame.key.set_repeat(250, 150)
            while not (recording.terminated or recording.truncated or stopping):
                event = pygame.event.wait(200)
                stopping = event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE)
                if event.type == pygame.KEYDOWN and event.key in keys:
                    recording.add(keys[event.key], keys[event.key], env.step(keys[event.key]))
            if recording.actions and (not stopping or args.keep_unfinished):
                meta = describe(env, expert="human", noise=0.0, **({"quest_seed": world} if is_quest else {}))
                write_episode(folder / episode_name(number), recording, meta, args.compression)
                results.append(summary(folder / episode_name(number)))
                number += 1
    finally:
        env.close()
    return results


# --------------------------------------------------------------------------------------------- replay, Minari, the tool


def replay(args, path):
    """Plays a file's buttons again → None if every frame and reward came back, else a sentence about the first that did
    not"""
    episode = read_episode(path)
    if not episode.is_described:
        return f"{path}: it does not say with which ROM, emulator and timing it was recorded."
    env = make_env(
        dataclasses.replace(
            args,
            timing=f"{episode.meta['hold']}/{episode.meta['release']}",
            backend=episode.meta["backend"],
            compass=episode.meta.get("compass", "none"),
        ),
        max_steps=0,
    )
    try:
        if env.emulator.rom_sha1 != episode.meta["rom_sha1"]:
            return (
                f"{path}: recorded on the ROM with SHA-1 {episode.meta['rom_sha1']}, this one has "
                f"{env.emulator.rom_sha1}."
            )
        is_quest = episode.world is not None
        name = episode.meta.get("start", "")
        if not is_quest and name not in env.starts:
            return f"{path}: it starts from the save state {name!r}: give it with --start-state or --start-states."
        observation, _ = env.reset(options={"quest_seed": episode.world} if is_quest else {"start": name})
        step = 0
        for frames in read_frames(path):
            for frame in frames:
                if not np.array_equal(frame, observation):
                    return f"{path}: frame {step} differs in {int((frame != observation).any(-1).sum())} pixels."
                if step < len(episode):
                    observation, reward, *_ = env.step(int(episode.executed_actions[step]))
                    if reward != episode.rewards[step]:
                        return f"{path}: the reward at step {step} is {reward}, {episode.rewards[step]} was recorded."
                step += 1
    finally:
        env.close()
    return None


def report(results, folder):
    if not results:
        print(f"No whole episode was played; {folder} is as it was.")
        return
    steps, milestones = (np.array([result[name] for result in results], float) for name in ("steps", "milestones"))
    successes = sum(result["success"] for result in results)
    print(
        f"{len(results)} episodes in {folder}: {int(steps.sum()):,} steps, {successes} finished, milestones on "
        f"average {milestones.mean():.2f}"
    )


def check_args(args):
    """What a process would stumble over much later, or all of them at once."""
    if args.noise == 1:
        raise BadInput("--noise should be less than 1: the expert must be heard now and then.")
    if args.replay and not Path(args.replay).exists():
        raise BadInput(f"--replay {args.replay}: there is no such file or folder.")
    if Path(args.output_dir).exists() and not Path(args.output_dir).is_dir():
        raise BadInput(f"--output-dir {args.output_dir} is a file: give the name of a folder.")
    if args.replay or args.to_minari or args.from_minari:
        return
    parse_worlds(args.worlds)
    make_env(args).close()
    if args.expert != "human":
        make_expert(args, args.seed)


def main(argv=None):
    args = parse_flags(Args, __doc__, argv)
    check_args(args)
    try:
        if args.replay:
            paths = [Path(args.replay)] if Path(args.replay).is_file() else find_episodes(args.replay)
            problems = [problem for path in paths if (problem := replay(args, path))]
            print(
                "\n".join(
                    [*problems, f"{len(paths) - len(problems)} of {len(paths)} episodes came back frame by frame."]
                )
            )
            raise SystemExit(1 if problems else 0)
        if args.to_minari:
            print(
                f"{export_episodes(find_episodes(args.output_dir), args.to_minari)} episodes exported to "
                f"{args.to_minari}"
            )
        elif args.from_minari:
            folder = Path(args.output_dir)
            first = next_number(folder)
            print(
                f"{len(import_episodes(args.from_minari, folder, lambda index: episode_name(first + index)))} "
                f"episodes imported to {folder}"
            )
        else:
            report(play_human(args) if args.expert == "human" else collect(args), args.output_dir)
    except EpisodeError as error:
        raise BadInput(str(error)) from None


if __name__ == "__main__":
    main()
