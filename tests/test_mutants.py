"""tests/mutants.yaml fits the code: every fault can still be put in, and every test that should notice it is there."""

from pathlib import Path

from cleanrl_games.tools.mutants import read_mutants

ROOT = Path(__file__).resolve().parents[1]


def test_every_fault_can_be_put_in():
    mutants, problems = read_mutants()
    assert not problems, "tests/mutants.yaml does not fit the code any more:\n" + "\n".join(problems)
    assert len(mutants) >= 80
    learners = [mutant for mutant in mutants if Path(mutant["file"]).parent.name == "cleanrl_games"]
    assert len(learners) * 3 >= len(mutants), "at least a third are inside the scripts"


def test_every_test_that_should_notice_is_there():
    mutants, _ = read_mutants()
    for mutant in mutants:
        for test in mutant["tests"]:
            file, _, name = test.partition("::")
            name = name.partition("[")[0]
            assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{mutant['name']}: {test} is not there"


def test_a_table_that_does_not_fit_is_told(tmp_path):
    path = tmp_path / "mutants.yaml"
    path.write_text(
        "- {name: a, file: README.md, old: not there at all, new: x, tests: [tests/nowhere.py]}\n- {name: a, file: b}\n"
    )
    _, problems = read_mutants(path)
    said = "\n".join(problems)
    assert (
        "a is there twice" in said
        and "its text is 0 times in README.md" in said
        and "there is no tests/nowhere.py" in said
    )
    assert "a has no new, old, tests" in said
