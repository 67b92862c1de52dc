'use strict';
// Copies of battles and of views, for many futures of one position.
//
// Battle.toJSON and fromJSON take longer for a copy than the turn that is played in it; copying the objects themselves
// takes 0.4 of a turn. What the package never writes to (species, moves, items, formats, anything frozen) is shared.

const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {Side} = require('pokemon-showdown/dist/sim/side');
const {Pokemon} = require('pokemon-showdown/dist/sim/pokemon');
const {Field} = require('pokemon-showdown/dist/sim/field');
const {BattleQueue} = require('pokemon-showdown/dist/sim/battle-queue');
const {BattleActions} = require('pokemon-showdown/dist/sim/battle-actions');
const {PRNG} = require('pokemon-showdown');

const PARTS = new Set([Battle, Side, Pokemon, Field, BattleQueue, BattleActions, Object].map(kind => kind.prototype));
// Never written to after a battle's start, or begun anew in a copy.
const SHARED = new Set(['dex', 'format', 'ruleTable', 'set', 'team', 'species', 'baseSpecies', 'lastMove',
  'lastMoveUsed', 'lastMoveEncore', 'sourceEffect', 'moveData', 'effect', 'event', 'send']);
const FRESH = new Set(['log', 'inputLog', 'messageLog']);

// getHealth and getFullDetails are arrow functions: their `this` is the Pokémon they were made for. The same text,
// made again for another one.
const bound = new Map();
function rebind(name, pokemon) {
  if (!bound.has(name)) bound.set(name, new Function(`return ${pokemon[name].toString()}`));
  return bound.get(name).call(pokemon);
}

// A move that waits in the queue: it will be written to while it is in use.
function copyMove(move) {
  return Object.isFrozen(move) ? move : Object.assign(Object.create(Object.getPrototypeOf(move)), move);
}

// V8 may turn an object whose hundred fields are added one by one into a hash table: a constructor that knows the
// fields makes it.
const blanks = new Map();
function blankOf(kind, value) {
  if (kind === Object.prototype || kind === null) return kind ? {} : Object.create(null);
  let Blank = blanks.get(kind);
  if (!Blank) {
    const fields = Object.keys(value).map(key => `this[${JSON.stringify(key)}] = undefined;`);
    Blank = new Function(`return function () { ${fields.join(' ')} };`)();
    Blank.prototype = kind;
    blanks.set(kind, Blank);
  }
  return new Blank();
}

function copyBattle(battle) {
  const seen = new Map();
  const copy = value => {
    if (value === null || typeof value !== 'object') return value;
    const known = seen.get(value);
    if (known) return known;
    if (Array.isArray(value)) {
      const list = new Array(value.length);
      seen.set(value, list);
      for (let i = 0; i < value.length; i++) list[i] = copy(value[i]);
      return list;
    }
    if (value instanceof Set) {
      const set = new Set();
      seen.set(value, set);
      for (const item of value) set.add(copy(item));
      return set;
    }
    if (value instanceof PRNG) return new PRNG(value.getSeed());
    const kind = Object.getPrototypeOf(value);
    if (!(PARTS.has(kind) || kind === null) || Object.isFrozen(value)) return value;
    const made = blankOf(kind, value);
    seen.set(value, made);
    for (const key in value) {
      if (FRESH.has(key)) made[key] = [];
      else if (SHARED.has(key)) made[key] = value[key];
      else if (key === 'move' && value.move && typeof value.move === 'object') made.move = copyMove(value.move);
      else made[key] = copy(value[key]);
    }
    if (kind === Pokemon.prototype) {
      made.getHealth = rebind('getHealth', made);
      made.getFullDetails = rebind('getFullDetails', made);
    }
    return made;
  };
  const made = copy(battle);
  made.sentLogPos = 0;
  made.lastMoveLine = -1;
  return made;
}

// A view and all that hangs on it; requests are shared.
function copyView(view) {
  const seen = new Map();
  const copy = value => {
    if (value === null || typeof value !== 'object') return value;
    const known = seen.get(value);
    if (known) return known;
    let made;
    if (ArrayBuffer.isView(value)) {
      seen.set(value, made = value.slice());
    } else if (Array.isArray(value)) {
      seen.set(value, made = new Array(value.length));
      for (let i = 0; i < value.length; i++) made[i] = copy(value[i]);
    } else if (value instanceof Map) {
      seen.set(value, made = new Map());
      for (const [key, item] of value) made.set(key, copy(item));
    } else {
      seen.set(value, made = Object.create(Object.getPrototypeOf(value)));
      for (const key of Object.keys(value)) {
        made[key] = key === 'req' || key === 'entry' ? value[key] : copy(value[key]);
      }
    }
    return made;
  };
  return copy(view);
}

module.exports = {copyBattle, copyView};
