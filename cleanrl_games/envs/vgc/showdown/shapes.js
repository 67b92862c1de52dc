'use strict';
// One hidden class for all moves, one for all abilities, and so on, applied from outside the package by install().
//
// The package builds each move, ability, item and condition with just the fields it has, in the order its data file has
// them: 954 moves in 202 shapes. V8 remembers where a field lies for each pair of shape and name, in a table of some
// 2,500 places for the whole program; the moves of a few battles overflow it, and then every `move.flags` is a search
// (200 of them in a decision). Here all objects of a kind have all fields of the kind, in one order; what they lack is
// undefined, as it was. Nothing in the package lists the fields of these objects, and that battles stay the same is
// tested with the rest of dispatch.js.

const {Pokemon} = require('pokemon-showdown/dist/sim/pokemon');
const {Side} = require('pokemon-showdown/dist/sim/side');
const {DexMoves} = require('pokemon-showdown/dist/sim/dex-moves');
const {DexAbilities} = require('pokemon-showdown/dist/sim/dex-abilities');
const {DexItems} = require('pokemon-showdown/dist/sim/dex-items');
const {DexConditions} = require('pokemon-showdown/dist/sim/dex-conditions');

const EFFECTS = Symbol('effects of a Pokémon'); // what dispatch.js remembers of it

// What the simulator writes on a move while it is in use, from the package's own declaration of ActiveMove.
const IN_USE = ['hit', 'moveHitData', 'hitTargets', 'ability', 'allies', 'auraBooster', 'causedCrashDamage',
  'forceStatus', 'hasAuraBreak',
  'hasBounced', 'hasSheerForce', 'isExternal', 'lastHit', 'magnitude', 'pranksterBoosted', 'selfDropped', 'statusRoll',
  'stellarBoosted',
  'totalDamage', 'typeChangerBoosted', 'infiltrates', 'ruinedAtk', 'ruinedDef', 'ruinedSpA', 'ruinedSpD',
  'isZOrMaxPowered'];

const conditionsOf = table => Object.values(table).map(data => data.condition);
const MOVES = {group: DexMoves, cache: 'moveCache', tables: ({Moves}) => [Moves]};
const KINDS = [
  MOVES,
  {group: DexAbilities, cache: 'abilityCache', tables: ({Abilities}) => [Abilities]},
  {group: DexItems, cache: 'itemCache', tables: ({Items}) => [Items]},
  {
    group: DexConditions, cache: 'conditionCache',
    tables: ({Conditions, Moves, Abilities, Items}) => [Conditions, ...[Moves, Abilities, Items].map(conditionsOf)],
  },
];

// A constructor that takes all fields from another object.
function compile(fields, prototype, rest = '') {
  const lines = fields.map(key => `this[${JSON.stringify(key)}] = data[${JSON.stringify(key)}];`);
  const Shape = new Function(`return function (data) { ${lines.join(' ')} ${rest} };`)();
  Shape.prototype = prototype;
  return Shape;
}

// The fields that some object of the kind has.
function fieldsOf(tables, example) {
  const keys = new Set(Object.keys(example));
  for (const table of tables) {
    for (const id in table) for (const key in table[id]) keys.add(key);
  }
  return [...keys];
}

const shapeOf = new WeakMap(); // an object in a common shape -> its constructor

// From here on every object of the kind is looked up as before, made as before, and then poured into the common shape.
function unify({group, cache, tables}) {
  const stock = group.prototype.getByID;
  const shapes = new WeakMap(); // dex -> constructor
  group.prototype.getByID = function (id) {
    const known = this[cache].get(id);
    if (known) return known;
    const found = stock.call(this, id);
    // Aliases lead to an object in its shape already, what does not exist is not kept, and the fields of a rule are
    // listed.
    if (shapeOf.has(found) || this[cache].get(id) !== found || !Object.isFrozen(found)) return found;
    const prototype = Object.getPrototypeOf(found);
    if (prototype === Object.prototype) return found; // "item:…" and "ability:…": copies of an object in its shape
    if (!shapes.has(this.dex)) shapes.set(this.dex, compile(fieldsOf(tables(this.dex.data), found), prototype));
    const Shape = shapes.get(this.dex);
    const shaped = Object.freeze(new Shape(found));
    for (const key in found)
      if (!(key in shaped))
        throw new Error(`the common shape has no place for "${key}" of ${found.fullname}`);
    shapeOf.set(shaped, Shape);
    this[cache].set(id, shaped);
    return shaped;
  };
}

// ---------------------------------------------------------------- moves in use

// A move in use is a deep copy of its data; the package makes it field by field (9 µs, some 25 in a turn). Here all
// share one constructor, and what hangs on a field is copied by code that the first copy of the move writes. Data are
// frozen, so the code stays right.
const shapesInUse = new WeakMap(); // constructor of the data -> constructor of moves in use
const recipes = new WeakMap(); // data -> how to copy it
const flagNames = new WeakMap(); // dex -> names

// All flags of all moves, in one order; to lack a flag is to have it undefined. Only moves in use: the validator asks
// `flag in flags`.
function flagsCode(flags, all, path) {
  return `{${all.map(flag => `${flag}: ${flag in flags ? `${path}.${flag}` : undefined}`).join(', ')}}`;
}

function copyCode(value, path) {
  if (value === null || typeof value !== 'object') return path;
  if (Array.isArray(value)) return `[${value.map((item, i) => copyCode(item, `${path}[${i}]`)).join(', ')}]`;
  if (Object.getPrototypeOf(value) !== Object.prototype) return `clone(${path})`;
  const fields = Object.keys(value).map(key =>
    `${JSON.stringify(key)}: ${copyCode(value[key], `${path}[${JSON.stringify(key)}]`)}`);
  return `{${fields.join(', ')}}`;
}

function recipeOf(dex, data) {
  const Shape = shapeOf.get(data);
  if (!Shape) return null;
  if (!shapesInUse.has(Shape)) {
    const fields = Object.keys(data).filter(key => !IN_USE.includes(key));
    const blank = IN_USE.map(key => `this.${key} = ${key === 'hit' ? 0 : undefined};`).join(' ');
    shapesInUse.set(Shape, compile(fields, Object.getPrototypeOf(data), blank));
  }
  if (!flagNames.has(dex)) flagNames.set(dex, [...new Set(Object.values(dex.data.Moves).flatMap(move =>
    Object.keys(move.flags || {})))]);
  const code = Object.keys(data).filter(key => data[key] !== null && typeof data[key] === 'object').map(key => {
    const field = `[${JSON.stringify(key)}]`;
    const copy = key === 'flags' ? flagsCode(data.flags, flagNames.get(dex), 'data.flags') : copyCode(data[key],
      `data${field}`);
    return `move${field} = ${copy};`;
  });
  const copyBranches = new Function('data', 'clone', `return function (move) { ${code.join(' ')} };`)(data,
    dex.deepClone);
  return {InUse: shapesInUse.get(Shape), copyBranches};
}

// The copy, or null for data that were not made in the common shape: the package copies those.
function copyMove(dex, data) {
  let recipe = recipes.get(data);
  if (recipe === undefined) recipes.set(data, recipe = recipeOf(dex, data));
  if (!recipe) return null;
  const move = new recipe.InUse(data);
  recipe.copyBranches(move);
  return move;
}

// ---------------------------------------------------------------- Pokémon

// Fields that a Pokémon gets some day, in the order of that day: all of them at once. `terastallized` is last because
// it is deleted when the Pokémon faints, and V8 turns an object into a hash table (with a shape of its own) when any
// other field is deleted.
function unifyPokemon() {
  const {addPokemon} = Side.prototype;
  Side.prototype.addPokemon = function (set) {
    const pokemon = addPokemon.call(this, set);
    if (!pokemon) return pokemon;
    pokemon.lastMoveTargetLoc = undefined;
    pokemon.pendingStaleness = undefined;
    pokemon.staleness = undefined;
    pokemon[EFFECTS] = null;
    pokemon.terastallized = undefined;
    return pokemon;
  };
  // The same trap: what is left of the volatiles moves into a new object.
  const {removeVolatile} = Pokemon.prototype;
  Pokemon.prototype.removeVolatile = function (status) {
    const removed = removeVolatile.call(this, status);
    if (removed) this.volatiles = {...this.volatiles};
    return removed;
  };
}

function install() {
  KINDS.forEach(unify);
  unifyPokemon();
}

module.exports = {install, copyMove, EFFECTS};
