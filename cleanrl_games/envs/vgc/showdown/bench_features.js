'use strict';
// What an observation costs inside Node: replays traced battles through PlayerView and prints milliseconds per
// decision, in turns with and without the columns that writeDamage makes.
//
//   node trace.js < job.json | node bench_features.js
const fs = require('fs');
const {PlayerView, INTS, FLOATS} = require('./features');

class WithoutDamage extends PlayerView {
  writeDamage() {}
}

const ROUNDS = 20;
const streams = [];
for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
  if (line) JSON.parse(line).sides.forEach((entries, side) => streams.push([`p${side + 1}`, entries]));
}
const ints = new Int16Array(INTS);
const floats = new Float32Array(FLOATS);

function round(View) {
  let decisions = 0;
  let lines = 0;
  const before = process.cpuUsage();
  for (const [role, entries] of streams) {
    const view = new View(role);
    for (const entry of entries) {
      if (entry.lines) {
        lines += entry.lines.length;
        for (const line of entry.lines) view.line(line);
      } else if (entry.request) {
        view.request(entry.request);
      } else {
        view.write(ints, 0, floats, 0);
        decisions++;
      }
    }
  }
  const {user, system} = process.cpuUsage(before);
  return {decisions, lines, ms: (user + system) / 1000};
}

const median = values => values.sort((a, b) => a - b)[values.length >> 1];
const turns = [];
for (let i = 0; i < ROUNDS + 3; i++) turns.push([round(PlayerView), round(WithoutDamage)]);
turns.splice(0, 3); // the compiler has settled by then
const [[{decisions, lines}]] = turns;
const withAll = median(turns.map(([{ms}]) => ms)) / decisions;
const without = median(turns.map(([, {ms}]) => ms)) / decisions;
console.log(JSON.stringify({ms_per_decision: +withAll.toFixed(4), ms_without_damage: +without.toFixed(4),
  ms_of_damage: +(withAll - without).toFixed(4), lines_per_decision: +(lines / decisions).toFixed(1), decisions}));
