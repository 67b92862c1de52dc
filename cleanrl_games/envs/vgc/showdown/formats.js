'use strict';
// Regulations that the package does not list are a listed format and rules on top: regulations.json. Here they become
// what Showdown takes.
const path = require('path');

const REGULATIONS = require(path.join(__dirname, '..', 'regulations.json'));

// "gen9vgc2024regh" -> "gen9vgc2024regg@@@-Restricted Legendary,…"; more rules may follow. A listed format stays as it
// is.
function simulatorFormat(id, more = []) {
  const {base, rules} = REGULATIONS[id] || {base: id, rules: []};
  const all = [...rules, ...more];
  return all.length ? `${base}@@@${all.join(',')}` : base;
}

const nameOf = id => REGULATIONS[id] && REGULATIONS[id].name;

module.exports = {simulatorFormat, nameOf};
