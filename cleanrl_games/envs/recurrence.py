"""Recurrent layers over chunks of several games: torch's own cannot empty their memory where a game begins.

Both take the input's share of the gates (L, B, G · H), the recurrent weights (G · H, H), the state before the first step (B, S), and
keep (L, B, 1), 0 where a game begins → outputs (L, B, H), the state after the last step (B, S)
"""

import torch


class LSTMUnroll(torch.autograd.Function):
    """An LSTM over a chunk, by hand: the gradient of the recurrent weights is one matrix product over all steps, and nothing is
    copied between steps. `tools/diagnose_performance.py --test learn` compares it with the same loop left to autograd.

    gates (L, B, 4H) are the input's share of the gates, in the order input, forget, output, candidate.
    """

    @staticmethod
    def forward(ctx, gates, weight, state, keep):
        (length, batch, _), size = gates.shape, weight.shape[1]
        gates = gates.clone()
        outputs, cells, squashed, old_hidden, old_cells = (gates.new_empty(length, batch, size) for _ in range(5))
        hidden, cell = state.split(size, 1)
        for t in range(length):
            torch.mul(hidden, keep[t], out=old_hidden[t])
            torch.mul(cell, keep[t], out=old_cells[t])
            gate = gates[t].addmm_(old_hidden[t], weight.t())
            gate[:, : 3 * size].sigmoid_()
            gate[:, 3 * size :].tanh_()
            take, forget, give, candidate = gate.split(size, 1)
            torch.mul(forget, old_cells[t], out=cells[t]).addcmul_(take, candidate)
            torch.tanh(cells[t], out=squashed[t])
            torch.mul(give, squashed[t], out=outputs[t])
            hidden, cell = outputs[t], cells[t]
        last = torch.cat([hidden, cell], 1)
        ctx.save_for_backward(gates, squashed, old_hidden, old_cells, weight, keep)
        ctx.mark_non_differentiable(last)  # truncated BPTT: nothing flows on into the next chunk
        return outputs, last

    @staticmethod
    def backward(ctx, grad_outputs, _):
        gates, squashed, old_hidden, old_cells, weight, keep = ctx.saved_tensors
        size, grad_gates = weight.shape[1], torch.empty_like(gates)
        grad_hidden, grad_cell = torch.zeros_like(old_hidden[0]), torch.zeros_like(old_cells[0])
        for t in reversed(range(len(gates))):
            take, forget, give, candidate = gates[t].split(size, 1)
            grad_take, grad_forget, grad_give, grad_candidate = grad_gates[t].split(size, 1)
            grad_hidden = grad_hidden + grad_outputs[t]
            grad_cell = grad_cell + grad_hidden * give * (1 - squashed[t].square())
            torch.mul(grad_cell, candidate, out=grad_take)
            torch.mul(grad_cell, old_cells[t], out=grad_forget)
            torch.mul(grad_hidden, squashed[t], out=grad_give)
            sigmoids = gates[t, :, : 3 * size]
            grad_gates[t, :, : 3 * size].mul_(sigmoids).mul_(1 - sigmoids)
            torch.mul(grad_cell, take, out=grad_candidate).mul_(1 - candidate.square())
            grad_hidden, grad_cell = (grad_gates[t] @ weight).mul_(keep[t]), grad_cell * forget * keep[t]
        return grad_gates, grad_gates.flatten(0, 1).t() @ old_hidden.flatten(0, 1), None, None


def gru_unroll(gates, weight, state, keep):
    """The same for a GRU, by autograd. gates (L, B, 3H) in the order reset, update, candidate."""
    outputs, size = [], weight.shape[1]
    for gate, kept in zip(gates, keep):
        state = state * kept
        hidden = state @ weight.t()
        reset, update = torch.sigmoid(gate[:, : 2 * size] + hidden[:, : 2 * size]).chunk(2, 1)
        candidate = torch.tanh(gate[:, 2 * size :] + reset * hidden[:, 2 * size :])
        state = candidate + update * (state - candidate)
        outputs.append(state)
    return torch.stack(outputs), state
