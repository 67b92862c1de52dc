"""NHVecEnv: no illegal state in 10,000 fights, seeds, resuming, loadout files, the critic's view, scripted players."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from cleanrl_games.envs.osrs import contract, load_loadouts
from cleanrl_games.envs.osrs.baselines import BASELINES, ELO, LADDER, Baseline, legal
from cleanrl_games.envs.osrs.contract import HEAD_NAMES, HEAD_OFFSETS, HEAD_SIZES, NUM_LOGITS, NUM_OBS
from cleanrl_games.envs.osrs.loadouts import LEVELS, MELEE_SPECIALS, SUPPLIES
from cleanrl_games.envs.osrs.match import play_fights
from cleanrl_games.envs.osrs.vec_env import NHVecEnv

REPOSITORY = Path(__file__).resolve().parents[1]
NAMES, KITS = load_loadouts()
LIMITS = [f"{level}_level" for level in LEVELS] + list(SUPPLIES)


class Players:
    """Plays a batch: the same scripted player on every row, or one per side."""

    def __init__(self, env, first="random", second=None, seed=1):
        rows = np.arange(2 * env.num_fights)
        self.env, self.actions = env, np.zeros((env.num_fights, 2, 12), np.int64)
        self.sides = [
            (Baseline(first, len(rows), seed), rows[::2]),
            (Baseline(second or first, len(rows), seed + 1), rows[1::2]),
        ]

    def act(self):
        obs, masks = self.env.obs.reshape(-1, NUM_OBS), self.env.masks.reshape(-1, NUM_LOGITS)
        for player, rows in self.sides:
            player.act(obs, masks, rows, self.actions.reshape(-1, 12))
        return self.actions

    def step(self):
        return self.env.step(self.act())


# ---------------------------------------------------------------------------------------------------------------- fuzz


def check_state(env):
    """Everything a fighter may be, in the words of the game."""
    fighters = env.fighters
    limits = {name: env.loadouts[name][fighters["loadout"]] for name in LIMITS}

    def within(name, low, high):
        value = fighters[name]
        wrong = np.argwhere((value < low) | (value > high))
        assert not len(wrong), f"{name} of fighter {wrong[0]} is {value[tuple(wrong[0])]}, outside of {low} to {high}"

    overheal = np.maximum(22, limits["hitpoints_level"] * 15 // 100 + 2)
    within("hp", 1, limits["hitpoints_level"] + overheal)  # the dead start anew in the same step
    within("energy", 0, 100)
    within("prayer_points", 0, limits["prayer_level"])
    for supply in ("brew", "restore", "combat", "ranging", "karambwan", "food"):
        within(supply, 0, limits[supply])
    for level in ("attack", "strength", "defence", "ranged", "magic"):
        within(level, 0, limits[f"{level}_level"] * 120 // 100 + 5)
    within("attack_timer", -100, 15)
    within("food_timer", 0, 3)
    within("potion_timer", 0, 3)
    within("karambwan_timer", 0, 3)
    within("freeze_timer", 0, 32)
    within("immunity_timer", 0, 37)
    within("vengeance_timer", 0, 50)
    within("overhead", 0, 5)
    within("boost", 0, 3)
    within("worn", 0, 4)
    within("hit_count", 0, 11)  # the queue of twelve never fills up
    within("splat_count", 0, 11)
    within("free_slots", 0, 40)
    assert (fighters["freeze_timer"] <= fighters["immunity_timer"]).all()
    gap = np.maximum(*(np.abs(fighters[axis][:, 0] - fighters[axis][:, 1]) for axis in "xy"))
    assert gap.max() <= 30


def check_view(env):
    obs, masks = env.obs, env.masks
    assert np.isfinite(obs).all()
    for head, name in enumerate(contract.HEAD_NAMES):
        bits = masks[:, :, HEAD_OFFSETS[head] : HEAD_OFFSETS[head] + HEAD_SIZES[head]]
        if name == "prayer":
            # nothing to pray with: the head takes its default; otherwise there is something to pray
            assert (bits.any(axis=2) == (obs[:, :, contract.OBS["prayer_points"]] > 0)).all()
            assert not bits[:, :, 0].any()
        else:
            assert bits.any(axis=2).all(), name
    assert (masks[:, :, 0] == (obs[:, :, contract.OBS["attack_cycle_ticks"]] > 0)).all()
    assert (masks[:, :, 5] == obs[:, :, contract.OBS["is_melee_attack_available"]]).all()
    for name in ("ticks_until_hit_on_target", "ticks_until_hit_on_player"):
        assert obs[:, :, contract.OBS[name]].min() >= -1
    for name in ("destination_to_target_distance", "player_to_destination_distance", "player_to_target_distance"):
        column = obs[:, :, contract.OBS[name]]
        assert column.min() >= 0 and column.max() <= 7
    shares = obs[:, :, contract.OBS["target_attack_confidence"] : contract.OBS["absolute_attack_level"]]
    assert shares.min() >= 0 and shares.max() <= 1.0001
    # what one side sees of the other is what the other sees of itself
    for mine, theirs in (
        ("special_energy_percent", "target_special_percent"),
        ("player_frozen_ticks", "target_frozen_ticks"),
    ):
        assert (obs[:, 0, contract.OBS[mine]] == obs[:, 1, contract.OBS[theirs]]).all()


@pytest.mark.parametrize(
    "extra", [{}, {"allow_smite": True, "allow_redemption": True, "move_if_can_attack": True, "quirks": False}]
)
def test_ten_thousand_fights_without_an_illegal_state(extra):
    """Half with the default rules and half with every switch the other way, loadouts mixed within a fight."""
    env = NHVecEnv(1500, loadouts=NAMES, mirror=False, seed=3, max_ticks=300, **extra)
    players, fights, results, tick = Players(env, seed=4), 0, np.zeros(4, int), 0
    while fights < 5000:
        _, _, rewards, terminated, truncated, info = players.step()
        assert rewards.shape == (1500, 2) and not (terminated & truncated).any()
        assert ((info["length"] >= 1) & (info["length"] <= 300)).all()
        ended = terminated | truncated
        fights += ended.sum()
        results += np.bincount(info["result"][ended], minlength=4)
        won, lost = info["terms"][:, :, 0], info["terms"][:, :, 1]
        assert (won[:, 0] == lost[:, 1]).all() and (won[:, 1] == lost[:, 0]).all() and np.isfinite(info["terms"]).all()
        check_state(env)
        if tick % 4 == 0:
            check_view(env)
        tick += 1
    assert results[1] > 1000 and results[2] > 1000  # either side wins
    assert set(np.unique(env.fighters["loadout"])) == set(range(len(NAMES)))


def test_zero_sum_terms_mirror_each_other():
    env = NHVecEnv(64, loadouts=NAMES, mirror=False, seed=2)
    players = Players(env)
    pairs = (("damage_dealt", "damage_received"), ("healed", "target_healed"), ("frozen", "target_frozen"))
    pairs += (
        ("prayer_correct", "hit_on_prayer"),
        ("prayer_wrong", "hit_off_prayer"),
        ("food_left", "target_food_left"),
    )
    seen = dict.fromkeys(pairs, 0.0)
    for _ in range(400):
        terms = players.step()[5]["terms"]
        for mine, theirs in pairs:
            a, b = contract.REWARD_TERMS.index(mine), contract.REWARD_TERMS.index(theirs)
            assert (terms[:, 0, a] == terms[:, 1, b]).all() and (terms[:, 1, a] == terms[:, 0, b]).all(), (mine, theirs)
            seen[mine, theirs] += terms[:, :, a].sum()
    assert all(seen.values()), seen


def test_rewards_are_terms_times_weights():
    weights = np.linspace(-1, 1, contract.NUM_TERMS)
    env = NHVecEnv(32, reward_weights=weights)
    players = Players(env)
    for _ in range(50):
        _, _, rewards, _, _, info = players.step()
        np.testing.assert_allclose(rewards, info["terms"] @ weights.astype(np.float32), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- seeds, resume


def trajectory(env, ticks, seed=1):
    players, record = Players(env, seed=seed), []
    for _ in range(ticks):
        obs, masks, rewards, *_ = players.step()
        record.append(obs.tobytes() + masks.tobytes() + rewards.tobytes())
    return b"".join(record)


def test_same_seed_same_bytes():
    first, second = NHVecEnv(16, loadouts=NAMES, seed=7), NHVecEnv(16, loadouts=NAMES, seed=7)
    bytes_of_first = trajectory(first, 400)
    assert bytes_of_first == trajectory(second, 400)
    first.reset(7)
    assert bytes_of_first == trajectory(first, 400)
    second.reset(8)
    assert bytes_of_first != trajectory(second, 400)


def test_a_fight_does_not_depend_on_the_size_of_the_batch():
    small, large = NHVecEnv(3, loadouts=NAMES, seed=7), NHVecEnv(50, loadouts=NAMES, seed=7)
    assert small.fights["rng"].tolist() == large.fights["rng"][:3].tolist()
    players = Players(large)
    for _ in range(400):
        actions = players.act()
        small.step(actions[:3].copy())
        large.step(actions)
        assert (small.obs == large.obs[:3]).all() and (small.masks == large.masks[:3]).all()


_JIT_SCRIPT = """
import hashlib, sys
import numpy as np
from cleanrl_games.envs.osrs import NHVecEnv, load_loadouts
env = NHVecEnv(7, loadouts=load_loadouts()[0], mirror=False, seed=11, allow_smite=True, allow_redemption=True)
digest = hashlib.sha256()
dice = np.random.default_rng(1)
offsets = np.cumsum((0, *env.single_action_space.nvec))[:-1]
for tick in range(60):
    # the first legal action after a thrown one, head by head
    actions = np.zeros((7, 2, 12), np.int64)
    for head, (offset, size) in enumerate(zip(offsets, env.single_action_space.nvec)):
        bits = env.masks[:, :, offset : offset + size]
        actions[:, :, head] = np.where(bits, dice.random(bits.shape), -1).argmax(2)
    for head, style in ((1, 3), (2, 2), (3, 1)):
        actions[:, :, head] = np.where(actions[:, :, 0] == style, np.maximum(actions[:, :, head], 1), 0)
    actions[:, :, 10] = np.where(actions[:, :, 9] == 3, np.maximum(actions[:, :, 10], 1), 0)
    env.step(actions)
    digest.update(env.obs.tobytes() + env.masks.tobytes() + env.terms.tobytes())
    digest.update(env.fighters.tobytes())
print(digest.hexdigest(), int(env.fighters["attack_count"].sum()))
"""


def test_plain_python_plays_the_same_fights():
    """NUMBA_DISABLE_JIT=1 is for debuggers: what one steps through there has to be what happens here, bit for bit."""
    outputs = []
    for disabled in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [sys.executable, "-c", _JIT_SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=REPOSITORY,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert int(outputs[0].split()[1]) > 50


def test_state_dict_goes_on_with_the_very_same_fights():
    env = NHVecEnv(8, loadouts=NAMES, seed=5)
    trajectory(env, 150)
    state = env.state_dict()
    expected = trajectory(env, 200, seed=9)
    other = NHVecEnv(8, loadouts=NAMES, seed=6)
    other.load_state_dict(state)
    assert trajectory(other, 200, seed=9) == expected
    with pytest.raises(ValueError, match=r"saved fights are .* other size or version"):
        NHVecEnv(9, loadouts=NAMES).load_state_dict(state)


# ------------------------------------------------------------------------------------------------------- loadout files


def write_loadout(tmp_path, change):
    content = yaml.safe_load((REPOSITORY / "cleanrl_games/envs/osrs/loadouts.yaml").read_text())
    content = {"mine": content["lms_med"]}
    change(content["mine"])
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_users_loadout_needs_no_code(tmp_path):
    path = write_loadout(
        tmp_path, lambda kit: kit["outfits"]["special"].update(special="ags", speed=6, two_handed=True)
    )
    env = NHVecEnv(4, loadouts=("mine",), loadout_file=path)
    assert env.obs[0, 0, contract.OBS["is_melee_spec_ags"]] == 1
    with pytest.raises(ValueError, match=r"Unknown loadout 'lms_med'\. There are: mine"):
        NHVecEnv(4, loadout_file=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kit: kit["levels"].pop("magic"), r"mine\.levels\.magic: this field is missing"),
        (lambda kit: kit["outfits"].pop("tank"), r"mine\.outfits\.tank: this field is missing"),
        (lambda kit: kit["supplies"].update(cake=3), r"mine\.supplies: unknown field 'cake'"),
        (lambda kit: kit.update(ring="lightbearer"), r"mine: unknown field 'ring'"),
        (
            lambda kit: kit["levels"].update(attack="99"),
            r"mine\.levels\.attack: expected a whole number from 1 to 99, found '99'",
        ),
        (lambda kit: kit["levels"].update(attack=True), r"mine\.levels\.attack: expected a whole number"),
        (
            lambda kit: kit["levels"].update(hitpoints=9),
            r"mine\.levels\.hitpoints: expected a whole number from 10 to 99, found 9",
        ),
        (lambda kit: kit["outfits"]["mage"].update(speed=0), r"mine\.outfits\.mage\.speed: .* found 0"),
        (
            lambda kit: kit["outfits"]["special"].update(special="whip"),
            r"outfits\.special\.special: expected one of none, dds, .*'whip'",
        ),
        (
            lambda kit: kit["outfits"]["melee"].update(two_handed=1),
            r"melee\.two_handed: expected true or false, found 1",
        ),
        (lambda kit: kit["ring_and_ammo"].update(ring=1), r"mine\.ring_and_ammo: unknown field 'ring'"),
        (
            lambda kit: kit["levels"].update(attack=50),
            r"mine\.outfits\.special\.special: dds needs 60 attack, the build has 50",
        ),
        (lambda kit: kit["levels"].update(prayer=70), r"mine\.prayers\.mage: augury needs 77 prayer, the build has 70"),
        (
            lambda kit: kit["levels"].update(defence=69),
            r"mine\.prayers\.mage: augury needs 70 defence, the build has 69",
        ),
        (
            lambda kit: kit["supplies"].update(food=16),
            r"mine\.supplies: with 6 slots of gear this takes 29 slots, a bag has 28",
        ),
        (lambda kit: (kit.update(dharoks=True), kit["levels"].update(strength=60)), r"mine\.dharoks: the set needs 70"),
        (lambda kit: kit.update(outfits=[]), r"mine\.outfits: expected a block of fields"),
        (lambda kit: kit.update(spellbook=["ancient"]), r"mine\.spellbook: expected one of ancient, lunar"),
    ],
)
def test_a_wrong_loadout_is_told_where(tmp_path, change, message):
    path = write_loadout(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        load_loadouts(path)
    assert str(path) in str(caught.value)


def test_loadout_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="No loadout file at"):
        load_loadouts(tmp_path / "nowhere.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match="is not valid YAML"):
        load_loadouts(tmp_path / "broken.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ValueError, match="holds no loadout"):
        load_loadouts(tmp_path / "empty.yaml")


def test_the_shipped_loadouts_cover_the_asked_builds_and_specials():
    assert NAMES[0] == "lms_med" and {"max_main", "pure", "obby_maul", "zerker", "dharoks"} <= set(NAMES)
    assert {MELEE_SPECIALS[i] for i in KITS["melee_special"]} == set(MELEE_SPECIALS)


def test_loadouts_drawn_at_random():
    env = NHVecEnv(400, loadouts=("all",), mirror=False, seed=3)
    assert set(env.fighters["loadout"].reshape(-1).tolist()) == set(range(len(NAMES)))


# --------------------------------------------------------------------------------------------- contract, critic's view


def test_the_contract_has_the_servers_sizes():
    assert (NUM_OBS, len(contract.PARTIAL), len(contract.CONSTANT), contract.NUM_CRITIC_OBS) == (176, 93, 69, 269)
    assert HEAD_SIZES == (4, 3, 3, 4, 5, 2, 2, 2, 2, 5, 7, 6) and NUM_LOGITS == 45
    assert len(contract.contract_hash()) == 16


def test_the_critic_sees_what_the_target_hides():
    env = NHVecEnv(6, loadouts=NAMES, mirror=False, seed=2)
    trajectory(env, 40)
    critic = contract.critic_observation(env.obs, env.obs[:, ::-1])
    assert critic.shape == (6, 2, 269)
    assert (critic[:, 0, :176] == env.obs[:, 0]).all()
    assert (critic[:, 0, 176:] == env.obs[:, 1][:, contract.PARTIAL]).all()
    brew = 176 + contract.PARTIAL.tolist().index(contract.OBS["brew_doses"])
    assert (critic[:, 1, brew] == env.fighters["brew"][:, 0]).all()


# ------------------------------------------------------------------------------------------------------------ baselines


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_take_legal_actions_only(name):
    env = NHVecEnv(40, loadouts=NAMES, mirror=False, seed=8, allow_smite=True, allow_redemption=True)
    players = Players(env, name, "random")
    for _ in range(60):
        actions, masks = players.act(), env.masks.copy()
        for row in range(40):
            mask, chosen = masks[row, 0], np.zeros(NUM_LOGITS, np.bool_)
            for head, (offset, size) in enumerate(zip(HEAD_OFFSETS, HEAD_SIZES, strict=True)):
                logit = offset + actions[row, 0, head]
                nothing = not any(legal(mask, chosen, offset + i) for i in range(size))
                assert legal(mask, chosen, logit) or (nothing and logit == offset), (name, contract.ACTION_NAMES[logit])
                chosen[logit] = True
        env.step(actions)


def test_the_nh_bot_beats_random_play():
    env = NHVecEnv(400, seed=21)
    players, results = Players(env, "nh", "random"), np.zeros(4, int)
    while results[1:].sum() < 1500:
        _, _, _, terminated, truncated, info = players.step()
        results += np.bincount(info["result"][terminated | truncated], minlength=4)
    assert results[1] / results.sum() >= 0.95, results


def test_the_ladder_goes_up():
    """Each rung beats the one three below it, and the top beats nh; at least ten rungs."""
    assert len(LADDER) >= 10

    def score(first, second, fights=150):
        return play_fights(Baseline(first, 2 * fights, 1), Baseline(second, 2 * fights, 2), fights, 3)[0].mean()

    for lower, higher in zip(LADDER, LADDER[3:]):
        assert score(higher, lower) > 0.55, (higher, lower)
    assert score("seer_30", "nh") > 0.6


def test_a_seer_knows_what_its_target_is_about_to_do():
    """It prays against the attack of this tick, whatever weapon was held before, as often as its rung says."""
    env = NHVecEnv(2000, seed=4)
    obs, masks = env.obs.reshape(-1, NUM_OBS), env.masks.reshape(-1, NUM_LOGITS)
    actions = np.zeros((4000, 12), np.int64)
    actions[1::2, HEAD_NAMES.index("attack")] = 2  # the target shoots; it holds a staff
    seer = Baseline("seer_30", 4000)
    seer.act(obs, masks, np.arange(0, 4000, 2), actions)
    right = actions[::2, HEAD_NAMES.index("prayer")] == 2
    assert seer.sees and not Baseline("nh", 2).sees and abs(right.mean() - 0.30) < 0.05


def test_two_seers_see_each_other_alike():
    """Whoever were always asked last would be the only one to see."""

    def score(first, second, fights=600):
        return play_fights(Baseline(first, 2 * fights, 1), Baseline(second, 2 * fights, 2), fights, 3)[0].mean()

    assert abs(score("seer_30", "seer_30") - 0.5) < 0.07  # 3.4 standard errors
    assert score("seer_30", "seer_10") > 0.52 and score("seer_10", "seer_30") < 0.48


def test_a_rung_is_the_one_below_and_more():
    """By hand: what the fourth and the last rung do, and random play, which has no skill."""
    prays = {"prays": 0.3, "mixes": 1, "off_prayer": 0.8, "eats_below": 0.45, "combo_below": 0.2, "specs_below": 0.4}
    for name, numbers in (("off_prayer", prays), ("random", {})):
        skill = Baseline(name, 2).skill[0]
        for rule in skill.dtype.names:
            assert skill[rule] == pytest.approx(numbers.get(rule, 0.0)), (name, rule)
    assert Baseline("seer_30", 2).skill[0].sees == pytest.approx(0.3)
    assert Baseline("gear_reader", 2).skill[0].sees == 0 and set(ELO) == set(BASELINES)


def test_an_unknown_baseline_is_told_the_names():
    with pytest.raises(ValueError, match="There are: random, mage_only"):
        Baseline("zezima", 4)
