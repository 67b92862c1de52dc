"""Running statistics of what is seen, and the scale of rewards: the std of discounted returns, as gymnasium's NormalizeReward has it,
here over the rollouts of several actors and over the learner's own rows only."""

import math

import torch


class RunningMeanStd:
    """Mean and variance of all that was seen, merged batch by batch (Chan et al.), in double precision."""

    def __init__(self, size):
        self.mean, self.var, self.count = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64), 1e-4

    def update(self, batch):
        mean, var, count = batch.mean(0).double(), batch.var(0, unbiased=False).double(), len(batch)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        self.var = (self.var * self.count + var * count + delta.square() * self.count * count / total) / total
        self.count = total


class RewardScale:
    """Sums of rewards that run on from one rollout of an actor to the next: discounted for the scale, plain to be logged."""

    def __init__(self, *shape):
        """shape: (actors, …) as one step of an actor's rewards"""
        self.rms, self.discounted, self.episodic = RunningMeanStd(1), torch.zeros(shape), torch.zeros(shape)

    def __call__(self, index, rewards, ended, trained, gamma):
        """One rollout of actor `index`, all (T, …) → scaled rewards, the returns of its own episodes that ended"""
        sums, returns = torch.empty_like(rewards), []
        for t in range(len(rewards)):
            self.discounted[index] = gamma * self.discounted[index] + rewards[t]
            self.episodic[index] += rewards[t]
            sums[t] = self.discounted[index]
            returns.append(self.episodic[index][ended[t] & trained[t]])
            self.discounted[index] *= ~ended[t]
            self.episodic[index] *= ~ended[t]
        self.rms.update(sums[trained][:, None])
        return rewards / math.sqrt(float(self.rms.var) + 1e-8), torch.cat(returns)

    def forget(self, index):
        """All episodes of this actor begin anew."""
        self.discounted[index], self.episodic[index] = 0.0, 0.0

    def state_dict(self):
        return {"return_rms": vars(self.rms), "discounted": self.discounted, "episodic": self.episodic}

    def load_state_dict(self, state):
        vars(self.rms).update(state["return_rms"])
        if state["discounted"].shape == self.discounted.shape:  # else the number of actors has changed
            self.discounted.copy_(state["discounted"])
            self.episodic.copy_(state["episodic"])
