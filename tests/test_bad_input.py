"""Bad input to every script and tool: a sentence that names the flag or the file, exit code 2, no traceback, nothing
written.

Each line is checked in process, by the functions that the script or tool itself calls before it writes anything. A few
are started as a user would, for the exit code and the empty folder."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cleanrl_games.runtime import ray_actors
from cleanrl_games.runtime.checkpoints import load_checkpoint
from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.runtime.files import choose_run_folder
from cleanrl_games.runtime.settings import parse_args

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = (
    "bc_pokemon_impala",
    "bc_vgc_mdbo",
    "ppo_osrs_selfplay",
    "ppo_vgc_mdbo",
    "recurrent_ppo_rocketleague",
    "rnad_vgc_portfolio",
)

# --- what all scripts have: words, or the text of a settings file, and what the sentence must say
EVERY_SCRIPT = [
    ("--seed -1", "--seed"),
    ("--threads 0", "--threads"),
    ("--learning-rate 0", "--learning-rate"),
    ("--learning-rate -1", "--learning-rate"),
    ("--learning-rate nan", "--learning-rate should be a finite number"),
    ("--learning-rate-final -1", "--learning-rate-final"),
    ("--max-minutes -3", "--max-minutes"),
    ("--num-workers -1", "--num-workers"),
    ("--max-grad-norm 0", "--max-grad-norm"),
    ("--ray-address nowhere:1", "--ray-address nowhere:1"),
    ("--ray-address nowhere", "give host:port"),
    ("--resume runs/nope", "--resume runs/nope: there is no such file or folder"),
    ("--resume", "no run of"),
    ("--config nowhere.yaml", "Cannot read the settings in nowhere.yaml"),
    ("--run-dir a_file", "--run-dir a_file is a file"),
    ("yaml: learning_rate: fast", "learning_rate should be a number"),
    ("yaml: lerning_rate: 1", "did you mean 'learning_rate'"),
    ("yaml: amp: fp8", "amp should be one of auto, off, bf16, fp16"),
    ("yaml: device: gpu", "device should be one of auto, cpu, cuda"),
    ("yaml: num_workers: -1", "num_workers should be 0 or more"),
    ("yaml: num_workers: 1.5", "num_workers should be a whole number"),
    ("yaml: [1, 2]", "should be a YAML mapping"),
]
VGC = [
    ("--battle-format gen9vgc1999", "Unknown battle format 'gen9vgc1999'"),
    ("--width 30", "--width 30"),
    ("--width 0", "--width"),
    ("--lstm-size 0", "--lstm-size"),
    ("--eval-battles -1", "--eval-battles"),
    ("--keep-models -1", "--keep-models"),
]
VGC_PLAYING = [
    *VGC,
    ("--teams nowhere", "nowhere"),
    ("--num-battles 0", "--num-battles"),
    ("--buffer-size 0", "--buffer-size"),
    ("--gamma 1.5", "--gamma should be 0 to 1"),
    ("--clip-coef 0", "--clip-coef"),
    ("--heuristics-fraction 1.5", "--heuristics-fraction"),
    ("--heuristics-fraction 0.9 --past-fraction 0.9", "sum to more than 1"),
    ("--ent-coef -1", "--ent-coef"),
    ("--turn-cap 0", "--turn-cap"),
    ("--league-size 0", "--league-size"),
    ("--update-epochs 0", "--update-epochs"),
    ("--checkpoint-frequency 0", "--checkpoint-frequency"),
    ("yaml: use_mixed_precision: maybe", "use_mixed_precision should be one of true, false"),
]
SCRIPT_CASES = {
    "rnad_vgc_portfolio": [
        *VGC_PLAYING,
        ("--alpha -1", "--alpha"),
        ("--portfolio-add-interval 0", "--portfolio-add-interval"),
        ("--max-portfolio-size 0", "--max-portfolio-size"),
        ("--exploiter-win-threshold 1.2", "--exploiter-win-threshold should be 0 to 1"),
        ("--ema-decay 2", "--ema-decay"),
        ("--league-size 2", "--league-size 2"),
        ("yaml: magnet: emma", "did you mean 'ema'"),
        ("yaml: portfolio_update_strategy: divers", "did you mean 'diverse'"),
    ],
    "ppo_vgc_mdbo": VGC_PLAYING,
    "ppo_osrs_selfplay": [
        ("--loadouts purre", "--loadouts: Unknown loadout 'purre'"),
        ("--loadout-file nowhere.yaml", "No loadout file at nowhere.yaml"),
        ("--loadout-file a_file", "a_file holds no loadout"),
        ("--opponents zezima", "--opponents: there is no scripted player 'zezima'"),
        ("--reward-weights kos=1", "did you mean 'ko'"),
        ("--reward-weights ko", "write name=value"),
        ("--reward-weights ko=nan", "finite number"),
        ("--server nowhere", "--server nowhere"),
        ("--server 127.0.0.1:9", "--server 127.0.0.1:9: nobody answers there"),
        ("--server 127.0.0.1:99999", "should look like 127.0.0.1:7070"),
        ("--self-play target", "--self-play target needs --targets"),
        ("--preset exploiter", "--self-play exploiter needs --targets"),
        ("--self-play latest", "--self-play latest needs one folder in --targets"),
        ("--self-play latest --targets a_file", "--self-play latest needs one folder"),
        ("--targets a_file", "--targets are not met with --self-play past"),
        ("--self-play target --targets a b c --league-size 2", "--league-size 2 is too small for 3 --targets"),
        ("--train-exploiters --self-play pure", "--train-exploiters needs a league"),
        ("--exploiter-win-threshold 1.2", "--exploiter-win-threshold should be 0 to 1"),
        ("--exploiter-check-interval 0", "--exploiter-check-interval"),
        ("--self-fraction 0.9", "--self-fraction 0.9 and --scripted-fraction 0.2 sum to more than 1"),
        ("--scripted-fraction 1.5", "--scripted-fraction should be 0 to 1"),
        ("--num-envs 0", "--num-envs should be 1 or more"),
        ("--num-steps 0", "--num-steps"),
        ("--minibatch-size 0", "--minibatch-size"),
        ("--update-epochs 0", "--update-epochs"),
        ("--hidden-size 0", "--hidden-size"),
        ("--head-size -1", "--head-size"),
        ("--max-ticks 0", "--max-ticks"),
        ("--league-size 0", "--league-size"),
        ("--opponents-at-once 0", "--opponents-at-once"),
        ("--eval-episodes 0", "--eval-episodes"),
        ("--checkpoint-frequency 0", "--checkpoint-frequency"),
        ("--keep-models -1", "--keep-models"),
        ("--gamma 1.1", "--gamma should be 0 to 1"),
        ("--clip-coef 0", "--clip-coef"),
        ("--novelty -1", "--novelty should be 0 or more"),
        ("--ent-coef -1", "--ent-coef"),
        ("--total-timesteps 0", "--total-timesteps"),
        ("yaml: self_play: foo", "self_play should be one of"),
        ("yaml: preset: corre", "did you mean 'core'"),
        ("yaml: loadouts: 3", "loadouts should be a list of str"),
    ],
    "bc_pokemon_impala": [
        ("--expert nomodule:f --expert-episodes 4", "nomodule"),
        ("--rom-path nowhere.gba", "nowhere.gba"),
        ("--expert-data-dir nowhere", "nowhere"),
        ("--held-out-worlds 0", "--held-out-worlds"),
        ("--batch-size 0", "--batch-size"),
        ("--gamma 2", "--gamma"),
        ("--dagger-beta 2", "--dagger-beta"),
        ("yaml: algo: bcc", "algo should be one of"),
    ],
    "recurrent_ppo_rocketleague": [
        ("--reward-weights tuch=1", "did you mean 'touch'"),
        ("--reward-weights touch", "name=value"),
        ("--num-agents 13", "--num-agents"),
        ("--num-agents 0", "--num-agents"),
        ("--sequence-length 0", "--sequence-length"),
        ("--rollout-steps 17", "--rollout-steps"),
        ("--state-file nowhere.npz", "nowhere.npz"),
        ("--gamma 1.1", "--gamma"),
        ("--transition-win-rate 1.5", "--transition-win-rate should be 0 to 1"),
        ("--sampler-temperature 0", "--sampler-temperature"),
        ("yaml: recurrent: lsmt", "did you mean 'lstm'"),
        ("yaml: opponent_sampler: elo", "opponent_sampler should be one of"),
    ],
    "bc_vgc_mdbo": [
        *VGC,
        ("--collect 4 --collect-teams nowhere", "nowhere"),
        ("--collect 4 --collect-experts nobody", "--collect-experts nobody"),
        ("--replays nowhere", "--replays nowhere"),
        ("--valid-fraction 2", "--valid-fraction"),
        ("--minibatch-size 0", "--minibatch-size"),
    ],
}


def scripts_and_cases():
    for name in SCRIPTS:
        for words, sentence in [*EVERY_SCRIPT, *SCRIPT_CASES.get(name, [])]:
            yield pytest.param(name, words, sentence, id=f"{name} {words}")


def check_script(name, words):
    """What the script does before it makes its folder."""
    script = importlib.import_module(f"cleanrl_games.{name}")
    args = parse_args(script.Args, getattr(script, "PRESETS", {}), words, getattr(script, "ALIASES", {}))
    for check in ("check_args", "check"):
        if hasattr(script, check):
            getattr(script, check)(args)
    if name == "bc_pokemon_impala":
        script.make_env(args).close()
        script.load_data(args)
    if args.resume:
        load_checkpoint(args.resume)
    choose_run_folder(args)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("")
    yield tmp_path
    written = sorted(str(path) for path in tmp_path.rglob("*") if path.name not in ("a_file", "settings.yaml"))
    assert not written, f"something was written: {written}"


@pytest.mark.parametrize(("name", "words", "sentence"), scripts_and_cases())
def test_a_script_refuses(name, words, sentence, empty_folder, capsys):
    if words.startswith("yaml: "):
        Path("settings.yaml").write_text(words.removeprefix("yaml: "))
        words = "--config settings.yaml"
    with pytest.raises(BadInput) as caught:
        check_script(name, words.split())
    message = str(caught.value)
    assert sentence in message, message
    assert "\n" not in message.strip() and len(message) < 1000


TOOL_CASES = [
    ("evaluate", "", "There is nobody to judge"),
    ("evaluate", "nowhere", "There is no model at nowhere"),
    ("evaluate", "nh --game chess", "--game should be one of"),
    ("evaluate", "nh", "--game"),
    ("evaluate", "a_file", "a_file is not a readable model.zip"),
    ("evaluate", "nh --game osrs --episodes 0", "--episodes should be 1 or more"),
    ("evaluate", "nh --game osrs --threads 0", "--threads should be 1 or more"),
    ("evaluate", "nh --game osrs --save fight.mp4", "--save should name a .html or .gif file"),
    ("evaluate", "nh --game osrs --json no/such.json", "--json no/such.json: there is no folder"),
    ("evaluate", "nh --game osrs --loadouts purre --episodes 1", "Unknown loadout 'purre'"),
    ("evaluate", "nh --game osrs --team-size -1", "--team-size should be 0 or more"),
    ("evaluate", "heuristics --game osrs", "is a scripted player of another game"),
    ("evaluate", "random --game vgc --against random --team nowhere.txt", "--team nowhere.txt"),
    ("evaluate", "random --game vgc --against random --teams nowhere", "nowhere does not exist"),
    ("arena", "nh --game osrs --jobs -1", "--jobs should be 0 or more"),
    ("arena", "nh --game osrs --anchor nobody", "--anchor should name one of the players"),
    ("arena", "nh --game osrs --no-baselines", "An arena needs at least two players"),
    ("arena", "nh --game osrs --output a_file", "--output a_file is a file"),
    ("arena", "nh --game osrs --episodes -4", "--episodes should be 1 or more"),
    ("arena", "nowhere", "There is no model at nowhere"),
    ("collect_expert_data", "--episodes 0", "--episodes should be 1 or more"),
    ("collect_expert_data", "--num-workers 0", "--num-workers should be 1 or more"),
    ("collect_expert_data", "--noise 1", "--noise should be less than 1"),
    ("collect_expert_data", "--noise -0.1", "--noise should be 0 to 1"),
    ("collect_expert_data", "--noise-length 0", "--noise-length should be 1 or more"),
    ("collect_expert_data", "--compression 10", "--compression should be 1 to 9"),
    ("collect_expert_data", "--max-steps 0", "--max-steps should be 1 or more"),
    ("collect_expert_data", "--expert-timeout 0", "--expert-timeout should be more than 0"),
    ("collect_expert_data", "--worlds 9-x", "--worlds should be like"),
    ("collect_expert_data", "--worlds 65536", "--worlds should be from 0 to"),
    ("collect_expert_data", "--rom-path nowhere.gba", "nowhere.gba"),
    ("collect_expert_data", "--rom-path a_file", "The ROM a_file is empty"),
    ("collect_expert_data", "--start-state nowhere.state", "A start state is for a cartridge of your own"),
    ("collect_expert_data", "--expert nomodule:f", "nomodule"),
    ("collect_expert_data", "--expert nobody", "There is no expert 'nobody'"),
    ("collect_expert_data", "--expert os:nothing", "has no 'nothing'"),
    ("collect_expert_data", "--expert nowhere.zip", "nowhere.zip"),
    ("collect_expert_data", "--expert nowhere.pth", "nowhere.pth"),
    ("collect_expert_data", "--replay nowhere", "--replay nowhere: there is no such file or folder"),
    ("collect_expert_data", "--replay a_file", "a_file: the file is empty"),
    ("collect_expert_data", "--output-dir a_file", "--output-dir a_file is a file"),
    ("collect_expert_data", "--from-minari nobody/none-v0", "There is no Minari dataset"),
    ("collect_expert_data", "--to-minari mine/quest-v0 --output-dir nowhere", "nowhere"),
    ("serve_osrs", "", "give --model"),
    ("serve_osrs", "--model nowhere", "There is no model at nowhere"),
    ("serve_osrs", "--model a_file", "a_file is not a readable model.zip"),
    ("serve_osrs", "--port 70000", "--port should be 0 to 65535"),
    ("serve_osrs", "--max-batch 0", "--max-batch should be 1 or more"),
    ("serve_osrs", "--max-line-bytes 3", "--max-line-bytes should be 1024 or more"),
    ("serve_osrs", "--batch-window-ms -1", "--batch-window-ms should be 0 or more"),
    ("serve_osrs", "--idle-timeout nan", "--idle-timeout should be a finite number"),
    ("train_osrs", "--server nowhere", "--server nowhere"),
    ("train_osrs", "--server-command nobody", "there is no program 'nobody'"),
    ("train_osrs", "--server-command ls --server-folder nowhere", "--server-folder nowhere: there is no such folder"),
    ("train_osrs", "--server-seconds 0", "--server-seconds should be more than 0"),
    ("diagnose_performance", "--agents 13", "--agents are (13,)"),
    ("diagnose_performance", "--seconds 0", "--seconds should be more than 0"),
    ("diagnose_performance", "--minibatches 0", "--minibatches should be 1 or more"),
    ("play_showdown", "nowhere --accept --ladder", "one of: --accept"),
    ("play_showdown", "nowhere --accept --battles 0", "--battles should be 1 or more"),
    ("play_showdown", "nowhere --accept --battle-format gen9vgc1999", "Unknown battle format 'gen9vgc1999'"),
    ("play_showdown", "nowhere --accept --server http://here", "is no websocket address"),
    ("play_showdown", "nowhere --challenge me --wait-seconds 0", "--wait-seconds should be more than 0"),
    ("play_showdown", "nowhere --accept --server ws://127.0.0.1:9", "No Showdown server answers"),
    ("benchmark", "nonsense", "usage"),
    ("benchmark", "speed chess", "speed knows no 'chess'"),
    ("benchmark", "learn osrs --minutes 0", "--minutes 0 are too few"),
    ("benchmark", "all --skip everything", "usage"),
    ("benchmark", "--compare nowhere nobody", "nowhere: it should have a results.json"),
]


@pytest.mark.parametrize(
    ("name", "words", "sentence"), [pytest.param(*case, id=f"{case[0]} {case[1]}") for case in TOOL_CASES]
)
def test_a_tool_refuses(name, words, sentence, empty_folder, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
    tool = importlib.import_module(f"cleanrl_games.tools.{name}")
    try:
        code = tool.main(words.split())
    except BadInput as error:
        code, message = error.exit_code, str(error)
    except SystemExit as ended:  # tyro's own refusals
        code, message = ended.code, capsys.readouterr().err
    else:
        message = capsys.readouterr().err
    assert code == 2, message
    assert sentence in message, message
    assert "Traceback" not in message


OWN_PARSERS = [
    ("bench_osrs", "--seconds 0", "--seconds"),
    ("bench_pokemon", "--seconds -1", "--seconds"),
    ("bench_rocketleague", "--arenas 0", "--arenas"),
    ("bench_vgc", "--rounds 0", "--rounds"),
    ("bench_vgc", "--against nowhere", "--against"),
    ("bench_vgc_train", "--num-workers 0", "--num-workers"),
    ("mutants", "--seconds nan", "--seconds"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words", "sentence"), OWN_PARSERS)
def test_a_bench_refuses(name, words, sentence, tmp_path):
    """They read their flags when they are started as programs."""
    check_program([f"cleanrl_games/tools/{name}.py", *words.split()], sentence, tmp_path)


def check_program(words, sentence, folder):
    done = subprocess.run(
        [sys.executable, ROOT / words[0], *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not list(folder.iterdir())


PROGRAMS = [
    ("cleanrl_games/rnad_vgc_portfolio.py --teams nowhere", "nowhere"),
    ("cleanrl_games/ppo_osrs_selfplay.py --loadouts purre", "Unknown loadout 'purre'"),
    ("cleanrl_games/tools/evaluate.py nowhere", "There is no model at nowhere"),
    ("cleanrl_games/tools/export_rlbot.py nowhere bot", "There is no model at nowhere"),
    ("cleanrl_games/tools/profile.py nothing", "There is no script"),
    ("cleanrl_games/tools/study_small_games.py --games chess", "there is no game 'chess'"),
]


@pytest.mark.parametrize(("words", "sentence"), PROGRAMS, ids=[words for words, _ in PROGRAMS])
def test_as_a_user_starts_it(words, sentence, tmp_path):
    check_program(words.split(), sentence, tmp_path)


def test_there_are_enough_of_them():
    assert len(list(scripts_and_cases())) + len(TOOL_CASES) + len(OWN_PARSERS) + len(PROGRAMS) >= 120


def test_a_port_that_nobody_listens_on_is_told_at_once():
    with pytest.raises(BadInput, match=r"--ray-address 127\.0\.0\.1:9: nobody answers there"):
        ray_actors.check_address("127.0.0.1:9")
