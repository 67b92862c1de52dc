"""What lies between two decisions of a seat: who holds it, what it remembers, and the decision whose outcome is not known yet.

A seat's number, its key, is 2 · battle + side. Decisions come in whatever order battles ask for them, so each is kept open in its
seat until the seat's next decision, or the battle's end, tells its reward and the value of what follows: then it goes to the rollout.
"""

import numpy as np
import torch

from .match import replay_battles
from .mdbo import NUM_PREVIEWS
from .vec_env import PREVIEW
from .vocabulary import FLOATS, INTS

MAX_EPISODES = 4096  # per rollout


def make_rows(args, count):
    """What is known of a decision when it is made."""
    return {
        "ints": torch.zeros(count, INTS, dtype=torch.int16),
        "floats": torch.zeros(count, FLOATS),
        "legal": torch.zeros(count, 2, NUM_PREVIEWS, dtype=torch.bool),  # both choices, the second given the first that was taken
        "actions": torch.zeros(count, dtype=torch.int64),
        "logprobs": torch.zeros(count),
        "values": torch.zeros(count),
        "first": torch.zeros(count, dtype=torch.bool),  # a team preview, where a battle and the LSTM's memory begin
        "states": torch.zeros(count, 2, args.lstm_size),  # the LSTM's, before the decision
        "version": torch.zeros(count, dtype=torch.int32),
    }


def make_storage(args):
    """One rollout: closed decisions in the order in which they were closed. The last round of decisions may overshoot buffer_size."""
    count = args.buffer_size + 2 * args.num_battles
    return make_rows(args, count) | {
        "key": torch.zeros(count, dtype=torch.int64),  # the seat
        "rewards": torch.zeros(count),  # what came after the decision
        "next_values": torch.zeros(count),
        "ended": torch.zeros(count, dtype=torch.bool),
        "episodes": torch.zeros(MAX_EPISODES, 4),  # kind, league member, score, turns
        "info": torch.zeros(5, dtype=torch.float64),  # rows, episodes, seconds of: rollout, inference, simulator
    }


class Memory:
    """The LSTM's state in each seat, before and after the seat's last decision."""

    def __init__(self, seats, size):
        self.states = torch.zeros(seats, 2, 2, size)

    def forward(self, policy, batch, rows):
        """Encodes rows and moves their seats' memories on → LSTM output (B, H), things for the heads, memory before (B, 2, H)"""
        keys, retry = torch.from_numpy(batch.key[rows]).long(), torch.from_numpy(batch.retry[rows])
        # A choice that could not be carried out is asked for again: the memory of it is undone.
        before = torch.where(retry[:, None, None], self.states[keys, 0], self.states[keys, 1])
        core, things = policy.encode(torch.from_numpy(batch.ints[rows]), torch.from_numpy(batch.floats[rows]))
        hidden, after = policy.unroll(core[None], before.transpose(0, 1), torch.from_numpy(batch.kind[rows] == PREVIEW)[None])
        self.states[keys, 0], self.states[keys, 1] = before, after.transpose(0, 1)
        return hidden[0], things, before


class Seats(Memory):
    """All seats of an actor. rows: room for one decision of each seat, as in the rollout; kinds of opponents from `scripted` on are scripted."""

    def __init__(self, rows, scripted):
        seats = len(rows["states"])
        super().__init__(seats, rows["states"].shape[-1])
        self.open, self.is_open, self.scripted = rows, np.zeros(seats, bool), scripted
        self.holder = np.zeros(seats, np.int64)  # who answers: 0 = the learner's policy, else the serial number of a frozen one
        self.kind = np.zeros(seats // 2, np.int64)  # of opponent, by battle
        self.played = [[] for _ in range(seats // 2)]  # (key, action) of the battles under way, to get there again

    def begin(self, battle, kind):
        """A new battle, both seats of which the learner holds until it is said otherwise; who holds a seat holds it to the end."""
        self.holder[2 * battle : 2 * battle + 2], self.kind[battle], self.played[battle] = 0, kind, []

    def decide(self, keys, *known):
        """The learner's decisions in these seats, open from now on. known: in the order of the rows"""
        for rows, value in zip(self.open.values(), known, strict=True):
            rows[keys] = torch.as_tensor(value)
        self.is_open[keys] = True

    def close(self, rollout, at, keys, rewards, next_values, ended):
        """Moves the open decisions of these seats to the rollout, with what came of them → its new length"""
        span = slice(at, at + len(keys))
        for name, rows in self.open.items():
            rollout[name][span] = rows[keys]
        rollout["key"][span], rollout["rewards"][span] = torch.from_numpy(keys), torch.from_numpy(rewards)
        rollout["next_values"][span], rollout["ended"][span] = next_values, ended
        self.is_open[keys] = False
        return span.stop

    def close_ended(self, rollout, at, batch, policy):
        """The same for battles that ended: nothing follows, or after a truncation V(last observation) → the rollout's new length"""
        ends = batch.ends[np.argsort(batch.key[batch.ends])]
        ends = ends[self.is_open[batch.key[ends]]]
        next_values, truncated = torch.zeros(len(ends)), batch.truncated[ends]
        if truncated.any():
            next_values[torch.from_numpy(truncated)] = policy.value(self.forward(policy, batch, ends[truncated])[0])
        return self.close(rollout, at, batch.key[ends].astype(np.int64), batch.reward[ends], next_values, True)

    def note_results(self, finished, episodes, count):
        """Writes down who won, as the learner sees it; of a battle against itself as side 0 does → how many are written"""
        for end in np.sort(finished, order=("battle", "episode"))[: len(episodes) - count]:
            battle, kind = int(end["battle"]), int(self.kind[end["battle"]])
            seats = self.holder[2 * battle : 2 * battle + 2]
            side = int(end["p1"] != 0) if kind >= self.scripted else int(seats[0] != 0)
            score = float(end["winner"] == side) if end["winner"] in (0, 1) else 0.5
            episodes[count] = torch.tensor([kind, seats.max(), score, end["turns"]])
            count += 1
        for battle in finished["battle"]:
            self.played[battle] = []
        return count

    def remember_moves(self, keys, actions):
        for key, action in zip(keys.tolist(), actions.tolist()):
            self.played[key // 2].append((key, action))

    def state_dict(self):
        """Battles are in it as their moves so far."""
        arrays = {"kind": self.kind, "holder": self.holder, "is_open": self.is_open}
        arrays = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {**arrays, "open": self.open, "states": self.states, "played": self.played}

    def load_state_dict(self, state, env):
        """Plays the battles of `env`, which have just begun, to where they stood → what they ask next"""
        for name in ("kind", "holder", "is_open"):
            getattr(self, name)[:] = state[name].numpy()
        for name, rows in state["open"].items():
            self.open[name].copy_(rows)
        self.states.copy_(state["states"])
        self.played = [[tuple(move) for move in moves] for moves in state["played"]]
        return replay_battles(env, self.played)
