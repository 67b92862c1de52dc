"""bc_pokemon_impala.py: its maths against cases computed by hand, its actor's bookkeeping, and runs as a user starts them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.envs.pokemon import PokemonEnv, QuestExpert, cache
from cleanrl_games.envs.pokemon.workers import Workers
from cleanrl_games.runtime.checkpoints import load_checkpoint

ROOT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # a second thread costs more than it gives on networks this small, the more so on a busy machine
SMALL = {"batch_size": 8, "hidden_dim": 16, "num_emulators": 2, "max_steps": 12, "eval_episodes": 2, "final_eval_episodes": 2}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def start(folder, *flags, **options):
    words = [sys.executable, "cleanrl_games/bc_pokemon_impala.py", *FLAGS, *map(str, flags)]
    words += [] if "--resume" in flags else ["--run-dir", str(folder)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def finish(process, code=0, seconds=400):
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    return output


def metrics_of(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def job(kind, worlds, **changes):
    return {
        "kind": kind,
        "worlds": worlds,
        "seed": [1, 1],
        "beta": 0.0,
        "noise": 0.0,
        "weights": None,
        "segment": "",
        "video": "",
        **changes,
    }


@pytest.fixture(scope="module")
def actor():
    torch.manual_seed(0)
    made = script.Actor(script.Args(**{**SMALL, "max_steps": 40}), 0)
    with torch.no_grad():
        made.agent.head.weight.normal_(0, 0.3)
    yield made
    for env in made.envs:
        env.close()


# ---------------------------------------------------------------------------------------------------------------- maths


def test_td_targets_by_hand():
    """The network chooses, the older copy judges; an end is worth its reward, a truncation goes on."""
    next_q = torch.tensor([[1.0, 5.0], [1.0, 5.0], [7.0, 0.0]])
    next_q_target = torch.tensor([[10.0, 20.0], [10.0, 20.0], [30.0, 40.0]])
    rewards, terminated = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([False, True, False])
    found = script.td_targets(rewards, terminated, next_q, next_q_target, 0.5)
    assert found.tolist() == [1 + 0.5 * 20, 1.0, 0.5 * 30]


def test_margin_loss_by_hand():
    q = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [5.0, 0.0, 4.5]])
    labels = torch.tensor([1, 2, 0])
    # the expert's is best by more than the margin; another is better; it is best, but by too little
    assert script.margin_loss(q, labels, 0.8).tolist() == pytest.approx([0.0, 3.8 - 2.0, 5.3 - 5.0])


def test_mixing_falls_with_the_rounds():
    assert [script.mixing(0.5, number) for number in (1, 2, 3)] == [0.5, 0.25, 0.125]
    assert script.mixing(0.0, 1) == 0.0


def test_priorities_draw_by_error_and_weights_make_up_for_it():
    priorities, rng = script.Priorities(), np.random.default_rng(0)
    priorities.grow(4)
    priorities.update(np.arange(4), np.array([0.0, 0.95, 0.95, 0.0]))
    priorities.grow(5)
    assert priorities.values[4] == priorities.values.max()  # what is new is urgent
    allowed = np.array([True, True, False, True, True])
    indices, weights = priorities.sample(rng, 40_000, allowed)
    shares = np.bincount(indices, minlength=5) / len(indices)
    expected = np.where(allowed, priorities.values, 0)
    assert shares == pytest.approx(expected / expected.sum(), abs=0.01) and shares[2] == 0
    rare, common = weights[indices == 0][0], weights[indices == 1][0]
    assert rare == 1.0 and common == pytest.approx((priorities.values[0] / priorities.values[1]) ** 0.4)


def test_network_is_the_one_of_the_plan():
    agent = script.Agent(1, 256)
    assert sum(tensor.numel() for tensor in agent.parameters()) == 1_091_658
    obs = torch.randint(0, 256, (3, 1, 84, 84, 3), dtype=torch.uint8)
    assert agent(obs).shape == (3, 10)
    # a stack of pictures is read in order: swapping two of them changes the answer, the batch's other rows do not
    agent = script.Agent(2, 16)
    torch.nn.init.normal_(agent.head.weight)
    obs = torch.randint(0, 256, (2, 2, 84, 84, 3), dtype=torch.uint8)
    with torch.no_grad():
        both, swapped = agent(obs), agent(obs.flip(1))
        assert not torch.allclose(both, swapped) and torch.allclose(agent(obs[:1]), both[:1], atol=1e-5)
    other = script.Agent(2, 16)
    script.from_flat(other, script.to_flat(agent))
    assert torch.equal(other(obs), agent(obs))


# ----------------------------------------------------------------------------------------------------------------- data


def fill(args, lengths, worlds=None, extra=1):
    """Demonstrations whose frame number n is a picture of the value n"""
    data, total = script.Demonstrations(args), sum(lengths) + extra * len(lengths)
    data.frames = cache.Frames(84)
    data.frames.arrays, data.frames.starts = (
        [np.arange(total, dtype=np.uint8)[:, None, None, None] * np.ones((1, 84, 84, 3), np.uint8)],
        [0, total],
    )
    first = 0
    for length, world in zip(lengths, worlds or [0] * len(lengths)):
        ends = np.arange(length) == length - 1
        fields = {"actions": np.zeros(length), "executed_actions": np.zeros(length), "rewards": np.zeros(length), "terminated": ends}
        data.add(first, length + extra, world, **fields)
        first += length + extra
    return data


def seen(observations):
    return observations[..., 0, 0, 0].tolist()


def test_frames_before_and_after_stay_in_their_episode():
    data = fill(script.Args(frame_stack=3), [3, 2])
    assert seen(data.observations(np.arange(5))) == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [4, 4, 4], [4, 4, 5]]
    assert seen(data.observations(np.arange(5), ahead=1)) == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 5], [4, 5, 6]]
    assert data.columns["has_next"].all()
    without = fill(script.Args(), [3, 2], extra=0)  # files that lack the last picture have nothing after it
    assert without.columns["has_next"].tolist() == [True, True, False, True, False]


def test_split_is_by_episode_and_held_out_worlds_never_teach():
    args = script.Args(validation_fraction=0.3, held_out_worlds=64)
    data = fill(args, [4] * 50, worlds=[200 if index % 5 == 0 else index for index in range(50)])
    episode, validation = data.columns["episode"], data.columns["validation"]
    for number in range(50):
        assert len(set(validation[episode == number].tolist())) == 1
        assert number % 5 or validation[episode == number].all()
    others = [validation[episode == number][0] for number in range(50) if number % 5]
    assert 0.1 < np.mean(others) < 0.5
    again = fill(args, [4] * 50, worlds=[200 if index % 5 == 0 else index for index in range(50)])
    assert np.array_equal(again.columns["validation"], validation)


# --------------------------------------------------------------------------------------------------------------- actors


def test_dagger_mixes_and_labels_every_state(actor, tmp_path):
    """The expert's share of the buttons is beta, its answer is the label of every state, and the segment holds what was seen."""
    path = str(tmp_path / "00001")
    result = actor.play(job("dagger", [3, 7, 11], beta=0.5, segment=path))
    assert [episode["length"] for episode in result["episodes"]] == [40] * 3
    data = script.Demonstrations(script.Args())
    data.frames = cache.Frames(84)
    assert data.add_segment(path) == 120 and data.segments == ["00001"]
    labels, executed = data.columns["actions"], data.columns["executed_actions"]
    # of the steps the student took, some agree by chance
    assert 0.35 < (labels == executed).mean() < 0.8
    env, expert = PokemonEnv(max_steps=40), QuestExpert()
    with np.load(f"{path}.npz", allow_pickle=False) as file:
        worlds = file["worlds"]
    for number, world in enumerate(worlds):
        obs, _ = env.reset(options={"quest_seed": int(world)})
        for index in np.flatnonzero(data.columns["episode"] == number):
            assert np.array_equal(data.observations(np.array([index]))[0, 0].numpy(), cache.resize(obs[None])[0])
            assert expert.act(env) == labels[index]
            obs, reward, *_ = env.step(int(executed[index]))
            assert reward == data.columns["rewards"][index]
    env.close()


def test_beta_one_is_the_expert_and_beta_zero_the_student(actor, tmp_path):
    for beta, share in ((1.0, 1.0), (0.0, None)):
        path = str(tmp_path / f"{beta}")
        actor.play(job("dagger", [3, 7], beta=beta, segment=path))
        with np.load(f"{path}.npz", allow_pickle=False) as file:
            agree = (file["actions"] == file["executed_actions"]).mean()
        assert agree == share if share else agree < 0.5


def test_a_job_repeats_to_the_bit_and_argmax_needs_no_dice(actor):
    first, second = (actor.play(job("sampled", [3, 7, 11])) for _ in range(2))
    other = actor.play(job("sampled", [3, 7, 11], seed=[1, 2]))
    assert first["value"] == second["value"] != other["value"]
    assert actor.play(job("argmax", [3]))["value"] == actor.play(job("argmax", [3], seed=[9, 9]))["value"]


class Dies:
    """Takes its process with it, the first time it is asked for"""

    def __init__(self, folder, index):
        self.folder = Path(folder)

    def play(self, job):
        if job == "fail":
            raise ValueError("a fault of ours")
        if job == "die" and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{job} done"


def test_workers_come_back_from_the_dead_but_not_from_a_fault(tmp_path, capsys):
    workers = Workers(1, Dies, str(tmp_path))
    found = []
    try:
        for name in ("first", "die", "die", "last"):
            workers.submit(name)
        while workers.pending:
            found += workers.poll(1.0)
        assert found == [("first", "first done"), ("die", None), ("die", "die done"), ("last", "last done")]
        assert capsys.readouterr().out.count("died with exit code -9") == 1
        workers.submit("fail")
        with pytest.raises(RuntimeError, match="a fault of ours"):
            while True:
                workers.poll(1.0)
    finally:
        workers.close()


def test_summary_of_an_evaluation():
    names = ["ONE", "TWO"]
    episodes = [
        {"milestones": [True, True], "names": names, "success": True, "return": 2.0, "length": 10},
        {"milestones": [True, False], "names": names, "success": False, "return": 1.0, "length": 30},
    ]
    metrics = script.summarise("sampled", episodes, 2.0)
    assert metrics["eval/sampled_success"] == 0.5 and metrics["eval/sampled_milestones"] == 1.5 and metrics["eval/sampled_length"] == 20
    assert metrics["eval/sampled_milestones_of_expert"] == 0.75 and metrics["milestones/sampled_TWO"] == 0.5
    assert metrics["eval/sampled_success_low"] < 0.5 < metrics["eval/sampled_success_high"]


# ----------------------------------------------------------------------------------------------------------------- runs


def test_resume_goes_on_as_if_nothing_had_happened(tmp_path):
    """Inline, DAgger and an evaluation included: eight updates at once, or four and then four, give the same bits."""
    flags = [
        "--num-workers",
        0,
        "--dagger-rounds",
        3,
        "--dagger-episodes",
        2,
        "--dagger-frequency",
        3,
        "--prioritized",
        "--eval-frequency",
        5,
    ]
    flags += ["--algo", "dqn_bc", "--target-network-frequency", 3, "--log-frequency", 2, "--final-eval-episodes", 0]
    whole = start(tmp_path / "whole", *flags, "--total-training-steps", 8, "--learning-rate-final", 1e-4)
    finish(start(tmp_path / "parts", *flags, "--total-training-steps", 4, "--learning-rate-final", 1e-4))
    finish(start(tmp_path / "parts", "--resume", tmp_path / "parts", "--total-training-steps", 8))
    finish(whole)
    first, second = (load_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert first["progress"][0] == second["progress"][0] == 8 and first["segments"] == second["segments"] and len(first["segments"]) == 3
    for name in ("agent", "target"):
        assert all(torch.equal(tensor, second[name][key]) for key, tensor in first[name].items())
    assert torch.equal(first["priorities"], second["priorities"])
    values = [value for row in metrics_of(tmp_path / "whole") for value in row.values()]
    assert np.isfinite(values).all()
    agent, metadata = script.load_model(tmp_path / "whole")
    assert metadata["game"] == "pokemon" and all(torch.equal(tensor, first["agent"][key]) for key, tensor in agent.state_dict().items())


def test_run_with_actors_beside_the_learner(tmp_path):
    """Evaluation and rollouts go on while it learns; the run leaves models, GIFs, metrics; Ctrl-C in a second one a checkpoint."""
    process = start(
        tmp_path / "run", "--dagger-rounds", 2, "--dagger-episodes", 2, "--total-training-steps", 400, "--max-minutes", 1.0, "--eval-frequency", 4,
        "--log-frequency", 5, "--capture-video", "--expert-episodes", 2, "--save-frequency", 10,
        "--validation-fraction", 0.4,
    )  # fmt: skip
    finish(process)
    rows = metrics_of(tmp_path / "run")
    names = {name for row in rows for name in row}
    assert {
        "eval/sampled_success",
        "eval/argmax_success",
        "milestones/sampled_LEFT_HOME",
        "dagger/beta",
        "losses/validation_accuracy",
    } <= names
    assert {"eval/expert_milestones", "stats/queue_size", "charts/SPS"} <= names
    assert any(row.get("stats/queue_size", 0) > 0 for row in rows)  # it learnt while actors were away playing
    files = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")}
    assert {"model.zip", "checkpoint.pt", "models/best.zip", "models/final.zip", "models/10.zip"} <= files
    assert any(name.startswith("videos/") and name.endswith("_sampled.gif") for name in files)


def test_ctrl_c_leaves_a_checkpoint(tmp_path):
    process = start(tmp_path / "run", "--total-training-steps", 100_000, "--log-frequency", 1)
    for line in process.stdout:
        if "steps" in line and "SPS" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "Stopping after this update" in output
    assert load_checkpoint(tmp_path / "run")["progress"][0] >= 1


def test_wrong_settings_are_sentences(tmp_path):
    output = finish(start(tmp_path / "a", "--expert-data-dir", tmp_path / "nowhere"), code=1)
    assert "There is no folder" in output and "Traceback" not in output
    output = finish(start(tmp_path / "b", "--expert-data-dir", ""), code=1)
    assert "There is nothing to learn from" in output
