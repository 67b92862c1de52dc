"""A played episode as a GIF.

python -m cleanrl_games.envs.pokemon.picture OUT.gif [world]     # the expert's run
"""

import sys

import numpy as np
from PIL import Image

from cleanrl_games.runtime.files import write_atomically

COLOURS = 48


def save_gif(path, frames, milliseconds=60, every=1, width=240):
    """One palette for all frames, so that unchanged pixels cost nothing between them."""
    frames = frames[::every]
    if not frames:
        raise ValueError("There is no frame to save: play at least one step.")
    sample = np.concatenate(frames[:: max(1, len(frames) // 24)], 0)
    palette = Image.fromarray(sample).quantize(COLOURS, dither=Image.Dither.NONE)
    size = width, width * frames[0].shape[0] // frames[0].shape[1]
    pictures = [
        Image.fromarray(frame)
        .resize(size, Image.Resampling.NEAREST)
        .quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    write_atomically(
        path,
        lambda to: pictures[0].save(
            to, format="GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0, optimize=False
        ),
    )


def main(path, world=0):
    from . import PokemonEnv, QuestExpert

    env, expert, done = PokemonEnv(), QuestExpert(), False
    frames = [env.reset(options={"quest_seed": int(world)})[0]]
    while not done:
        obs, _, terminated, truncated, info = env.step(expert.act(env))
        frames.append(obs)
        done = terminated or truncated
    frames += [frames[-1]] * 12
    env.close()
    save_gif(path, frames, milliseconds=110)
    print(f"{path}: world {world}, {info['steps']} steps, {info['milestones_reached']} milestones")


if __name__ == "__main__":
    main(*sys.argv[1:])
