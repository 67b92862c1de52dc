"""The door to profiler.py: python cleanrl_games/tools/profile.py SCRIPT [--sweep] [--output results.json]

The standard library has a module of this name. A tool that is started from this folder finds this file first when torch
means the other one, so it hands that over.
"""

import sys
from pathlib import Path

if __name__ == "profile":
    import importlib.util
    import sysconfig

    _spec = importlib.util.spec_from_file_location("profile", Path(sysconfig.get_path("stdlib")) / "profile.py")
    sys.modules["profile"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["profile"])

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

    from cleanrl_games.runtime.settings import parse_flags
    from cleanrl_games.tools import profiler

    profiler.main(parse_flags(profiler.Args, profiler.__doc__))
