'use strict';
// Writes the vocabularies of the observation (stdout, JSON): every id an embedding can see and the public dex facts
// that the features use. The order is alphabetical, so the same package always gives the same file.
//   node vocab.js > ../vocab.json        (with pokemon-showdown on NODE_PATH)
const {Dex} = require('pokemon-showdown');

const FOREIGN = new Set(['CAP', 'Custom', 'LGPE']); // never legal in an official doubles format
const STATS = ['hp', 'atk', 'def', 'spa', 'spd', 'spe'];
const CATEGORY = {Physical: 1, Special: -1, Status: 0};
// What abilities, items and the field ask of a move; a move's flags are a sum of 2 ** place.
const FLAGS = ['contact', 'punch', 'slicing', 'bite', 'pulse', 'sound', 'bullet', 'wind', 'heal', 'bypasssub'];
const TRAITS = {
  recoil: move => move.recoil || move.hasCrashDamage,
  secondary: move => move.secondaries || move.hasSheerForce,
  always_crits: move => move.willCrit,
  ignores_stages: move => move.ignoreDefensive,
  ignores_ability: move => move.ignoreAbility,
  hits_defense: move => move.overrideDefensiveStat === 'def',
};
const REACH = {allAdjacentFoes: 1, allAdjacent: 2}; // whom a move hits: 0 one, 1 both foes, 2 the ally too

function listed(table) {
  const seen = new Map();
  for (const entry of table.all()) {
    if (!FOREIGN.has(entry.isNonstandard)) seen.set(entry.id, entry);
  }
  return [...seen.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

function build() {
  // 0: unknown or no row; 1: known to be absent. Real entries start at 2 in every vocabulary.
  const types = ['', '(none)', ...Dex.types.names().map(name => name.toLowerCase()).sort()];
  const abilities = ['', '(none)', ...listed(Dex.abilities).map(entry => entry.id)];
  const items = ['', '(none)', ...listed(Dex.items).map(entry => entry.id)];
  const moves = ['', '(none)'];
  const moveFacts = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]];
  const moveFlags = [...FLAGS, ...Object.keys(TRAITS)];
  const moveTraits = [[0, 0, 0, 0], [0, 0, 0, 0]]; // flags, hits at least, hits at most, reach
  for (const move of listed(Dex.moves)) {
    moves.push(move.id);
    const accuracy = move.accuracy === true ? 101 : move.accuracy;
    moveFacts.push([types.indexOf(move.type.toLowerCase()), CATEGORY[move.category], move.basePower, accuracy,
      move.priority, move.noPPBoosts ? move.pp : move.pp * 8 / 5]);
    const has = moveFlags.map(flag => !!(TRAITS[flag] ? TRAITS[flag](move) : move.flags[flag]));
    const hits = [move.multihit || 1].flat();
    moveTraits.push([has.reduce((sum, on, place) => sum + (on ? 2 ** place : 0), 0), hits[0], hits[hits.length - 1],
      REACH[move.target] || 0]);
  }
  const species = ['', '(none)'];
  const speciesFacts = [[0, 0, [0, 0, 0, 0, 0, 0], [], 0], [0, 0, [0, 0, 0, 0, 0, 0], [], 0]];
  const speciesTraits = [[0, 0], [0, 0]]; // weight in hectograms, 1 if it can still evolve
  const looks = {};
  for (const entry of listed(Dex.species)) {
    species.push(entry.id);
    const [first, second] = entry.types.map(type => types.indexOf(type.toLowerCase()));
    const own = [...new Set(Object.values(entry.abilities).map(name => abilities.indexOf(Dex.toID(name))))];
    speciesFacts.push([first, second || 0, STATS.map(stat => entry.baseStats[stat]), own, entry.num]);
    speciesTraits.push([entry.weighthg, entry.nfe ? 1 : 0]);
    // A cosmetic forme (Gastrodon-East) is the same monster in another coat: it shares the id of its species.
    for (const name of entry.cosmeticFormes || []) looks[Dex.toID(name)] = entry.id;
  }
  // 1 if Mold Breaker and its kin ignore it
  const breakable = [0, 0, ...listed(Dex.abilities).map(entry => (entry.flags.breakable ? 1 : 0))];
  // chart[attack][defence]: the multiplier of one type against another; unknown and absent types count for nothing.
  const name = index => Dex.types.get(types[index]).name;
  const chart = types.map((_, attack) => types.map((__, defence) => {
    if (attack < 2 || defence < 2) return 1;
    return Dex.getImmunity(name(attack), name(defence)) ? 2 ** Dex.getEffectiveness(name(attack), name(defence)) : 0;
  }));
  return {types, chart, abilities, breakable, items, moves, moveFacts, moveFlags, moveTraits, species, speciesFacts,
    speciesTraits, looks};
}

if (require.main === module) {
  const vocab = build();
  const lines = Object.entries(vocab).map(([name, value]) => `"${name}": ${JSON.stringify(value)}`);
  process.stdout.write(`{\n${lines.join(',\n')}\n}\n`);
}

module.exports = {build};
