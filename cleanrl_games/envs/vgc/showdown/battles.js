'use strict';
// How a battle comes to be: format with or without open sheets, teams and dice drawn from (seed, battle, episode)
// alone, so that a battle is the same whichever process plays it and whenever.

const {Dex, Teams, PRNG} = require('pokemon-showdown');
const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {simulatorFormat, nameOf} = require('./formats');

// A 32-bit hash of three integers (murmur's finaliser over a running sum).
function mix(a, b, c) {
  let h = (Math.imul(a, 0x9e3779b1) ^ Math.imul(b + 0x7f4a7c15, 0x85ebca6b) ^ Math.imul(c + 0x165667b1,
    0xc2b2ae35)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

const formats = new Map();

// On the best-of-one ladder the sheets open only if both players agree, and the simulator asks them; "Force Open Team
// Sheets" is its own rule for official play.
function battleFormat(id, openTeamSheets) {
  const key = `${id} ${openTeamSheets}`;
  if (!formats.has(key)) {
    const rules = Dex.formats.getRuleTable(Dex.formats.get(simulatorFormat(id)));
    const changes = [];
    if (openTeamSheets && !rules.has('forceopenteamsheets')) {
      if (rules.has('openteamsheets')) changes.push('!Open Team Sheets');
      changes.push('Force Open Team Sheets');
    }
    if (!openTeamSheets && rules.has('forceopenteamsheets')) changes.push('!Force Open Team Sheets');
    const found = Dex.formats.get(simulatorFormat(id, changes), true);
    const format = Object.assign(Object.create(Object.getPrototypeOf(found)), found);
    if (nameOf(id)) format.name = nameOf(id); // so that a battle's log says which regulation it is of
    const dexFormats = Dex.forFormat(format).formats;
    // The package keeps neither a rule table that repeals something nor the rules themselves, and asks for both in
    // every battle.
    format.ruleTable = dexFormats.getRuleTable(format);
    for (const rule of format.ruleTable.keys()) {
      if (!'+*-!'.includes(rule.charAt(0))) dexFormats.rulesetCache.set(rule, dexFormats.get(rule));
    }
    formats.set(key, format);
  }
  return formats.get(key);
}

function createBattle(format, teams1, teams2, seed, index, episode, send) {
  const dice = mix(mix(seed, index, episode), 1, 1);
  const picks = [mix(dice, 3, 0) % teams1.length, mix(dice, 4, 0) % teams2.length];
  const numbers = [5, 6, 7, 8].map(i => mix(dice, i, 0) & 0xffff);
  const battle = new Battle({
    format, formatid: format.id, send,
    prng: new PRNG(numbers.join(',')),
    // Unpacked anew each time: the simulator edits the sets it is given.
    p1: {name: 'p1', team: Teams.unpack(teams1[picks[0]])},
    p2: {name: 'p2', team: Teams.unpack(teams2[picks[1]])},
  });
  return {battle, picks};
}

module.exports = {battleFormat, createBattle, mix, Dex, Teams};
