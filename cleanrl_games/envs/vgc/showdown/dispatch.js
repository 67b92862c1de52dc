'use strict';
// Faster event dispatch for the stock simulator, applied from outside the package by install().
//
// A turn asks some hundreds of times "who reacts to event E?". The stock answer builds up to five callback names per
// event by string concatenation and looks each up on every effect of every Pokémon, side and field; nearly all look-ups
// find nothing. Here a name is made once (a Callback), a name that no effect of the game defines is never looked up,
// and what an effect says to a name is remembered in a byte. Effects are frozen by the package, so what is remembered
// stays true.
//
// Handlers are found in the stock order and run by the stock code; only events that nobody handles return early. That
// the battles stay the same, line by line and dice roll by dice roll, is tested: tests/test_vgc_dispatch.py,
// bench_vgc.py --identity.

const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {Pokemon} = require('pokemon-showdown/dist/sim/pokemon');
const {Side} = require('pokemon-showdown/dist/sim/side');
const {Field} = require('pokemon-showdown/dist/sim/field');
const {ModdedDex} = require('pokemon-showdown/dist/sim/dex');
const shapes = require('./shapes');

const UNPREFIXED = new Set(['BeforeTurn', 'Update', 'Weather', 'WeatherChange', 'TerrainChange']);
const EFFECT_TYPE_ORDER = {Condition: 2, Weather: 5, Format: 5, Rule: 5, Ruleset: 5, Ability: 7, Item: 8};

const UNKNOWN = 0, ABSENT = 1, PRESENT = 2;
const scanned = new Set(); // dexes whose data have been read
const definedNames = new Set(); // names that some effect defines
const conditionNames = new Set(); // … that some condition (hence a volatile, side, slot or field effect) defines
const callbacks = new Map();

class Callback {
  constructor(name) {
    this.name = name;
    this.says = new Uint8Array(256); // by Effect.number
    this.order = `${name}Order`;
    this.priority = `${name}Priority`;
    this.subOrder = `${name}SubOrder`;
    // These take part of their order from the moment or the holder: left to the stock code.
    this.special = name.endsWith('SwitchIn') || name.endsWith('RedirectTarget') || name === 'onAllyTryHitSide';
    this.anywhere = definedNames.has(name);
    this.inConditions = conditionNames.has(name);
  }
}

function callback(name) {
  let found = callbacks.get(name);
  if (!found) callbacks.set(name, found = new Callback(name));
  return found;
}

// What is remembered of one effect object.
class Effect {
  constructor(data) {
    this.data = data;
    this.number = Effect.count++;
    this.entries = new Map();
    this.defaultSubOrder = EFFECT_TYPE_ORDER[data.effectType] || 0;
    // Only a condition's place depends on what it is attached to.
    this.subOrderOfHolder = data.effectType === 'Condition';
    if (data.effectType === 'Ability') {
      if (data.name === 'Poison Touch' || data.name === 'Perish Body') this.defaultSubOrder = 6;
      if (data.name === 'Stall') this.defaultSubOrder = 9;
    }
    learn(data, definedNames, 'anywhere');
  }

  has(cb) {
    let says = cb.says;
    if (this.number >= says.length) {
      says = cb.says = new Uint8Array(2 * this.number);
    }
    const known = says[this.number];
    if (known !== UNKNOWN) return known === PRESENT;
    const present = this.data[cb.name] !== undefined;
    says[this.number] = present ? PRESENT : ABSENT;
    return present;
  }

  entry(cb) {
    let entry = this.entries.get(cb);
    if (!entry) {
      const data = this.data;
      entry = {
        callback: data[cb.name], order: data[cb.order] || false, priority: data[cb.priority] || 0,
          subOrder: data[cb.subOrder] || 0,
      };
      this.entries.set(cb, entry);
    }
    return entry;
  }
}
Effect.count = 0;

const effects = new WeakMap();
function effectOf(data) {
  let effect = effects.get(data);
  if (!effect) effects.set(data, effect = new Effect(data));
  return effect;
}

function learn(data, names, flag) {
  for (const key in data) {
    // "on…"
    if (key.charCodeAt(0) !== 111 || key.charCodeAt(1) !== 110 || names.has(key) || data[key] === undefined) continue;
    names.add(key);
    const cb = callbacks.get(key);
    if (cb) cb[flag] = true;
  }
}

// Every place from which the package makes an effect: a name found in none of them is one nobody defines.
function scan(dex) {
  scanned.add(dex);
  const {Abilities, Items, Moves, Conditions, Rulesets} = dex.data;
  for (const table of [Abilities, Items, Moves, Conditions, Rulesets]) {
    for (const id in table) {
      const data = table[id];
      if (table !== Moves) learn(data, definedNames, 'anywhere');
      if (table === Conditions || table === Rulesets) learn(data, conditionNames, 'inConditions');
      if (data.condition) {
        learn(data.condition, definedNames, 'anywhere');
        learn(data.condition, conditionNames, 'inConditions');
      }
    }
  }
  for (const table of [dex.data.Pokedex, dex.data.FormatsData]) {
    for (const id in table) learn(table[id], definedNames, 'anywhere');
  }
}

class Plan {
  constructor(event) {
    this.on = callback(`on${event}`);
    this.ally = callback(`onAlly${event}`);
    this.foe = callback(`onFoe${event}`);
    this.any = callback(`onAny${event}`);
    this.source = callback(`onSource${event}`);
    this.prefixed = !UNPREFIXED.has(event);
  }
}

const plans = new Map();
function planOf(event) {
  let plan = plans.get(event);
  if (!plan) plans.set(event, plan = new Plan(event));
  return plan;
}

function push(battle, handlers, effect, cb, state, holder) {
  const data = effect.data;
  const entry = effect.entry(cb);
  if (cb.special) {
    handlers.push(battle.resolvePriority({effect: data, callback: entry.callback, state, end: null,
      effectHolder: holder}, cb.name));
    return;
  }
  let subOrder = entry.subOrder;
  if (!subOrder) {
    subOrder = effect.defaultSubOrder;
    if (effect.subOrderOfHolder && state) {
      if (state.target instanceof Side) subOrder = state.isSlotCondition ? 3 : 4;
      else if (state.target instanceof Field) subOrder = 5;
    }
  }
  handlers.push({
    effect: data, callback: entry.callback, state, end: null, effectHolder: holder,
    order: entry.order, priority: entry.priority, subOrder, effectOrder: undefined,
    speed: holder instanceof Pokemon ? holder.speed : undefined,
    target: undefined, index: undefined,
  });
}

// A Pokémon's status, ability, item and species as Effects; ids are compared because the simulator assigns them
// directly.
function effectsOf(battle, pokemon) {
  let cache = pokemon[shapes.EFFECTS];
  if (!cache) {
    cache = pokemon[shapes.EFFECTS] = {
      statusId: null, status: null, abilityId: null, ability: null, itemId: null, item: null, speciesData: null,
        species: null,
    };
  }
  if (cache.statusId !== pokemon.status) {
    cache.status = effectOf(pokemon.getStatus());
    cache.statusId = pokemon.status;
  }
  if (cache.abilityId !== pokemon.ability) {
    cache.ability = effectOf(pokemon.getAbility());
    cache.abilityId = pokemon.ability;
  }
  if (cache.itemId !== pokemon.item) {
    cache.item = effectOf(pokemon.getItem());
    cache.itemId = pokemon.item;
  }
  if (cache.speciesData !== pokemon.baseSpecies) {
    cache.species = effectOf(pokemon.baseSpecies);
    cache.speciesData = pokemon.baseSpecies;
  }
  return cache;
}

function findPokemon(battle, pokemon, cb, handlers) {
  if (cb.name === 'onSwitchIn') { // falls back to onStart, in ways the table does not know
    for (const handler of battle.findPokemonEventHandlers(pokemon, cb.name)) handlers.push(handler);
    return;
  }
  if (!cb.anywhere) return;
  const own = effectsOf(battle, pokemon);
  if (own.status.has(cb)) push(battle, handlers, own.status, cb, pokemon.statusState, pokemon);
  if (cb.inConditions) findConditions(battle, pokemon.volatiles, cb, handlers, pokemon);
  if (own.ability.has(cb)) push(battle, handlers, own.ability, cb, pokemon.abilityState, pokemon);
  if (own.item.has(cb)) push(battle, handlers, own.item, cb, pokemon.itemState, pokemon);
  if (own.species.has(cb)) push(battle, handlers, own.species, cb, pokemon.speciesState, pokemon);
  if (cb.inConditions) findConditions(battle, pokemon.side.slotConditions[pokemon.position], cb, handlers, pokemon);
}

function findConditions(battle, states, cb, handlers, holder) {
  for (const id in states) {
    const effect = effectOf(battle.dex.conditions.getByID(id));
    if (effect.has(cb)) push(battle, handlers, effect, cb, states[id], holder);
  }
}

function findField(battle, cb, handlers) {
  const field = battle.field;
  if (cb.inConditions) {
    findConditions(battle, field.pseudoWeather, cb, handlers, field);
    if (field.weather) {
      const weather = effectOf(field.getWeather());
      if (weather.has(cb)) push(battle, handlers, weather, cb, field.weatherState, field);
    }
    if (field.terrain) {
      const terrain = effectOf(field.getTerrain());
      if (terrain.has(cb)) push(battle, handlers, terrain, cb, field.terrainState, field);
    }
  }
  const format = effectOf(battle.format);
  if (format.has(cb) || battle.events) {
    for (const handler of battle.findBattleEventHandlers(cb.name)) handlers.push(handler);
  }
}

function findEventHandlers(battle, target, event, source) {
  const handlers = [];
  if (Array.isArray(target)) {
    for (let i = 0; i < target.length; i++) {
      for (const handler of findEventHandlers(battle, target[i], event, source)) {
        handler.target = target[i];
        handler.index = i;
        handlers.push(handler);
      }
    }
    return handlers;
  }
  const plan = planOf(event);
  const bubble = target instanceof Side;
  if (target instanceof Pokemon && (target.isActive || source?.isActive)) {
    findPokemon(battle, target, plan.on, handlers);
    if (plan.prefixed && (plan.any.anywhere || plan.ally.anywhere || plan.foe.anywhere)) {
      findActive(battle, target.side.active, plan.ally, plan.any, handlers);
      findActive(battle, target.side.foe.active, plan.foe, plan.any, handlers);
    }
    target = target.side;
  }
  if (source && plan.prefixed && plan.source.anywhere) findPokemon(battle, source, plan.source, handlers);
  if (target instanceof Side) {
    for (const side of battle.sides) {
      const own = side === target;
      if (bubble) {
        for (const active of side.active) {
          if (own) findPokemon(battle, active, plan.on, handlers);
          else if (plan.prefixed) findPokemon(battle, active, plan.foe, handlers);
          if (plan.prefixed) findPokemon(battle, active, plan.any, handlers);
        }
      }
      if (own) findSide(battle, side, plan.on, handlers);
      else if (plan.prefixed) findSide(battle, side, plan.foe, handlers);
      if (plan.prefixed) findSide(battle, side, plan.any, handlers);
    }
  }
  findField(battle, plan.on, handlers);
  return handlers;
}

function findActive(battle, active, cb, any, handlers) {
  for (const pokemon of active) {
    if (!pokemon || !pokemon.hp) continue;
    if (cb.anywhere) findPokemon(battle, pokemon, cb, handlers);
    if (any.anywhere) findPokemon(battle, pokemon, any, handlers);
  }
}

function findSide(battle, side, cb, handlers) {
  if (cb.inConditions) findConditions(battle, side.sideConditions, cb, handlers, side);
}

// ---------------------------------------------------------------- the patch

// Four-player games bubble events through ally sides: those keep the stock search.
const supported = battle => battle.sides.length === 2 && battle.gameType !== 'freeforall';

let installed = false;

function install() {
  if (installed) return;
  installed = true;
  shapes.install();
  const stock = Battle.prototype;
  const {runEvent, singleEvent, endTurn, findEventHandlers: stockFind} = stock;
  const {getActiveMove} = ModdedDex.prototype;
  let looking = false; // the end of a turn looks at sixteen moves in use and changes none: frozen ones are shared
  const shared = new WeakMap();

  ModdedDex.prototype.getActiveMove = function (move) {
    if (move && typeof move.hit === 'number') return move;
    const data = this.moves.get(move);
    const copy = () => shapes.copyMove(this, data) || getActiveMove.call(this, data);
    if (!looking || !Object.isFrozen(data)) return copy();
    let active = shared.get(data);
    if (!active) shared.set(data, active = this.deepFreeze(copy()));
    return active;
  };

  stock.endTurn = function () {
    looking = true;
    try {
      return endTurn.call(this);
    } finally {
      looking = false;
    }
  };

  let found = null; // handlers on their way from runEvent below into the stock runEvent, which asks for them first

  stock.findEventHandlers = function (target, event, source) {
    if (found) {
      const handlers = found;
      found = null;
      return handlers;
    }
    if (!supported(this)) return stockFind.call(this, target, event, source);
    return findEventHandlers(this, target, event, source);
  };

  stock.runEvent = function (event, target, source, sourceEffect, relayVar, onEffect, fastExit) {
    if (!scanned.has(this.dex)) scan(this.dex);
    if (this.eventDepth < 8 && supported(this)) {
      const handlers = findEventHandlers(this, target || this, event, source instanceof Pokemon ? source : null);
      if (!handlers.length && !onEffect) {
        if (Array.isArray(target)) return Array.isArray(relayVar) ? relayVar : target.map(() => true);
        if (relayVar === undefined || relayVar === null) return true;
        if (typeof relayVar === 'number' && relayVar === Math.abs(Math.floor(relayVar))) return this.modify(relayVar,
          1);
        return relayVar;
      }
      found = handlers;
    }
    return runEvent.call(this, event, target, source, sourceEffect, relayVar, onEffect, fastExit);
  };

  stock.singleEvent = function (event, effect, state, target, source, sourceEffect, relayVar, customCallback) {
    if (!customCallback) {
      customCallback = effect[planOf(event).on.name];
      if (customCallback === undefined && this.eventDepth < 8 && this.log.length - this.sentLogPos <= 1000) {
        return relayVar === undefined ? true : relayVar;
      }
    }
    return singleEvent.call(this, event, effect, state, target, source, sourceEffect, relayVar, customCallback);
  };
}

module.exports = {install};
