"""Numba's cache, made safe to edit beside: used by the shims whose rules are compiled."""

from pathlib import Path

uncompiled = []  # folders of rules that the first call will compile


def drop_stale_machine_code(folder, sources):
    """Numba's cache watches the file of a function, not the files of the functions it calls.

    So that an edited rule is played everywhere, code compiled before the newest of its sources is thrown away.
    """
    newest = max((Path(folder) / f"{name}.py").stat().st_mtime for name in sources)
    for compiled in Path(folder).glob("__pycache__/*.nb[ic]"):
        try:
            if compiled.stat().st_mtime < newest:
                compiled.unlink()
        except FileNotFoundError:  # another process was faster
            pass
    if not any(Path(folder).glob("__pycache__/*.nbi")):
        uncompiled.append(str(folder))
