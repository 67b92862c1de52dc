'use strict';
// Names as the protocol spells them -> ids of vocab.json, and the public dex facts behind an id.
const path = require('path');

const table = require(path.join(__dirname, '..', 'vocab.json'));

const STATUS = {brn: 1, par: 2, slp: 3, frz: 4, psn: 5, tox: 6};
const BOOST = {atk: 0, def: 1, spa: 2, spd: 3, spe: 4, accuracy: 5, evasion: 6};
const NONE = 1; // known to be absent; 0 is unknown

const toID = text => text.toLowerCase().replace(/[^a-z0-9]+/g, '');

// Every name is spelled out once and then found in a map: the regular expression never runs in the middle of a battle.
function finder(names, aliases = {}) {
  const ids = new Map(names.map((name, index) => [name, index]));
  for (const [name, target] of Object.entries(aliases)) ids.set(name, ids.get(target));
  const cache = new Map();
  return text => {
    let id = cache.get(text);
    if (id === undefined) {
      id = ids.get(toID(text)) || 0;
      cache.set(text, id);
    }
    return id;
  };
}

const type = finder(table.types);
const ability = finder(table.abilities);
const item = finder(table.items);
const move = finder(table.moves);
const species = finder(table.species, table.looks);

const detailsCache = new Map();

// "Urshifu-Rapid-Strike, L50, F, tera:Water" -> species and level; team preview hides some formes behind "-*".
function details(text) {
  let found = detailsCache.get(text);
  if (!found) {
    const parts = text.split(', ');
    const name = parts[0].endsWith('-*') ? parts[0].slice(0, -2) : parts[0];
    const level = parts.find(part => /^L\d+$/.test(part));
    found = {species: species(name), level: level ? +level.slice(1) : 100, hidden: name !== parts[0]};
    detailsCache.set(text, found);
  }
  return found;
}

const sheets = new Map(); // a process knows the teams of its job, and nobody writes to what they mean

// The packed team of |showteam|.
function sheet(packed) {
  let known = sheets.get(packed);
  if (!known) sheets.set(packed, known = readSheet(packed));
  return known;
}

function readSheet(packed) {
  return packed.split(']').map(text => {
    const fields = text.split('|');
    const moves = fields[4] ? fields[4].split(',').map(move) : [];
    return {
      species: species(fields[1] || fields[0]), item: fields[2] ? item(fields[2]) : NONE, ability: ability(fields[3]),
      moves, tera: type((fields[11] || '').split(',')[5] || ''),
    };
  });
}

// Facts of moves and species as the columns want them, side by side in memory: 48 moves and 12 species go into every
// frame.
const MOVE_COLUMNS = 4;
const moveColumns = new Float32Array(MOVE_COLUMNS * table.moves.length);
table.moveFacts.forEach(([, category, power, accuracy, priority], id) => {
  moveColumns.set([power / 150, accuracy / 100, priority / 5, category], MOVE_COLUMNS * id);
});
const baseColumns = new Float32Array(6 * table.species.length);
table.speciesFacts.forEach((facts, index) => baseColumns.set(facts[2].map(stat => stat / 255), 6 * index));

const formesCache = [];
function formesOf(index) {
  const facts = table.speciesFacts;
  formesCache[index] ??= facts.flatMap((other, at) => (other[4] === facts[index][4] ? [at] : []));
  return formesCache[index];
}

module.exports = {
  STATUS, BOOST, NONE, type, ability, item, move, species, details, sheet,
  ILLUSION: ability('illusion'), STELLAR: type('stellar'), AS_ONE_ICE: ability('asoneglastrier'),
    AS_ONE_SHADOW: ability('asonespectrier'),
  sameSpecies: (a, b) => table.speciesFacts[a][4] === table.speciesFacts[b][4],
  formesOf,
  abilitiesOf: index => table.speciesFacts[index][3],
  typesOf: index => table.speciesFacts[index],
  baseStatsOf: index => table.speciesFacts[index][2],
  moveFacts: table.moveFacts,
  moveFlags: table.moveFlags,
  moveTraits: table.moveTraits,
  speciesTraits: table.speciesTraits,
  breakable: table.breakable,
  types: table.types,
  items: table.items.length,
  TYPES: table.types.length,
  MOVE_COLUMNS, moveColumns, baseColumns,
  chart: table.chart,
  TERA_BLAST: move('terablast'),
  itemName: index => table.items[index],
  abilityName: index => table.abilities[index],
  moveName: index => table.moves[index],
  speciesName: index => table.species[index],
};
