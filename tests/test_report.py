"""benchmark.py and its page, on small programs that behave like scripts and tools; the curves are those of a recorded
real run."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cleanrl_games.runtime.errors import BadInput
from cleanrl_games.tools import benchmark, curves, report

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests/data/benchmark/metrics.jsonl"

SCRIPT = f"""
import shutil, sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--run-dir") + 1])
(folder / "models").mkdir(parents=True)
for name in ("checkpoint.pt", "model.zip", "config.yaml", "script.py", "models/5.zip"):
    (folder / name).write_text(name)
shutil.copy({str(RECORDED)!r}, folder / "metrics.jsonl")
print("run folder:", folder)
if "--nan" in sys.argv:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{{"global_step": 1, "time": 1, "eval/nh": NaN}}' + chr(10))
if "--lose" in sys.argv:
    (folder / "model.zip").unlink()
if "--fail" in sys.argv:
    sys.exit(3)
"""
BENCH = 'import json\nprint("noise")\nprint(json.dumps({"ratio": 3.5, "steps_per_s": 123456, "share": 0.02}))\n'
STUDY = """
import json, sys
from pathlib import Path
from PIL import Image
model, other, folder = map(Path, sys.argv[1:])
assert model.read_text() == "model.zip" and other.name == "5.zip"
Image.new("RGB", (40, 30), (200, 30, 30)).save(folder / "heatmap.png")
print(json.dumps({"elo/<b>bold</b>": 1712.5, "exploitability": 0.125}))
"""
SLEEP = "import time\ntime.sleep(100)\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name, text in {"script": SCRIPT, "bench": BENCH, "study": STUDY, "sleep": SLEEP}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def make_table(programs):
    script, study, bench = (str(programs / f"{name}.py") for name in ("script", "study", "bench"))
    curves, flags = (
        ["eval/nh", "elo/agent", "charts/SPS", "never/logged"],
        "{good}/model.zip {good}/models/*.zip {folder}",
    )
    return {
        "minutes": {"smoke": 1, "speed": 1, "learn": 1, "proof": 1, "start": 0.5},
        "smoke": {script: "--few", **{path.name: "" for path in (ROOT / "cleanrl_games").glob("*_*.py")}},
        "speed": {"chess": {"bench": bench, "floors": {"ratio": 4.0, "steps_per_s": 1}, "ceilings": {"share": 0.05}}},
        "learn": {
            "chess": [
                {
                    "name": "good",
                    "script": script,
                    "flags": "--seed 1",
                    "curves": curves,
                    "expect": {"eval/nh": [0.95, 1.0]},
                },
                {
                    "name": "weak",
                    "script": script,
                    "flags": "",
                    "expect": {"eval/random": [0.99, 1.0], "eval/nobody": [0, 1]},
                },
                {"name": "broken", "script": script, "flags": "--fail"},
                {"name": "study", "tool": study, "flags": flags, "expect": {"exploitability": [None, 0.2]}},
                {"name": "orphan", "tool": study, "flags": "{broken}/model.zip {folder}"},
                {"name": "endless", "tool": str(programs / "sleep.py"), "flags": "", "minutes": 0.005},
            ]
        },
    }


EXPECTED = [
    "chess: ratio is 3.5, expected at least 4",
    "chess/weak: eval/random is 0.984, expected 0.99 – 1",
    "chess/weak: there is no eval/nobody",
    "chess/broken ended with exit code 3",
    "chess/orphan needs broken, and no run of that has ended well",
    "chess/endless took more than twice its 0.005 minutes and was stopped",
]


@pytest.fixture(scope="module")
def done(programs, tmp_path_factory):
    """benchmark.sh all on the small programs, without the real scripts and the slow tests → (exit code, folder,
    results)"""
    patch = pytest.MonkeyPatch()
    table = make_table(programs)
    table["smoke"] = {script: flags for script, flags in table["smoke"].items() if script.startswith("/")}
    patch.setattr(benchmark, "TABLE", table)
    patch.setattr(benchmark, "RUNS", tmp_path_factory.mktemp("runs"))
    patch.setattr(benchmark, "MODES", {mode: benchmark.MODES[mode] for mode in ("smoke", "speed", "learn")})
    code = benchmark.main(["all"])
    (folder,) = benchmark.RUNS.iterdir()
    patch.undo()
    return code, folder, json.loads((folder / "results.json").read_text())


class Page(HTMLParser):
    """What a page says and what it would load."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.loads, self.tags, self.said, self.open, self.policy = [], [], [], [], ""
        self.feed(text)
        assert not self.open, f"tags that are not closed: {self.open}"
        self.text = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [
            attrs[name] for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href") if name in attrs
        ]
        if attrs.get("http-equiv") == "Content-Security-Policy":
            self.policy = attrs["content"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.said.append(data)


def check_loads_nothing(page):
    assert page.loads and all(load.startswith("data:") for load in page.loads)
    assert page.policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert not {"script", "iframe", "object", "embed", "base", "form"} & set(page.tags)


def test_every_regression_is_named_and_nothing_else(done):
    code, _, results = done
    missing = report.problems_of(results)
    assert code == 1 and missing == EXPECTED
    assert results["complete"] and results["machine"]["cores"] >= 1
    assert results["stated_minutes"] == {"smoke": 1, "speed": 1, "learn": 5.005}


def test_a_benchmark_without_regression(programs, tmp_path, monkeypatch, capsys):
    table = make_table(programs)
    table["speed"]["chess"]["floors"]["ratio"] = 3.0
    monkeypatch.setattr(benchmark, "TABLE", table)
    monkeypatch.setattr(benchmark, "RUNS", tmp_path)
    assert benchmark.main(["speed", "chess"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["steps_per_s"] == 123456
    (folder,) = tmp_path.iterdir()
    assert "No regression." in Page((folder / "report.html").read_text()).text
    with pytest.raises(BadInput, match=r"learn knows no 'go'\. There are: chess, chess/broken"):
        benchmark.main(["learn", "go"])
    with pytest.raises(BadInput, match="usage"):
        benchmark.main(["everything"])


def test_one_entry_builds_on_the_newest_run_of_another(done, programs, monkeypatch):
    _, folder, _ = done
    monkeypatch.setattr(benchmark, "TABLE", make_table(programs))
    monkeypatch.setattr(benchmark, "RUNS", folder.parent)
    own = folder.parent / "later" / "chess_study"
    assert benchmark.fill("{good}/models/*.zip --to {folder}", "chess", own) == [
        str(folder / "chess_good/models/5.zip"),
        "--to",
        str(own),
    ]
    assert benchmark.fill("{chess/study}", "go", own) == [str(folder / "chess_study")], "of another game"
    with pytest.raises(FileNotFoundError, match="found nothing at"):
        benchmark.fill("{good}/*.gif", "chess", own)


def test_learning_runs_are_shortened_to_fit(programs, tmp_path, monkeypatch, capsys):
    """--minutes: smaller budgets in proportion, what is reached is shown and not judged; what breaks is still a
    regression."""
    script, study = str(programs / "script.py"), str(programs / "study.py")
    table = make_table(programs)
    table["smoke"] = {}
    table["learn"] = {
        "chess": [
            {"name": "good", "script": script, "flags": "--max-minutes 20 --episodes 3 --eval-episodes=50 --seed 7",
                "expect": {"eval/nh": [2, 3], "eval/nobody": [0, 1]}},
            {"name": "study", "tool": study, "flags": "{good}/model.zip {good}/models/*.zip {folder}", "minutes": 10,
                "expect": {"exploitability": [1, 2]}},
            {"name": "broken", "script": script, "flags": "--total-timesteps 1000 --fail", "minutes": 20},
            {"name": "lost", "script": script, "flags": "--collect 50 --lose", "minutes": 20},
            {"name": "strange", "script": script, "flags": "--final-battles 50 --nan", "minutes": 20},
        ]
    }  # fmt: skip
    monkeypatch.setattr(benchmark, "TABLE", table)
    monkeypatch.setattr(benchmark, "RUNS", tmp_path)
    monkeypatch.setattr(benchmark, "MODES", {mode: benchmark.MODES[mode] for mode in ("speed", "learn")})
    table["speed"]["chess"]["floors"]["ratio"] = 3.0
    # 100 minutes of learning (20 · 1.5 + 10 + 3 · 20); 13.5 − 1 of speed − 5 · 0.5 to start leave a tenth of it
    assert benchmark.main(["all", "--minutes", "13.5"]) == 1
    (folder,) = tmp_path.iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert folder.name.endswith("_shortened") and results["command"] == "./benchmark.sh all --minutes 13.5"
    assert results["stated_minutes"] == {"speed": 1, "learn": 12.5}
    said = capsys.readouterr().out
    assert "takes up to 14 minutes" in said and "shortened to 10.0% of their budgets" in said
    good, study, broken, lost, strange = results["learn"]
    assert (
        "--max-minutes 2 --episodes 1 --eval-episodes=5 --seed 7" in good["command"]
        and "--total-timesteps 100 " in broken["command"]
    )
    assert "--collect 5 " in lost["command"] and "--final-battles 5 " in strange["command"]
    assert [row["measure"] for row in good["judged"]] == ["eval/nh", "eval/nobody"] and good["judged"][0][
        "value"
    ] == 0.994
    assert all(row["ok"] is None for entry in results["learn"] for row in entry["judged"]) and not good["problems"]
    assert str(folder / "chess_good") in study["command"] and not study["problems"]
    assert report.problems_of(results) == [
        "chess/broken ended with exit code 3",
        "chess/lost left no model.zip",
        "chess/strange logged no or no finite metrics",
    ]
    page = Page((folder / "report.html").read_text()).text
    assert page.count("shortened to 10 %: not judged") == 5 and "eval/nh 0.994 2 – 3 not judged" in page
    # a shortened run is no start for a later one of full length
    with pytest.raises(FileNotFoundError, match="needs good"):
        benchmark.fill("{good}/model.zip", "chess", tmp_path / "later" / "chess_study")
    # enough minutes: nothing is shortened, everything is judged
    assert (
        benchmark.share_for(104, ["speed", "learn"], []) == 1.0
        and benchmark.share_for(26, ["learn"], ["chess/good"]) < 1.0
    )


def test_too_few_minutes(programs, tmp_path, monkeypatch):
    table = make_table(programs)
    table["learn"] = {
        "chess": [
            {"name": name, "script": "a.py", "flags": "--max-minutes 20", "minutes": 40} for name in ("one", "two")
        ]
    }
    table["smoke"] = {"a.py": "", "b.py": ""}
    monkeypatch.setattr(benchmark, "TABLE", table)
    monkeypatch.setattr(benchmark, "RUNS", tmp_path)
    sentence = (
        r"--minutes 8\.9 are too few: smoke 2, speed 1, proof 1, starting 2 learning runs 1, and 5% of their 80\. "
        r"Give at least 9, or --skip some of these\."
    )
    with pytest.raises(BadInput, match=sentence):
        benchmark.main(["all", "--minutes", "8.9"])
    with pytest.raises(
        BadInput,
        match=r"--minutes 2 are too few: starting 1 learning runs 0\.5, and 5% of their 40\. Give at least 3\.",
    ):
        benchmark.main(["learn", "chess/one", "--minutes", "2"])
    for words in (
        ["all", "--minutes"],
        ["all", "--minutes", "soon"],
        ["speed", "--minutes", "9"],
        ["all", "--skip", "learn"],
        ["all", "--seeds", "3"],
        ["learn", "--seeds", "0"],
        ["all", "chess"],
    ):
        with pytest.raises(BadInput, match="usage"):
            benchmark.main(words)
    assert not list(tmp_path.iterdir())


def test_all_without_some_modes(monkeypatch):
    ran = []
    monkeypatch.setattr(benchmark, "benchmark", lambda words, modes, names, share, seeds: ran.append((modes, share)))
    benchmark.main(["all", "--skip", "proof", "--minutes", "100000", "--skip", "smoke"])
    assert ran == [(["speed", "learn"], 1.0)]


def test_several_seeds_become_a_band(programs, tmp_path, monkeypatch):
    """--seeds: a run for each seed, judged each; together one picture, and one section of the page."""
    table = make_table(programs)
    good = {**table["learn"]["chess"][0], "curves": ["eval/nh", "elo/agent", "never/logged"]}
    study = {
        "name": "study",
        "tool": str(programs / "study.py"),
        "flags": "{good}/model.zip {good}/models/*.zip {folder}",
    }
    table["learn"] = {"chess": [good, study]}
    monkeypatch.setattr(benchmark, "TABLE", table)
    monkeypatch.setattr(benchmark, "RUNS", tmp_path)
    assert benchmark.main(["learn", "--seeds", "3"]) == 0
    (folder,) = tmp_path.iterdir()
    rows = json.loads((folder / "results.json").read_text())["learn"]
    assert [row["name"] for row in rows] == ["good", "good_seed2", "good_seed3", "study"]
    assert [f"--seed {seed} " in row["command"] for seed, row in zip((1, 2, 3), rows)] == [True] * 3
    assert [row.get("of") for row in rows] == ["good"] * 3 + [None]
    with Image.open(folder / "chess_good_seeds.png") as picture:
        assert picture.size[0] > 700, "two metrics side by side; what was never logged has no picture"
    page = Page((folder / "report.html").read_text())
    assert "chess · good, 3 seeds" in page.text and page.tags.count("polygon") == 2


def history(steps, values, name="eval/nh"):
    return [{"global_step": int(step), "time": 1.0, name: float(value)} for step, value in zip(steps, values)]


def test_a_band_by_hand():
    """Seeds that log at other steps are read off at the same ones, and only where all of them have something."""
    seeds = [history([0, 100, 200], [0, 1, 2]), history([50, 150, 300], [3, 5, 8]), [{"global_step": 7, "time": 1.0}]]
    steps, mean, low, high = curves.band_of(seeds, "eval/nh")
    np.testing.assert_allclose(steps, [50, 100, 150, 200])
    np.testing.assert_allclose(low, [0.5, 1, 1.5, 2])
    np.testing.assert_allclose(high, [3, 4, 5, 6])
    np.testing.assert_allclose(mean, [1.75, 2.5, 3.25, 4])
    assert all(len(part) == 0 for part in curves.band_of(seeds, "eval/nobody"))
    with pytest.raises(BadInput, match="no steps in common"):
        curves.band_of([history([0, 10], [0, 1]), history([20, 30], [0, 1])], "eval/nh")
    # what is logged more often than can be drawn is averaged, and what is not finite is left out
    often = history(range(100_000), np.arange(100_000) % 2)
    often[5]["eval/nh"] = float("nan")
    steps, values = curves.points_of(often, "eval/nh")
    assert len(steps) == curves.POINTS and np.abs(values - 0.5).max() < 0.01
    np.testing.assert_allclose(np.diff(steps), 500, rtol=0.01)


def test_the_curves_tool(tmp_path, capsys):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        shutil.copy(RECORDED, tmp_path / name / "metrics.jsonl")
    (tmp_path / "a/config.yaml").write_text("exp_name: mine\n")
    runs = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert list(curves.read_groups([runs[0], f"mine={runs[1]}", runs[2]])) == ["mine", "c"]
    output = tmp_path / "out.png"
    curves.main([runs[0], f"mine={runs[1]}", "--metrics", "eval/nh", "--output", str(output)])
    assert "1 metrics of 2 runs" in capsys.readouterr().out
    with Image.open(output) as picture:
        assert (31, 111, 180) in {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    curves.main([runs[0], "--output", str(output)])
    (tmp_path / "c/metrics.jsonl").write_text("[1]\n")
    for words, sentence in (
        ([runs[0], "--metrics", "eval/nobody"], "No run has logged eval/nobody"),
        ([str(tmp_path / "nowhere")], "cannot be read"),
        ([runs[2]], "each line should be an object"),
        ([runs[0], "--output", "curves.gif"], "should be a .png file"),
        ([], "nothing to draw"),
    ):
        with pytest.raises(BadInput, match=sentence):
            curves.main([*words, *([] if "--output" in words else ["--output", str(tmp_path / "no.png")])])
    assert not (tmp_path / "no.png").exists()


def test_every_learning_run_can_be_shortened():
    for game, entry in benchmark.entries_of(()):
        if entry.get("tool", "").endswith("league.py"):  # it draws what the entry before it has left
            continue
        assert benchmark.shorten(entry["flags"], 0.1) != entry["flags"], (
            f"{game}/{entry['name']} has no budget in its flags"
        )


def test_the_page_shows_what_was_found(done):
    _, folder, _ = done
    text = (folder / "report.html").read_text()
    page = Page(text)
    check_loads_nothing(page)
    for sentence in (
        *EXPECTED,
        "steps_per_s 123,456",
        "eval/nh 0.994 0.95 – 1 ok",
        "ratio 3.5 at least 4 regression",
        "never/logged: nothing was logged",
    ):
        assert sentence in page.text, sentence
    assert (
        "16,108,170 steps in 15.1 minutes" in page.text
        and "elo/<b>bold</b> 1,712" in page.text
        and "b" not in page.tags
    )
    assert page.tags.count("polyline") == 3
    games = list((ROOT / "docs/media").glob("*.gif"))
    assert games and page.tags.count("img") == 1 + len(games), "the study's heat map and a GIF per game"
    assert "Intel" in page.text or report.describe_machine(ROOT)["processor"] in page.text
    assert not list(folder.glob(".*")), "no temporary file is left"


def test_a_run_that_was_stopped_says_so(programs, tmp_path, monkeypatch):
    def stopped(names, folder):
        yield {"script": "a.py", "command": "", "seconds": 1.0, "problems": []}
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "TABLE", make_table(programs))
    monkeypatch.setattr(benchmark, "RUNS", tmp_path)
    monkeypatch.setitem(benchmark.MODES, "smoke", stopped)
    assert benchmark.main(["smoke"]) == 1
    (folder,) = tmp_path.iterdir()
    assert "the benchmark did not run to its end" in Page((folder / "report.html").read_text()).text


def test_compare_puts_two_runs_side_by_side(done, tmp_path, capsys):
    _, folder, results = done
    other = tmp_path / "other"
    other.mkdir()
    changed = json.loads(json.dumps(results))
    changed["speed"][0]["figures"]["ratio"] = 7.0
    changed["learn"][0]["curves"]["eval/nh"][-1][1] = 0.5
    changed["machine"]["cores"] = 64
    (other / "results.json").write_text(json.dumps(changed))
    assert benchmark.main(["--compare", str(folder), str(other)]) == 0
    page = Page((other / f"compare_with_{folder.name}.html").read_text())
    check_loads_nothing(page)
    assert "ratio 3.5 7 +100.0%" in page.text and "steps_per_s 123,456 123,456 +0.0%" in page.text
    assert f"cores {results['machine']['cores']} 64" in page.text and "eval/nh: at the end 0.994, 0.5" in page.text
    assert page.tags.count("polyline") == 6
    with pytest.raises(BadInput, match="There is no benchmark in"):
        benchmark.main(["--compare", str(folder), "nowhere"])
    (other / "results.json").write_text("{}")
    with pytest.raises(BadInput, match="is not a benchmark's results"):
        benchmark.main(["--compare", str(folder), str(other)])


def open_in(browser, path, folder):
    """→ (screenshot, what the page asked the network for, from the browser's own log)"""
    folder.mkdir()
    quiet = (
        "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
        "--hide-scrollbars"
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *quiet.split(),
        "--window-size=1100,3000",
        "--virtual-time-budget=3000",
    ]
    log, shot = folder / "net.json", folder / "page.png"
    files = [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", f"--screenshot={shot}"]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [browser, *flags, *files, path.as_uri()], capture_output=True, text=True, timeout=240, env=environment
    )
    assert shot.exists(), done.stderr
    text = log.read_text().rstrip()
    recorded = json.loads(text if text.endswith("}") else text.rstrip(",") + "]}")  # it may end before its log does
    requests = [event["params"] for event in recorded["events"] if "initiator" in event.get("params", {})]
    # that is the browser itself
    return shot, [request["url"] for request in requests if request["initiator"] != "not an origin"]


def test_the_page_in_a_browser(done, tmp_path):
    """Headless Chromium draws the page, and the page asks for nothing; a page that does is caught the same way.
    Where there is no Chromium, a warning says so, and the page is checked by reading it only."""
    _, folder, _ = done
    path = folder / "report.html"
    check_loads_nothing(Page(path.read_text()))
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        warnings.warn("There is no Chromium on this machine: report.html was checked by parsing only.", stacklevel=1)
        return
    shot, asked = open_in(browser, path, tmp_path / "report")
    assert asked == []
    with Image.open(shot) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
        assert picture.size == (1100, 3000) and (200, 30, 30) in colours, "the study's heat map is drawn"
        assert (31, 111, 180) in colours, "the curves are drawn"
    leaky = tmp_path / "leaky.html"
    leaky.write_text('<!doctype html><img src="http://127.0.0.1:9/x.png">')
    assert open_in(browser, leaky, tmp_path / "leaky")[1] == ["http://127.0.0.1:9/x.png"]


def test_the_command_line_knows_its_words():
    done = subprocess.run(
        [sys.executable, ROOT / "cleanrl_games/tools/benchmark.py"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "--compare A B" in done.stderr and "osrs" in done.stderr


def test_the_last_video_of_each_kind_is_shown(tmp_path):
    """Rocket League leaves one of each stage, and later ones of the last stage."""
    (tmp_path / "videos").mkdir()
    names = ["9.gif", "100_touch.gif", "200_3v3.gif", "30_score.gif", "300_3v3.gif", "50.gif"]
    for number, name in enumerate(names):
        path = tmp_path / "videos" / name
        path.touch()
        os.utime(path, (number, number))
    assert [path.name for path in report.images_in(tmp_path)] == [
        "100_touch.gif",
        "30_score.gif",
        "300_3v3.gif",
        "50.gif",
    ]
    assert report.images_in(tmp_path / "nothing") == []
