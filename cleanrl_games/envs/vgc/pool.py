"""Frozen policies in rows of `board.snapshots`, and how all opponents have fared: by kind, by member, in Elo.

Counts fade, so that win rates are of the last hundred updates or so. Elo: heuristics is 1500, everybody else moves. Whom to meet next
is the script's affair.
"""

import numpy as np
import torch

FADE, HEURISTICS_ELO = 0.99, 1500.0


def elo_update(rating, reference, score, k=8.0):
    return rating + k * (score - 1.0 / (1.0 + 10.0 ** ((reference - rating) / 400.0)))


class Records:
    """kinds: names of who may hold the other seat, "self" first, "past" before "exploiter"."""

    def __init__(self, args, board, kinds):
        self.args, self.board, self.kinds, self.members, self.next_serial, self.elo = args, board, kinds, [], 1, 1300.0
        self.wins, self.games = np.zeros(len(kinds)), np.zeros(len(kinds))

    def join(self, kind, name, flat):
        """When the pool is full the past self that is beaten most often leaves, and an exploiter only if there is none."""
        if len(self.members) == self.args.league_size:
            leavers = [member for member in self.members if self.kinds[member["kind"]] in ("past", "exploiter")]
            self.members.remove(min(leavers, key=lambda member: (member["kind"], -self.rate(member))))
        row = self.board.keep(flat, self.members)
        member = {"serial": self.next_serial, "row": row, "kind": kind, "name": name, "elo": self.elo, "wins": 0.0, "games": 0.0}
        self.members.append(member)
        self.next_serial += 1
        return member

    @staticmethod
    def rate(member):
        return (member["wins"] + 1.0) / (member["games"] + 2.0)

    def record(self, results):
        """results: rows of kind, member's serial number, score, turns"""
        self.wins, self.games = self.wins * FADE, self.games * FADE
        by_serial = {member["serial"]: member for member in self.members}
        for member in self.members:
            member["wins"], member["games"] = member["wins"] * FADE, member["games"] * FADE
        for kind, serial, score, _ in results.tolist():
            kind = int(kind)
            self.wins[kind], self.games[kind] = self.wins[kind] + (score if kind else 0.5), self.games[kind] + 1
            if self.kinds[kind] == "heuristics":
                self.elo = elo_update(self.elo, HEURISTICS_ELO, score)
            if (member := by_serial.get(int(serial))) is not None:  # it may have left while the battle went on
                member["wins"], member["games"] = member["wins"] + score, member["games"] + 1
                self.elo, member["elo"] = elo_update(self.elo, member["elo"], score), elo_update(member["elo"], self.elo, 1.0 - score)

    def win_rates(self):
        """(K,), even for kinds that were never met"""
        return np.where(self.games > 0, self.wins / np.maximum(self.games, 1e-8), 0.5)

    def state(self):
        return [self.members, self.next_serial, self.elo, torch.from_numpy(self.wins), torch.from_numpy(self.games)]

    def load_state(self, state):
        self.members, self.next_serial, self.elo, wins, games = state
        self.wins, self.games = wins.numpy(), games.numpy()
