'use strict';
// columns.json, the one table of the observation, as offsets: where each group and each column inside a row of it
// starts. Names are looked up here, once, never while playing.
const path = require('path');

const COLUMNS = require(path.join(__dirname, '..', 'columns.json'));

function layout() {
  const groups = {};
  let ints = 0;
  let floats = 0;
  for (const group of COLUMNS.groups) {
    const shared = group.shared ? COLUMNS.shared[group.shared] : {ints: [], floats: []};
    const intNames = [...shared.ints, ...group.ints].map(column => column.name);
    const floatNames = [...shared.floats, ...group.floats].map(column => column.name);
    groups[group.name] = {
      ints, floats, intWidth: intNames.length, floatWidth: floatNames.length,
      int: Object.fromEntries(intNames.map((name, index) => [name, index])),
      float: Object.fromEntries(floatNames.map((name, index) => [name, index])),
    };
    ints += intNames.length * group.rows;
    floats += floatNames.length * group.rows;
  }
  return {groups, ints, floats};
}

const LAYOUT = layout();
// Row of an active slot: the stages come first, then what the request says, then the volatile effects.
const VOLATILE = LAYOUT.groups.active.float;

module.exports = {COLUMNS, LAYOUT, VOLATILE, VOLATILES: LAYOUT.groups.active.floatWidth};
