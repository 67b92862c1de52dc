"""tools/collect_expert_data.py as its users start it: every kind of expert, Ctrl-C, crashes, replay, Minari."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.envs.pokemon import ACTIONS, QUEST_ROM, PokemonEnv, QuestExpert
from cleanrl_games.envs.pokemon import episodes as room
from cleanrl_games.envs.pokemon.experts import Called, ExpertError, Noise, load_expert
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import collect_expert_data as tool

ROOT = Path(__file__).resolve().parents[1]

# experts as a user would write them, in a module of their own
AGENTS = """
import os, signal, time

def right(observation, info):
    assert observation.shape == (160, 240, 3) and info["game"] == "quest"
    return 7

class Counting:
    def __init__(self): self.count = 0
    def reset(self): self.count = 0
    def __call__(self, observation, info):
        self.count += 1
        return self.count % 10

def crashes_once(observation, info):
    if info["steps"] == 5 and not os.path.exists("crashed"):
        open("crashed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return 4

def sleeps_once(observation, info):
    if info["steps"] == 5 and not os.path.exists("slept"):
        open("slept", "w").close()
        time.sleep(60)
    return 4

not_callable = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_agents", None)


def collect(folder, *flags, code=0, seconds=240):
    words = [
        sys.executable,
        str(ROOT / "cleanrl_games/tools/collect_expert_data.py"),
        "--output-dir",
        "out",
        *map(str, flags),
    ]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def names(folder):
    return sorted(path.name for path in (folder / "out").iterdir())


def test_scripted_expert_with_noise_keeps_the_clean_label(folder):
    """Two processes; the label at every step is what the expert says there, also where another button was pressed."""
    output = collect(folder, "--episodes", 2, "--worlds", "3,7", "--noise", 0.3, "--max-steps", 60)
    assert "2 episodes" in output and names(folder) == ["episode_0001.npz", "episode_0002.npz"]
    env, expert = PokemonEnv(), QuestExpert()
    for path, world in zip(room.find_episodes("out"), (3, 7)):
        episode = room.read_episode(path)
        assert episode.world == world and 0.1 < (episode.actions != episode.executed_actions).mean() < 0.5
        assert episode.truncated[-1] and not episode.terminated.any() and episode.num_frames == 61
        env.reset(options={"quest_seed": world})
        for label, executed in zip(episode.actions, episode.executed_actions):
            assert expert.act(env) == label
            env.step(int(executed))
    env.close()

    # the same seed gives the same files, the next ones are numbered on; every frame comes back
    first = (folder / "out/episode_0001.npz").read_bytes()
    (folder / "out").rename(folder / "before")
    collect(folder, "--episodes", 1, "--worlds", "3", "--noise", 0.3, "--max-steps", 60)
    assert (folder / "out/episode_0001.npz").read_bytes() == first
    assert tool.next_number(folder / "before") == 3
    with pytest.raises(SystemExit) as ended:
        tool.main(["--replay", "before"])
    assert ended.value.code == 0


def test_replay_notices_one_pixel_and_one_button(folder, capsys):
    env = PokemonEnv(max_steps=12)
    recording = room.Recording([env.reset(options={"quest_seed": 5})[0]])
    for action in (5, 5, 4, 6, 7, 7):
        recording.add(action, action, env.step(action))
    meta = room.describe(env, quest_seed=5)
    (folder / "out").mkdir()
    env.close()
    room.write_episode(Path("out/episode_0001.npz"), recording, meta)
    args = tool.Args()
    assert tool.replay(args, Path("out/episode_0001.npz")) is None
    recording.observations[4] = recording.observations[4].copy()
    recording.observations[4][10, 10, 0] ^= 1
    room.write_episode(Path("out/episode_0001.npz"), recording, meta)
    assert "frame 4 differs in 1 pixels" in tool.replay(args, Path("out/episode_0001.npz"))
    recording.executed_actions[1] = 6
    room.write_episode(Path("out/episode_0001.npz"), recording, meta)
    assert "frame 2 differs" in tool.replay(args, Path("out/episode_0001.npz"))
    with pytest.raises(SystemExit) as ended:
        tool.main(["--replay", "out"])
    assert ended.value.code == 1 and "0 of 1 episodes came back" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*no milestones and no reward")
def test_replay_of_a_cartridge_of_ones_own(folder):
    """An episode says which save state it began at, a person's too, and how long buttons were held"""
    rom = bytearray(QUEST_ROM.read_bytes())
    rom[0xA0:0xAC] = b"SOMETHINGELS"
    (folder / "own.gba").write_bytes(rom)
    (folder / "states").mkdir()
    (folder / "out").mkdir()
    env = PokemonEnv(folder / "own.gba", timing=(7, 4), max_steps=3)
    env.reset(seed=0)
    for name in ("01_TITLE", "02_LATER"):
        (folder / "states" / f"{name}.state").write_bytes(env.save_state())
        env.step(ACTIONS.index("START"))
    env.close()
    args = tool.Args(rom_path="own.gba", start_states="states", timing="7/4", expert="human", max_steps=3)
    made = tool.make_env(args)
    assert (made.hold, made.release) == (7, 4)
    recording = room.Recording([made.reset(options={"start": "02_LATER"})[0]])
    for action in (0, 4, 5):
        recording.add(action, action, made.step(action))
    path = folder / "out/episode_0001.npz"
    room.write_episode(path, recording, room.describe(made, expert="human", noise=0.0))
    made.close()
    again = tool.Args(rom_path="own.gba", start_states="states")
    assert tool.replay(again, path) is None
    assert "it starts from the save state '02_LATER'" in tool.replay(tool.Args(rom_path="own.gba"), path)
    with pytest.raises(BadInput, match="--timing should be one of fast, normal, slow, or frames"):
        tool.make_env(tool.Args(timing="7"))


def test_a_file_of_the_guide_cannot_be_replayed_or_exported(folder):
    env = PokemonEnv(max_steps=2)
    recording = room.Recording([env.reset(options={"quest_seed": 5})[0]])
    recording.add(5, 5, env.step(5))
    arrays = room.to_arrays(recording, {})
    env.close()
    names = ("observations", "actions", "rewards", "episode_return", "episode_length")
    np.savez(folder / "episode_0001.npz", dones=arrays["truncated"], **{name: arrays[name] for name in names})
    assert "does not say with which ROM" in tool.replay(tool.Args(), folder / "episode_0001.npz")
    with pytest.raises(BadInput, match="does not say which ROM and emulator it is from, so Minari"):
        tool.main(["--output-dir", str(folder), "--to-minari", "gba/guide-v0"])


def test_a_callable_of_ones_own(folder):
    args = tool.Args(expert="my_agents:right", output_dir=".", max_steps=5)
    collector = tool.Collector(args, 0)
    collector.play({"number": 1, "world": 3, "attempt": 0})
    collector.env.close()
    assert room.read_episode(folder / "episode_0001.npz").actions.tolist() == [7] * 5
    expert = load_expert("my_agents:Counting")
    assert [expert.act(None, None, None) for _ in range(3)] == [1, 2, 3]
    expert.reset()
    assert expert.act(None, None, None) == 1


def test_callables_that_are_none(folder):
    for spec, reason in (
        ("my_agents:missing", "has no 'missing'"),
        ("my_agents:not_callable", "which cannot be called"),
        ("no_such_module:x", "cannot be imported"),
        ("nobody", "give scripted, module:callable or milestones:module"),
    ):
        with pytest.raises(BadInput, match=reason):
            tool.main(["--expert", spec])


def test_answers_that_are_no_actions():
    def fails(observation, info):
        raise KeyError("map")

    for answer, reason in ((10, "answered 10"), (2.5, "answered 2.5"), (None, "answered None"), ("A", "answered 'A'")):
        with pytest.raises(ExpertError, match=reason):
            Called("mine", lambda observation, info, answer=answer: answer, 5).act(None, None, None)
    with pytest.raises(ExpertError, match="mine failed: KeyError: 'map'"):
        Called("mine", fails, 5).act(None, None, None)
    assert Called("mine", lambda observation, info: np.int64(3), 5).act(None, None, None) == 3
    with pytest.raises(ExpertError, match=r"no answer within 0.05 s"):
        Called("mine", lambda observation, info: time.sleep(2), 0.05).act(None, None, None)


def test_a_crashed_emulator_process_and_a_slow_expert(folder):
    """The process is killed, later the expert sleeps: both episodes are dropped and played anew, the crash is said
    once."""
    output = collect(
        folder, "--expert", "my_agents:crashes_once", "--episodes", 2, "--num-workers", 1, "--max-steps", 10
    )
    assert output.count("exit code -9)") == 1 and "a new one takes its place" in output
    assert names(folder) == ["episode_0001.npz", "episode_0002.npz"]
    output = collect(
        folder,
        "--expert",
        "my_agents:sleeps_once",
        "--episodes",
        1,
        "--num-workers",
        1,
        "--max-steps",
        10,
        "--expert-timeout",
        2,
    )
    assert "gave no answer within 2 s" in output and "Episode 3 is dropped" in output
    assert len(room.load_episodes("out")) == 3


def test_ctrl_c_leaves_whole_episodes_only(folder):
    words = [
        sys.executable,
        str(ROOT / "cleanrl_games/tools/collect_expert_data.py"),
        "--output-dir",
        "out",
        "--episodes",
        "500",
    ]
    process = subprocess.Popen(
        [*words, "--noise", "0.2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.time() + 200
    while len(list(folder.glob("out/episode_*.npz"))) < 2 and time.time() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "what was being played is dropped" in output, output
    assert all(name.startswith("episode_") and name.endswith(".npz") for name in names(folder)), names(folder)
    found = room.load_episodes("out")
    assert 2 <= len(found) < 500
    assert all(len(np.concatenate(list(room.read_frames(episode.path)))) == len(episode) + 1 for episode in found[-2:])
    assert f"{len(found)} episodes in out" in output


def test_a_person_at_the_keyboard(folder, monkeypatch):
    """A window without a screen; keys arrive as events. An episode that Esc ends is dropped, or kept when one says
    so."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    pressed = ["down", "left", "z", "x", "return", "right shift", "up", "right", "a", "s"]

    def press(*keys):
        pygame.display.init()
        for key in keys:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.key.key_code(key)))

    press(*pressed, "q", "escape")  # q means nothing
    tool.main(["--expert", "human", "--output-dir", "out", "--keep-unfinished"])
    episode = room.read_episode(folder / "out/episode_0001.npz")
    assert [ACTIONS[action] for action in episode.actions] == "DOWN LEFT A B START SELECT UP RIGHT L R".split()
    assert (
        episode.truncated[-1] and episode.meta["expert"] == "human" and tool.replay(tool.Args(), episode.path) is None
    )

    press(*["down"] * 4, *["up"] * 3, "escape")
    tool.main(["--expert", "human", "--output-dir", "out", "--max-steps", "4", "--episodes", "2"])
    # the second one ended by itself, the third was dropped
    assert names(folder) == [
        "episode_0001.npz",
        "episode_0002.npz",
    ]
    assert room.read_episode(folder / "out/episode_0002.npz").actions.tolist() == [5] * 4


def test_a_trained_model_plays(folder):
    """From weights.pth and from a model.zip: the recorded labels are what the network says to the recorded pictures."""
    torch.manual_seed(0)
    agent = script.Agent(2, 16).eval()
    with torch.no_grad():
        agent.head.weight.normal_(0, 0.3)
    torch.save(agent.state_dict(), folder / "weights.pth")
    script.save_model(folder / "model.zip", agent.state_dict(), script.Args(frame_stack=2, hidden_dim=16))
    for number, path in enumerate(("weights.pth", "model.zip"), 1):
        args = tool.Args(expert=path, output_dir="out", max_steps=8, deterministic=True)
        (folder / "out").mkdir(exist_ok=True)
        collector = tool.Collector(args, 0)
        collector.play({"number": number, "world": 3, "attempt": 0})
        collector.env.close()
        episode = room.read_episode(folder / f"out/episode_{number:04d}.npz")
        small = script.resize(np.concatenate(list(room.read_frames(episode.path))))
        pairs = torch.from_numpy(np.stack([np.stack([small[max(step - 1, 0)], small[step]]) for step in range(8)]))
        with torch.no_grad():
            assert agent(pairs).argmax(-1).tolist() == episode.actions.tolist()
    (folder / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(BadInput, match=r"bad.pth is not weights"):
        tool.make_expert(tool.Args(expert="bad.pth"), 1)


def test_minari_and_back_without_loss(folder, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    env = PokemonEnv(max_steps=7)
    (folder / "out").mkdir()
    for number, world in ((1, 5), (2, 9)):
        recording = room.Recording([env.reset(options={"quest_seed": world})[0]])
        for action in range(4 + number):
            recording.add(5, action, env.step(action))
        room.write_episode(
            folder / "out" / tool.episode_name(number),
            recording,
            room.describe(env, quest_seed=world, expert="scripted"),
        )
    env.close()
    tool.main(["--output-dir", "out", "--to-minari", "gba/test-v0"])
    tool.main(["--output-dir", "back", "--from-minari", "gba/test-v0"])
    for path in room.find_episodes("out"):
        assert (folder / "back" / path.name).read_bytes() == path.read_bytes()
    import minari

    episode = next(minari.load_dataset("gba/test-v0").iterate_episodes())
    assert (
        episode.observations.shape == (6, 160, 240, 3)
        and episode.actions.tolist() == [0, 1, 2, 3, 4]
        and episode.truncations[-1]
    )
    with pytest.raises(BadInput, match="There is no Minari dataset"):
        tool.main(["--output-dir", "back", "--from-minari", "gba/other-v0"])


def test_noise_has_the_share_and_the_length_that_were_asked_for():
    noise = Noise(0.2, 4.0, np.random.default_rng(0))
    is_on = []
    for _ in range(40_000):
        noise.disturb(3)
        is_on.append(noise.is_on)
    runs = np.count_nonzero(np.diff(np.array(is_on, int)) == 1)
    assert np.mean(is_on) == pytest.approx(0.2, abs=0.02) and np.sum(is_on) / runs == pytest.approx(4.0, abs=0.4)
    assert not any(Noise(0.0, 4.0, np.random.default_rng(0)).disturb(3) != 3 for _ in range(1000))
    with pytest.raises(ValueError, match="Noise is a share"):
        Noise(1.0, 4.0, np.random.default_rng(0))


def test_worlds_are_parsed():
    assert tool.parse_worlds("0-3,9") == [0, 1, 2, 3, 9]
    for text in ("", "a", "5-", "65000-65536"):
        with pytest.raises(BadInput, match="--worlds should be"):
            tool.parse_worlds(text)
