"""One file, one algorithm: what a training step passes through, and that nothing outside of the scripts learns or
decides."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cleanrl_games"

# Who may call a policy outside of the scripts: finished ones that play a match, and central inference, which is given
# the script's function.
PLAYS_A_FINISHED_POLICY = {
    "envs/osrs/evaluation.py Player.act",
    "envs/osrs/watch.py Fight.think",
    "envs/rocketleague/evaluation.py Player.act",
    "envs/rocketleague/watch.py Match.think",
    "envs/vgc/player.py VGCPlayer.decide",
    "envs/vgc/player.py VGCPlayer._battle_finished_callback",  # tells it which battle to forget
    "envs/vgc/search.py Search.opponents",
    "envs/vgc/search.py Search.policy",
    "envs/vgc/search.py Search.play",
    "envs/vgc/search.py Search.value",
    "envs/vgc/search.py SearchPlayer.act",
    "envs/vgc/watch.py Battle.think",
}
POLICIES = {"agent", "policy", "network", "member"}  # what a policy is called where there is one

# A few steps of each script in one process, and the files of its game that the second update passes through.
STEPS = {
    "bc_pokemon_impala": (
        "--num-workers 0 --num-emulators 2 --batch-size 8 --total-training-steps 6 --dagger-rounds 1 "
        "--dagger-episodes 1 --max-steps 20 "
        "--eval-frequency 0 --final-eval-episodes 0 --log-frequency 2",
        {
            "pokemon/env.py",
            "pokemon/emulator.py",
            "pokemon/ram.py",
            "pokemon/cache.py",
            "pokemon/expert.py",
            "pokemon/experts.py",
        },
    ),
    "ppo_osrs_selfplay": (
        "--num-workers 0 --num-envs 8 --num-steps 16 --total-timesteps 800 --hidden-size 16 --head-size 8 "
        "--minibatch-size 64 "
        "--eval-frequency 0 --final-episodes 2 --max-ticks 20",
        {"osrs/vec_env.py", "osrs/baselines.py"},
    ),
    "bc_vgc_mdbo": (
        "--collect 16 --collect-teams shipped --num-workers 0 --epochs 2 --minibatch-size 32 --valid-fraction 0.2 "
        "--eval-epochs 0 "
        "--final-battles 0 --width 16 --embedding-width 16 --lstm-size 24",
        {"vgc/demonstrations.py", "vgc/vocabulary.py", "vgc/mdbo.py", "vgc/contract.py", "vgc/install.py"},
    ),
    "ppo_vgc_mdbo": (
        "--num-workers 0 --num-battles 4 --buffer-size 64 --num-minibatches 2 --update-epochs 1 --total-timesteps 200 "
        "--width 16 "
        "--embedding-width 16 --lstm-size 24 --eval-frequency 0 --final-battles 0 --teams shipped",
        {"vgc/vec_env.py", "vgc/vocabulary.py", "vgc/mdbo.py", "vgc/baselines.py"},
    ),
    "recurrent_ppo_rocketleague": (
        "--num-workers 0 --num-agents 12 --rollout-steps 16 --sequence-length 8 --rnn-size 16 --minibatch-size 64 "
        "--total-timesteps 800 "
        "--eval-frequency 0 --eval-episodes 2 --eval-seconds 2",
        {
            "rocketleague/vec_env.py",
            "rocketleague/observations.py",
            "rocketleague/rewards.py",
        },
    ),
    "rnad_vgc_portfolio": (
        "--num-workers 0 --num-battles 4 --buffer-size 64 --num-minibatches 2 --update-epochs 1 --total-timesteps 200 "
        "--width 16 "
        "--embedding-width 16 --lstm-size 24 --eval-frequency 0 --final-battles 0 --teams shipped",
        {"vgc/vec_env.py", "vgc/vocabulary.py", "vgc/mdbo.py", "vgc/baselines.py"},
    ),
}

TRACE = """
import pathlib, runpy, sys
import torch, torch._dynamo  # before anybody counts: they are half of the time

root, script, *flags = sys.argv[1:]
sys.argv = [script, *flags]
files, writes = set(), 0

def profile(frame, event, arg):
    global writes
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root):
        writes += code.co_filename.endswith("runtime/logger.py") and code.co_name == "write"
        if writes == 1:
            files.add(code.co_filename)

sys.setprofile(profile)
runpy.run_path(script, run_name="__main__")
sys.setprofile(None)
assert writes >= 2, "there was no second update"
print("FILES", *sorted(str(pathlib.Path(file).relative_to(root)) for file in files), sep="\\n")
"""


@pytest.mark.parametrize("script", STEPS)
def test_a_training_step_passes_through_the_script_its_game_and_the_runtime(script, tmp_path):
    flags, game = STEPS[script]
    words = [
        sys.executable,
        "-c",
        TRACE,
        str(PACKAGE),
        f"cleanrl_games/{script}.py",
        *flags.split(),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    files = set(done.stdout.split("FILES\n")[1].split())
    envs = {file.removeprefix("envs/") for file in files if file.startswith("envs/")}
    others = {file for file in files if not file.startswith(("envs/", "runtime/"))}
    assert envs == game, f"a step of {script}.py passes through these files of its game: {sorted(envs)}"
    assert others <= {f"{script}.py"}, f"a step of {script}.py passes through other files: {sorted(others)}"


def modules():
    return sorted([*PACKAGE.glob("envs/**/*.py"), *PACKAGE.glob("runtime/*.py")])


def within(tree):
    """(node, qualified name of the function or class it stands in), of all nodes"""

    def walk(node, names):
        for child in ast.iter_child_nodes(node):
            inside = [*names, child.name] if isinstance(child, ast.ClassDef | ast.FunctionDef) else names
            yield child, ".".join(inside)
            yield from walk(child, inside)

    yield from walk(tree, [])


def root_name(node):
    """self.agent.act → agent; agent.act → agent; agent → agent"""
    while isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def what_learns(source):
    """[(line, where, what)] of networks, autograd functions, optimizers and calls of a policy in a module's text"""
    found = []
    for node, where in within(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            if any(
                base.split(".")[-1] in ("Module", "Function") and base.split(".")[0] in ("nn", "torch")
                for base in bases
            ):
                found.append((node.lineno, where, f"the class {node.name}({', '.join(bases)})"))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.optim.", "optim.")):
            found.append((node.lineno, where, f"the optimizer {ast.unparse(node)}"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.optim"):
            found.append((node.lineno, where, "an import of torch.optim"))
        if isinstance(node, ast.Call):
            function = node.func
            forward = (
                isinstance(function, ast.Attribute)
                and function.attr not in NO_FORWARD_PASS
                and root_name(function.value) in POLICIES
            )
            direct = (
                isinstance(function, ast.Name | ast.Attribute)
                and root_name(function) in POLICIES
                and ast.unparse(function) in CALLED
            )
            if forward or direct:
                found.append((node.lineno, where, f"the call {ast.unparse(function)}(…)"))
    return found


NO_FORWARD_PASS = {
    "state_dict", "load_state_dict", "eval", "cpu", "to", "requires_grad_", "parameters", "get", "items",
    "ask", "connect", "close", "enter", "log_out", "done",  # an agent of the OSRS server is a connection
    "getvalue",
}  # fmt: skip
CALLED = {name for policy in POLICIES for name in (policy, f"self.{policy}")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_outside_of_the_scripts_learns_or_calls_a_policy(path):
    name = str(path.relative_to(PACKAGE))
    found = [found for found in what_learns(path.read_text()) if f"{name} {found[1]}" not in PLAYS_A_FINISHED_POLICY]
    assert not found, "\n".join(
        f"{name}:{line} in {where or 'the module'}: {what} belongs in a script" for line, where, what in found
    )


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("class Net(nn.Module): pass", "the class Net"),
        ("class Unroll(torch.autograd.Function): pass", "the class Unroll"),
        ("def f(agent):\n    return torch.optim.Adam(agent.parameters())", "the optimizer torch.optim.Adam"),
        ("from torch.optim import Adam", "an import of torch.optim"),
        ("def f(policy, obs):\n    return policy.act(obs)", "the call policy.act"),
        ("class A:\n    def f(self, obs):\n        return self.agent.value(obs)", "the call self.agent.value"),
        ("def f(agent, obs):\n    return agent(obs)", "the call agent"),
    ],
)
def test_what_learns_is_found(source, what):
    assert any(what in said for _, _, said in what_learns(source)), what_learns(source)


def test_the_exceptions_are_still_there():
    for exception in PLAYS_A_FINISHED_POLICY:
        name, where = exception.split(" ")
        path = PACKAGE / name
        assert path.is_file() and any(found[1] == where for found in what_learns(path.read_text())), (
            f"{exception} is no exception any more"
        )
