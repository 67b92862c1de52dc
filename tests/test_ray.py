"""--ray-address: what is played on a cluster is what is played here, and a lost node costs no run.

The cluster is a real one, two nodes on this machine."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_games import bc_pokemon_impala, bc_vgc_mdbo
from cleanrl_games.envs.vgc import collect
from cleanrl_games.envs.vgc.match import BASELINES
from cleanrl_games.runtime import ray_actors
from cleanrl_games.runtime.errors import BadInput, RunFailed
from tests import test_bc_pokemon, test_bc_vgc

ROOT = Path(__file__).resolve().parents[1]


class TwoNodes:
    """A head without cores, so that no actor is there, and two nodes with one each."""

    def __init__(self):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Else Ray takes half a minute to believe that a node is dead.
        times = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": times}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self.cluster.address
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.cluster.wait_for_nodes()

    def kill_one(self):
        """SIGKILL for all of its processes; another machine takes its place."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


@pytest.fixture(scope="module")
def nodes():
    made = TwoNodes()
    yield made
    made.cluster.shutdown()


@pytest.fixture
def connected(nodes):
    """This process in the cluster"""
    ray = ray_actors.connect(nodes.address)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nobody there has the tests
    yield nodes
    ray.shutdown()


def wait_for(condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "it does not come"
        time.sleep(0.2)


# ------------------------------------------------------------------------------------------------- parts of runtime/


class Doubler:
    def __init__(self, index):
        if index > 1:
            raise ValueError("there is no third emulator")

    def play(self, job):
        if job == "bad":
            raise BadInput("--expert: there is none.")
        time.sleep(job)
        return 2 * job


def slow_numbers(count):
    for number in range(count):
        time.sleep(0.02)
        yield number


def test_jobs_and_streams_outlive_a_node(connected, capsys):
    jobs = ray_actors.RayJobs(connected.address, 2, Doubler)
    for job in (0.0, 0.1, 30.0, 30.0):
        jobs.submit(job)
    assert jobs.pending == 4
    found = []
    wait_for(lambda: found.extend(jobs.poll(0.2)) or len(found) == 2)
    assert sorted(found) == [(0.0, 0.0), (0.1, 0.2)]
    # poll also gives a job to the actor that started last
    wait_for(lambda: not jobs.poll(0.2) and sum(job is not None for _, job in jobs.running.values()) == 2)
    connected.kill_one()
    wait_for(lambda: found.extend(jobs.poll(0.2)) or len(found) == 3)
    assert found[2] == (30.0, None), "whoever submitted it decides whether it is played again"
    assert "was lost" in capsys.readouterr().out
    jobs.submit("bad")
    with pytest.raises(BadInput, match="--expert: there is none"):
        wait_for(lambda: found.extend(jobs.poll(0.2)))
    jobs.close()
    with pytest.raises(RunFailed, match=r"Ray actor 0 cannot start on the cluster: .*there is no third emulator"):
        broken = ray_actors.RayJobs(connected.address, 1, lambda index: Doubler(2))
        wait_for(lambda: broken.poll(0.2) is None)

    makers, items = [functools.partial(slow_numbers, 40), functools.partial(slow_numbers, 80)], [[], []]
    killed = False
    for number, item in ray_actors.ray_streams(connected.address, makers, (), items_at_once=8):
        items[number].append(item)
        if len(items[1]) == 24 and not killed:
            killed = True
            connected.kill_one()
    assert items == [list(range(40)), list(range(80))], "every item once, and in order"
    stopped = itertools.islice(ray_actors.ray_streams(connected.address, makers, [True]), 1)
    assert list(stopped) == []


# -------------------------------------------------------------------------------------- what the cloning scripts do


def test_demonstrations_of_a_cluster_are_those_made_here(connected, tmp_path):
    streams = functools.partial(ray_actors.ray_streams, connected.address)
    for name, more in (("here", {}), ("there", {"streams": streams})):
        settings = (test_bc_vgc.FORMAT, ("heuristics", "random"), ("shipped",), 6, 1, 1 if more else 0, lambda *_: None)
        collect.collect(tmp_path / name, *settings, **more)
    for path in (tmp_path / "here").iterdir():
        assert (tmp_path / "there" / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_evaluation_on_a_cluster_is_that_made_here(connected):
    torch.manual_seed(1)
    agent = bc_vgc_mdbo.Agent(**test_bc_vgc.SMALL)
    args = bc_vgc_mdbo.Args(battle_format=test_bc_vgc.FORMAT)
    opponents = dict(zip(BASELINES[:2], BASELINES))
    play_all = functools.partial(ray_actors.run_all, connected.address)
    here, there = (
        bc_vgc_mdbo.evaluate(args, agent, 4, opponents, seed=5, **more) for more in ({}, {"play_all": play_all})
    )
    assert here == there and here["eval/random_n"] == 4


def test_what_a_cluster_plays_of_pokemon_is_what_is_played_here(connected, tmp_path):
    args = bc_pokemon_impala.Args(**test_bc_pokemon.SMALL, ray_address=connected.address)
    torch.manual_seed(0)
    weights = bc_pokemon_impala.to_flat(bc_pokemon_impala.make_agent(vars(args))).numpy()
    inline, cluster = bc_pokemon_impala.make_actors(args, 0), bc_pokemon_impala.make_actors(args, 2)
    results = {}
    for name, actors in (("here", inline), ("there", cluster)):
        (tmp_path / name).mkdir()
        job = bc_pokemon_impala.Job("dagger", [3, 4, 5], seed=[1, 7], beta=0.5, noise=0.1, weights=weights)
        job = dataclasses.replace(job, segment=str(tmp_path / name / "00001"), video=str(tmp_path / name / "a.gif"))
        actors.submit(job)
        assert actors.pending == 1
        ended = []
        wait_for(lambda actors=actors, ended=ended: ended.extend(actors.poll(1.0)) or ended)
        results[name] = ended[0][1]
        actors.close()
    assert results["here"].episodes == results["there"].episodes and len(results["here"].episodes) == 3
    assert results["here"].agreement == results["there"].agreement
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["00001.bin", "00001.npz", "a.gif"]
    for path in (tmp_path / "here").iterdir():
        if path.suffix == ".npz":
            with np.load(path) as mine, np.load(tmp_path / "there" / path.name) as theirs:
                assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
        else:
            assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes()


# ------------------------------------------------------------------------------------ whole runs that lose a node

FORMAT = ["--battle-format", test_bc_vgc.FORMAT]
NETWORK = ["--width", "16", "--embedding-width", "16", "--lstm-size", "24"]
VGC = [*FORMAT, *NETWORK, "--num-battles", "4", "--buffer-size", "128", "--eval-frequency", "0", "--final-battles", "0"]
VGC += ["--num-minibatches", "1", "--update-epochs", "1"]
ROCKETLEAGUE = ["--num-agents", "12", "--rollout-steps", "32", "--sequence-length", "16", "--minibatch-size", "128"]
RUNS = {
    "ppo_vgc_mdbo": VGC,
    "rnad_vgc_portfolio": VGC,
    "recurrent_ppo_rocketleague": [*ROCKETLEAGUE, "--rnn-size", "16", "--eval-frequency", "0"],
    "bc_pokemon_impala": [*test_bc_pokemon.FLAGS, "--log-frequency", "50", "--dagger-rounds", "1000"],
}
CLONING = [*FORMAT, *NETWORK, "--collect", "160", "--epochs", "1", "--final-battles", "4"]


@contextlib.contextmanager
def started(script, address, folder, flags):
    words = [sys.executable, f"cleanrl_games/{script}.py", "--ray-address", address, "--num-workers", "2"]
    with open(f"{folder}.log", "w") as log:
        process = subprocess.Popen([*words, "--run-dir", folder, *flags], cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process, Path(f"{folder}.log").read_text
    finally:
        process.kill()
        process.wait()


def rows_of(folder):
    path = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


SCRIPTS = [pytest.param(name, marks=[pytest.mark.slow] if name != "bc_pokemon_impala" else []) for name in RUNS]


@pytest.mark.parametrize("script", SCRIPTS)
def test_training_outlives_a_node(script, nodes, tmp_path):
    folder = str(tmp_path / "run")
    with started(script, nodes.address, folder, RUNS[script]) as (process, said):

        def goes_on(condition):
            wait_for(lambda: process.poll() is not None or condition(), 120)
            assert process.poll() is None, said()

        goes_on(lambda: len(rows_of(folder)) >= 2)
        nodes.kill_one()
        goes_on(lambda: "was lost" in said())
        before = len(rows_of(folder))
        goes_on(lambda: len(rows_of(folder)) >= before + 4)
        process.terminate()
        assert process.wait(60) == 0, said()


@pytest.mark.slow
def test_collecting_outlives_a_node(nodes, tmp_path):
    """And training and evaluation come after it, as ever."""
    folder = str(tmp_path / "run")
    flags = [*CLONING, "--collect-set", str(tmp_path / "set")]
    with started("bc_vgc_mdbo", nodes.address, folder, flags) as (process, said):
        wait_for(lambda: process.poll() is not None or "collected" in said(), 120)
        nodes.kill_one()
        assert process.wait(300) == 0, said()
        assert "was lost" in said() and "collected 160 of 160 battles" in said()
    assert sum(shard["battles"] for shard in json.loads((tmp_path / "set/index.json").read_text())["shards"]) == 160
    assert rows_of(folder)[-1]["eval/random_n"] == 4
