"""Tools of Rocket League: the bot for the real game, the diagnosis, and evaluate."""

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
from cleanrl_games.envs.rocketleague import NUM_ACTIONS, RocketLeagueVecEnv, contract
from cleanrl_games.envs.rocketleague.contract import ACTION_TABLE, BIG_PADS, CONTROL_NAMES, NO_OP, OBS_INDEX, OBS_NAMES
from cleanrl_games.envs.rocketleague.match import play_kickoffs
from cleanrl_games.envs.rocketleague.observations import SUPERSONIC
from cleanrl_games.envs.rocketleague.rlbot import PAD_PLACES, PacketReader, Pilot
from cleanrl_games.envs.rocketleague.rule_policy import RulePolicy
from cleanrl_games.tools import diagnose_performance, evaluate, export_rlbot, models

ROOT = Path(__file__).resolve().parents[1]


# --------------------------------------------------------------------------------------------------- packets of the real game


def vector(values):
    return flat.Vector3(*(float(value) for value in values))


def field_info(order):
    pads = [flat.BoostPad(vector((*PAD_PLACES[i], 70)), is_full_boost=int(i) in BIG_PADS) for i in order]
    return flat.FieldInfo(boost_pads=pads)


def rotator(body):
    """Pitch, yaw and roll of a car, from its axes: the inverse of what the reader does"""
    rotation = body.get_state().rot_mat
    (fx, fy, fz), right_z, up_z = rotation.forward.as_tuple(), rotation.right.as_tuple()[2], rotation.up.as_tuple()[2]
    return flat.Rotator(pitch=float(np.arcsin(np.clip(fz, -1, 1))), yaw=float(np.arctan2(fy, fx)), roll=float(np.arctan2(-right_z, up_z)))


def packet_of(env, order, frame, phase=flat.MatchPhase.Active):
    """Arena 0 as RLBot would report it, through RLBot's own wire format"""
    players = []
    for agent, body in enumerate(env.bodies[0]):
        state, controls = body.get_state(), ACTION_TABLE[env.last_actions[agent]]
        air = flat.AirState.Jumping if state.is_jumping else flat.AirState.OnGround if state.is_on_ground else flat.AirState.InAir
        places = (state.pos.as_tuple(), state.vel.as_tuple(), state.ang_vel.as_tuple())
        physics = flat.Physics(vector(places[0]), rotator(body), vector(places[1]), vector(places[2]))
        values = [*map(float, controls[:5]), *(bool(value) for value in controls[5:])]
        players.append(
            flat.PlayerInfo(
                physics=physics, air_state=air, team=int(env.agent_team[agent]), boost=float(state.boost),
                demolished_timeout=float(state.demo_respawn_timer) if state.is_demoed else -1.0,
                is_supersonic=bool(env.fields[agent, SUPERSONIC] > 0), last_input=flat.ControllerState(**dict(zip(CONTROL_NAMES, values))),
                has_jumped=state.has_jumped, has_double_jumped=state.has_double_jumped, has_dodged=state.has_flipped,
                dodge_elapsed=float(state.flip_time),
            )
        )  # fmt: skip
    ball = env.arenas[0].ball.get_state()
    info = flat.BallInfo(
        flat.Physics(vector(ball.pos.as_tuple()), flat.Rotator(), vector(ball.vel.as_tuple()), vector(ball.ang_vel.as_tuple()))
    )
    states = [env.pad_objects[0][i].get_state() for i in order]
    seconds = [10.0 if int(i) in BIG_PADS else 4.0 for i in order]
    pads = [flat.BoostPadState(pad.is_active, 0.0 if pad.is_active else full - pad.cooldown) for pad, full in zip(states, seconds)]
    match = flat.MatchInfo(frame_num=frame, match_phase=phase)
    return flat.GamePacket.unpack(flat.GamePacket(players=players, boost_pads=pads, balls=[info], match_info=match).pack())


def test_observations_from_packets_equal_trainings():
    """A 2v2 match, tick by tick: each packet goes over RLBot's wire and comes back as the environment's own observation and mask."""
    env = RocketLeagueVecEnv(1, (2,), seed=3, action_repeat=1, action_delay=False, states={"near_ball": 1})
    assert np.allclose([pad.get_pos().as_tuple()[:2] for pad in env.pad_objects[0]], PAD_PLACES, atol=1)
    rng = np.random.default_rng(2)
    order = rng.permutation(len(PAD_PLACES))
    reader, rule, actions = PacketReader(field_info(order)), RulePolicy("rule"), np.full(4, NO_OP, np.int64)
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
        if any((state.is_jumping and state.is_on_ground) or abs(state.air_time_since_jump - 1.25) < 0.004 for state in states):
            continue  # the first ticks of a jump, for which a packet has one word where the simulator has two; a deadline met to the tick
        compared += 1
        for agent in range(4):
            obs, mask = reader.observe(agent, int(actions[agent]))
            wrong = np.flatnonzero(np.abs(obs - env.obs[agent]) > 2e-3)
            assert not len(wrong), f"tick {tick}: " + ", ".join(f"{OBS_NAMES[i]} {obs[i]:.4f} not {env.obs[agent, i]:.4f}" for i in wrong)
            assert np.array_equal(mask, env.masks[agent])
            seen |= obs != 0
        most_pads = max(most_pads, int((env.pad_timers[0] > 0).sum()))
    for name in ("handbrake", "jump_time", "air_time_since_jump", "flip_time", "boosting", "mate_1_present", "foe_2_present"):
        assert seen[OBS_INDEX[name]], f"{name} was never anything but 0 in this match"
    assert compared > 800 and most_pads > 0 and not seen[OBS_INDEX["foe_3_present"]]


def test_uneven_teams_and_foreign_maps():
    env = RocketLeagueVecEnv(1, (2,), seed=3)
    order = np.arange(34)
    packet = packet_of(env, order, 1)
    alone = flat.GamePacket(players=packet.players[1:], boost_pads=packet.boost_pads, balls=packet.balls, match_info=packet.match_info)
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


# ---------------------------------------------------------------------------------------------------------------- the tools


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(1)
    args = script.Args(rnn_size=16, eval_seconds=4.0)
    path = tmp_path_factory.mktemp("model") / "tiny.zip"
    script.save_model(path, script.Agent(args.recurrent, args.rnn_size), args, 3)
    return path


def test_an_exported_bot_stands_alone_and_acts_as_the_model(model, tmp_path):
    folder = export_rlbot.export(export_rlbot.Args(str(model), str(tmp_path / "bot"), name='The "bot"', deterministic=True))
    assert {path.name for path in folder.iterdir()} == {"bot.py", "bot.toml", "model.zip", "requirements.txt", "cleanrl_games"}
    import tomllib

    settings = tomllib.loads((folder / "bot.toml").read_text())["settings"]
    assert settings["name"] == 'The "bot"' and settings["agent_id"] == "cleanrl_games/The_bot_"
    assert "torch==" in (folder / "requirements.txt").read_text()

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
    flags = ["--against", "rule", "random", "--episodes", "4", "--json", str(tmp_path / "out.json"), "--video", str(tmp_path / "match.gif")]
    results = evaluate.main([str(model), *flags])
    assert [result["opponent"] for result in results] == ["rule", "random"] and all(result["game"] == "rocketleague" for result in results)
    assert len(list(tmp_path.glob("match_*.gif"))) == 2
    again = evaluate.main([str(model), *flags[:-4]])
    assert [result["win_rate"] for result in again] == [result["win_rate"] for result in results]


def test_recommended_flags_follow_the_figures():
    env, inference = {96: 30_000.0, 192: 40_000.0}, {(1, 96): 40_000.0, (1, 192): 40_000.0, (2, 192): 90_000.0}
    learn = {(1, "lstm", 2048): 19_000.0, (1, "none", 2048): 80_000.0, (2, "lstm", 2048): 22_000.0}
    flags, bound, speed = diagnose_performance.recommend(env, inference, learn, {}, cores=2)
    assert flags == "--num-workers 1 --num-agents 192 --minibatch-size 2048 --device cpu --threads 1"
    assert bound == "the learner" and speed == pytest.approx(19_000)
    flags, bound, speed = diagnose_performance.recommend(env, inference, learn, {"learn_16384": 200_000.0}, cores=4)
    assert flags == "--num-workers 3 --num-agents 192 --minibatch-size 16384 --device cuda" and bound.startswith("the actors")
    assert speed == pytest.approx(3 * 20_000)
    learn[2, "lstm", 2048] = 40_000.0  # now worth a second core
    assert "--threads 2" in diagnose_performance.recommend(env, inference, learn, {}, cores=4)[0]


def test_diagnosis_runs_and_says_what_it_found(capsys):
    found = diagnose_performance.main(["--test", "env", "--seconds", "0.05", "--agents", "12"])
    assert list(found) == ["env"] and found["env"]["12"] > 0 and "of the bare physics" in capsys.readouterr().out
    found = diagnose_performance.main(["--test", "gpu", "--seconds", "0.05", "--agents", "12", "--minibatches", "64"])
    assert ("no CUDA device" in capsys.readouterr().out) == (not found["gpu"])
    with pytest.raises(SystemExit, match="multiple of 12"):
        diagnose_performance.main(["--agents", "20"])


def test_rlviser_is_shown_the_match_or_missed_with_a_sentence(monkeypatch):
    """The viewer itself needs a display; what it is given is checked on a module in its place."""
    if importlib.util.find_spec("rlviser_py") is None:
        with pytest.raises(ValueError, match="rlviser is not installed"):
            play_kickoffs(RulePolicy("rule"), RulePolicy("random"), 2, video="rlviser")
    shown, names = [], ("set_boost_pad_locations", "render", "quit")
    place = types.SimpleNamespace(**{name: lambda *args, name=name, **values: shown.append((name, args, values)) for name in names})
    monkeypatch.setitem(sys.modules, "rlviser_py", place)
    play_kickoffs(RulePolicy("rule"), RulePolicy("random"), 2, video="rlviser", max_seconds=0.4)
    assert [name for name, _, _ in shown] == ["set_boost_pad_locations", *["render"] * 6, "quit"]
    assert np.allclose(np.array(shown[0][1][0])[:, :2], PAD_PLACES, atol=1)
    first, last = shown[1][2], shown[6][2]
    assert len(first["boost_pad_states"]) == 34 and [car[0] for car in first["cars"]] == [1, 2] and last["tick_count"] == 48
    speeds = [np.linalg.norm(shot["cars"][0][3].vel.as_tuple()) for shot in (first, last)]
    assert speeds[1] > speeds[0] and [car[1] for car in first["cars"]] == [0, 1]
