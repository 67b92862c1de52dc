"""Tools of Rocket League: the bot for the real game, the diagnosis, and evaluate."""

import csv
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import rlbot_flatbuffers as flat
import torch

from cleanrl_games import recurrent_ppo_rocketleague as script
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, RocketLeagueVecEnv, contract, match
from cleanrl_games.envs.rocketleague.contract import ACTION_TABLE, BIG_PADS, CONTROL_NAMES, NO_OP, OBS_INDEX, OBS_NAMES
from cleanrl_games.envs.rocketleague.match import play_kickoffs
from cleanrl_games.envs.rocketleague.observations import SUPERSONIC
from cleanrl_games.envs.rocketleague.rlbot import PAD_PLACES, PacketReader, Pilot
from cleanrl_games.envs.rocketleague.scripted import PLAYERS, ScriptedPlayer
from cleanrl_games.envs.rocketleague.states import car, load_states
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import (
    diagnose_performance,
    evaluate,
    export_rlbot,
    foreign_bot,
    league,
    models,
    rocketleague_states,
)

ROOT = Path(__file__).resolve().parents[1]


# --------------------------------------------------------------------------------------------- packets of the real game


def vector(values):
    return flat.Vector3(*(float(value) for value in values))


def field_info(order):
    pads = [flat.BoostPad(vector((*PAD_PLACES[i], 70)), is_full_boost=int(i) in BIG_PADS) for i in order]
    return flat.FieldInfo(boost_pads=pads)


def rotator(body):
    """Pitch, yaw and roll of a car, from its axes: the inverse of what the reader does"""
    rotation = body.get_state().rot_mat
    (fx, fy, fz), right_z, up_z = rotation.forward.as_tuple(), rotation.right.as_tuple()[2], rotation.up.as_tuple()[2]
    return flat.Rotator(
        pitch=float(np.arcsin(np.clip(fz, -1, 1))),
        yaw=float(np.arctan2(fy, fx)),
        roll=float(np.arctan2(-right_z, up_z)),
    )


def packet_of(env, order, frame, phase=flat.MatchPhase.Active):
    """Arena 0 as RLBot would report it, through RLBot's own wire format"""
    players = []
    for agent, body in enumerate(env.bodies[0]):
        state, controls = body.get_state(), ACTION_TABLE[env.last_actions[agent]]
        air = (
            flat.AirState.Jumping
            if state.is_jumping
            else flat.AirState.OnGround
            if state.is_on_ground
            else flat.AirState.InAir
        )
        places = (state.pos.as_tuple(), state.vel.as_tuple(), state.ang_vel.as_tuple())
        physics = flat.Physics(vector(places[0]), rotator(body), vector(places[1]), vector(places[2]))
        values = [*map(float, controls[:5]), *(bool(value) for value in controls[5:])]
        players.append(
            flat.PlayerInfo(
                physics=physics, air_state=air, team=int(env.agent_team[agent]), boost=float(state.boost),
                demolished_timeout=float(state.demo_respawn_timer) if state.is_demoed else -1.0,
                is_supersonic=bool(env.fields[agent, SUPERSONIC] > 0),
                last_input=flat.ControllerState(**dict(zip(CONTROL_NAMES, values))),
                has_jumped=state.has_jumped, has_double_jumped=state.has_double_jumped, has_dodged=state.has_flipped,
                dodge_elapsed=float(state.flip_time),
            )
        )  # fmt: skip
    ball = env.arenas[0].ball.get_state()
    info = flat.BallInfo(
        flat.Physics(
            vector(ball.pos.as_tuple()), flat.Rotator(), vector(ball.vel.as_tuple()), vector(ball.ang_vel.as_tuple())
        )
    )
    states = [env.pad_objects[0][i].get_state() for i in order]
    seconds = [10.0 if int(i) in BIG_PADS else 4.0 for i in order]
    pads = [
        flat.BoostPadState(pad.is_active, 0.0 if pad.is_active else full - pad.cooldown)
        for pad, full in zip(states, seconds)
    ]
    match = flat.MatchInfo(frame_num=frame, match_phase=phase)
    return flat.GamePacket.unpack(
        flat.GamePacket(players=players, boost_pads=pads, balls=[info], match_info=match).pack()
    )


def test_observations_from_packets_equal_trainings():
    """A 2v2 match, tick by tick: each packet goes over RLBot's wire and comes back as the environment's own observation
    and mask."""
    env = RocketLeagueVecEnv(1, (2,), seed=3, action_repeat=1, action_delay=False, states={"near_ball": 1})
    assert np.allclose([pad.get_pos().as_tuple()[:2] for pad in env.pad_objects[0]], PAD_PLACES, atol=1)
    rng = np.random.default_rng(2)
    order = rng.permutation(len(PAD_PLACES))
    reader, rule, actions = PacketReader(field_info(order)), ScriptedPlayer("rule"), np.full(4, NO_OP, np.int64)
    seen, most_pads, compared = np.zeros(len(OBS_NAMES), bool), 0, 0
    for tick in range(960):
        if tick % 8 == 0:
            rule.act(env.obs, env.masks, np.arange(4), actions)
            wild = rng.random(4) < 0.5
            actions[wild] = rng.integers(NUM_ACTIONS, size=int(wild.sum()))
        _, _, _, terminated, truncated, _ = env.step(actions)
        if terminated[0] or truncated[0]:
            reader = PacketReader(field_info(order))
            continue
        reader.read(packet_of(env, order, frame=1000 + tick))
        states = [body.get_state() for body in env.bodies[0]]
        if any(
            (state.is_jumping and state.is_on_ground) or abs(state.air_time_since_jump - 1.25) < 0.004
            for state in states
        ):
            # the first ticks of a jump, for which a packet has one word where the simulator has two; a deadline met to
            # the tick
            continue
        compared += 1
        for agent in range(4):
            obs, mask = reader.observe(agent, int(actions[agent]))
            wrong = np.flatnonzero(np.abs(obs - env.obs[agent]) > 2e-3)
            assert not len(wrong), f"tick {tick}: " + ", ".join(
                f"{OBS_NAMES[i]} {obs[i]:.4f} not {env.obs[agent, i]:.4f}" for i in wrong
            )
            assert np.array_equal(mask, env.masks[agent]), f"tick {tick}: the mask of car {agent} differs"
            seen |= obs != 0
        most_pads = max(most_pads, int((env.pad_timers[0] > 0).sum()))
    for name in (
        "handbrake",
        "jump_time",
        "air_time_since_jump",
        "flip_time",
        "boosting",
        "mate_1_present",
        "foe_2_present",
    ):
        assert seen[OBS_INDEX[name]], f"{name} was never anything but 0 in this match"
    assert compared > 800 and most_pads > 0 and not seen[OBS_INDEX["foe_3_present"]]


def test_the_bot_may_jump_from_its_roof_too():
    """A packet does not say whether a car touches the ground with its roof; its mask is the environment's all the
    same."""
    env, order = (
        RocketLeagueVecEnv(1, (1,), seed=3, action_repeat=1, action_delay=False, no_touch_seconds=100.0),
        np.arange(34),
    )
    state = np.array([0, 0, 93.15, 0, 0, 0, 0, 0, 0], float)
    env.set_arena(0, state, (car((0, -2000, 45), 1.57, roll=np.pi), car((0, 2000, 45), 1.57)))
    body = env.bodies[0][0]
    spent = body.get_state()
    spent.has_jumped = spent.has_flipped = True
    spent.air_time_since_jump = 2.0
    body.set_state(spent)
    reader, jumps, on_roof = PacketReader(field_info(order)), ACTION_TABLE[:, CONTROL_NAMES.index("jump")] > 0, 0
    for tick in range(60):
        env.step(np.array([NO_OP, NO_OP]))
        reader.read(packet_of(env, order, tick))
        _, mask = reader.observe(0, NO_OP)
        assert np.array_equal(mask, env.masks[0])
        if tick > 30:
            on_roof += bool(mask[jumps].any()) and env.obs[0, OBS_INDEX["up_z"]] < -0.9
    assert on_roof == 29


def test_uneven_teams_and_foreign_maps():
    env = RocketLeagueVecEnv(1, (2,), seed=3)
    order = np.arange(34)
    packet = packet_of(env, order, 1)
    alone = flat.GamePacket(
        players=packet.players[1:], boost_pads=packet.boost_pads, balls=packet.balls, match_info=packet.match_info
    )
    reader = PacketReader(field_info(order))
    reader.read(alone)
    obs, _ = reader.observe(0, NO_OP)  # the second blue car, whose mate has left
    absent = slice(OBS_INDEX["mate_1_present"], OBS_INDEX["mate_1_present"] + 40)
    assert (obs[absent] == 0).all() and obs[OBS_INDEX["foe_1_present"]] == obs[OBS_INDEX["foe_2_present"]] == 1
    expected = env.obs[1].copy()
    expected[absent] = 0
    assert np.allclose(obs, expected, atol=2e-3)
    with pytest.raises(ValueError, match="has 33 boost pads"):
        PacketReader(field_info(order[1:]))
    crowd = flat.GamePacket(players=list(packet.players) * 2, balls=packet.balls, match_info=packet.match_info)
    reader.read(crowd)
    with pytest.raises(ValueError, match="4 cars are in one team"):
        reader.observe(0, NO_OP)


class Counting:
    """A player that notes when it is asked and always boosts"""

    def __init__(self):
        self.asked, self.started = 0, 0

    def start(self, rows):
        self.started += 1

    def act(self, obs, masks, rows, actions):
        assert obs.shape == (1, contract.NUM_OBS) and masks.shape == (1, NUM_ACTIONS)
        self.asked += 1
        actions[rows] = 16 + self.asked


def test_a_pilot_decides_every_eight_ticks_and_forgets_at_kickoffs():
    env, order, player = RocketLeagueVecEnv(1, (1,), seed=3), np.arange(34), Counting()
    pilot = Pilot(player, field_info(order), 0)
    phases = [flat.MatchPhase.Countdown] * 5 + [flat.MatchPhase.Kickoff] * 10 + [flat.MatchPhase.Active] * 10
    phases += [flat.MatchPhase.GoalScored] * 3 + [flat.MatchPhase.Kickoff] * 3
    chosen = [pilot.controls(packet_of(env, order, tick, phase)) for tick, phase in enumerate(phases)]
    assert (np.array(chosen[:5]) == 0).all() and (np.array(chosen[25:28]) == 0).all()
    assert [np.array_equal(chosen[i], ACTION_TABLE[17 + (i - 5) // 8]) for i in range(5, 25)] == [True] * 20
    assert (player.asked, player.started) == (4, 2)


# ------------------------------------------------------------------------------------------------------------ the tools


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(1)
    args = script.Args(rnn_size=16, eval_seconds=4.0)
    path = tmp_path_factory.mktemp("model") / "tiny.zip"
    script.save_model(path, script.Agent(args.recurrent, args.rnn_size), args, 3)
    return path


def test_an_exported_bot_stands_alone_and_acts_as_the_model(model, tmp_path):
    folder = export_rlbot.export(
        export_rlbot.Args(str(model), str(tmp_path / "bot"), name='The "bot"', deterministic=True)
    )
    assert {path.name for path in folder.iterdir()} == {
        "bot.py",
        "bot.toml",
        "model.zip",
        "requirements.txt",
        "cleanrl_games",
    }
    import tomllib

    settings = tomllib.loads((folder / "bot.toml").read_text())["settings"]
    assert settings["name"] == 'The "bot"' and settings["agent_id"] == "cleanrl_games/The_bot_"
    pins = (folder / "requirements.txt").read_text().splitlines()
    installed = {
        name: importlib.metadata.version(name) for name in ("torch", "numba", "rlbot_flatbuffers", "rocketsim")
    }
    for name, version in installed.items():
        assert f"{name}=={version.split('+')[0]}" in pins, "a bot should get what was tested"
    assert any(pin.startswith("rlbot==") for pin in pins)

    env, order = RocketLeagueVecEnv(1, (1,), seed=5, states={"random": 1}), np.arange(34)
    packets = []
    for frame in (1, 9):
        packets.append(packet_of(env, order, frame))
        env.step(np.array([40, 3]))
    (tmp_path / "packets").write_bytes(b"".join(packet.pack() for packet in packets))
    sizes = [len(packet.pack()) for packet in packets]
    code = f"""
import sys, json
sys.path.insert(0, {str(folder)!r})
import bot, rlbot_flatbuffers as flat
import cleanrl_games
assert cleanrl_games.__file__.startswith({str(folder)!r}), cleanrl_games.__file__
pads = [flat.BoostPad(flat.Vector3(float(x), float(y), 70.0), big) for x, y, big in json.loads(sys.argv[1])]
data, sizes, out = open({str(tmp_path / "packets")!r}, "rb").read(), {sizes}, []
pilot = bot.make_pilot(flat.FieldInfo(boost_pads=pads), 1)
from cleanrl_games.envs.rocketleague import observations
ready = observations.observe_player.signatures and observations.mask_player.signatures
assert ready, "the first packet would wait for the compiler"
for i, size in enumerate(sizes):
    packet = flat.GamePacket.unpack(data[sum(sizes[:i]):sum(sizes[:i]) + size])
    out.append(pilot.controls(packet).tolist())
print(json.dumps(out))
"""
    pads = json.dumps([[int(x), int(y), i in BIG_PADS] for i, (x, y) in enumerate(PAD_PLACES)])
    done = subprocess.run([sys.executable, "-c", code, pads], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    agent, _ = script.load_model(model)
    pilot = Pilot(script.Player(agent, 2, deterministic=True), field_info(order), 1)
    assert json.loads(done.stdout) == [pilot.controls(packet).tolist() for packet in packets]
    with pytest.raises(models.ModelError, match="exists already"):
        export_rlbot.export(export_rlbot.Args(str(model), str(folder)))
    with pytest.raises(models.ModelError, match="There is no model"):
        export_rlbot.export(export_rlbot.Args(str(tmp_path / "nothing.zip"), str(tmp_path / "other")))
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".other*"))


def test_evaluate_plays_kickoffs_of_the_models_stage(model, tmp_path):
    flags = [
        "--against",
        "rule",
        "random",
        "--episodes",
        "4",
        "--json",
        str(tmp_path / "out.json"),
        "--save",
        str(tmp_path / "match.gif"),
    ]
    results = evaluate.main([str(model), *flags])
    assert [result["opponent"] for result in results] == ["rule", "random"] and all(
        result["game"] == "rocketleague" for result in results
    )
    assert len(list(tmp_path.glob("match_*.gif"))) == 2
    again = evaluate.main([str(model), *flags[:-4]])
    assert [result["score"] for result in again] == [result["score"] for result in results]


def test_all_scripted_players_are_evaluated_and_may_be_judged():
    results = evaluate.main(
        ["chaser", "--game", "rocketleague", "--against", "rule", "--episodes", "4", "--team-size", "2"]
    )
    assert [(result["player"], result["opponent"]) for result in results] == [("chaser", "rule")]
    assert set(evaluate.GAMES["rocketleague"].baselines()) == set(PLAYERS) >= {"rule", "chaser", "positional", "aerial"}


def adapter_of_the_page(path):
    page = (ROOT / "docs" / "recurrent_ppo_rocketleague.md").read_text()
    code = page[page.index("## Bots of other projects") :].split("```python\n")[1].split("```")[0]
    path.write_text(code)
    return code


class Logits(torch.nn.Module):
    """Always the same action, so that what it played can be seen"""

    def forward(self, obs):
        logits = torch.zeros(obs.shape[0], 90)
        logits[:, 17] = obs[:, 0].abs() + 5.0
        return logits


def test_a_torchscript_bot_plays_by_its_adapter(model, tmp_path, capsys):
    torch.jit.script(Logits()).save(tmp_path / "bot.pt")
    code = adapter_of_the_page(tmp_path / "adapter.py")
    word = f"{tmp_path / 'bot.pt'}={tmp_path / 'adapter.py'}"
    flags = [str(model), "--against", word, "--episodes", "4"]
    with pytest.raises((SystemExit, models.ModelError, BadInput)):
        evaluate.main(flags)
    (result,) = evaluate.main([*flags, "--trust-source"])
    assert (result["opponent"], result["episodes"]) == ("bot", 4)
    bot = foreign_bot.ForeignBot.load(word, True)
    env, actions = RocketLeagueVecEnv(2), np.full(4, NO_OP)
    foreign_bot.ForeignPlayer(bot).act(env.obs, env.masks, np.array([1, 2]), actions)
    assert actions.tolist() == [NO_OP, 17, 17, NO_OP]
    for text, sentence in ((code.replace("def act", "def acts"), "no function act"), ("1 / 0", "cannot be imported")):
        (tmp_path / "adapter.py").write_text(text)
        with pytest.raises(models.ModelError, match=sentence):
            foreign_bot.ForeignBot.load(word, True)
    (tmp_path / "adapter.py").write_text(code.replace(".argmax(1)", ".argmax(0)"))
    bot = foreign_bot.ForeignBot.load(word, True)
    with pytest.raises(ValueError, match="should return 2 action numbers"):
        foreign_bot.ForeignPlayer(bot).act(env.obs, env.masks, np.array([1, 2]), actions)
    (tmp_path / "adapter.py").write_text(code.replace("return torch.from_numpy", "return torch.zeros(3)  #"))
    with pytest.raises(models.ModelError, match=r"against bot: its network or adapter failed with .*imension"):
        evaluate.main([*flags, "--trust-source"])
    (tmp_path / "bot.pt").write_bytes(b"no archive")
    with pytest.raises(models.ModelError, match="not a TorchScript file"):
        foreign_bot.ForeignBot.load(word, True)
    with pytest.raises(models.ModelError, match="can run any code"):
        foreign_bot.ForeignBot.load(word, False)


class Counter(torch.nn.Module):
    """A network with a memory, which is handed in and given back: it counts the steps of each car's game."""

    def forward(self, obs, steps):
        return torch.zeros(obs.shape[0], 90), steps + 1.0


REMEMBERS = """
import numpy as np
import torch

steps = torch.zeros(100)


def start(rows):
    steps[rows] = 0.0


def observe(obs, rows):
    global playing
    playing = rows
    return torch.from_numpy(np.ascontiguousarray(obs)), steps[rows]


def act(outputs, masks):
    logits, steps[playing] = outputs
    return steps[playing].long().numpy()
"""


def test_a_torchscript_bot_may_remember(tmp_path):
    """Each car has its own memory, also when games beside it are over."""
    torch.jit.script(Counter()).save(tmp_path / "bot.pt")
    (tmp_path / "adapter.py").write_text(REMEMBERS)
    player = foreign_bot.ForeignPlayer(
        foreign_bot.ForeignBot.load(f"{tmp_path / 'bot.pt'}={tmp_path / 'adapter.py'}", True)
    )
    obs, masks, actions = np.zeros((6, 201), np.float32), np.ones((6, 90), bool), np.zeros(6, np.int64)
    player.start(np.arange(6))
    for rows in ([0, 2, 4], [0, 4], [4]):
        player.act(obs, masks, np.array(rows), actions)
    assert actions.tolist() == [2, 0, 1, 0, 3, 0]
    player.start(np.array([4]))
    player.act(obs, masks, np.array([0, 4]), actions)
    assert actions.tolist() == [3, 0, 1, 0, 1, 0]


# ----------------------------------------------------------------------------------------------------- starts from play


def frame(size=1, **changes):
    """A situation of `size` cars per team, as a line of the tool's input"""
    rows = [
        {
            "team": team,
            "position": [600 * i - 600, (-2000, 2000)[team], 17],
            "velocity": [0, 900, 0],
            "rotation": [0.1, 1.5, 0.2],
            "boost": 40,
        }
        for team in (0, 1)
        for i in range(size)
    ]
    return {"ball": {"position": [100, 200, 300], "velocity": [1, 2, 3]}, "cars": rows} | changes


def write_lines(path, *frames):
    path.write_text("".join(json.dumps(one) + "\n" for one in frames))
    return str(path)


def test_frames_become_states_that_games_begin_from(tmp_path, capsys):
    in_goal = {"position": [0, 5400, 100]}
    lines = [frame(1), frame(2), frame(1, ball=in_goal), frame(1, cars=frame(2)["cars"][1:]), frame(2)]
    source = write_lines(tmp_path / "frames.jsonl", *lines)
    sizes = rocketleague_states.main([source, "--output", str(tmp_path / "states.npz"), "--mirror"])
    said = capsys.readouterr().out
    assert (
        sizes == {1: 2, 2: 4}
        and "left out 1: the ball was in a goal" in said
        and "left out 1: the teams were uneven" in said
    )
    found = load_states(tmp_path / "states.npz")
    (ball, cars), (turned_ball, turned_cars) = found[1]
    assert ball[:6].tolist() == [100, 200, 300, 1, 2, 3] and turned_ball[:6].tolist() == [-100, -200, 300, -1, -2, 3]
    env = RocketLeagueVecEnv(1, (1,), states={"file": 1.0}, state_file=tmp_path / "states.npz")
    for one, (seen_ball, seen_cars) in enumerate([(ball, cars), (turned_ball, turned_cars)]):
        env.set_arena(0, seen_ball, seen_cars)
        if one == 0:
            blue, orange = env.obs.copy()
    np.testing.assert_allclose(env.obs[1], blue, atol=1e-4)  # turned, orange sees what blue saw
    np.testing.assert_allclose(env.obs[0], orange, atol=1e-4)
    filled = rocketleague_states.main([source, "--output", str(tmp_path / "filled.npz"), "--fill", "--every", "3"])
    assert filled == {1: 1, 2: 1}
    keeper = load_states(tmp_path / "filled.npz")[2][0][1]
    assert len(keeper) == 4 and abs(keeper[1, 1]) > 2000


def test_bad_frames_get_a_sentence_and_nothing_is_written(tmp_path):
    cases = [
        (frame(1, ball={}), "Line 1 of .*position is missing"),
        (frame(1, ball={"position": [0, 0, float("nan")]}), "three finite numbers"),
        (frame(1, cars=[{"team": 3}]), "a team"),
        (frame(1, cars=[{**frame(1)["cars"][0], "boost": 255}]), "boost should be 0 to 100"),
        (frame(1, ball={"position": [0, 9000, 0]}), "No situation is left"),
    ]
    for content, sentence in cases:
        with pytest.raises(BadInput, match=sentence):
            rocketleague_states.main(
                [write_lines(tmp_path / "a.jsonl", content), "--output", str(tmp_path / "out.npz")]
            )
    (tmp_path / "b.jsonl").write_text("not json\n")
    with pytest.raises(BadInput, match="Line 1"):
        rocketleague_states.main([str(tmp_path / "b.jsonl"), "--output", str(tmp_path / "out.npz")])
    with pytest.raises(BadInput, match="no folder"):
        rocketleague_states.main([str(tmp_path / "b.jsonl"), "--output", str(tmp_path / "missing" / "out.npz")])
    assert not (tmp_path / "out.npz").exists()


# ----------------------------------------------------------------------------------------------------------- the league


def test_league_tells_who_played_whom_and_how_strong_they_were(tmp_path, capsys):
    agent, rule, past = (
        script.new_rating(name, elo) for name, elo in (("agent", 900.0), ("rule", 1500.0), ("snapshot_5", 900.0))
    )
    for step, scores in ((10, [1.0, 0.0, 0.5]), (20, [1.0, 1.0, 0.5])):
        for other in (rule, past):
            course = script.rate_match(agent, other, scores, 1)
            script.append_games(
                tmp_path / "games.csv", step, "1v1", 1, "agent", other["name"], scores, [9.0] * 3, course
            )
    members = league.main([str(tmp_path)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["games"] == 12
    assert [row["member"] for row in members] == ["rule", "agent", "snapshot_5"] and members[0]["elo"] == 1500.0
    ours = {row["member"]: row for row in members}["agent"]
    assert (ours["won"], ours["tied"], ours["lost"]) == (6, 4, 2) and ours["elo"] == round(agent["elo"], 1)
    assert ours["mu"] == pytest.approx(agent["mu"], abs=1e-3) and ours["sigma"] == pytest.approx(
        agent["sigma"], abs=1e-3
    )
    assert {path.name for path in (tmp_path / "league").iterdir()} == {
        "members.csv",
        "ratings.csv",
        "wins.csv",
        "league.png",
    }
    rows = list(csv.DictReader((tmp_path / "league" / "ratings.csv").open()))
    assert [(row["global_step"], row["member"]) for row in rows[:3]] == [
        ("10", "agent"),
        ("10", "rule"),
        ("10", "snapshot_5"),
    ]
    pairs = {(row["player"], row["opponent"]): row for row in csv.DictReader((tmp_path / "league" / "wins.csv").open())}
    assert (pairs["rule", "agent"]["won"], pairs["rule", "agent"]["lost"]) == ("1", "3")


def test_league_refuses_what_is_no_run(tmp_path):
    with pytest.raises(BadInput, match="evaluated at least once"):
        league.main([str(tmp_path)])
    (tmp_path / "games.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="not those of games"):
        league.main([str(tmp_path)])
    (tmp_path / "games.csv").write_text(",".join(script.GAME_COLUMNS) + "\n1,1v1,1,agent,rule,blue,0.7,1,1,1\n")
    with pytest.raises(BadInput, match="Line 2"):
        league.main([str(tmp_path)])
    with pytest.raises(BadInput, match="either the folder of a run or --pin"):
        league.main([])
    with pytest.raises(BadInput, match="--team-size should be 1, 2 or 3, found 4"):
        league.main(["--pin", "2", "--team-size", "4"])
    assert not (tmp_path / "league").exists()


def test_ratings_are_pinned_in_the_team_size_that_is_asked_for(monkeypatch, capsys):
    played = []

    def kickoffs(player, opponent, count, seed, team_size, **limits):
        played.append((player.name, opponent.name, count, team_size))
        return np.array([1.0] * 3 + [0.5] * 2 + [0.0]), None

    monkeypatch.setattr(match, "play_kickoffs", kickoffs)
    found = league.main(["--pin", "6", "--team-size", "3"])
    assert found["rule"] == 1500.0 > found["chaser"] and len(played) == 10
    assert {(count, size) for _, _, count, size in played} == {(6, 3)}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["elo/aerial"] == found["aerial"]


def test_fitted_ratings_are_the_most_likely_ones():
    """Two players: the log-odds of the goals, with half a goal added to either side; a third by way of the second."""
    wins = np.array([[0, 300, 0], [100, 0, 300], [0, 100, 0]])
    step = 400 * np.log10(300.5 / 100.5)
    np.testing.assert_allclose(league.fit_elo(wins, 1), [1500 + step, 1500, 1500 - step], atol=1e-3)
    assert np.isfinite(league.fit_elo(np.array([[0, 200], [0, 0]]), 0)).all()


def test_recommended_flags_follow_the_figures():
    env, inference = {96: 30_000.0, 192: 40_000.0}, {(1, 96): 40_000.0, (1, 192): 40_000.0, (2, 192): 90_000.0}
    learn = {(1, "lstm", 2048): 19_000.0, (1, "none", 2048): 80_000.0, (2, "lstm", 2048): 22_000.0}
    flags, bound, speed = diagnose_performance.recommend(env, inference, learn, {}, cores=2)
    assert flags == "--num-workers 1 --num-agents 192 --minibatch-size 2048 --device cpu --threads 1"
    assert bound == "the learner" and speed == pytest.approx(19_000)
    flags, bound, speed = diagnose_performance.recommend(env, inference, learn, {"learn_16384": 200_000.0}, cores=4)
    assert flags == "--num-workers 3 --num-agents 192 --minibatch-size 16384 --device cuda" and bound.startswith(
        "the actors"
    )
    assert speed == pytest.approx(3 * 20_000)
    learn[2, "lstm", 2048] = 40_000.0  # now worth a second core
    assert "--threads 2" in diagnose_performance.recommend(env, inference, learn, {}, cores=4)[0]


def test_diagnosis_runs_and_says_what_it_found(capsys):
    found = diagnose_performance.main(["--test", "env", "--seconds", "0.05", "--agents", "12"])
    assert list(found) == ["env"] and found["env"]["12"] > 0 and "of the bare physics" in capsys.readouterr().out
    found = diagnose_performance.main(["--test", "gpu", "--seconds", "0.05", "--agents", "12", "--minibatches", "64"])
    assert ("no CUDA device" in capsys.readouterr().out) == (not found["gpu"])
    with pytest.raises(BadInput, match="multiple of 12"):
        diagnose_performance.main(["--agents", "20"])


def test_rlviser_is_shown_the_match_or_missed_with_a_sentence(monkeypatch):
    """The viewer itself needs a display; what it is given is checked on a module in its place."""
    if importlib.util.find_spec("rlviser_py") is None:
        with pytest.raises(ValueError, match="rlviser is not installed"):
            play_kickoffs(ScriptedPlayer("rule"), ScriptedPlayer("random"), 2, video="rlviser")
    shown, names = [], ("set_boost_pad_locations", "render", "quit")
    place = types.SimpleNamespace(
        **{name: lambda *args, name=name, **values: shown.append((name, args, values)) for name in names}
    )
    monkeypatch.setitem(sys.modules, "rlviser_py", place)
    play_kickoffs(ScriptedPlayer("rule"), ScriptedPlayer("random"), 2, video="rlviser", max_seconds=0.4)
    assert [name for name, _, _ in shown] == ["set_boost_pad_locations", *["render"] * 6, "quit"]
    assert np.allclose(np.array(shown[0][1][0])[:, :2], PAD_PLACES, atol=1)
    first, last = shown[1][2], shown[6][2]
    assert (
        len(first["boost_pad_states"]) == 34
        and [car[0] for car in first["cars"]] == [1, 2]
        and last["tick_count"] == 48
    )
    speeds = [np.linalg.norm(shot["cars"][0][3].vel.as_tuple()) for shot in (first, last)]
    assert speeds[1] > speeds[0] and [car[1] for car in first["cars"]] == [0, 1]
