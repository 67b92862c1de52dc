"""Importing this package registers `gymnasium.make("cleanrl_games/Pokemon-v0")` and others: docs/interfaces.md."""

import gymnasium

gymnasium.register("cleanrl_games/Pokemon-v0", "cleanrl_games.envs.pokemon:PokemonEnv")
gymnasium.register(
    "cleanrl_games/RocketLeague-v0",
    vector_entry_point="cleanrl_games.envs.rocketleague.standard:RocketLeagueVectorEnv",
)
