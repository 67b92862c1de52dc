"""bc_pokemon_impala.py: its maths against cases computed by hand, its actor's bookkeeping, and runs as a user starts
them."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_games import bc_pokemon_impala as script
from cleanrl_games.envs.pokemon import QUEST_ROM, PokemonEnv, QuestExpert, cache
from cleanrl_games.envs.pokemon.episodes import load_episodes
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput, RunFailed

ROOT = Path(__file__).resolve().parents[1]
# a second thread costs more than it gives on networks this small, the more so on a busy machine
torch.set_num_threads(1)
SMALL = {
    "batch_size": 8,
    "hidden_dim": 16,
    "num_emulators": 2,
    "max_steps": 12,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
}
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


def job(kind, starts, **changes):
    return script.Job(kind, starts, **{"seed": [1, 1], **changes})


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


def test_mixing_falls_with_the_rounds_or_with_agreement():
    assert [script.mixing("rounds", 0.5, number, 0.9) for number in (1, 2, 3)] == [0.5, 0.25, 0.125]
    assert script.mixing("rounds", 0.0, 1, 0.0) == 0.0
    shares = [
        script.mixing("agreement", 0.8, number, agreement)
        for number, agreement in ((1, 0.0), (2, 0.5), (3, 0.9), (4, 1.0))
    ]
    assert shares == pytest.approx([0.8, 0.4, 0.08, 0.0])


def test_distill_coefficient_by_hand():
    assert [script.distill_coefficient(student, 13.0) for student in (0.0, 6.5, 13.0, 14.0)] == [1.0, 0.5, 0.0, 0.0]
    assert script.distill_coefficient(3.0, 0.0) == 1.0, "before the expert has been measured"


def test_bc_loss_by_hand():
    outputs = torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]])
    loss = script.bc_loss(outputs, torch.tensor([0, 0]))
    assert float(loss.total) == pytest.approx((np.log(2) - np.log(0.75)) / 2) and loss.errors.tolist() == pytest.approx(
        [0.5, 0.25]
    )
    better = script.bc_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
    assert better.total < loss.total and float(better.accuracy) == 1.0, "the more of the label, the smaller"


def dqn(q, targets, known=None, played=None, labels=None, importance=None, distill=1.0, **settings):
    count = len(q)
    args = script.Args(algo="dqn_bc", demo_loss="margin", **settings)
    return script.dqn_loss(
        args,
        q=torch.tensor(q),
        targets=torch.tensor(targets),
        known=torch.tensor(known or [True] * count),
        played=torch.tensor(played or [0] * count),
        labels=torch.tensor(labels or [0] * count),
        importance=torch.tensor(importance or [1.0] * count),
        distill=distill,
    )


def test_dqn_loss_by_hand():
    """Huber: e²/2 up to 1, |e| - 1/2 beyond. The TD error is about the button pressed, the margin about the
    expert's."""
    loss = dqn([[2.0, 0.0], [0.0, 5.0]], [1.5, 2.0], played=[0, 1], labels=[0, 0], margin=1.0)
    td, demo = ((0.5**2) / 2 + (3.0 - 0.5)) / 2, (0.0 + (6.0 - 0.0)) / 2
    assert float(loss.parts["td_loss"]) == pytest.approx(td) and float(loss.parts["demo_loss"]) == pytest.approx(demo)
    assert float(loss.total) == pytest.approx(td + demo) and loss.errors.tolist() == pytest.approx([0.5, 3.0])
    assert float(loss.parts["q_values"]) == 3.5 and float(loss.parts["q_values_std"]) == pytest.approx(
        np.std([2.0, 5.0])
    )


def test_dqn_loss_weighs_its_parts():
    arguments = {
        "q": [[2.0, 0.0], [0.0, 5.0]],
        "targets": [1.5, 2.0],
        "played": [0, 1],
        "labels": [0, 0],
        "margin": 1.0,
    }
    td = float(dqn(**arguments).parts["td_loss"])
    assert float(dqn(**arguments, demo_weight=0.0).total) == pytest.approx(td)
    assert float(dqn(**arguments, distill=0.5).total) == pytest.approx(td + 0.5 * 3.0), (
        "the coefficient weighs the demonstrations only"
    )
    unknown = dqn(**arguments, known=[True, False], demo_weight=0.0)
    assert float(unknown.total) == pytest.approx(0.125 / 2) and unknown.errors.tolist() == pytest.approx([0.5, 0.0])
    weighed = dqn(**arguments, importance=[1.0, 0.0])
    assert float(weighed.total) == pytest.approx(0.125 / 2)


def test_gradients_point_the_right_way():
    """A step of each loss raises what it should: the label's logit, the Q-value towards its target."""
    torch.manual_seed(0)
    for algo in ("bc", "dqn_bc"):
        layer = torch.nn.Linear(3, 2, bias=False)
        optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
        x, labels = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)

        def loss_of(outputs, algo=algo, labels=labels):
            if algo == "bc":
                return script.bc_loss(outputs, labels).total
            every = torch.ones(4, dtype=torch.bool)
            args = script.Args(algo="dqn_bc", demo_weight=0.0)
            return script.dqn_loss(
                args, outputs, torch.full((4,), 9.0), every, labels, labels, torch.ones(4), 1.0
            ).total

        before = layer(x)[0, 0].item()
        norm = script.gradient_step(layer, optimizer, scaler, loss_of(layer(x)), max_grad_norm=100.0)
        assert layer(x)[0, 0].item() > before and norm > 0


def test_gradients_are_clipped():
    layer = torch.nn.Linear(3, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=1.0), torch.amp.GradScaler("cpu", enabled=False)
    norm = script.gradient_step(layer, optimizer, scaler, 1000 * layer(torch.ones(1, 3)).sum(), max_grad_norm=0.5)
    assert float(norm) > 100 and float((layer.weight - before).detach().norm()) == pytest.approx(0.5, rel=1e-3)


def test_target_network_moves_when_it_should():
    args = script.Args(algo="dqn_bc", target_network_frequency=3)
    agent, target = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for update, expected in ((1, False), (2, False), (3, True), (4, True)):
        script.move_target(args, agent, target, update)
        assert torch.equal(agent.weight, target.weight) == expected, update
    agent.weight.data += 1.0
    script.move_target(args, agent, target, 5)
    assert not torch.equal(agent.weight, target.weight)
    script.move_target(script.Args(algo="bc", target_network_frequency=1), agent, target, 6)
    assert not torch.equal(agent.weight, target.weight), "cloning has no target network"


def test_terminated_is_worth_nothing_more_and_truncated_is():
    """Through the data: the last step of an episode with an end, and of one that was cut with and without its last
    picture"""
    args = script.Args(algo="dqn_bc", gamma=0.5, hidden_dim=8, demo_weight=0.0)
    data = fill(args, [2, 2])
    data.columns["terminated"][:] = [False, True, False, False]
    data.columns["rewards"][:] = 1.0

    def constant(value):
        return lambda obs: torch.full((len(obs), 10), value)

    networks = {"forward": constant(4.0), "target": constant(6.0)}
    context = functools.partial(torch.autocast, "cpu", enabled=False)
    loss = script.batch_loss(args, data, np.arange(4), None, networks, torch.device("cpu"), context, 1.0)
    assert loss.errors.tolist() == pytest.approx([4 - (1 + 3), 4 - 1, 4 - (1 + 3), 4 - (1 + 3)])
    data.columns["has_next"][3] = False
    loss = script.batch_loss(args, data, np.arange(4), None, networks, torch.device("cpu"), context, 1.0)
    assert loss.errors[3] == 0.0, "nothing to bootstrap from"


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


def test_recurrent_play_sees_what_training_sees():
    """A GRU at play, one picture after the other, gives what it gives on the same window in training; older pictures do
    not count."""
    torch.manual_seed(0)
    agent = script.Agent(1, 16, recurrent=3).eval()
    torch.nn.init.normal_(agent.head.weight)
    frames = np.random.default_rng(0).integers(0, 256, (5, 84, 84, 3), dtype=np.uint8)
    memory = script.Memory(agent)
    for last, frame in enumerate(frames):
        memory.see(frame)
        _, outputs = script.choose_actions(agent, [memory], deterministic=True)
        window = torch.from_numpy(frames[max(last - 2, 0) : last + 1])[None, :, None]
        with torch.no_grad():
            assert torch.allclose(outputs[0], agent(window)[0, -1], atol=1e-5), last


def test_choosing_is_sampling_or_the_best():
    agent = script.Agent(1, 16)
    torch.nn.init.zeros_(agent.head.weight)
    agent.head.bias.data[:] = torch.tensor([0.0, 2.0] + [-50.0] * 8)
    memories = [script.Memory(agent) for _ in range(400)]
    for memory in memories:
        memory.see(np.zeros((84, 84, 3), np.uint8))
    assert set(script.choose_actions(agent, memories[:3], deterministic=True)[0]) == {1}
    for temperature, share in ((1.0, 1 / (1 + np.exp(2))), (4.0, 1 / (1 + np.exp(0.5)))):
        actions, _ = script.choose_actions(agent, memories, temperature, torch.Generator().manual_seed(1))
        assert np.mean(np.array(actions) == 0) == pytest.approx(share, abs=0.06)


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
        fields = {
            "actions": np.zeros(length),
            "executed_actions": np.zeros(length),
            "rewards": np.zeros(length),
            "terminated": ends,
        }
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
    data = fill(args, [4] * 50, worlds=[65500 if index % 5 == 0 else index for index in range(50)])
    episode, validation = data.columns["episode"], data.columns["validation"]
    for number in range(50):
        assert len(set(validation[episode == number].tolist())) == 1
        assert number % 5 or validation[episode == number].all()
    others = [validation[episode == number][0] for number in range(50) if number % 5]
    assert 0.1 < np.mean(others) < 0.5
    again = fill(args, [4] * 50, worlds=[65500 if index % 5 == 0 else index for index in range(50)])
    assert np.array_equal(again.columns["validation"], validation)


# --------------------------------------------------------------------------------------------------------------- actors


def test_dagger_mixes_and_labels_every_state(actor, tmp_path):
    """The expert's share of the buttons is beta, its answer is the label of every state, and the segment holds what was
    seen."""
    path = str(tmp_path / "00001")
    result = actor.play(job("dagger", [3, 7, 11], beta=0.5, segment=path))
    assert [episode.length for episode in result.episodes] == [40] * 3
    data = script.Demonstrations(script.Args())
    data.frames = cache.Frames(84)
    assert data.add_segment(path) == 120 and [entry["name"] for entry in data.segments] == ["00001"]
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


@pytest.mark.parametrize("algo", ["bc", "dqn_bc"])
def test_new_states_are_as_urgent_as_the_student_was_wrong_in_them(actor, tmp_path, monkeypatch, algo):
    """1 - probability of the label as the actor saw it, row by row as the segment has them. A TD error it cannot know:
    what is new comes first there."""
    monkeypatch.setattr(script, "make_actors", lambda *_: None)
    args, state = script.Args(algo=algo), {"agreement": 0.0, "expert_episodes": 0}
    data, priorities = script.Demonstrations(args), script.Priorities()
    data.frames = cache.Frames(84)
    jobs = script.ActorJobs(args, tmp_path, actor.agent, data, priorities, state, [200], stopping=[])
    task = job("dagger", [3, 7, 11], beta=0.5, segment=str(tmp_path / "00001"))
    jobs.take_result(task, actor.play(task))
    with torch.no_grad():
        chances = actor.agent(data.observations(np.arange(len(data)))).softmax(-1).numpy()
    errors = 1 - chances[np.arange(len(data)), data.columns["actions"]]
    assert len(data) == 120 and errors.std() > 0.01
    expected = (errors + priorities.LEAST) ** priorities.ALPHA if algo == "bc" else np.ones(120)
    assert priorities.values == pytest.approx(expected, abs=1e-5)


def test_beta_one_is_the_expert_and_beta_zero_the_student(actor, tmp_path):
    for beta, share in ((1.0, 1.0), (0.0, None)):
        path = str(tmp_path / f"{beta}")
        actor.play(job("dagger", [3, 7], beta=beta, segment=path))
        with np.load(f"{path}.npz", allow_pickle=False) as file:
            agree = (file["actions"] == file["executed_actions"]).mean()
        assert agree == share if share else agree < 0.5


def test_agreement_is_measured_whoever_presses_the_buttons(actor, monkeypatch):
    """With beta 1, too: mixing by agreement begins there, and would stay there for ever"""

    def student(agent, memories, **_):
        return [9] * len(memories), torch.zeros(len(memories), 10)

    monkeypatch.setattr(script, "choose_actions", student)
    for button, agreement in ((9, 1.0), (4, 0.0)):
        monkeypatch.setattr(script, "ask_all", lambda experts, button=button, **_: [button] * len(experts))
        assert actor.play(job("dagger", [3, 7], beta=1.0)).agreement == agreement


def test_a_job_repeats_to_the_bit_and_argmax_needs_no_dice(actor):
    first, second = (actor.play(job("sampled", [3, 7, 11])) for _ in range(2))
    other = actor.play(job("sampled", [3, 7, 11], seed=[1, 2]))
    assert first.value == second.value != other.value
    assert actor.play(job("argmax", [3])).value == actor.play(job("argmax", [3], seed=[9, 9])).value


class Dies:
    """Takes its process with it when it is told to"""

    def __init__(self, folder, index):
        self.folder = Path(folder.name)

    def play(self, job):
        if job == "refuse":
            raise BadInput("a setting that cannot be")
        if job == "fail":
            raise ValueError("a fault of ours")
        if job == "die" or (job == "die once" and not (self.folder / "died").exists()):
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{job} done"


@pytest.fixture
def processes(tmp_path):
    made = script.ActorProcesses(1, Dies, types.SimpleNamespace(name=str(tmp_path), debug=False))
    yield made
    made.close()


def drain(processes):
    found = []
    while processes.pending:
        found += processes.poll(1.0)
    return found


def test_a_killed_actor_is_replaced_and_reported(processes, capsys):
    for name in ("first", "die once", "die once", "last"):
        processes.submit(name)
    assert drain(processes) == [
        ("first", "first done"),
        ("die once", None),
        ("die once", "die once done"),
        ("last", "last done"),
    ]
    assert (
        "Actor process 0 died (pid " in (said := capsys.readouterr().out)
        and "exit code -9): a new one takes its place." in said
    )


def test_three_deaths_within_a_minute_end_the_run(processes, capsys):
    for name in ("die", "fail", "die"):
        processes.submit(name)
    with pytest.raises(RunFailed, match="Three actor processes died within a minute"):
        drain(processes)
    assert "(ValueError: a fault of ours)" in capsys.readouterr().out


def test_bad_input_of_an_actor_ends_the_run_at_once(processes):
    processes.submit("refuse")
    with pytest.raises(BadInput, match="a setting that cannot be"):
        drain(processes)


def played(start, milestones, success, length, at_start=0):
    names = dict(zip(("ONE", "TWO", "THREE"), milestones))
    return script.Played(start, names, at_start, length, float(sum(milestones) - at_start), success)


def test_summary_of_an_evaluation():
    episodes = [played(192, [True, True], True, 10), played(193, [True, False], False, 30)]
    metrics = script.summarise("sampled", episodes, 2.0)
    assert (
        metrics["eval/sampled_success"] == 0.5
        and metrics["eval/sampled_milestones"] == 1.5
        and metrics["eval/sampled_length"] == 20
    )
    assert metrics["eval/sampled_milestones_of_expert"] == 0.75 and metrics["milestones/sampled_TWO"] == 0.5
    assert metrics["eval/sampled_success_low"] < 0.5 < metrics["eval/sampled_success_high"]
    assert not any(name.startswith("splits/") for name in metrics), "worlds of the quest are no splits"


def test_summary_by_split():
    episodes = [
        played("01_ONE", [True, True, True], True, 5, at_start=1),
        played("01_ONE", [True, False, False], False, 5, at_start=1),
        played("02_TWO", [True, True, True], True, 5, at_start=2),
    ]
    metrics = script.summarise("argmax", episodes)
    assert metrics["splits/argmax_01_ONE_milestones"] == 1.0 and metrics["splits/argmax_01_ONE_next"] == 0.5
    assert metrics["splits/argmax_02_TWO_milestones"] == 1.0 and metrics["splits/argmax_02_TWO_next"] == 1.0


def test_old_rounds_are_deleted_when_the_disk_is_full_enough(actor, tmp_path):
    data, priorities = script.Demonstrations(script.Args()), script.Priorities()
    for number in range(3):
        actor.play(job("dagger", [3 + number], segment=str(tmp_path / f"{number}"), seed=[1, number]))
        data.add_segment(tmp_path / f"{number}")
    priorities.grow(len(data))
    priorities.values = np.arange(len(data), dtype=float)
    size = data.segments[0]["bytes"]
    assert data.drop_oldest(tmp_path, 0) is None and data.drop_oldest(tmp_path, 3 * size) is None
    before = data.observations(np.array([50]))
    kept = data.drop_oldest(tmp_path, 2 * size)
    priorities.keep(kept)
    assert (
        [entry["name"] for entry in data.segments] == ["1", "2"]
        and len(data) == 80
        and not (tmp_path / "0.bin").exists()
    )
    assert torch.equal(data.observations(np.array([10])), before) and priorities.values[0] == 40
    assert data.drop_oldest(tmp_path, 1) is not None and [entry["name"] for entry in data.segments] == ["2"], (
        "the newest stays"
    )


def test_windows_of_a_gru_stay_in_their_episode():
    data = fill(script.Args(recurrent=3), [3, 2])
    steps, real = data.windows(np.array([0, 2, 3, 4]))
    assert steps.tolist() == [[0, 0, 0], [0, 1, 2], [3, 3, 3], [3, 4, 4]]
    assert real.tolist() == [[True, False, False], [True] * 3, [True, False, False], [True, True, False]]


def test_recurrent_loss_counts_real_steps_only():
    """Outputs that say how long the window is: the label is 0 everywhere, so the loss is known"""
    args = script.Args(recurrent=3)
    data = fill(args, [3, 2])

    def forward(obs):
        outputs = torch.zeros(*obs.shape[:2], 10)
        outputs[..., 0] = torch.tensor([0.0, 1.0, 100.0])
        return outputs

    context = functools.partial(torch.autocast, "cpu", enabled=False)
    loss = script.batch_loss(
        args, data, np.array([2, 4]), None, {"forward": forward}, torch.device("cpu"), context, 1.0
    )
    first, second = np.log(10), np.log(9 + np.e) - 1
    assert float(loss.total) == pytest.approx((2 * first + 2 * second + 0.0) / 5, abs=1e-5)
    assert loss.errors.tolist() == pytest.approx([0.0, 1 - np.e / (9 + np.e)], abs=1e-5), "the last step of each window"


# ------------------------------------------------------------------------------------------- agreement of data and game


def test_timing_is_what_the_episodes_say():
    episodes = load_episodes(ROOT / "expert_data" / "pokemon_quest")
    assert script.timing_of(episodes) == "6/3" and script.timing_of([]) == ""
    assert (
        script.parse_timing("6/3") == (6, 3)
        and script.parse_timing("fast") == "fast"
        and script.parse_timing("") is None
    )
    for text in ("6", "6/0", "a/b", "-1/3", "quick"):
        with pytest.raises(BadInput, match="--timing should be"):
            script.parse_timing(text)


def test_differences_between_data_and_game_are_said():
    episodes = load_episodes(ROOT / "expert_data" / "pokemon_quest")
    env = script.make_env(script.Args(timing="normal", compass="path"))
    sentences = script.differences(env, episodes)
    env.close()
    assert (
        len(sentences) == 2
        and "timing 6/3, this run plays with 10/8" in sentences[0]
        and "compass none" in sentences[1]
    )
    env = script.make_env(script.Args())
    assert script.differences(env, episodes) == [] and script.differences(env, []) == []
    # one file among many is noticed, too; ROM, emulator and start state as well
    others = {"rom_sha1": "f" * 40, "backend": "libmgba", "start_state": "0123456789abcdef", "compass": "bearing"}
    episodes[-1].meta.update(others)
    sentences = script.differences(env, episodes)
    env.close()
    assert len(sentences) == 4 and all(sentence.startswith(f"1 of {len(episodes)} ") for sentence in sentences)
    for value, name in zip(others.values(), ("ROM", "emulator backend", "start state", "compass")):
        assert any(f"recorded with the {name} {value}, this run plays" in sentence for sentence in sentences), name


def test_starts_of_the_quest_are_split():
    env = script.make_env(script.Args())
    train, evaluation = script.find_starts(script.Args(held_out_worlds=56), env)
    assert list(train) == list(range(65480)) and list(evaluation) == list(range(65480, 65536))
    env.close()


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
    assert (
        first["state"]["update"] == second["state"]["update"] == 8
        and first["segments"] == second["segments"]
        and len(first["segments"]) == 3
    )
    for name in ("agent", "target"):
        assert all(torch.equal(tensor, second[name][key]) for key, tensor in first[name].items())
    assert torch.equal(first["priorities"], second["priorities"])
    values = [value for row in metrics_of(tmp_path / "whole") for value in row.values()]
    assert np.isfinite(values).all()
    agent, metadata = script.load_model(tmp_path / "whole")
    assert metadata["game"] == "pokemon" and all(
        torch.equal(tensor, first["agent"][key]) for key, tensor in agent.state_dict().items()
    )


def test_run_with_actors_beside_the_learner(tmp_path):
    """Evaluation and rollouts go on while it learns; the run leaves models, GIFs, metrics; Ctrl-C in a second one a
    checkpoint."""
    process = start(
        tmp_path / "run", "--dagger-rounds", 2, "--dagger-episodes", 2, "--total-training-steps", 150,
        "--eval-frequency", 4, "--log-frequency", 5, "--capture-video", "--expert-episodes", 6, "--save-frequency", 10,
        "--validation-fraction", 0.4, "--expert-data-dir", "",  # so that it begins to learn when its actors are there
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
    assert process.returncode == 0 and "Stopping after this update" in output, output
    assert load_checkpoint(tmp_path / "run")["state"]["update"] >= 1


def test_ctrl_c_ends_the_last_evaluation(tmp_path):
    """The first one, while hours of play are left"""
    process = start(tmp_path / "run", "--total-training-steps", 1, "--final-eval-episodes", 100_000, "--max-steps", 40)
    for line in process.stdout:
        if "last evaluation: 2 of" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "The checkpoint is in" in output
    assert metrics_of(tmp_path / "run")[-1]["eval/sampled_success_n"] >= 2, "what has been played counts"


def test_last_evaluation_keeps_to_the_time(tmp_path):
    flags = ["--total-training-steps", 100_000, "--max-minutes", 0.1, "--final-eval-episodes", 100_000]
    for workers in (0, 1):
        # a hundred thousand episodes would take hours
        output = finish(start(tmp_path / f"run{workers}", *flags, "--num-workers", workers, "--max-steps", 40))
        assert "--max-minutes is over: the last evaluation ends with" in output


class Table:
    """Actors that answer when they are told to: `finished` parts, then nothing more"""

    count, pending = 1, 1

    def __init__(self, finished):
        self.finished, self.jobs = finished, []

    def submit(self, job):
        self.jobs.append(job)

    def poll(self, timeout=0.0):
        if not self.finished:
            return []
        self.finished -= 1
        job = self.jobs.pop(0)
        episodes = [played(world, [True, False], False, 10) for world in job.starts]
        return [(job, script.Result(episodes, 10, 1.0, 0.5, 0.0, 0.0, 0.0, {}))]

    def close(self):
        pass


@pytest.mark.parametrize("finished, sampled, argmax", [(0, None, None), (3, 6, None), (9, 16, 2)])
def test_last_evaluation_counts_whole_parts_until_the_time_is_over(
    tmp_path, monkeypatch, capsys, finished, sampled, argmax
):
    """Sixteen episodes of each kind in parts of two. The clock shows a second more each time one looks."""
    actors, clock = Table(finished), iter(range(10_000))
    monkeypatch.setattr(script, "make_actors", lambda *_: actors)
    args = script.Args(**{**SMALL, "final_eval_episodes": 16, "max_minutes": 1.0})
    state = {"update": 7, "jobs": 0, "expert_milestones": 0.0, "best_success": 0.0, "best_milestones": 5.0}
    jobs = script.ActorJobs(args, tmp_path, script.make_agent(vars(args)), None, None, state, [200, 201], stopping=[])
    metrics = jobs.final_evaluation(lambda: next(clock))
    assert next(clock) < 65, "it ends with the minute, whatever has been played"
    assert metrics.get("eval/sampled_success_n") == sampled and metrics.get("eval/argmax_success_n") == argmax
    assert f"the last evaluation ends with {2 * finished} episodes played" in capsys.readouterr().out


def test_last_evaluation_has_its_share_of_the_time():
    for minutes, share in ((60.0, 6.0), (10.0, 1.0), (5.0, 1.0), (1.0, 0.5), (0.0, 0.0)):
        assert script.final_minutes(script.Args(max_minutes=minutes)) == pytest.approx(share)
    assert script.final_minutes(script.Args(max_minutes=60.0, final_eval_episodes=0)) == 0.0


def test_resume_notices_other_episodes(tmp_path):
    shutil.copytree(ROOT / "expert_data" / "pokemon_quest", tmp_path / "data")
    flags = ["--num-workers", 0, "--final-eval-episodes", 0, "--eval-episodes", 1]
    finish(start(tmp_path / "run", *flags, "--expert-data-dir", tmp_path / "data", "--total-training-steps", 2))
    (tmp_path / "data" / "episode_0003.npz").unlink()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    output = finish(start(None, "--resume", tmp_path / "run", "--total-training-steps", 4), code=2)
    assert "are not those that the run" in output and "Traceback" not in output
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before, (
        "nothing was written"
    )


@pytest.mark.filterwarnings("ignore:.*no milestones and no reward")
def test_a_cartridge_of_ones_own_from_start_states(tmp_path):
    """As in the page: a ROM that nobody knows, a folder of save states, a function per milestone as expert"""
    rom = bytearray(QUEST_ROM.read_bytes())
    rom[0xA0:0xAC] = b"SOMETHINGELS"
    (tmp_path / "own.gba").write_bytes(rom)
    (tmp_path / "my_splits.py").write_text("def default(observation, info):\n    return 2\n")
    (tmp_path / "states").mkdir()
    env = PokemonEnv(tmp_path / "own.gba")
    env.reset(seed=0)
    for name in ("01_TITLE", "02_LATER"):
        (tmp_path / "states" / f"{name}.state").write_bytes(env.save_state())
        env.step(2)
    env.close()
    flags = ["--rom-path", tmp_path / "own.gba", "--start-states", tmp_path / "states", "--num-workers", 0]
    flags += ["--expert", "milestones:my_splits", "--dagger-rounds", 1, "--dagger-episodes", 4, "--eval-frequency", 0]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    finish(start(tmp_path / "run", *flags, "--total-training-steps", 2, "--log-frequency", 1, env=environment))
    rows = metrics_of(tmp_path / "run")
    names = {name for row in rows for name in row}
    assert {
        f"splits/{kind}_{name}_next" for kind in ("sampled", "argmax") for name in ("01_TITLE", "02_LATER")
    } <= names
    assert max(row.get("expert/requests", 0) for row in rows) == 4 * SMALL["max_steps"]


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--expert-data-dir", "nowhere"], "There is no folder"),
        (["--expert-data-dir", ""], "There is nothing to learn from"),
        (["--timing", "quick"], "--timing should be one of fast, normal, slow"),
        (["--recurrent", "4", "--algo", "dqn_bc"], "--recurrent is for --algo bc"),
        (["--start-states", "nowhere"], "A start state is for a cartridge of your own"),
        (["--expert", "cleanrl_games.envs.pokemon.language_model:Agent", "--dagger-rounds", "1"], "Set LLM_URL to"),
        (["--held-out-worlds", "65536"], "--held-out-worlds should leave worlds on both sides"),
    ],
)
def test_wrong_settings_are_sentences(tmp_path, monkeypatch, flags, sentence):
    monkeypatch.delenv("LLM_URL", raising=False)
    output = finish(start(tmp_path / "run", *flags), code=2)
    assert sentence in output and "Traceback" not in output and not (tmp_path / "run").exists()
