'use strict';
// What an observation costs inside Node: replays traced battles through PlayerView and prints milliseconds per
// decision.
//
//   node trace.js < job.json | node bench_features.js
const fs = require('fs');
const {PlayerView, INTS, FLOATS} = require('./features');

const ROUNDS = 20;
const streams = [];
for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
  if (line) JSON.parse(line).sides.forEach((entries, side) => streams.push([`p${side + 1}`, entries]));
}
const ints = new Int16Array(INTS);
const floats = new Float32Array(FLOATS);

function round() {
  let decisions = 0;
  let lines = 0;
  for (const [role, entries] of streams) {
    const view = new PlayerView(role, {});
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
  return {decisions, lines};
}

for (let i = 0; i < 3; i++) round(); // let the compiler settle
const before = process.cpuUsage();
const totals = {decisions: 0, lines: 0};
for (let i = 0; i < ROUNDS; i++) {
  const {decisions, lines} = round();
  totals.decisions += decisions;
  totals.lines += lines;
}
const used = process.cpuUsage(before);
const ms = (used.user + used.system) / 1000;
console.log(JSON.stringify({ms_per_decision: +(ms / totals.decisions).toFixed(4),
  lines_per_decision: +(totals.lines / totals.decisions).toFixed(1), decisions: totals.decisions}));
