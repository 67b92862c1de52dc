"""Two players against each other over kickoffs. A player is anything with `act(obs, masks, rows, actions)`, as
`ScriptedPlayer` has it.

A recurrent player also has `start(rows)`, called with the rows it plays before its first action: its memory begins
empty there."""

import numpy as np

from .contract import NO_OP, TERM_INDEX, TICK_RATE
from .vec_env import RocketLeagueVecEnv


def play_kickoffs(
    player,
    opponent,
    num_kickoffs,
    seed=1,
    team_size=1,
    video="",
    names=("player", "opponent"),
    scenes=None,
    **env_settings,
):
    """Plays `num_kickoffs` kickoffs at once, each counted exactly once → (scores, lengths in steps) as `player` sees
    them.

    A score is 1 when `player`'s team scored, 0 when the other did, 0.5 when time ran out. `player` is blue in even
    kickoffs and orange in odd ones. `video` names a GIF to make of the first kickoff, in which `names` stand; "rlviser"
    shows it live. `scenes` is a `watch.SceneRecorder` for it.
    """
    env = RocketLeagueVecEnv(num_kickoffs, (team_size,), seed=seed, **env_settings)
    recorder = None
    if video:
        from .picture import MatchRecorder, Viewer  # Pillow is only needed here

        recorder = Viewer(env, 0) if video == "rlviser" else MatchRecorder(env, 0, names)
    if scenes:
        scenes.start(env)
    side = np.arange(num_kickoffs) % 2
    mine = env.agent_team == side[env.agent_arena]
    for who, rows in ((player, np.flatnonzero(mine)), (opponent, np.flatnonzero(~mine))):
        if hasattr(who, "start"):
            who.start(rows)
    actions = np.full(env.num_agents, NO_OP, np.int64)
    going_on = np.ones(num_kickoffs, bool)
    scores, lengths = np.full(num_kickoffs, 0.5), np.zeros(num_kickoffs, np.int64)
    while going_on.any():
        playing = going_on[env.agent_arena]
        player.act(env.obs, env.masks, np.flatnonzero(playing & mine), actions)
        opponent.act(env.obs, env.masks, np.flatnonzero(playing & ~mine), actions)
        if recorder and going_on[0]:
            recorder.frame()
        _, _, _, terminated, truncated, info = env.step(actions)
        ended = going_on & (terminated | truncated)
        decided = ended & terminated
        scores[decided] = (info["goal"][decided] < 0) == side[decided]
        lengths[ended] = info["length"][ended]
        if recorder and ended[0]:
            recorder.goal(int(info["goal"][0]))
        if scenes and ended[0]:
            scenes.goal(info["goal"][0])
        elif scenes and going_on[0]:
            scenes.frame(actions)
        going_on &= ~ended
        env.resting |= ended  # half of a match's time would go into games that nobody counts
    if recorder:
        recorder.save(video)
    return scores, lengths


def touches_per_minute(player, env, seconds):
    """Touches per car and minute when every car of `env` is played by `player`"""
    rows, actions, touches = np.arange(env.num_agents), np.full(env.num_agents, NO_OP, np.int64), 0.0
    begin = getattr(player, "start", lambda rows: None)
    begin(rows)
    steps = round(seconds * TICK_RATE / env.action_repeat)
    for _ in range(steps):
        player.act(env.obs, env.masks, rows, actions)
        _, _, _, terminated, truncated, info = env.step(actions)
        touches += float(info["terms"][:, TERM_INDEX["touch"]].sum())
        over = np.flatnonzero((terminated | truncated)[env.agent_arena])
        if len(over):
            begin(over)
    return touches / env.num_agents * 60 / seconds
