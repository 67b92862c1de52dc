"""Numbers that scripts log, by the names that all of them use."""

import math

import torch


def wilson(rate, games, z=1.96):
    """A rate seen in so many games → (rate, low, high) of its 95 % interval."""
    spread = z * math.sqrt(rate * (1 - rate) / games + (z / games / 2) ** 2)
    low, high = ((rate + z * z / games / 2 + sign * spread) / (1 + z * z / games) for sign in (-1, 1))
    return rate, max(low, 0.0), min(high, 1.0)


def score_metrics(name, scores):
    """Scores of an evaluation's games → their mean as eval/<name>, its 95 % interval (Wilson) and how many they
    were."""
    rate, low, high = wilson(float(scores.mean()), len(scores))
    return {f"eval/{name}": rate, f"eval/{name}_low": low, f"eval/{name}_high": high, f"eval/{name}_n": len(scores)}


def result_metrics(results, kinds):
    """Rows of (kind of opponent, member, score, length) of the games that ended → win_rate/<kind>, how many, their mean
    length."""
    metrics = {"charts/episodic_length": float(results[:, 3].mean())} if len(results) else {}
    for kind, name in enumerate(kinds):
        scores = results[results[:, 0] == kind, 2]
        if len(scores):
            metrics |= {f"win_rate/{name}": float(scores.mean()), f"win_rate/{name}_n": len(scores)}
    return metrics


def loss_metrics(names, losses):
    """Rows of losses in the order of `names` (words) → losses/<name>, their means; none if there are no rows."""
    means = torch.stack(losses).mean(0).tolist() if losses else []
    return {f"losses/{name}": mean for name, mean in zip(names.split(), means)}


def time_metrics(lag, queue_size, seconds, learn_time, wait_time):
    """stats/*: how many versions the rollouts were behind (a tensor), and where the time went: `seconds` are of
    rollout, inference and simulator."""
    rollout_time, inference_time, simulator_time = seconds
    return {
        "stats/policy_lag_mean": float(lag.mean()),
        "stats/policy_lag_max": float(lag.max()),
        "stats/queue_size": queue_size,
        "stats/rollout_time": rollout_time,
        "stats/inference_time": inference_time,
        "stats/simulator_time": simulator_time,
        "stats/learn_time": learn_time,
        "stats/wait_time": wait_time,
    }
