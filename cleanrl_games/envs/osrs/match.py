"""Two players against each other. A player is anything with `act(obs, masks, rows, actions)`, as `Baseline` has it."""

import itertools

import numpy as np

from .contract import NUM_HEADS, NUM_LOGITS, NUM_OBS
from .vec_env import NHVecEnv


def in_order(seats, tick):
    """[(player, its rows), …] in the order in which they are asked: who sees its target's action is asked last. Of two
    such each is, every other tick."""
    seats = sorted(seats, key=lambda seat: getattr(seat[0], "sees", False))
    both = getattr(seats[0][0], "sees", False)
    return seats[::-1] if both and tick % 2 else seats


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
    for tick in itertools.count():
        fights = np.flatnonzero(going_on)
        if not len(fights):
            break
        seats = [(player, 2 * fights + side[fights]), (opponent, 2 * fights + 1 - side[fights])]
        for seat, rows in in_order(seats, tick):
            seat.act(obs, masks, rows, actions)
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


def play_on_server(
    player,
    opponent,
    num_fights,
    address,
    loadouts=("lms_med",),
    at_once=8,
    max_ticks=1000,
    progress=lambda done: None,
):
    """The same on a simulation server, in turns → (scores, lengths). `opponent` None: the server's own bot, against
    which `player` is always fighter 0.

    Each place plays its share of the fights to the end, so that short fights are not counted more often than long ones.
    A fight whose connection was lost is played again, unless more are lost than are to be played.
    """
    from .remote import BASELINE, RemoteError, RemoteNHVecEnv, parse_address  # asyncio is only needed here

    host, port = parse_address(address)
    places = min(at_once, num_fights)
    target = BASELINE if opponent is None else "peer"
    with RemoteNHVecEnv(places, host, port, target=target, loadouts=loadouts, max_ticks=max_ticks) as env:
        obs, masks = env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS)
        actions = np.zeros((2 * places, NUM_HEADS), np.int64)
        left = np.full(places, num_fights // places) + (np.arange(places) < num_fights % places)
        side = np.zeros(places, np.int64) if opponent is None else np.arange(places) % 2
        scores, lengths = [], []
        for tick in itertools.count():
            if not left.any():
                break
            fights = np.arange(places)
            seats = [(player, 2 * fights + side), (opponent, 2 * fights + 1 - side)]
            for seat, rows in in_order(seats, tick):
                rows = rows[~env.waiting.reshape(-1)[rows]]
                if seat is not None and len(rows):
                    seat.act(obs, masks, rows, actions)
            _, _, _, terminated, truncated, info = env.step(actions.reshape(places, 2, NUM_HEADS))
            if len(env.events) > max(num_fights, 10):
                raise RemoteError(f"The server at {address} lost {len(env.events)} fights. {env.events[-1]}")
            for place in np.flatnonzero(terminated | truncated):
                lost = truncated[place] and info["length"][place] < max_ticks
                if left[place] and not lost:
                    result = info["result"][place]
                    decided = terminated[place] and result < 3
                    scores.append(float(result - 1 == side[place]) if decided else 0.5)
                    lengths.append(int(info["length"][place]))
                    left[place] -= 1
                    progress(len(scores))
        return np.array(scores), np.array(lengths)
