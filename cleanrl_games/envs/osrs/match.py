"""Two players against each other. A player is anything with `act(obs, masks, rows, actions)`, as `Baseline` has it."""

import numpy as np

from .contract import NUM_HEADS, NUM_LOGITS, NUM_OBS
from .vec_env import NHVecEnv


def play_fights(player, opponent, num_fights, seed=1, video="", scenes=None, **env_settings):
    """Plays `num_fights` fights at once, each counted exactly once → (scores, lengths) as `player` sees them.

    A score is 1 for a win, 0.5 for a tie or a truncated fight, 0 for a loss. `player` is fighter 0 in even fights and
    fighter 1 in odd ones. `video` names a GIF to make of the first fight, `scenes` is a `watch.SceneRecorder` for it.
    """
    env = NHVecEnv(num_fights, seed=seed, **env_settings)
    recorder = None
    if video:
        from .picture import FightRecorder  # Pillow is only needed here

        recorder = FightRecorder(env, 0)
    if scenes:
        scenes.start(env)
    obs, masks = env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS)
    actions = np.zeros((2 * num_fights, NUM_HEADS), np.int64)
    side = np.arange(num_fights) % 2
    going_on = np.ones(num_fights, bool)
    scores, lengths = np.full(num_fights, 0.5), np.zeros(num_fights, np.int64)
    while going_on.any():
        fights = np.flatnonzero(going_on)
        player.act(obs, masks, 2 * fights + side[fights], actions)
        opponent.act(obs, masks, 2 * fights + 1 - side[fights], actions)
        _, _, _, terminated, truncated, info = env.step(actions.reshape(num_fights, 2, NUM_HEADS))
        if recorder and going_on[0]:
            recorder.frame()
        if scenes and going_on[0]:
            scenes.frame()
        ended = going_on & (terminated | truncated)
        decided = ended & (info["result"] < 3) & terminated
        scores[decided] = (info["result"][decided] - 1) == side[decided]
        lengths[ended] = info["length"][ended]
        going_on &= ~ended
    if recorder:
        recorder.save(video)
    return scores, lengths
