"""Games as files: one page that needs nothing else, or a GIF, drawn by the very code that draws the live page.

    write_game("game.html", info, frames)     the page's own HTML, CSS and JavaScript with the game put in
    write_game("game.gif", info, frames)      the same JavaScript in Node, on a canvas from npm; Pillow packs its
      pictures

The canvas is pinned by watch_page/package-lock.json, installed once into the cache folder, and used offline afterwards.
"""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from cleanrl_games.envs.vgc import install
from cleanrl_games.runtime.cache import cache_folder, one_at_a_time
from cleanrl_games.runtime.files import write_atomically

FOLDER = Path(__file__).resolve().parent / "watch_page"
FILES = {
    "style.css": "text/css",
    "space.js": "text/javascript",
    "draw_osrs.js": "text/javascript",
    "draw_rocketleague.js": "text/javascript",
    "draw_pokemon.js": "text/javascript",
    "draw_vgc.js": "text/javascript",
    "page.js": "text/javascript",
}
SUFFIXES = (".html", ".gif")
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; base-uri 'none'"
)
GIF_WIDTH = {"vgc": 560, "osrs": 560, "rocketleague": 560, "pokemon": 480}
# Pictures per scene, and the share of the game's own pace at which a GIF shows them.
SUBFRAMES = {"vgc": 3, "osrs": 4, "rocketleague": 1, "pokemon": 1}
ASPECT = {"vgc": 16 / 10, "osrs": 16 / 10, "rocketleague": 16 / 9, "pokemon": 3 / 2}
END_SECONDS = 2.0
COLOURS = 255


def json_for_html(value):
    """JSON that no HTML parser can leave: `</script>` and `<!--` need a `<`."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def index_html():
    return (FOLDER / "index.html").read_text(encoding="utf-8")


def replay_html(info, frames):
    """The page with everything inside it: it shows the game from a file, without a server and without a network."""
    hashes = []

    def script(match):
        text = (FOLDER / match[1]).read_text(encoding="utf-8")
        hashes.append("'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'")
        return f"<script>{text}</script>"

    page = re.sub(
        r'<link rel="stylesheet" href="page/([\w.]+)">',
        lambda m: f"<style>{(FOLDER / m[1]).read_text()}</style>",
        index_html(),
    )
    page = re.sub(r'<script src="page/([\w.]+)"></script>', script, page)
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; base-uri "
        f"'none'"
    )
    title = html.escape(" vs ".join(info["names"]))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{title}</title>'
    page = page.replace("<title>watch</title>", head, 1)
    data = json_for_html({"info": info, "frames": frames})
    start, end = page.split("<!-- game -->", 1)
    return f'{start}<script type="application/json" id="game">{data}</script>{end}'


# ----------------------------------------------------------------------------------------------------------------- GIFs


def canvas_path():
    digest = hashlib.sha256()
    for name in ("package.json", "package-lock.json"):
        digest.update((FOLDER / name).read_bytes())
    return cache_folder() / f"canvas-{digest.hexdigest()[:12]}"


@cache
def ensure_canvas():
    """The folder whose node_modules holds the pinned canvas; installs it if this is the first GIF on this machine."""
    final = canvas_path()
    if (final / "installed").is_file():
        return final
    with one_at_a_time(final, install.NPM_TIMEOUT + 60, f"installing a canvas into {final}", install.InstallError):
        if (final / "installed").is_file():  # another process did the work while this one waited
            return final
        print(f"Installing the canvas that draws GIFs into {final} (once, 36 MB) …", file=sys.stderr, flush=True)
        work = final.with_name(f"{final.name}.tmp")
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(FOLDER / name, work / name)
            # Unlike Showdown's, this package's optional parts are wanted: one of them is the library for this platform.
            flags = [flag for flag in install.NPM_FLAGS if flag != "--omit=optional"]
            install.run([*install.npm_command(), "ci", *flags], work, "npm could not install the pinned canvas")
            install.run(
                [install.node(), "-e", "require('@napi-rs/canvas')"], work, "the installed canvas does not load"
            )
            (work / "installed").touch()
            shutil.rmtree(final, ignore_errors=True)
            work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return final


def font_path():
    """Matplotlib brings a font; a machine without any could not write a word."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


def draw_pictures(info, frames, width, camera="", score=None, subframes=None):
    """Yields the pictures of a game as (height, width, 3) arrays."""
    height = round(width / ASPECT[info["game"]])
    job = {"info": info, "frames": frames, "camera": camera, "score": score, "width": width, "height": height}
    job |= {"subframes": subframes or SUBFRAMES[info["game"]], "font": str(font_path())}
    command = install.node_command(FOLDER / "gif.js")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=install.node_env(ensure_canvas())
    ) as process:
        try:
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
            size = width * height * 4
            while len(data := process.stdout.read(size)) == size:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 4)[..., :3]
            said = process.stderr.read().decode(errors="replace").strip()
        finally:
            process.kill()
    if said or data:
        raise RuntimeError(f"Node could not draw the pictures of a GIF: {said or 'its last picture was cut short'}")


def palette_of(pictures):
    """One palette for all pictures: colours neither fade nor flicker, and what does not change costs nothing. A colour
    counts by the root of its area, or grass and sky would take all places and a small bright thing would turn grey."""
    some = [np.asarray(pictures[number]).reshape(-1, 3) for number in np.linspace(0, len(pictures) - 1, 12).astype(int)]
    colours, counts = np.unique(np.concatenate(some) & 0xF8, axis=0, return_counts=True)
    pixels = np.repeat(colours, np.sqrt(counts).astype(int), axis=0)
    sample = Image.fromarray(np.ascontiguousarray(pixels[None]))
    return sample.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def write_gif(path, info, frames, width=0, camera="", score=None, pace=1.0, every=1):
    """`pace` 2 plays twice as fast as the game; `every` 2 leaves out every other scene."""
    width = width or GIF_WIDTH[info["game"]]
    subframes = SUBFRAMES[info["game"]]
    pictures = [
        Image.fromarray(picture) for picture in draw_pictures(info, frames[::every], width, camera, score, subframes)
    ]
    palette = palette_of(pictures)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    # Browsers show no picture for less than 20 ms.
    milliseconds = max(20, round(1000 * every * info["frame_seconds"] / subframes / pace))
    durations = [milliseconds] * (len(pictures) - 1) + [round(1000 * END_SECONDS)]
    options = {"save_all": True, "append_images": pictures[1:], "duration": durations, "loop": 0, "optimize": True}
    write_atomically(path, lambda temporary: pictures[0].save(temporary, format="GIF", **options))


def check_path(path, flag="--save"):
    """A sentence if the game could not be written there, before minutes are spent on playing it."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{flag} should name a file that ends in .html or .gif, found {path}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{flag} {path}: there is no folder {path.absolute().parent} to write to.")


def write_game(path, info, frames, **gif_settings):
    """`info`: game, names, frame_seconds and what the game's own `info()` says; the file is whole or absent."""
    path = Path(path)
    if path.suffix == ".gif":
        write_gif(path, info, frames, **gif_settings)
    else:
        text = replay_html(info, frames)
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
