'use strict';
// Plays seeded random battles and writes, one JSON line a battle, everything each player was sent and what PlayerView
// made of it, for the tests to compare.
//
//   node trace.js < job.json
//   job: {format, openTeamSheets, teams: [packed] or pairs: [[packed, packed]], seed, first, battles, decisions,
//         turnCap, previews: [action, action], truth, quiet}, {replay: [[role, entries]]},
//         or {inputLog, openTeamSheets}: a server's battle, played again
//   line: {battle, sides: [[entry]]}; entry: {lines}, {request}, or at a decision {ints, floats} (base64) and, with
//         `truth`, what the opponent hides. `quiet` leaves out the first two, `previews` fixes both line-ups.

const fs = require('fs');
const {toID} = require('pokemon-showdown');
const {Battle} = require('pokemon-showdown/dist/sim/battle');
const mdbo = require('./mdbo');
const {battleFormat, createBattle, mix} = require('./battles');
const {PlayerView, INTS, FLOATS} = require('./features');

const job = JSON.parse(fs.readFileSync(0, 'utf8'));
const mask = new Uint8Array(mdbo.MASK_BYTES);
const ints = new Int32Array(INTS);
const floats = new Float32Array(FLOATS);
const base64 = array => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64');

class Player {
  constructor(side) {
    this.view = new PlayerView(`p${side + 1}`);
    this.entries = [];
    this.lines = [];
  }

  hear(text) {
    for (const line of text.split('\n')) {
      if (!line) continue;
      this.view.line(line);
      this.lines.push(line);
    }
  }

  // The request goes through JSON as on a server: the simulator's own object may change behind our back.
  ask(request) {
    const copy = JSON.parse(JSON.stringify(request));
    this.view.request(copy);
    if (!job.quiet) this.entries.push({lines: this.lines}, {request: copy});
    this.lines = [];
    return copy;
  }

  observe(truth) {
    this.view.write(ints, 0, floats, 0);
    this.entries.push({ints: base64(ints), floats: base64(floats), ...truth});
  }
}

// What the test of the beliefs needs to know and no player may: read after the observation was made, never by it.
function secrets(side) {
  return {truth: side.pokemon.map(mon => ({
    species: mon.baseSpecies.id, num: mon.baseSpecies.num, speed: mon.baseStoredStats.spe, item: mon.item,
    firstItem: toID(mon.set.item), ability: mon.baseAbility, transformed: mon.transformed,
  }))};
}

// Gives each player its share of the lines since `position` -> how many there are now.
function distribute(battle, players, position) {
  const {log} = battle;
  for (; position < log.length; position++) {
    const line = log[position];
    if (!line.startsWith('|split|p')) {
      players.forEach(player => player.hear(line));
      continue;
    }
    const owner = line.charCodeAt(8) - 49;
    players[owner].hear(log[position + 1]);
    players[1 - owner].hear(log[position + 2]);
    position += 2;
  }
  battle.sentLogPos = log.length;
  return log.length;
}

function play(index) {
  let state = mix(job.seed, index, 77);
  const random = n => {
    state = mix(state, 1, 2);
    return state % n;
  };
  const players = [new Player(0), new Player(1)];
  const format = battleFormat(job.format, job.openTeamSheets);
  const [teams1, teams2] = job.pairs ? job.pairs[index % job.pairs.length].map(team => [team]) : [job.teams, job.teams];
  const {battle} = createBattle(format, teams1, teams2, job.seed, index, 0, () => {});
  let position = 0;
  let decisions = 0;
  while (!battle.ended && battle.turn <= job.turnCap) {
    position = distribute(battle, players, position);
    const pending = battle.sides.filter(side => side.activeRequest && !side.activeRequest.wait && !side.isChoiceDone());
    for (const side of battle.sides) {
      if (side.activeRequest && side.activeRequest.wait) players[side.n].ask(side.activeRequest);
    }
    for (const side of pending) {
      for (let tries = 0; ; tries++) {
        const request = players[side.n].ask(side.activeRequest);
        players[side.n].observe(job.truth ? secrets(battle.sides[1 - side.n]) : {});
        decisions++;
        mdbo.fillMask(request, mask, 0);
        let action = tries < 10 ? mdbo.sampleAction(request, mask, 0, random) : -1;
        if (request.teamPreview && job.previews) action = job.previews[side.n];
        if (battle.choose(side.id, mdbo.choiceOf(action, request))) break;
      }
    }
  }
  battle.destroy();
  process.stdout.write(JSON.stringify({battle: index, sides: players.map(player => player.entries)}) + '\n');
  return decisions;
}

// What PlayerView makes of a stream recorded elsewhere, on a server for instance: {lines}, {request}, {observe: true}.
function replay(role, entries) {
  const view = new PlayerView(role);
  const frames = [];
  for (const entry of entries) {
    for (const line of entry.lines || []) view.line(line);
    if (entry.request) view.request(entry.request);
    if (!entry.observe) continue;
    view.write(ints, 0, floats, 0);
    frames.push({ints: base64(ints), floats: base64(floats)});
  }
  process.stdout.write(JSON.stringify({frames}) + '\n');
}

// A battle of a server, from what it noted (seed, teams, choices): what each player would have seen in VGCVecEnv.
function rerun(inputLog) {
  const players = [new Player(0), new Player(1)];
  let battle;
  let position = 0;
  const deliver = () => {
    position = distribute(battle, players, position);
    for (const side of battle.sides) {
      if (!side.activeRequest) continue;
      players[side.n].ask(side.activeRequest);
      if (!side.activeRequest.wait) players[side.n].observe({});
    }
  };
  for (const line of inputLog) {
    const [, command, rest] = /^>(\S+) ?(.*)/.exec(line);
    if (command === 'start') battle = new Battle({...JSON.parse(rest), send: () => {}});
    else if (command === 'player') battle.setPlayer(rest.slice(0, 2), JSON.parse(rest.slice(3)));
    else if (/^p[12]$/.test(command)) battle.choose(command, rest);
    if (!battle || !battle.sides.every(side => side) || battle.log.length === position) continue;
    // That both players agreed to open their sheets is in no input log.
    if (position === 0 && job.openTeamSheets) battle.showOpenTeamSheets();
    deliver();
  }
  process.stdout.write(JSON.stringify({sides: players.map(player => player.entries)}) + '\n');
}

if (job.inputLog) rerun(job.inputLog);
for (const [role, entries] of job.replay || []) replay(role, entries);
let done = 0;
if (!job.replay && !job.inputLog) for (let i = 0; i < (job.battles || Infinity) &&
  done < (job.decisions || Infinity); i++) done += play((job.first || 0) + i);
