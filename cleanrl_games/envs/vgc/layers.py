"""What a network needs of this game's observations and actions, whatever lies between the two: one look-up for all ids of an
observation, and heads that point at what a choice is made of.

A move's logit is made of what the situation asks for, of the move, of its target and of both together; a switch's of the Pokémon that
would come in: what is learned about a move or a Pokémon holds in every slot of every team.
"""

import functools

import torch
import torch.nn as nn
import torch.nn.functional as F

from .choices import NUM_PREVIEW, NUM_SLOT, TwoChoices
from .mdbo import PAIRS_OF_SIX, PREVIEW_PAIRS
from .vocabulary import LAYOUT, id_bags

NUM_IDS = id_bags()[-1]  # rows of a table of all ids
NUM_HITS = 32  # what a move does to a foe is told in so many numbers


def linear(fan_in, fan_out, std=2**0.5):
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


@functools.cache
def bag_tensors(device):
    columns, offsets, starts, _ = id_bags()
    return torch.tensor(columns, device=device), *(torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (offsets, starts))


def embed_ids(table, ints):
    """table (NUM_IDS, E), ints (B, 196) → sums of embeddings: of the twelve Pokémon (B, 12, E), of the last turns' events, of the moves
    of our active two (B, 8, E)"""
    columns, offsets, starts = bag_tensors(ints.device)
    # One look-up for everything: each would write a gradient as large as the table.
    ids = ints[:, columns].int() + offsets
    starts = torch.arange(len(ints), device=ints.device, dtype=torch.int32)[:, None] * ids.shape[1] + starts
    bags = F.embedding_bag(ids.flatten(), table, starts.flatten(), mode="sum").view(*starts.shape, -1)
    return bags.split([12, LAYOUT["history"].rows, 8], 1)


class PointingHeads(TwoChoices):
    """The policy of a network that has told what there is to choose from: `things`, see `point_at`."""

    def add_heads(self, width, embedding_width, hidden_size):
        """width: of a Pokémon's token"""
        self.width = width
        self.move_numbers_at, self.versus_at = LAYOUT["opp"].floats.index("move_1_power"), LAYOUT["active"].floats.index("move_1_vs_a")
        self.register_buffer("pairs_of_six", torch.from_numpy(PAIRS_OF_SIX), persistent=False)
        self.register_buffer("preview_pairs", torch.from_numpy(PREVIEW_PAIRS), persistent=False)
        self.move_ids, self.move_numbers = linear(embedding_width, width, 1.0), linear(6 + 2, width, 1.0)
        self.move_owner, self.target_key, self.switch_key = linear(width, width, 1.0), linear(width, width, 1.0), linear(width, width, 1.0)
        self.hit_move, self.hit_foe = linear(width, NUM_HITS, 1.0), linear(width, NUM_HITS, 1.0)
        self.hit_versus = nn.Parameter(torch.randn(NUM_HITS))
        self.no_target, self.passing = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 1, width))
        self.tera_key = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        # What a slot asks for: of a move, of a target, of terastallizing, of who comes in, of a hit, and how much it wants to pass.
        self.wants = [width] * 4 + [NUM_HITS, 1]
        self.query = linear(hidden_size + width, sum(self.wants), 0.1)
        self.given_slot_0 = linear(width, sum(self.wants), 0.1)
        self.preview_key, self.preview_query = linear(width, 2 * width, 1.0), linear(hidden_size, 2 * width, 0.1)

    def point_at(self, own, active, moves, tokens, standing, bench, foes):
        """Columns of own and active Pokémon, embeddings of moves (B, 8, E), tokens of our six (B, 6, W), of the two that stand, of the
        two behind them, of the foes that stand (B, 2, W) → things: those, moves (B, 2, 4, W), hits (B, 2, 4, 2, K)"""
        batch = len(own)
        numbers = own[:, :2, self.move_numbers_at : self.move_numbers_at + 24].reshape(batch, 2, 4, 6)
        versus = active[:, :2, self.versus_at : self.versus_at + 8].reshape(batch, 2, 4, 2)
        moves = self.move_ids(moves).view(batch, 2, 4, -1) + self.move_numbers(torch.cat([numbers, versus], -1))
        moves = F.relu(moves + self.move_owner(standing)[:, :, None])
        hits = self.hit_move(moves)[:, :, :, None] + self.hit_foe(foes)[:, None, None] + versus[..., None] * self.hit_versus
        return tokens, standing, bench, foes, moves, F.relu(hits)

    def slot_logits(self, query, moves, hits, targets, switches):
        """query (B, Q, …), moves (B, 4, W), hits (B, 4, 2, K) of this slot → (B, Q, 45)"""
        want_move, want_target, want_tera, want_switch, want_hit, want_pass = query.split(self.wants, -1)
        scale = self.width**-0.5
        both = (want_move @ moves.mT)[..., None] + (want_target @ targets.mT)[:, :, None] + (moves @ targets.mT)[:, None]  # (B, Q, 4, 5)
        hit = (want_hit @ hits.flatten(1, 2).mT).unflatten(-1, (4, 2))
        both = both * scale + F.pad(hit, (3, 0))  # a foe's column of target is 3 or 4
        tera = both + (want_tera @ moves.mT)[..., None] * scale
        return torch.cat([torch.cat([both, tera], -1).flatten(2), want_switch @ switches.mT * scale, want_pass], -1)

    def preview_logits(self, hidden, tokens):
        """hidden (P, H), own tokens (P, 6, W) → (P, 90): a pair of leads and a pair behind them"""
        lead, back = self.preview_key(tokens).chunk(2, -1)
        first, second = self.pairs_of_six.T
        want_lead, want_back = self.preview_query(hidden).chunk(2, -1)
        scale = self.width**-0.5
        lead = (F.relu(lead[:, first] + lead[:, second]) @ want_lead[..., None]).squeeze(-1) * scale  # (P, 15)
        back = (F.relu(back[:, first] + back[:, second]) @ want_back[..., None]).squeeze(-1) * scale
        return lead[:, self.preview_pairs[:, 0]] + back[:, self.preview_pairs[:, 1]]

    def choice_logits(self, hidden, things, preview):
        """→ logits of the first choice (B, 90): slot 0's 45, or the preview's; and of slot 1 given what slot 0 does, see TwoChoices"""
        tokens, standing, bench, foes, moves, hits = things
        batch = len(hidden)
        query_0, query_1 = self.query(torch.cat([hidden[:, None].expand(-1, 2, -1), standing], -1)).split(1, 1)
        ours, theirs = self.target_key(torch.cat([standing.flip(1), foes], 1)).split(2, 1)
        targets = torch.cat([ours, self.no_target.expand(batch, 1, -1), theirs], 1)  # (B, 5, W): own b, own a, none, foe a, foe b
        switches = self.switch_key(torch.cat([standing, bench], 1))  # (B, 4, W)
        first = F.pad(self.slot_logits(query_0, moves[:, 0], hits[:, 0], targets, switches).squeeze(1), (0, NUM_PREVIEW - NUM_SLOT))
        rows = preview.nonzero().squeeze(1)
        if len(rows):  # one decision in twelve
            first = first.index_copy(0, rows, self.preview_logits(hidden[rows], tokens[rows]).to(first.dtype))
        tera, passing = self.tera_key.expand(batch, 1, -1), self.passing.expand(batch, 1, -1)
        words = torch.cat([moves[:, 0], targets, tera, switches, passing], 1)  # (B, 15, W): slot 0's action is a sum of some of these

        def second_given(parts):
            return self.slot_logits(query_1 + self.given_slot_0(parts @ words), moves[:, 1], hits[:, 1], targets, switches)

        return first, second_given
