"""A decision as two choices, one after the other, and what follows for every policy over them: sampling, log-probs, the joint table.

A turn's choices are slot 0 and slot 1 (45 each, joint number 45 · slot 0 + slot 1), a preview's are the preview (90) and nothing.
So a policy is a table of log-probs (B, 2, 90), padded with illegal entries. Where its logits come from is the script's affair.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from .mdbo import NUM_ACTIONS as NUM_JOINT  # 2025
from .mdbo import NUM_PREVIEWS as NUM_PREVIEW  # 90
from .mdbo import SLOT_ACTIONS as NUM_SLOT  # 45
from .mdbo import SLOT_PARTS


def masked_log_softmax(logits, legal):
    """In float32; illegal entries get probability 0 exactly, and no gradient."""
    logits = logits.float()
    return logits.masked_fill(~legal, torch.finfo(logits.dtype).min).log_softmax(-1)


def choices_of(preview, actions):
    """Joint numbers (N,) → what was chosen in each head (N, 2); a preview's second head chooses entry 0 of one."""
    return torch.stack([torch.where(preview, actions, actions // NUM_SLOT), torch.where(preview, 0, actions % NUM_SLOT)], 1)


class TwoChoices(nn.Module):
    """The policy of a network with a method

    choice_logits(hidden (B, H), things, preview (B,)) → logits of the first choice (B, 90), and a function: what slot 0 does, told in
    the words of mdbo.SLOT_PARTS (B or 1, Q, 15) → logits of slot 1 given that (B, Q, 45)
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("parts", torch.from_numpy(SLOT_PARTS), persistent=False)

    def logprobs(self, hidden, things, preview, legal, actions):
        """Log-probs of both choices, the second given the first that was taken.
        hidden (B, H), preview (B,) bool, legal (B, 2, 90) given the action, actions (B,) → (B, 2, 90)"""
        first, second_given = self.choice_logits(hidden, things, preview)
        second = second_given(self.parts[actions.clamp(max=NUM_JOINT - 1) // NUM_SLOT][:, None]).squeeze(1)
        return masked_log_softmax(torch.stack([first, F.pad(second, (0, NUM_PREVIEW - NUM_SLOT))], 1), legal)

    def act(self, hidden, things, preview, joint, generator=None):
        """Samples slot 0 (or the preview), then slot 1 given it. joint (B, 2025) bool: what is legal
        → actions (B,), log-prob (B,), legal (B, 2, 90) given the action"""
        table = joint.view(-1, NUM_SLOT, NUM_SLOT)
        first, second_given = self.choice_logits(hidden, things, preview)
        legal = joint.new_zeros(len(joint), 2, NUM_PREVIEW)
        legal[:, 0, :NUM_SLOT] = table.any(2)
        legal[preview, 0] = joint[preview, :NUM_PREVIEW]
        first = masked_log_softmax(first, legal[:, 0])
        # The largest of log p - log Exp(1) is a sample of p, and never one of probability 0. Without exp(log p): of what is illegal
        # that takes ten times as long.
        action_0 = (first - torch.empty_like(first).exponential_(generator=generator).log()).argmax(-1)
        slot_0 = action_0.clamp(max=NUM_SLOT - 1)
        legal[:, 1, :NUM_SLOT] = table[torch.arange(len(joint), device=joint.device), slot_0]
        # Nothing is chosen after a preview: entry 0 stands for that.
        legal[preview, 1] = torch.arange(NUM_PREVIEW, device=joint.device) == 0
        second = masked_log_softmax(second_given(self.parts[slot_0][:, None]).squeeze(1), legal[:, 1, :NUM_SLOT])
        action_1 = (second - torch.empty_like(second).exponential_(generator=generator).log()).argmax(-1)
        logprob = first.gather(1, action_0[:, None]) + second.gather(1, action_1[:, None])
        return torch.where(preview, action_0, NUM_SLOT * action_0 + action_1), logprob.squeeze(1), legal

    def joint_logprobs(self, hidden, things, preview, joint):
        """The whole policy: (B, 2025), of a preview in the first 90, finfo.min where illegal. Its argmax is greedy play."""
        table = joint.view(-1, NUM_SLOT, NUM_SLOT)
        first, second_given = self.choice_logits(hidden, things, preview)
        legal = torch.where(preview[:, None], joint[:, :NUM_PREVIEW], F.pad(table.any(2), (0, NUM_PREVIEW - NUM_SLOT)))
        first = masked_log_softmax(first, legal)
        second = masked_log_softmax(second_given(self.parts), table)  # (B, 45, 45)
        both = (first[:, :NUM_SLOT, None] + second).flatten(1)
        both = torch.where(preview[:, None], F.pad(first, (0, NUM_JOINT - NUM_PREVIEW)), both)
        return both.masked_fill(~joint, torch.finfo(both.dtype).min)
