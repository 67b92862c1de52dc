"""The scripts' pages against the code: every numbered implementation detail links to the line it speaks of, and the
line is still there.

    python tests/test_docs.py      puts right the line numbers of all such links, after the code has changed

A link is [`text of the code`](../cleanrl_games/script.py#L123): its text stands on that line, and on no other line of
the file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SCRIPT_PAGES = [page for page in PAGES if (ROOT / "cleanrl_games" / f"{page.stem}.py").exists()]
LINK = re.compile(r"\[`([^`\n]+)`\]\((\.\./[\w./-]+)#L(\d+)\)")


def details_of(text):
    """The numbered items of a page's "Implementation details" """
    section = re.search(r"^## Implementation details\n(.*?)(?=^##|\Z)", text, re.S | re.M)
    return re.split(r"^(?=\d+\. )", section[1], flags=re.M)[1:] if section else []


def find_line(page, snippet, target):
    """→ (the number of the one line that has the snippet or 0, else what is wrong)"""
    path = page.parent / target
    if not path.is_file():
        return 0, f"there is no {target}"
    numbers = [number for number, line in enumerate(path.read_text().splitlines(), 1) if snippet in line]
    if len(numbers) == 1:
        return numbers[0], ""
    return (
        0,
        f"`{snippet}` is on lines {', '.join(map(str, numbers))} of {target}"
        if numbers
        else f"`{snippet}` is not in {target} any more",
    )


def problems_of(page):
    """What is wrong with the page's links, as sentences"""
    problems = []
    for snippet, target, number in LINK.findall(page.read_text()):
        line, problem = find_line(page, snippet, target)
        if line and line != int(number):
            problem = f"`{snippet}` is on line {line} of {target} now, not on {number}: run python tests/test_docs.py"
        problems += [f"{page.name}: {problem}"] if problem else []
    return problems


def mend(page):
    """Writes the right line numbers into the page → (how many have changed, what only a person can mend)"""
    changed, problems = [], []

    def number(match):
        snippet, target, old = match.groups()
        line, problem = find_line(page, snippet, target)
        problems.extend([f"{page.name}: {problem}"] if problem else [])
        changed.extend([line] if line and line != int(old) else [])
        return f"[`{snippet}`]({target}#L{line or old})"

    text = page.read_text()
    mended = LINK.sub(number, text)
    if mended != text:
        page.write_text(mended)
    return len(changed), problems


@pytest.mark.parametrize("page", SCRIPT_PAGES, ids=lambda page: page.stem)
def test_every_implementation_detail_links_to_its_line(page):
    details = details_of(page.read_text())
    assert details, f"{page.name} has no numbered items under '## Implementation details'"
    bare = [detail.split("\n")[0] for detail in details if not LINK.search(detail)]
    assert not bare, f"{page.name} has details without a link to their line: {bare}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_the_lines_they_name(page):
    text = page.read_text()
    assert text.count("#L") == len(LINK.findall(text)), (
        f"{page.name} has a link to a line that is not [`text of the code`](../file#L1)"
    )
    problems = problems_of(page)
    assert not problems, "\n".join(problems)


def test_line_numbers_are_mended(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.py").write_text("a = 1\nb = a[0] + f(1)\nc = 1\nc = 1\n")
    page = tmp_path / "docs" / "page.md"
    links = (
        "[`b = a[0] + f(`](../code.py#L{}), [`a = 1`](../code.py#L1), [`c = 1`](../code.py#L3), [`d`](../code.py#L4), "
        "[`a`](../no.py#L1)"
    )
    page.write_text(f"## Implementation details\n\n1. {links.format(9)}\n2. nothing\n\n## Results\n\n3. no detail\n")
    assert len(details_of(page.read_text())) == 2
    lost = [
        "page.md: `c = 1` is on lines 3, 4 of ../code.py",
        "page.md: `d` is not in ../code.py any more",
        "page.md: there is no ../no.py",
    ]
    moved = "page.md: `b = a[0] + f(` is on line 2 of ../code.py now, not on 9: run python tests/test_docs.py"
    assert problems_of(page) == [moved, *lost]
    assert mend(page) == (1, lost) and problems_of(page) == lost
    assert (
        page.read_text()
        == f"## Implementation details\n\n1. {links.format(2)}\n2. nothing\n\n## Results\n\n3. no detail\n"
    )


if __name__ == "__main__":
    mended = [mend(page) for page in PAGES]
    lost = [problem for _, problems in mended for problem in problems]
    print(
        *lost,
        f"{sum(count for count, _ in mended)} line numbers were put right, {len(lost)} links need a person.",
        sep="\n",
    )
    raise SystemExit(1 if lost else 0)
