'use strict';
// MDBO: one number per decision, and the mask of the numbers that are legal, both from the player's own request.
//
//   slot action   10·move + 5·tera + (target + 2)   0–39   (move 0–3, target −2…2; the tera bit is mega where a format
// has that)                 40–43                              switch to position 1–4 of request.side.pokemon
//                 44                                 pass
//   joint action  45·slot0 + slot1                   0–2024
//   preview       one of 90 line-ups                 0–89
//
// Choices are sent by index ("move 2 1, switch 3"): names fail for locked moves, Ditto, Illusion and odd nicknames.

const SLOT = 45;
const SWITCH = 40;
const PASS = 44;
const NO_PASS_RULE = 255;
const MASK_BYTES = 2 * SLOT + 2; // two slots, the pass rule, one byte of padding

const PREVIEWS = [];
for (let a = 0; a < 6; a++) {
  for (let b = a + 1; b < 6; b++) {
    for (let c = 0; c < 6; c++) {
      for (let d = c + 1; d < 6; d++) {
        if (c !== a && c !== b && d !== a && d !== b) PREVIEWS.push([a, b, c, d]);
      }
    }
  }
}

const ALLY = 1, SELF = 2, FOES = 4;
const TARGETS = {normal: FOES | ALLY, any: FOES | ALLY, adjacentFoe: FOES, adjacentAlly: ALLY,
  adjacentAllyOrSelf: ALLY | SELF};

const isFainted = mon => mon.condition.endsWith(' fnt');

function gimmick(active) {
  if (active.canTerastallize) return ' terastallize';
  if (active.canMegaEvo) return ' mega';
  if (active.canMegaEvoX) return ' megax';
  if (active.canMegaEvoY) return ' megay';
  return '';
}

function fillMoves(active, slot, out, at) {
  const tera = gimmick(active) !== '';
  const moves = active.moves;
  for (let m = 0; m < moves.length && m < 4; m++) {
    if (moves[m].disabled) continue;
    const base = at + 10 * m + 2;
    const who = TARGETS[moves[m].target]; // undefined: the move chooses its own target, as locked moves and Struggle do
    for (let t = 0; t <= (tera ? 5 : 0); t += 5) {
      if (who === undefined) {
        out[base + t] = 1;
        continue;
      }
      if (who & FOES) out[base + t + 1] = out[base + t + 2] = 1;
      if (who & ALLY) out[base + t - (2 - slot)] = 1;
      if (who & SELF) out[base + t - (slot + 1)] = 1;
    }
  }
}

// Writes the legal slot actions of a request into out[at … at + MASK_BYTES): for a preview the first 90 bytes are the
// line-ups, else 45 bytes a slot and then how many of two forced slots must pass (NO_PASS_RULE when the slots do not
// bind each other so). Everything else that couples the slots (one tera, no switch twice) is the same in every request:
// see PAIRS in mdbo.py.
function fillMask(request, out, at) {
  out.fill(0, at, at + MASK_BYTES);
  out[at + 2 * SLOT] = NO_PASS_RULE;
  const team = request.side.pokemon;
  if (request.teamPreview) {
    for (let i = 0; i < PREVIEWS.length; i++) {
      const p = PREVIEWS[i];
      if (p[1] < team.length && p[3] < team.length) out[at + i] = 1;
    }
    return;
  }
  if (request.forceSwitch) return fillForced(request.forceSwitch, team, out, at);
  for (let slot = 0; slot < 2; slot++) {
    const start = at + slot * SLOT;
    const active = request.active[slot];
    if (!active || isFainted(team[slot]) || team[slot].commanding) {
      out[start + PASS] = 1;
      continue;
    }
    fillMoves(active, slot, out, start);
    if (active.trapped) continue;
    for (let i = 2; i < team.length; i++) {
      if (!isFainted(team[i])) out[start + SWITCH + i] = 1;
    }
  }
}

function fillForced(forced, team, out, at) {
  let bench = 0;
  for (let i = 2; i < team.length; i++) if (!isFainted(team[i])) bench++;
  const leaving = (forced[0] ? 1 : 0) + (forced[1] ? 1 : 0);
  const passes = leaving - Math.min(leaving, bench);
  for (let slot = 0; slot < 2; slot++) {
    const start = at + slot * SLOT;
    if (!forced[slot]) {
      out[start + PASS] = 1;
      continue;
    }
    // Revival Blessing asks through a forced switch too; there the targets are the fainted, on the field or off it.
    const reviving = team[slot].reviving;
    for (let i = reviving ? 0 : 2; i < team.length; i++) {
      if (isFainted(team[i]) === !!reviving) out[start + SWITCH + i] = 1;
    }
    if (passes) out[start + PASS] = 1;
  }
  if (leaving === 2 && passes) out[at + 2 * SLOT] = passes;
}

function slotChoice(action, active) {
  if (action === PASS) return 'pass';
  if (action >= SWITCH) return `switch ${action - SWITCH + 1}`;
  const target = action % 5 - 2;
  const tera = action % 10 >= 5 ? gimmick(active || {}) || ' terastallize' : '';
  return `move ${Math.floor(action / 10) + 1}${tera}${target ? ` ${target}` : ''}`;
}

// The simulator's choice string for an action; −1 leaves the choice to the simulator.
function choiceOf(action, request) {
  if (action < 0) return 'default';
  if (request.teamPreview) return `team ${PREVIEWS[action].map(i => i + 1).join('')}`;
  const active = request.active || [];
  return `${slotChoice(Math.floor(action / SLOT), active[0])}, ${slotChoice(action % SLOT, active[1])}`;
}

// Whether two slot actions may stand side by side, given that each is legal by itself.
function pairLegal(a, b, passRule) {
  if (passRule !== NO_PASS_RULE && (a === PASS) + (b === PASS) !== passRule) return false;
  if (a >= SWITCH && a < PASS && a === b) return false;
  return !(a < SWITCH && b < SWITCH && a % 10 >= 5 && b % 10 >= 5);
}

const scratch = [];
// A uniformly random legal action of a filled mask; random(n) gives an integer in [0, n).
function sampleAction(request, mask, at, random) {
  scratch.length = 0;
  if (request.teamPreview) {
    for (let i = 0; i < PREVIEWS.length; i++) if (mask[at + i]) scratch.push(i);
  } else {
    const rule = mask[at + 2 * SLOT];
    for (let a = 0; a < SLOT; a++) {
      if (!mask[at + a]) continue;
      for (let b = 0; b < SLOT; b++) {
        if (mask[at + SLOT + b] && pairLegal(a, b, rule)) scratch.push(SLOT * a + b);
      }
    }
  }
  return scratch.length ? scratch[random(scratch.length)] : -1;
}

module.exports = {SLOT, PASS, SWITCH, MASK_BYTES, NO_PASS_RULE, PREVIEWS, gimmick, fillMask, choiceOf, pairLegal,
  sampleAction};
