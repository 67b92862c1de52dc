'use strict';
// The simulator alone: battles that play themselves with random legal choices, no features, no pipes.
// The speed bench takes its limit from here, the identity check its logs, the mask check its refusals.
//
//   one JSON job a line on stdin, one JSON result a line on stdout
//   job: {format, openTeamSheets, teams: [packed], battles, first, concurrent, seed, dispatch, turnCap,
//         hashes, reverse}

const fs = require('fs');
const crypto = require('crypto');
const mdbo = require('./mdbo');
const {battleFormat, createBattle, mix} = require('./battles');

const mask = new Uint8Array(mdbo.MASK_BYTES);
const NOTHING = {battles: 0, decisions: 0, turns: 0, invalid: 0, unavailable: 0, capped: 0, refused: 0, accepted: 0};
let job, totals, failures, hashes;
let seen; // how often a mask met each of its traps: a check that never met one proves nothing about it

function note(request) {
  const met = name => { seen[name] = (seen[name] || 0) + 1; };
  const team = request.side.pokemon;
  if (request.teamPreview) return met(`preview of ${team.length}`);
  const bench = team.slice(2).filter(mon => !mon.condition.endsWith(' fnt')).length;
  if (request.forceSwitch) {
    const both = request.forceSwitch[0] && request.forceSwitch[1];
    if (team.some(mon => mon.reviving)) return met(`revival, bench of ${bench ? 'some' : 'none'}`);
    if (both) return met(bench > 1 ? 'both forced' : 'both forced, one left');
    return met(team[request.forceSwitch[0] ? 0 : 1].condition.endsWith(' fnt') ? 'faint' : 'switch in mid-turn');
  }
  if (team.some(mon => mon.commanding)) met('commanding');
  request.active.forEach((active, slot) => {
    if (!active || team[slot].condition.endsWith(' fnt')) return met('fainted slot');
    if (active.trapped) met('trapped');
    if (active.maybeTrapped) met('maybe trapped');
    if (active.maybeDisabled) met('maybe disabled');
    if (active.maybeLocked) met('maybe locked');
    if (active.moves[0].id === 'struggle' && active.moves.length === 1) met('struggle');
    else if (active.moves.length === 1 && active.moves[0].target ===
      undefined) met(`locked into ${active.moves[0].id}`);
    if (active.moves.some(move => move.disabled)) met('disabled move');
  });
}

// A choice the mask forbids must be refused, or be a mere alias: understood by the simulator as a choice the mask
// allows (it ignores a tera word behind a locked move, and any word behind a fainted slot's pass).
function reverseCheck(side, request, random) {
  const allowed = new Set();
  const forbidden = [];
  const rule = mask[2 * mdbo.SLOT];
  const size = request.teamPreview ? mdbo.PREVIEWS.length : mdbo.SLOT * mdbo.SLOT;
  for (let action = 0; action < size; action++) {
    const a = Math.floor(action / mdbo.SLOT), b = action % mdbo.SLOT;
    const legal = request.teamPreview ? mask[action] : mask[a] && mask[mdbo.SLOT + b] && mdbo.pairLegal(a, b, rule);
    (legal ? allowed.add(action) : forbidden.push(action));
  }
  const understood = new Set();
  const flags = side.active.map(mon => mon?.switchFlag);
  const undo = () => {
    side.choice.cantUndo = false;
    // Revival Blessing clears it while choosing
    side.active.forEach((mon, slot) => { if (mon) mon.switchFlag = flags[slot]; });
  };
  for (const action of allowed) {
    if (side.choose(mdbo.choiceOf(action, request)) && side.isChoiceDone()) understood.add(side.getChoice());
    undo();
  }
  for (let i = 0; i < 12 && forbidden.length; i++) {
    const choice = mdbo.choiceOf(forbidden[random(forbidden.length)], request);
    let taken = false;
    try {
      taken = side.choose(choice) && side.isChoiceDone() && !understood.has(side.getChoice());
    } catch (error) {
      if (!/switched too many/.test(error.message)) throw error;
    }
    undo();
    totals[taken ? 'accepted' : 'refused']++;
    if (taken && failures.length < 20)
      failures.push(`accepted though masked: ${choice} for ${JSON.stringify(request)}`);
  }
  side.clearChoice();
}

// One battle, a step (what both sides are asked at once) at a time.
function* play(index) {
  let state = mix(job.seed, index, 77);
  const random = n => {
    state = mix(state, 1, 2);
    return state % n;
  };
  const errors = [];
  const {battle} = createBattle(battleFormat(job.format, job.openTeamSheets), job.teams, job.teams, job.seed, index, 0,
    (type, data) => {
    if (type === 'sideupdate' && data.includes('|error|')) errors.push(data);
  });
  while (!battle.ended && battle.turn < job.turnCap) {
    for (const side of battle.sides) {
      const request = side.activeRequest;
      if (!request || request.wait || side.isChoiceDone()) continue;
      totals.decisions++;
      if (job.reverse) note(request);
      for (let tries = 0; ; tries++) {
        mdbo.fillMask(request, mask, 0);
        // Only where nothing is hidden: trying a choice on a request with hidden traps would reveal them.
        if (job.reverse && !/"maybe/.test(JSON.stringify(request)) && random(4) === 0)
          reverseCheck(side, request, random);
        const action = tries < 10 ? mdbo.sampleAction(request, mask, 0, random) : -1;
        errors.length = 0;
        const choice = mdbo.choiceOf(action, request);
        if (battle.choose(side.id, choice)) break;
        if (action < 0) throw new Error(`the simulator refused its own default: ${errors.join(' ')}`);
        if (errors.some(e => e.includes('[Unavailable choice]'))) {
          totals.unavailable++;
        } else {
          totals.invalid++;
          if (failures.length < 20)
            failures.push(`refused though allowed: ${choice}: ${errors.join(' ')} ${JSON.stringify(request)}`);
        }
      }
      if (battle.ended || battle.turn >= job.turnCap) break;
    }
    battle.sentLogPos = battle.log.length; // nobody reads the log here; without this the simulator believes it loops
    yield;
  }
  totals.battles++;
  totals.turns += battle.turn;
  if (!battle.ended) totals.capped++;
  if (job.hashes) {
    // Wall-clock lines are the only ones that may differ between two runs.
    const text = battle.log.filter(line => !line.startsWith('|t:|')).join('\n');
    hashes.push(crypto.createHash('sha1').update(text + battle.prng.getSeed() +
      battle.inputLog.join('\n')).digest('hex'));
  }
  battle.destroy();
}

function run(line) {
  job = JSON.parse(line);
  if (job.dispatch) require('./dispatch').install();
  totals = {...NOTHING};
  failures = [];
  hashes = [];
  seen = {};
  const cpu = process.cpuUsage();
  const wall = process.hrtime.bigint();
  let started = 0;
  const table = () => play((job.first || 0) + started++);
  const running = Array.from({length: Math.min(job.concurrent || 1, job.battles)}, table);
  while (running.length) {
    for (let i = 0; i < running.length; i++) {
      if (!running[i].next().done) continue;
      if (started < job.battles) running[i] = table();
      else running.splice(i--, 1);
    }
  }
  const used = process.cpuUsage(cpu);
  totals.cpu_s = (used.user + used.system) / 1e6;
  totals.wall_s = Number(process.hrtime.bigint() - wall) / 1e9;
  fs.writeSync(1, `${JSON.stringify({...totals, seen, hashes, failures})}\n`);
}

const chunk = Buffer.alloc(1 << 16);
let text = '';
for (let n; (n = fs.readSync(0, chunk, 0, chunk.length, null)) > 0;) {
  text += chunk.toString('latin1', 0, n);
  for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) run(text.slice(0, end));
}
