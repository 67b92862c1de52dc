"""Importing this package registers `gymnasium.make("cleanrl_games/Pokemon-v0")` and others: docs/interfaces.md."""

import gymnasium

gymnasium.register("cleanrl_games/Pokemon-v0", "cleanrl_games.envs.pokemon:PokemonEnv")
for _id, _game, _class in (
    ("RocketLeague-v0", "rocketleague", "RocketLeagueVectorEnv"),
    ("VGC-v0", "vgc", "VGCVectorEnv"),
    ("OSRS-v0", "osrs", "OSRSVectorEnv"),
):
    gymnasium.register(f"cleanrl_games/{_id}", vector_entry_point=f"cleanrl_games.envs.{_game}.standard:{_class}")
