'use strict';
// A real Battle in the position that a player's view describes.
//
//   lines, requests of one seat ──> Seat: PlayerView, Chronicle ──┐
//   a world: what the seat cannot see, drawn or (in the check) true ┴──> rebuild() ──> Battle with open requests
//
// A battle is begun with both teams, and then its fields are set: nothing of the log is played again. What cannot be
// put together throws a NotRebuilt, whose message names it: the caller falls back to something else and counts it.

const {PRNG, toID} = require('pokemon-showdown');
const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {VOLATILE} = require('./columns.js');
const {Chronicle, SIDE_ITEMS} = require('./chronicle');
const {PlayerView} = require('./features');
const vocab = require('./vocabulary.js');

const BOOSTS = ['atk', 'def', 'spa', 'spd', 'spe', 'accuracy', 'evasion'];
const STATUSES = ['', 'brn', 'par', 'slp', 'frz', 'psn', 'tox'];
const LONG_WEATHER = {raindance: 'damprock', sunnyday: 'heatrock', sandstorm: 'smoothrock', snowscape: 'icyrock',
  snow: 'icyrock', hail: 'icyrock'};
const LASTING = new Set(['desolateland', 'primordialsea', 'deltastream']);
const LAYERS = new Set(['spikes', 'toxicspikes']);
// Told by -start, and a volatile of that name.
const PLAIN = new Set(['torment', 'leechseed', 'imprison', 'attract', 'focusenergy', 'dragoncheer', 'charge',
  'flashfire', 'saltcure', 'smackdown', 'noretreat', 'octolock', 'ingrain', 'aquaring', 'curse', 'nightmare',
  'tarshot', 'destinybond', 'glaiverush', 'gastroacid', 'foresight', 'miracleeye', 'minimize', 'powertrick',
  'telekinesis', 'embargo', 'laserfocus', 'throatchop', 'yawn', 'magnetrise', 'syrupbomb', 'uproar', 'healblock',
  'taunt', 'encore', 'disable', 'substitute', 'confusion', 'perishsong', 'stockpile', 'protosynthesis', 'quarkdrive',
  'partiallytrapped', 'trapped', 'lockedmove', 'twoturnmove', 'mustrecharge', 'mimic']);
const NOT_VOLATILE = new Set(['slowstart', 'zenmode', 'typechange', 'supersweetsyrup', 'powershift', 'autotomize']);

// Iron Head becomes this when a battle begins.
const SIGNATURES = {zaciancrowned: 'behemothblade', zamazentacrowned: 'behemothbash'};

class NotRebuilt extends Error {}

// Everything one player was sent, as a view and as a chronicle.
class Seat {
  constructor(role) {
    this.role = role;
    this.view = new PlayerView(role);
    this.chronicle = new Chronicle(role);
    this.preview = null; // the first request: the whole team
  }

  line(text) {
    this.view.line(text);
    this.chronicle.line(text);
  }

  request(request) {
    if (request.teamPreview) this.preview = request;
    this.view.request(request);
  }

  get me() {
    return this.role === 'p1' ? 0 : 1;
  }
}

// ---------------------------------------------------------------- one Pokémon

// entry: {mon: of the view, set, hp, pp, sleep, confusion, …}; slot: 0-3 in the view's numbers if it stands.
class Builder {
  constructor(battle, seat, world) {
    this.battle = battle;
    this.seat = seat;
    this.view = seat.view;
    this.chronicle = seat.chronicle;
    this.world = world;
    this.briefSides = [];
  }

  // The Pokémon in a slot of the view.
  at(slot) {
    if (slot < 0) return null;
    const side = this.battle.sides[slot < 2 ? this.seat.me : 1 - this.seat.me];
    return side.pokemon[slot & 1] || null;
  }

  state(id, target, fields) {
    return this.battle.initEffectState({id, name: this.battle.dex.conditions.get(id).name, target, ...fields});
  }

  settle(pokemon, entry, mine, slot) {
    const {battle} = this;
    const {mon} = entry;
    const species = battle.dex.species.get(speciesOf(entry));
    pokemon.baseSpecies = species; // coming in may have changed it
    pokemon.set.species = entry.set.species;
    pokemon.formeRegression = species.id !== toID(entry.set.species) &&
      (species.name.endsWith('-Tera') || species.name === 'Terapagos-Stellar' || !!species.isMega);
    pokemon.maxhp = 0;
    pokemon.clearVolatile();
    pokemon.details = pokemon.getUpdatedDetails();
    pokemon.status = '';
    pokemon.statusState = battle.initEffectState({});
    const told = mine ? mon.entry : null;
    const item = told ? told.item : mon.item ? (mon.item === vocab.NONE ? '' : vocab.itemName(mon.item)) :
      toID(entry.set.item);
    pokemon.item = toID(item);
    pokemon.baseAbility = toID(told ? told.baseAbility : mon.ability ? vocab.abilityName(mon.ability) :
      entry.set.ability);
    pokemon.ability = pokemon.baseAbility;
    const lost = this.chronicle.items[mine ? 0 : 1].get(pokemon.name);
    pokemon.lastItem = lost && lost.last !== pokemon.item ? lost.last : '';
    pokemon.ateBerry = this.chronicle.once.has(`${mine ? 0 : 1} ${pokemon.name} berry`);
    pokemon.itemKnockedOff = !!(lost && lost.knocked);
    pokemon.timesAttacked = mon.hitsTaken;
    pokemon.swordBoost = this.chronicle.once.has(`${mine ? 0 : 1} ${pokemon.name} intrepidsword`);
    pokemon.shieldBoost = this.chronicle.once.has(`${mine ? 0 : 1} ${pokemon.name} dauntlessshield`);
    pokemon.previouslySwitchedIn = mon.shown ? 1 : 0;
    pokemon.heroMessageDisplayed = pokemon.species.id === 'palafinhero' && mon.shown && entry.heroShown !== false;
    // Terapagos has that boost for good.
    const boosted = species.baseSpecies === 'Terapagos' ? 0 : mon.stellarTypes;
    pokemon.stellarBoostedTypes = vocab.types.filter((_, type) => boosted & (1 << type))
      .map(type => battle.dex.types.get(type).name);
    if (entry.stats) {
      Object.assign(pokemon.baseStoredStats, entry.stats);
      for (const stat in pokemon.storedStats) pokemon.storedStats[stat] = entry.stats[stat];
    }
    if (entry.maxhp) pokemon.maxhp = pokemon.baseMaxhp = entry.maxhp;
    pokemon.fainted = mon.fainted;
    pokemon.faintQueued = false;
    if (mon.fainted && slot >= 0 && !this.inside) pokemon.status = 'fnt';
    pokemon.subFainted = null;
    pokemon.hp = mon.fainted ? 0 : Math.max(1, Math.min(entry.hp, pokemon.maxhp));
    pokemon.isActive = slot >= 0 && !mon.fainted;
    pokemon.isStarted = pokemon.isActive;
    pokemon.newlySwitched = false;
    pokemon.activeTurns = pokemon.activeMoveActions = 0;
    pokemon.abilityState = battle.initEffectState({id: pokemon.ability, target: pokemon});
    pokemon.itemState = battle.initEffectState({id: pokemon.item, target: pokemon});
    pokemon.baseMoveSlots.forEach((move, i) => {
      move.pp = entry.pp ? entry.pp[i] : Math.max(0, move.maxpp - this.uses(mon, mine, move));
      move.used = false;
      move.disabled = false;
    });
    if (!mon.fainted) this.status(pokemon, entry, mine, slot);
    if (mon.terastallized) {
      pokemon.terastallized = pokemon.teraType;
      pokemon.knownType = true;
      pokemon.apparentType = pokemon.teraType;
    } else {
      pokemon.terastallized = undefined;
    }
  }

  uses(mon, mine, move) {
    const id = vocab.move(move.id);
    if (mine) return Math.round(move.maxpp * (1 - mon.ppOf(id)));
    const at = mon.moves.indexOf(id);
    return at >= 0 ? mon.uses[at] : 0;
  }

  status(pokemon, {mon, sleep}, mine, slot) {
    const id = STATUSES[mon.status];
    if (!id) return;
    pokemon.status = id;
    pokemon.statusState = this.battle.initEffectState({id, target: pokemon});
    if (id === 'slp') {
      // Rest sleeps for three; else it is one of two, three and four, less the turns already lost.
      pokemon.statusState.startTime = sleep ? sleep.start : 3;
      pokemon.statusState.time = sleep ? sleep.time : Math.max(1, 3 - mon.statusTurns);
    }
    if (id === 'tox') {
      const late = slot >= 0 && this.chronicle.stands[(mine ? 0 : 2) + slot].toxicOrb;
      pokemon.statusState.stage = Math.max(0, mon.statusTurns - (late ? 1 : 0));
    }
    pokemon.statusState.source = pokemon;
  }

  // What ends when it leaves the field.
  stand(pokemon, entry, slot) {
    const {battle, view} = this;
    const seen = view.slots[slot];
    const stand = this.chronicle.stands[slot];
    const mine = slot < 2;
    pokemon.activeTurns = stand.turns - (this.moving ? 1 : 0);
    pokemon.activeMoveActions = seen.actions;
    if (pokemon.activeTurns < 0) pokemon.activeTurns = 0;
    this.looks(pokemon, seen, mine);
    BOOSTS.forEach((stat, i) => { pokemon.boosts[stat] = seen.volatile[i]; });
    if (seen.lastMove) {
      const id = vocab.moveName(seen.lastMove);
      pokemon.lastMove = battle.dex.getActiveMove(id);
      pokemon.lastMoveUsed = pokemon.lastMoveEncore = pokemon.lastMove;
      if (stand.target >= 0) pokemon.lastMoveTargetLoc = pokemon.getLocOf(this.at(stand.target));
      for (const used of stand.moves) {
        const move = pokemon.moveSlots.find(other => other.id === used);
        if (move) move.used = true;
      }
    }
    pokemon.moveThisTurnResult = stand.failed &&
      stand.actedIn === this.chronicle.turn - (this.moving ? 1 : 0) ? false : undefined;
    const ability = mine ? toID(entry.mon.entry.ability || pokemon.baseAbility) :
      seen.ability > 0 ? vocab.abilityName(seen.ability) : pokemon.baseAbility;
    pokemon.ability = ability;
    pokemon.abilityState = battle.initEffectState({id: ability, target: pokemon});
    pokemon.itemState = battle.initEffectState({id: pokemon.item, target: pokemon});
    pokemon.abilityState.started = pokemon.itemState.started = true;
    if (seen.fallen) pokemon.abilityState.fallen = seen.fallen;
    if (stand.libero) pokemon.abilityState.libero = pokemon.abilityState.protean = true;
    if (ability === 'unnerve' || ability.startsWith('asone')) pokemon.abilityState.unnerved = true;
    if (ability === 'gorillatactics') pokemon.abilityState.choiceLock = stand.moves[stand.moves.length - 1] || '';
    if (ability.startsWith('embodyaspect')) pokemon.abilityState.embodied = true;
    if (ability === 'slowstart' && seen.volatile[VOLATILE.slow_start])
      pokemon.abilityState.counter = Math.max(1, 5 - Math.min(seen.ends, stand.turns));
    if (ability === 'truant' && seen.actions % 2) this.add(pokemon, 'truant');
    if (ability === 'unburden' && seen.lostItem && !pokemon.item) this.add(pokemon, 'unburden');
  }

  looks(pokemon, seen, mine) {
    const {battle} = this;
    if (seen.volatile[VOLATILE.transformed]) this.transform(pokemon, seen);
    else if (seen.species && (mine || !this.view.deceivers)) {
      const species = battle.dex.species.get(vocab.speciesName(seen.species));
      if (species.baseSpecies === pokemon.baseSpecies.baseSpecies) pokemon.setSpecies(species);
    }
    const type = id => battle.dex.types.get(vocab.types[id]).name;
    if (seen.typesChanged) {
      const types = seen.types.filter(Boolean).map(type);
      pokemon.types = types.length ? types : ['???'];
      pokemon.apparentType = pokemon.types.join('/');
    }
    if (seen.type3) pokemon.addedType = type(seen.type3);
  }

  transform(pokemon, seen) {
    const target = this.battle.getAllActive().find(other => other !== pokemon &&
      vocab.species(other.species.id) === seen.species && !other.transformed);
    if (!target) throw new NotRebuilt('transformed into somebody who is gone');
    if (!pokemon.transformInto(target)) throw new NotRebuilt('transformed');
  }

  add(pokemon, id, fields = {}) {
    pokemon.volatiles[id] = this.state(id, pokemon, {source: pokemon, sourceSlot: pokemon.getSlot(), ...fields});
    return pokemon.volatiles[id];
  }

  effects(pokemon, entry, slot) {
    const {battle} = this;
    const seen = this.view.slots[slot];
    const stand = this.chronicle.stands[slot];
    const {dex} = battle;
    for (const [id, effect] of stand.effects) {
      if (effect.gone || NOT_VOLATILE.has(id)) continue;
      if (!PLAIN.has(id)) throw new NotRebuilt(`effect ${id}`);
      const source = this.at(effect.of) || pokemon;
      const state = this.add(pokemon, id, {source, sourceSlot: source.getSlot()});
      const {duration} = dex.conditions.get(id);
      if (duration) state.duration = Math.max(1, this.length(id, effect, duration) - effect.ends);
      if (id === 'encore') state.move = effect.target || this.lastChosen(stand, effect);
      if (id === 'disable') state.move = effect.arg;
      if (id === 'substitute') state.hp = entry.substitute || Math.floor(pokemon.maxhp / 4);
      if (id === 'confusion') state.time = entry.confusion || 2;
      if (id === 'perishsong') state.duration = effect.left;
      if (id === 'stockpile') {
        state.layers = effect.layers;
        state.def = -effect.raised[0];
        state.spd = -effect.raised[1];
      }
      if (id === 'protosynthesis' || id === 'quarkdrive') {
        state.bestStat = effect.stat;
        if (effect.booster) state.fromBooster = true;
      }
      if (id === 'partiallytrapped') {
        state.sourceEffect = dex.getActiveMove(effect.arg);
        state.boundDivisor = source.item === 'bindingband' ? 6 : 8;
        state.duration = entry.bound || Math.max(1, 5 - effect.ends);
      }
      if (id === 'trapped') {
        state.linkedPokemon = [source];
        state.linkedStatus = dex.conditions.get('trapper');
        const back = this.add(source, 'trapper', {source: pokemon});
        back.linkedPokemon = [pokemon];
        back.linkedStatus = dex.conditions.get('trapped');
      }
      if (id === 'dragoncheer') state.hasDragonType = pokemon.hasType('Dragon');
      if (id === 'lockedmove') {
        state.move = effect.arg;
        state.duration = 1;
        state.trueDuration = entry.locked || 1;
      }
      if (id === 'twoturnmove') {
        state.move = effect.arg;
        state.duration = 1;
        this.add(pokemon, effect.arg, {targetLoc: entry.charging ||
          (stand.target >= 0 ? pokemon.getLocOf(this.at(stand.target)) : 1)});
      }
      if (id === 'mustrecharge') state.duration = 1;
      if (id === 'uproar') state.duration = Math.max(1, 3 - effect.ends);
    }
    const ago = this.chronicle.turn - stand.stallTurn; // turns since it protected itself
    if (seen.protects > 0 && (this.moving ? ago === 1 : ago === 0 || (this.inside && ago === 1))) {
      const counter = Math.min(729, 3 ** seen.protects);
      this.add(pokemon, 'stall', {counter, duration: this.inside && ago === 0 ? 2 : 1});
    }
    if (this.inside) for (const id of stand.brief) this.brief(pokemon, id);
    const choice = dex.items.get(pokemon.item).isChoice;
    const last = stand.moves.filter(move => move !== 'struggle').pop();
    if (choice && last && pokemon.hasMove(last)) this.add(pokemon, 'choicelock', {move: last});
    if (seen.volatile[VOLATILE.commander]) {
      this.add(pokemon, 'commanding');
      const ally = pokemon.allies()[0];
      if (ally) this.add(ally, 'commanded', {source: pokemon});
    }
  }

  // What lasts until the end of this turn.
  brief(pokemon, id) {
    const condition = this.battle.dex.conditions.get(id);
    if (!condition.exists) throw new NotRebuilt(`in mid-turn ${id}`);
    if (['wideguard', 'quickguard', 'matblock', 'craftyshield'].includes(id)) {
      this.briefSides.push([pokemon.side, id, pokemon]);
    } else {
      this.add(pokemon, id, {duration: 1});
      if (id === 'helpinghand') pokemon.volatiles.helpinghand.multiplier = 1.5;
    }
  }

  lastChosen(stand, effect) {
    return effect.encored || stand.moves[stand.moves.length - 1] || '';
  }

  length(id, effect, duration) {
    if (id === 'taunt') return duration + (effect.turns > 0 && effect.acted ? 1 : 0);
    if (id === 'encore') return duration + (effect.acted ? 1 : 0);
    if (id === 'disable') return duration - (effect.ability || !effect.acted ? 1 : 0);
    if (id === 'healblock' && effect.move === 'psychicnoise') return 2;
    return duration;
  }

  // ---------------------------------------------------------------- field and sides

  // Whether the one who made it holds the item that prolongs it.
  holds(effect, item) {
    const maker = this.byName(effect.who);
    if (!maker || effect.lost === item) return false;
    return [maker.item, maker.lastItem, toID(maker.set.item)].includes(item);
  }

  field() {
    const {battle, chronicle} = this;
    const {field} = battle;
    field.weather = field.terrain = '';
    field.weatherState = battle.initEffectState({id: ''});
    field.terrainState = battle.initEffectState({id: ''});
    for (const id of ['trickroom', 'gravity', 'magicroom', 'wonderroom', 'fairylock', 'mudsport', 'watersport'])
      delete field.pseudoWeather[id];
    for (const [key, effect] of chronicle.field) {
      const source = this.byName(effect.who);
      const makers = source ? {source, sourceSlot: source.getSlot()} : {};
      if (key.startsWith('weather ')) {
        const id = key.slice(8) === 'snow' ? 'snowscape' : key.slice(8);
        field.weather = id;
        field.weatherState = battle.initEffectState({id, ...makers});
        const long = this.world.long?.[id] ?? (effect.ends >= 5 || this.holds(effect, LONG_WEATHER[id]));
        if (!LASTING.has(id)) field.weatherState.duration = Math.max(1, (long ? 8 : 5) - effect.ends);
      } else if (key.endsWith('terrain')) {
        field.terrain = key;
        field.terrainState = battle.initEffectState({id: key, ...makers});
        const long = this.world.long?.[key] ?? (effect.ends >= 5 || this.holds(effect, 'terrainextender'));
        field.terrainState.duration = Math.max(1, (long ? 8 : 5) - effect.ends);
      } else {
        const condition = battle.dex.conditions.get(key);
        if (!condition.exists) throw new NotRebuilt(`field effect ${key}`);
        field.pseudoWeather[key] = battle.initEffectState({id: key, ...makers,
          duration: Math.max(1, (condition.duration || 5) - effect.ends)});
      }
    }
  }

  side(side, table) {
    const {battle} = this;
    side.sideConditions = {};
    for (const [id, effect] of table) {
      const condition = battle.dex.conditions.get(id);
      if (!condition.exists) throw new NotRebuilt(`side effect ${id}`);
      const source = this.byName(effect.who) || side.active[0];
      const state = battle.initEffectState({id, target: side, source, sourceSlot: source.getSlot()});
      const long = SIDE_ITEMS.has(id) &&
        (this.world.long?.[`${side.id} ${id}`] ?? (effect.ends >= 5 || this.holds(effect, 'lightclay')));
      if (condition.duration) state.duration = Math.max(1, (long ? 8 : condition.duration) - effect.ends);
      if (LAYERS.has(id)) state.layers = Math.min(effect.layers, id === 'spikes' ? 3 : 2);
      side.sideConditions[id] = state;
    }
    for (const [of, id, source] of this.briefSides) {
      if (of !== side) continue;
      const sourceSlot = source.getSlot();
      side.sideConditions[id] = battle.initEffectState({id, target: side, source, sourceSlot, duration: 1});
    }
  }

  spots() {
    const {battle, chronicle} = this;
    const now = chronicle.turn - (this.moving ? 1 : 0); // the turn that is over
    for (const side of battle.sides) side.slotConditions = [{}, {}];
    chronicle.spots.forEach((table, slot) => {
      const target = this.at(slot);
      if (!target) return;
      for (const [id, effect] of table) {
        if (now - effect.turn > (id === 'wish' ? 0 : 1)) continue;
        const side = target.side;
        const source = this.byName(effect.who) || target;
        const state = battle.initEffectState({id, target: side, source, sourceSlot: source.getSlot(),
          isSlotCondition: true});
        if (id === 'wish') {
          state.sourceSlot = target.getSlot();
          state.hp = source.maxhp / 2;
          state.startingTurn = effect.turn;
        } else {
          const data = battle.dex.moves.get(effect.move);
          Object.assign(state, {
            move: effect.move, targetSlot: target.getSlot(), endingTurn: effect.turn + 1,
            moveData: {id: data.id, name: data.name, accuracy: 100, basePower: data.basePower, category: data.category,
              priority: 0, flags: {...data.flags}, ignoreImmunity: false, effectType: 'Move', type: data.type},
          });
        }
        side.slotConditions[target.position][id] = state;
      }
    });
  }

  byName(key) {
    if (!key) return null;
    const side = this.battle.sides[key.charAt(0) === '0' ? this.seat.me : 1 - this.seat.me];
    return side.pokemon.find(pokemon => pokemon.name === key.slice(2)) || null;
  }
}

// ---------------------------------------------------------------- the battle

// world: {sides: [[entry]] by p1, p2 in the order of the team now, long: {…}}; seed: of the dice from here on
function rebuild(format, seat, world, seed) {
  const {view, chronicle} = seat;
  const request = view.req;
  const inside = !!request.forceSwitch && !chronicle.upkept; // others have yet to move in this turn
  if (inside && !world.pending) throw new NotRebuilt('a switch in the middle of a turn');
  if (request.side.pokemon.some(entry => entry.reviving)) throw new NotRebuilt('Revival Blessing');
  const moving = !!request.active;
  const teams = world.sides.map(entries => entries.map(entry => setOf(entry)));
  const battle = new Battle({
    format, formatid: format.id, send: () => {}, prng: new PRNG('1,2,3,4'),
    p1: {name: 'p1', team: teams[0]}, p2: {name: 'p2', team: teams[1]},
  });
  for (const side of battle.sides) {
    if (!battle.choose(side.id, `team ${side.pokemon.map((_, i) => i + 1).join('')}`))
      throw new NotRebuilt(`a team of ${side.pokemon.length}`);
  }
  const builder = new Builder(battle, seat, world);
  builder.moving = moving;
  builder.inside = inside;
  const all = [];
  for (const side of battle.sides) {
    const mine = side.n === seat.me;
    side.pokemon.sort((a, b) => teams[side.n].indexOf(a.set) - teams[side.n].indexOf(b.set));
    side.pokemon.forEach((pokemon, i) => {
      const entry = world.sides[side.n][i];
      pokemon.position = i;
      const stands = i < 2;
      builder.settle(pokemon, entry, mine, stands ? i : -1);
      if (stands) side.active[i] = pokemon;
      if (stands && !entry.mon.fainted) all.push([pokemon, entry, (mine ? 0 : 2) + i]);
    });
    side.pokemonLeft = side.pokemon.filter(pokemon => !pokemon.fainted).length;
    side.totalFainted = view.faints[mine ? 0 : 1];
    side.faintedThisTurn = side.faintedLastTurn = null;
    const used = mine ? view.ownTera : view.oppTera;
    for (const pokemon of side.pokemon) {
      pokemon.canTerastallize = used ? null : battle.actions.canTerastallize(pokemon);
      if (used) pokemon.canMegaEvo = pokemon.canMegaEvoX = pokemon.canMegaEvoY = false;
    }
  }
  battle.queue.clear();
  battle.faintQueue = [];
  battle.turn = chronicle.turn - (moving ? 1 : 0);
  builder.field();
  for (const [pokemon, entry, slot] of all) builder.stand(pokemon, entry, slot);
  for (const [pokemon, entry, slot] of all) builder.effects(pokemon, entry, slot);
  builder.side(battle.sides[seat.me], chronicle.sides[0]);
  builder.side(battle.sides[1 - seat.me], chronicle.sides[1]);
  builder.spots();
  if (chronicle.move) battle.lastMove = battle.dex.getActiveMove(chronicle.move);
  battle.activeMove = battle.activePokemon = battle.activeTarget = null;
  battle.updateSpeed();
  if (moving) {
    battle.midTurn = false;
    battle.endTurn();
  } else if (inside) {
    askInside(battle, world.pending);
  } else {
    askForSwitches(battle);
  }
  battle.prng = new PRNG(seed);
  battle.log = [];
  battle.sentLogPos = 0;
  battle.inputLog = [];
  return battle;
}

// What it is now. Team preview does not tell the formes of some ("Zamazenta-*"): there the world decides.
function speciesOf({mon, set, forme}) {
  if (mon.hiddenForme && !mon.shown) return forme || toID(set.species);
  if (vocab.species(set.species) === mon.species) return toID(set.species); // with its looks, that the ids do not tell
  return vocab.speciesName(mon.species);
}

// A battle at its team preview.
function previewOf(format, world, seed) {
  const teams = world.sides.map(entries => entries.map(entry => ({...structuredClone(entry.set), name: entry.name})));
  const battle = new Battle({
    format, formatid: format.id, send: () => {}, prng: new PRNG(seed),
    p1: {name: 'p1', team: teams[0]}, p2: {name: 'p2', team: teams[1]},
  });
  battle.log = [];
  battle.sentLogPos = 0;
  return battle;
}

function setOf(entry) {
  const species = speciesOf(entry);
  const set = {...structuredClone(entry.set), species, name: entry.name};
  const signature = SIGNATURES[toID(species)];
  if (signature) set.moves = set.moves.map(move => (toID(move) === 'ironhead' ? signature : move));
  return set;
}

function askForSwitches(battle) {
  battle.midTurn = true;
  for (const side of battle.sides) {
    const bench = side.pokemon.slice(2).some(pokemon => !pokemon.fainted);
    for (const pokemon of side.active) {
      if (pokemon.fainted) pokemon.switchFlag = bench;
    }
  }
  battle.makeRequest('switch');
}

// Somebody leaves in the middle of a turn. actions: what is still to be done in it, as {side, slot, move, target} or
// {side, slot, to}, in this order if they are `sorted`; flags: by side, why each slot leaves.
function askInside(battle, {actions, flags, sorted}) {
  battle.midTurn = true;
  flags.forEach((slots, side) => slots.forEach((flag, slot) => {
    const pokemon = battle.sides[side].active[slot];
    pokemon.switchFlag = flag;
    if (flag && pokemon.hp) pokemon.skipBeforeSwitchOutEventFlag = true;
  }));
  for (const {side, slot, move, target, to} of actions) {
    const pokemon = battle.sides[side].active[slot];
    if (!pokemon || pokemon.fainted) continue;
    if (to !== undefined) {
      battle.queue.addChoice({choice: 'switch', pokemon, target: battle.sides[side].pokemon[to]});
    } else {
      battle.queue.addChoice({choice: 'move', pokemon, targetLoc: target, moveid: move});
    }
  }
  battle.queue.addChoice({choice: 'residual'});
  battle.queue.list = battle.queue.list.filter(action => !action.choice.startsWith('before') &&
    !action.choice.startsWith('priorityCharge'));
  if (!sorted) battle.queue.sort();
  battle.makeRequest('switch');
}

// ---------------------------------------------------------------- the truth, for the check

// What the seat cannot see, read from the battle itself: spreads, order and picks, exact HP, PP, and counters that
// nobody is told.
function truth(battle, seat) {
  const {view} = seat;
  const sides = battle.sides.map(side => side.pokemon.map((pokemon, i) => {
    const mine = side.n === seat.me;
    const mon = mine ? view.team[i] : view.opp.find(other => vocab.sameSpecies(other.species,
      vocab.species(pokemon.baseSpecies.id)));
    if (!mon) throw new NotRebuilt('a Pokémon that the view does not know');
    if (pokemon.illusion) throw new NotRebuilt('an Illusion');
    const {volatiles} = pokemon;
    return {
      mon, name: pokemon.name, hp: pokemon.hp, forme: pokemon.baseSpecies.id,
      set: {...pokemon.set, gender: pokemon.gender || 'N'},
      pp: pokemon.baseMoveSlots.map(move => move.pp),
      sleep: pokemon.status === 'slp' ? {time: pokemon.statusState.time, start: pokemon.statusState.startTime} : null,
      confusion: volatiles.confusion?.time, substitute: volatiles.substitute?.hp, bound:
        volatiles.partiallytrapped?.duration, locked: volatiles.lockedmove?.trueDuration,
      charging: volatiles.twoturnmove ? volatiles[volatiles.twoturnmove.move]?.targetLoc : 0,
    };
  }));
  const pending = battle.requestState === 'switch' ? {
    sorted: true,
    flags: battle.sides.map(side => side.active.map(pokemon => pokemon.switchFlag)),
    actions: battle.queue.list.filter(action => action.choice === 'move' || action.choice === 'switch').map(action => ({
      side: action.pokemon.side.n, slot: action.pokemon.position, move: action.move?.id, target: action.targetLoc,
      to: action.choice === 'switch' ? action.target.position : undefined,
    })),
  } : null;
  return {sides, pending};
}

module.exports = {Seat, NotRebuilt, rebuild, previewOf, truth};
