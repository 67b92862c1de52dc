'use strict';
// One player's knowledge of a battle, built from exactly what a server sends that player: protocol lines and requests.
// Simulator objects never come in here, so nothing hidden can leak.
const {Beliefs} = require('./beliefs.js');
const {COLUMNS, LAYOUT, VOLATILE, VOLATILES} = require('./columns.js');
const vocab = require('./vocabulary.js');

const {STATUS, BOOST} = vocab;
const FIELD = LAYOUT.groups.field;
const HISTORY = COLUMNS.groups.find(group => group.name === 'history').rows;

// Effects as the protocol spells them (prefixes "move: " and "ability: " cut off) -> column of the active slot.
const STARTS = {
  Substitute: 'substitute', confusion: 'confusion', Taunt: 'taunt', Encore: 'encore', Disable: 'disable',
  Torment: 'torment', 'Leech Seed': 'leech_seed', Yawn: 'yawn', Imprison: 'imprison', 'Heal Block': 'heal_block',
  Attract: 'attract', 'Throat Chop': 'throat_chop', 'Focus Energy': 'focus_energy', 'Dragon Cheer': 'focus_energy',
  Charge: 'charge', 'Flash Fire': 'flash_fire', 'Salt Cure': 'salt_cure', 'Smack Down': 'smack_down',
  'Magnet Rise': 'magnet_rise', 'Syrup Bomb': 'syrup_bomb', 'No Retreat': 'no_escape', Octolock: 'no_escape',
  Ingrain: 'no_escape', Curse: 'curse', Uproar: 'uproar', 'Slow Start': 'slow_start',
};
const BINDING = new Set(['Bind', 'Clamp', 'Fire Spin', 'Infestation', 'Magma Storm', 'Sand Tomb', 'Snap Trap',
  'Thunder Cage', 'Whirlpool', 'Wrap']);
const STALLS = new Set(['Protect', 'Endure', 'Wide Guard', 'Quick Guard']);
const SHIELDS = new Set(['Protect', 'Wide Guard', 'Quick Guard']);
// What Baton Pass hands on; Shed Tail hands on the Substitute alone.
const PASSED = ['substitute', 'confusion', 'leech_seed', 'perish', 'heal_block', 'focus_energy', 'magnet_rise',
  'no_escape', 'curse'].map(name => VOLATILE[name]);

const WEATHER = {
  SunnyDay: 'sun', RainDance: 'rain', Sandstorm: 'sand', Snowscape: 'snow', Snow: 'snow', Hail: 'snow',
  DesolateLand: 'harsh_sun', PrimordialSea: 'heavy_rain', DeltaStream: 'strong_winds',
};
const TERRAIN = {
  'Electric Terrain': 'electric', 'Grassy Terrain': 'grassy', 'Misty Terrain': 'misty', 'Psychic Terrain': 'psychic',
};
const ROOMS = {'Trick Room': 0, Gravity: 1, 'Magic Room': 2, 'Wonder Room': 3};
const SIDE = {
  Tailwind: 0, Reflect: 1, 'Light Screen': 2, 'Aurora Veil': 3, Safeguard: 4, Mist: 5, Spikes: 6, 'Toxic Spikes': 7,
  'Stealth Rock': 8, 'Sticky Web': 9, 'Fire Pledge': 10, 'Water Pledge': 11, 'Grass Pledge': 12,
};
const LAYERED = new Set([SIDE.Spikes, SIDE['Toxic Spikes']]);

// The holder of an item that a line names: these items speak when they work. Berries and the like are gone by the time
// their effect is shown (|-enditem| came first), so they are not in these lists.
const ITEM_OF_SUBJECT = new Set(['Leftovers', 'Black Sludge', 'Shell Bell', 'Life Orb', 'Sticky Barb', 'Flame Orb',
  'Toxic Orb', 'Clear Amulet', 'Focus Band', 'Quick Claw', 'Safety Goggles', 'Protective Pads', 'Ability Shield']);
const ITEM_OF_SOURCE = new Set(['Rocky Helmet']);
// Lines on which "[from] ability: …" belongs to the Pokémon behind "[of]"; on all others to the subject.
const ABILITY_OF_SOURCE = new Set(['-damage', '-status', '-weather', '-fieldstart', '-block', '-start', '-clearboost']);
const AS_ONE = new Set(['As One', 'Unnerve', 'Chilling Neigh', 'Grim Neigh']);

function bare(effect) {
  if (effect.startsWith('move: ')) return effect.slice(6);
  if (effect.startsWith('ability: ')) return effect.slice(9);
  return effect;
}

class Mon {
  constructor(name, species, level) {
    this.name = name;
    this.species = species;
    this.level = level;
    this.hp = 1;
    this.maxhp = 0;
    this.status = 0;
    this.statusTurns = 0;
    this.fainted = false;
    this.shown = false;
    this.ability = 0;
    this.item = 0;
    this.lostItem = 0;
    this.tera = 0;
    this.terastallized = false;
    this.moves = [];
    this.uses = [];
    this.ppLeft = null; // own side: move id -> fraction, as told by requests
    this.belief = null;
    this.learnFrom(species);
  }

  // A species with a single ability has no secret.
  learnFrom(species) {
    const abilities = vocab.abilitiesOf(species);
    if (abilities.length === 1) this.ability = abilities[0];
  }

  reveal(move) {
    let index = this.moves.indexOf(move);
    if (index < 0 && this.moves.length < 4) {
      index = this.moves.push(move) - 1;
      this.uses.push(0);
    }
    return index;
  }
}

class Slot {
  constructor() {
    this.mon = null;
    this.snapshot = null;
    this.volatile = new Float32Array(VOLATILES);
    this.types = [0, 0];
    this.clear();
  }

  clear() {
    this.volatile.fill(0);
    this.species = 0; // appearance while it differs from the Pokémon's own species
    this.typesChanged = false;
    this.type3 = 0;
    this.ability = 0; // ability while it differs from the Pokémon's own
    this.suppressed = false;
    this.lastMove = 0;
    this.disabledMove = 0;
    this.ends = 0; // ends of turn since it came in
    this.actions = 0; // times it was its turn to move
    this.protects = 0;
    this.protectsBefore = 0;
    this.hitBy = null;
  }
}

class BattleView {
  constructor(side, format) {
    this.me = side.charCodeAt(1);
    this.format = format;
    this.slots = [new Slot(), new Slot(), new Slot(), new Slot()];
    this.own = new Map(); // name -> Mon
    this.opp = [];
    this.oppByName = new Map();
    this.req = null;
    this.turn = 0;
    this.picks = 4;
    this.sheets = false;
    this.oppTera = false;
    this.ownTera = false;
    this.deceivers = false; // the opponent may have an Illusion
    this.weather = -1;
    this.weatherEnds = 0;
    this.terrain = -1;
    this.terrainEnds = 0;
    this.rooms = new Int8Array(4).fill(-1); // ends of turn since it began, -1 off
    this.sides = [new Int8Array(13).fill(-1), new Int8Array(13).fill(-1)]; // the same; layers - 1 for spikes
    this.history = [];
    this.event = null;
    this.beliefs = new Beliefs(this);
  }

  slotOf(ident) {
    if (ident.charCodeAt(0) !== 112 || ident.charCodeAt(3) !== 58) return -1; // p??:
    return (ident.charCodeAt(1) === this.me ? 0 : 2) + ident.charCodeAt(2) - 97;
  }

  // The Pokémon behind "p1a: Name" or, off the field, "p1: Name".
  monOf(ident) {
    const slot = this.slotOf(ident);
    if (slot >= 0) return this.slots[slot].mon;
    const name = ident.slice(ident.indexOf(':') + 2);
    const table = ident.charCodeAt(1) === this.me ? this.own : this.oppByName;
    return table.get(name) || null;
  }

  appearance(slot) {
    return slot.species || (slot.mon ? slot.mon.species : 0);
  }

  line(text) {
    const args = text.split('|');
    switch (args[1]) {
    case 'move': return this.move(args);
    case '-damage': case '-heal': case '-sethp': return this.health(args);
    case 'switch': case 'drag': return this.enter(args);
    case 'faint': return this.faint(args);
    case 'upkeep': return this.upkeep();
    case 'turn': this.turn = +args[2]; this.beliefs.turn(); return;
    case '-boost': return this.boost(args, 1);
    case '-unboost': return this.boost(args, -1);
    case '-weather': return this.setWeather(args);
    case '-start': return this.start(args);
    case '-end': return this.end(args);
    case '-activate': return this.activate(args);
    case '-singleturn': return this.singleTurn(args);
    case '-enditem': return this.endItem(args);
    case '-item': return this.setItem(args);
    case '-ability': return this.setAbility(args);
    case '-status': return this.setStatus(args);
    case '-curestatus': return this.cure(args);
    case '-sidestart': return this.sideStart(args);
    case '-sideend': return this.sideEnd(args);
    case '-fieldstart': return this.fieldStart(args);
    case '-fieldend': return this.fieldEnd(args);
    case 'cant': return this.cant(args);
    case '-immune': case '-fail': case '-block': return this.noEffect(args);
    case '-miss': if (this.event) this.event.noEffect++; return;
    case '-terastallize': return this.terastallize(args);
    case 'detailschange': return this.detailsChange(args);
    case '-formechange': return this.formeChange(args);
    case '-transform': return this.transform(args);
    case '-setboost': case '-clearboost': case '-clearallboost': case '-clearpositiveboost':
    case '-clearnegativeboost': case '-copyboost': case '-swapboost': case '-invertboost':
      return this.otherBoost(args);
    case '-singlemove': return this.singleMove(args);
    case '-prepare': return this.mark(args[2], 'preparing', 1);
    case '-anim': return this.mark(args[2], 'preparing', 0);
    case '-mustrecharge': return this.mark(args[2], 'recharge', 1);
    case '-cureteam': return this.cureTeam(args);
    case '-endability': return this.endAbility(args);
    case '-swapsideconditions': this.sides.reverse(); return;
    case 'swap': return this.swap(args);
    case 'replace': return this.replace(args);
    case 'poke': return this.poke(args);
    case 'teampreview': if (args[2]) this.picks = +args[2]; return;
    case 'showteam': return this.sheet(args);
    }
  }

  // --- who is where -------------------------------------------------------------------------------------------------

  poke(args) {
    if (args[2].charCodeAt(1) === this.me) return;
    const {species, level} = vocab.details(args[3]);
    const mon = new Mon('', species, level);
    this.opp.push(mon);
    this.beliefs.adopt(mon);
    if (vocab.abilitiesOf(species).includes(vocab.ILLUSION)) this.deceivers = true;
  }

  sheet(args) {
    if (args[2].charCodeAt(1) === this.me) return;
    this.sheets = true;
    for (const entry of vocab.sheet(args.slice(3).join('|'))) {
      const mon = this.opp.find(other => vocab.sameSpecies(other.species, entry.species));
      mon.species = entry.species;
      mon.item = entry.item;
      mon.ability = entry.ability;
      mon.tera = entry.tera;
      mon.moves = entry.moves;
      mon.uses = entry.moves.map(() => 0);
      this.beliefs.adopt(mon);
    }
  }

  // Species Clause: the dex number tells apart all Pokémon of a team, whatever forme or nickname they show.
  find(mine, name, details) {
    const {species, level} = vocab.details(details);
    if (mine) {
      if (!this.own.has(name)) this.own.set(name, new Mon(name, species, level));
      return this.own.get(name);
    }
    let mon = this.opp.find(other => vocab.sameSpecies(other.species, species));
    if (!mon) {
      mon = new Mon(name, species, level);
      this.opp.push(mon);
      this.beliefs.adopt(mon);
    }
    mon.name = name;
    this.oppByName.set(name, mon);
    if (mon.species !== species) this.changeSpecies(mon, species);
    return mon;
  }

  changeSpecies(mon, species) {
    mon.species = species;
    if (!this.sheets || vocab.abilitiesOf(species).length === 1) mon.learnFrom(species);
    this.beliefs.adopt(mon);
  }

  enter(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const mon = this.find(index < 2, args[2].slice(5), args[3]);
    const passed = args[5] === '[from] Baton Pass' ? PASSED.map(column => slot.volatile[column]) : null;
    const boosts = passed ? slot.volatile.slice(0, 7) : null;
    const doll = args[5] === '[from] Shed Tail' && slot.volatile[VOLATILE.substitute];
    this.leave(index);
    slot.mon = mon;
    slot.clear();
    if (passed) {
      slot.volatile.set(boosts);
      PASSED.forEach((column, i) => { slot.volatile[column] = passed[i]; });
    }
    if (doll) slot.volatile[VOLATILE.substitute] = 1;
    if (mon.status === STATUS.tox) mon.statusTurns = 0;
    slot.snapshot = index > 1 && this.deceivers ? {...mon, moves: mon.moves.slice(), uses: mon.uses.slice()} : null;
    if (slot.snapshot) slot.snapshot.belief = {...mon.belief};
    mon.shown = true;
    this.condition(mon, args[4]);
    const tera = args[3].indexOf(', tera:');
    if (tera >= 0 && index > 1) {
      mon.tera = vocab.type(args[3].slice(tera + 7));
      mon.terastallized = true;
    }
    this.push(index, 0, -1, 1, 0);
    this.beliefs.entered(index);
  }

  // A Commander comes out when its Dondozo is gone.
  leave(index) {
    this.slots[index ^ 1].volatile[VOLATILE.commander] = 0;
  }

  // An Illusion ends: what was seen since this Pokémon came in belongs to it, not to the one it posed as.
  replace(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const real = this.find(index < 2, args[2].slice(5), args[3]);
    const posed = slot.mon;
    slot.mon = real;
    real.shown = true;
    if (index < 2 || posed === real || !slot.snapshot) return;
    const before = slot.snapshot;
    slot.snapshot = null;
    for (const key of ['hp', 'status', 'statusTurns', 'fainted']) real[key] = posed[key];
    if (posed.item !== before.item) real.item = posed.item;
    if (posed.lostItem !== before.lostItem) real.lostItem = posed.lostItem;
    if (posed.terastallized && !before.terastallized) {
      real.terastallized = true;
      real.tera = posed.tera;
    }
    posed.moves.forEach((move, i) => {
      const uses = posed.uses[i] - (before.uses[i] || 0);
      const at = uses > 0 ? real.reveal(move) : -1;
      if (at >= 0) real.uses[at] += uses;
    });
    real.ability = vocab.ILLUSION;
    Object.assign(posed, before);
  }

  swap(args) {
    const index = this.slotOf(args[2]);
    const base = index & 2;
    if (index - base === +args[3]) return;
    [this.slots[base], this.slots[base + 1]] = [this.slots[base + 1], this.slots[base]];
    this.beliefs.disturb();
  }

  faint(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    slot.mon.hp = 0;
    slot.mon.fainted = true;
    slot.mon.status = 0;
    if (slot.hitBy) slot.hitBy.faints++;
    this.leave(index);
    slot.clear();
  }

  // --- health, status, boosts ---------------------------------------------------------------------------------------

  condition(mon, text) {
    const slash = text.indexOf('/');
    if (slash < 0) { // "0 fnt"
      mon.hp = 0;
      mon.fainted = true;
      mon.status = 0;
      return;
    }
    const space = text.indexOf(' ', slash);
    mon.maxhp = parseInt(text.slice(slash + 1), 10);
    mon.hp = +text.slice(0, slash) / mon.maxhp;
    mon.fainted = false;
    this.status(mon, space < 0 ? 0 : STATUS[text.slice(space + 1)] || 0);
  }

  status(mon, status) {
    if (mon.status === status) return;
    mon.status = status;
    mon.statusTurns = 0;
  }

  health(args) {
    const mon = this.monOf(args[2]);
    const index = this.slotOf(args[2]);
    const before = mon.hp;
    this.condition(mon, args[3]);
    const direct = args.length === 4;
    if (direct && args[1] === '-damage' && index >= 0 && this.event) {
      if (index < 2) this.event.damageOwn += before - mon.hp;
      else this.event.damageOpp += before - mon.hp;
      this.slots[index].hitBy = mon.hp > 0 ? null : this.event;
    }
    if (!direct) this.cause(args, 4);
    this.beliefs.health(index, mon, args, before);
  }

  setStatus(args) {
    const mon = this.monOf(args[2]);
    this.status(mon, STATUS[args[3]] || 0);
    const index = this.slotOf(args[2]);
    if (mon.status === STATUS.slp && index >= 0) this.slots[index].volatile[VOLATILE.yawn] = 0;
    this.cause(args, 4);
  }

  cure(args) {
    const mon = this.monOf(args[2]);
    if (mon) this.status(mon, 0);
    this.cause(args, 4);
  }

  cureTeam(args) {
    const mine = args[2].charCodeAt(1) === this.me;
    for (const mon of mine ? this.own.values() : this.opp) this.status(mon, 0);
  }

  boost(args, sign) {
    const boosts = this.slots[this.slotOf(args[2])].volatile;
    const stat = BOOST[args[3]];
    boosts[stat] = Math.max(-6, Math.min(6, boosts[stat] + sign * args[4]));
  }

  otherBoost(args) {
    if (args[1] === '-clearallboost') {
      for (const slot of this.slots) slot.volatile.fill(0, 0, 7);
      return;
    }
    const boosts = this.slots[this.slotOf(args[2])].volatile;
    switch (args[1]) {
    case '-setboost': boosts[BOOST[args[3]]] = +args[4]; break;
    case '-clearboost': boosts.fill(0, 0, 7); break;
    case '-clearpositiveboost': for (let i = 0; i < 7; i++) boosts[i] = Math.min(0, boosts[i]); break;
    case '-clearnegativeboost': for (let i = 0; i < 7; i++) boosts[i] = Math.max(0, boosts[i]); break;
    case '-invertboost': for (let i = 0; i < 7; i++) boosts[i] = boosts[i] ? -boosts[i] : 0; break;
    case '-copyboost': { // the first one takes over the stages of the second
      boosts.set(this.slots[this.slotOf(args[3])].volatile.subarray(0, 7));
      break;
    }
    case '-swapboost': {
      const others = this.slots[this.slotOf(args[3])].volatile;
      const named = args[4] && !args[4].startsWith('[') ? args[4].split(', ').map(stat => BOOST[stat]) : null;
      for (const i of named || [0, 1, 2, 3, 4, 5, 6]) [boosts[i], others[i]] = [others[i], boosts[i]];
    }
    }
    this.cause(args, 3);
  }

  // --- actions ------------------------------------------------------------------------------------------------------

  push(index, move, target, isSwitch, isCant) {
    const event = {
      actor: index + 1, species: this.appearance(this.slots[index]), move, target: target + 1,
      targetSpecies: target >= 0 ? this.appearance(this.slots[target]) : 0, turn: this.turn, isSwitch, isCant,
      damageOwn: 0, damageOpp: 0, noEffect: 0, faints: 0,
    };
    this.history.unshift(event);
    if (this.history.length > HISTORY) this.history.pop();
    this.event = event;
  }

  move(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const id = vocab.move(args[3]);
    let from = '';
    let spread = false;
    for (let i = 5; i < args.length; i++) {
      if (args[i].startsWith('[from] ')) from = args[i].slice(7);
      else if (args[i].startsWith('[spread]')) spread = true;
    }
    this.push(index, id, spread || !args[4] ? -1 : this.slotOf(args[4]), 0, 0);
    if (from.startsWith('ability: ')) this.showAbility(index, from.slice(9));
    const locked = from === 'lockedmove';
    const chosen = !from || locked;
    this.beliefs.moved(index, id, chosen);
    if (!chosen && from !== 'move: Sleep Talk') return;
    if (index > 1 && !slot.volatile[VOLATILE.transformed] && args[3] !== 'Struggle') {
      const at = slot.mon.reveal(id);
      if (at >= 0 && !locked) slot.mon.uses[at]++;
    }
    if (!chosen) return;
    this.acted(slot);
    slot.lastMove = id;
    slot.protectsBefore = slot.protects;
    slot.protects = 0;
  }

  // It has had its turn: what lasts "until it moves again" is over.
  acted(slot) {
    slot.actions++;
    slot.volatile[VOLATILE.destiny_bond] = 0;
    slot.volatile[VOLATILE.glaive_rush] = 0;
    slot.volatile[VOLATILE.preparing] = 0;
    slot.volatile[VOLATILE.recharge] = 0;
  }

  cant(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    if (args[3].startsWith('ability: ')) {
      this.showAbility(index, args[3].slice(9));
      if (args[3] !== 'ability: Truant') { // Damp, Armor Tail …: the line names the holder, the other one is stopped
        if (this.event) this.event.noEffect++;
        return;
      }
    }
    this.push(index, args[4] ? vocab.move(args[4]) : 0, -1, 0, 1);
    this.beliefs.stopped(index);
    this.acted(slot);
    slot.protects = 0;
    if (args[3] === 'slp') slot.mon.statusTurns++;
  }

  noEffect(args) {
    if (this.event) this.event.noEffect++;
    if (args[2].charCodeAt(0) !== 112) return;
    if (args[1] === '-block' && args[3]) this.effectNamed(args, 3);
    this.cause(args, 3);
  }

  singleTurn(args) {
    const slot = this.slots[this.slotOf(args[2])];
    if (STALLS.has(bare(args[3]))) slot.protects = slot.protectsBefore + 1;
  }

  singleMove(args) {
    if (args[3] === 'Destiny Bond') this.mark(args[2], 'destiny_bond', 1);
    else if (args[3] === 'Glaive Rush') this.mark(args[2], 'glaive_rush', 1);
  }

  mark(ident, name, value) {
    const index = this.slotOf(ident);
    if (index >= 0) this.slots[index].volatile[VOLATILE[name]] = value;
  }

  upkeep() {
    for (const slot of this.slots) {
      slot.ends++;
      if (slot.mon && slot.mon.status === STATUS.tox && !slot.mon.fainted) slot.mon.statusTurns++;
    }
    this.weatherEnds++;
    this.terrainEnds++;
    for (let i = 0; i < 4; i++) if (this.rooms[i] >= 0) this.rooms[i]++;
    for (const side of this.sides) for (let i = 0; i < 6; i++) if (side[i] >= 0) side[i]++;
    this.beliefs.upkeep();
  }

  // --- effects on one Pokémon ---------------------------------------------------------------------------------------

  start(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const effect = bare(args[3]);
    const column = STARTS[effect];
    if (column) {
      slot.volatile[VOLATILE[column]] = 1;
      if (effect === 'Disable') slot.disabledMove = vocab.move(args[4]);
    } else if (effect === 'typechange') {
      this.changeTypes(slot, args);
    } else if (effect === 'typeadd') {
      slot.type3 = vocab.type(args[4]);
    } else if (effect.startsWith('perish')) {
      slot.volatile[VOLATILE.perish] = (4 - effect.charCodeAt(6) + 48) / 4;
    } else if (effect.startsWith('stockpile')) {
      slot.volatile[VOLATILE.stockpile] = (effect.charCodeAt(9) - 48) / 3;
    } else if (effect.startsWith('protosynthesis') || effect.startsWith('quarkdrive')) {
      slot.volatile[VOLATILE[`paradox_${effect.slice(-3)}`]] = 1;
    }
    if (args[3].startsWith('ability: ')) this.showAbility(index, effect);
    this.cause(args, 4);
  }

  changeTypes(slot, args) {
    if (args[4].startsWith('[from] move: Reflect Type')) {
      const [first, second] = this.typesOf(this.slots[this.slotOf(args[5].slice(5))]);
      slot.types[0] = first;
      slot.types[1] = second;
    } else {
      const names = args[4].split('/');
      slot.types[0] = vocab.type(names[0]);
      slot.types[1] = names[1] ? vocab.type(names[1]) : 0;
    }
    slot.typesChanged = true;
    slot.type3 = 0;
  }

  end(args) {
    const index = this.slotOf(args[2]);
    if (index < 0) return;
    const slot = this.slots[index];
    const effect = bare(args[3]);
    const column = STARTS[effect];
    if (column) {
      slot.volatile[VOLATILE[column]] = 0;
      if (effect === 'Disable') slot.disabledMove = 0;
    } else if (effect === 'typechange') {
      slot.typesChanged = false;
    } else if (effect === 'Stockpile') {
      slot.volatile[VOLATILE.stockpile] = 0;
    } else if (effect === 'Protosynthesis' || effect === 'Quark Drive') {
      slot.volatile.fill(0, VOLATILE.paradox_atk, VOLATILE.paradox_spe + 1);
    } else if (BINDING.has(effect)) {
      slot.volatile[VOLATILE.bound] = 0;
    }
    if (args[3].startsWith('ability: ')) this.showAbility(index, effect);
  }

  activate(args) {
    const index = args[2] ? this.slotOf(args[2]) : -1;
    if (index < 0) return;
    const slot = this.slots[index];
    const effect = bare(args[3]);
    if (args[3].startsWith('ability: ')) {
      if (effect === 'Symbiosis') this.handOver(args, index);
      if (effect === 'Commander') slot.volatile[VOLATILE.commander] = 1;
      this.showAbility(index, effect);
    } else if (BINDING.has(effect)) {
      slot.volatile[VOLATILE.bound] = 1;
    } else if (effect === 'trapped') {
      slot.volatile[VOLATILE.no_escape] = 1;
    } else if (SHIELDS.has(effect)) {
      if (this.event) this.event.noEffect++;
    } else if (effect === 'Skill Swap') {
      this.skillSwap(args, index);
    } else {
      this.effectNamed(args, 3);
    }
    this.beliefs.activated(index, args[3]);
  }

  skillSwap(args, index) {
    const other = this.slotOf(args[args.length - 1].slice(5));
    if (other < 0) return;
    const names = args.slice(4, -1).filter(name => name && !name.startsWith('['));
    if (names.length >= 2) {
      this.showAbility(other, names[0]); // the target's ability goes to the user, the user's to the target
      this.showAbility(index, names[1]);
      this.slots[index].ability = vocab.ability(names[0]);
      this.slots[other].ability = vocab.ability(names[1]);
    } else {
      const [first, second] = [this.abilityOf(this.slots[index]), this.abilityOf(this.slots[other])];
      this.slots[index].ability = second;
      this.slots[other].ability = first;
      this.beliefs.muddle(index, other);
    }
  }

  terastallize(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    slot.mon.tera = vocab.type(args[3]);
    slot.mon.terastallized = true;
    slot.typesChanged = false;
    slot.type3 = 0;
    if (index < 2) this.ownTera = true;
    else this.oppTera = true;
  }

  detailsChange(args) {
    const index = this.slotOf(args[2]);
    if (index < 0) return;
    const slot = this.slots[index];
    slot.species = 0;
    slot.ability = 0;
    this.changeSpecies(slot.mon, vocab.details(args[3]).species);
  }

  formeChange(args) {
    const slot = this.slots[this.slotOf(args[2])];
    const {species} = vocab.details(args[3]);
    slot.species = species === slot.mon.species ? 0 : species;
    this.cause(args, 4);
  }

  transform(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const into = this.slots[this.slotOf(args[3])];
    if (args[4] === '[from] ability: Imposter') this.showAbility(index, 'Imposter');
    slot.species = this.appearance(into);
    slot.ability = this.abilityOf(into);
    slot.volatile.set(into.volatile.subarray(0, 7));
    slot.volatile[VOLATILE.transformed] = 1;
    slot.typesChanged = into.typesChanged;
    slot.types[0] = into.types[0];
    slot.types[1] = into.types[1];
    slot.type3 = into.type3;
  }

  // --- items and abilities ------------------------------------------------------------------------------------------

  setItem(args) {
    const mon = this.monOf(args[2]);
    const item = vocab.item(args[3]);
    mon.item = item;
    const from = args[4] || '';
    if (args[5] && (from === '[from] ability: Magician' || from === '[from] ability: Pickpocket' ||
        from === '[from] move: Thief' || from === '[from] move: Covet' || from === '[from] move: Bestow')) {
      this.lose(this.monOf(args[5].slice(5)), item); // somebody else's item until now
    }
    this.beliefs.itemChanged(mon, from);
    this.cause(args, 4);
  }

  lose(mon, item) {
    if (!mon) return;
    mon.item = vocab.NONE;
    mon.lostItem = item;
    this.beliefs.itemChanged(mon, '');
  }

  endItem(args) {
    this.lose(this.monOf(args[2]), vocab.item(args[3]));
    if (args[3] === 'Power Herb') this.mark(args[2], 'preparing', 0);
  }

  // |-activate|GIVER|ability: Symbiosis|ITEM|[of] RECEIVER
  handOver(args, index) {
    const item = vocab.item(args[4]);
    this.lose(this.slots[index].mon, item);
    const receiver = this.monOf(args[5].slice(5));
    receiver.item = item;
    this.beliefs.itemChanged(receiver, '');
  }

  setAbility(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const from = args[4] && args[5] && args[5].startsWith('[from] ') ? args[5] : '';
    if (!from) return this.showAbility(index, args[3]);
    if (args[4]) this.showAbility(index, args[4]); // the one it had before
    slot.ability = vocab.ability(args[3]);
    slot.suppressed = false;
    if (from === '[from] ability: Trace' && args[6]) this.showAbility(this.slotOf(args[6].slice(5)), args[3]);
  }

  endAbility(args) {
    const slot = this.slots[this.slotOf(args[2])];
    slot.suppressed = true;
    slot.volatile[VOLATILE.ability_suppressed] = 1;
  }

  showAbility(index, name) {
    if (index < 0) return;
    const slot = this.slots[index];
    let ability = vocab.ability(name);
    if (AS_ONE.has(name)) { // two abilities in one, announced piece by piece
      const pair = vocab.abilitiesOf(slot.mon.species)[0];
      if (pair === vocab.AS_ONE_ICE || pair === vocab.AS_ONE_SHADOW) ability = pair;
    }
    if (!ability) return;
    if (slot.ability) slot.ability = ability;
    else if (slot.mon.ability && slot.mon.ability !== ability) slot.ability = ability;
    else slot.mon.ability = ability;
  }

  abilityOf(slot) {
    return slot.ability || slot.mon.ability;
  }

  // "item: …" as the effect of a line.
  effectNamed(args, at) {
    const effect = args[at];
    if (effect.startsWith('item: ')) {
      if (ITEM_OF_SUBJECT.has(effect.slice(6))) this.monOf(args[2]).item = vocab.item(effect.slice(6));
    } else if (effect.startsWith('ability: ')) {
      const of = args[at + 1] && args[at + 1].startsWith('[of] ') ? args[at + 1].slice(5) : args[2];
      this.showAbility(this.slotOf(of), effect.slice(9));
    }
  }

  // "[from] item: …" and "[from] ability: …" say whose item or ability was at work.
  cause(args, start) {
    let from = '';
    let of = '';
    for (let i = start; i < args.length; i++) {
      if (args[i].startsWith('[from] ')) from = args[i].slice(7);
      else if (args[i].startsWith('[of] ')) of = args[i].slice(5);
    }
    if (from.startsWith('item: ')) {
      const name = from.slice(6);
      if (ITEM_OF_SUBJECT.has(name)) this.monOf(args[2]).item = vocab.item(name);
      else if (ITEM_OF_SOURCE.has(name) && of) this.monOf(of).item = vocab.item(name);
    } else if (from.startsWith('ability: ')) {
      const name = from.slice(9);
      const source = of && (ABILITY_OF_SOURCE.has(args[1]) || name === 'Hospitality' || name === 'Frisk');
      const owner = source || args[2].charCodeAt(0) !== 112 ? of : args[2];
      if (owner) this.showAbility(this.slotOf(owner), name);
    }
  }

  // --- field and sides ----------------------------------------------------------------------------------------------

  setWeather(args) {
    if (args[3] === '[upkeep]') return;
    this.weather = args[2] === 'none' ? -1 : FIELD.float[`weather_${WEATHER[args[2]]}`];
    this.weatherEnds = 0;
    this.cause(args, 3);
  }

  fieldStart(args) {
    const name = bare(args[2]);
    if (TERRAIN[name]) {
      this.terrain = FIELD.float[`terrain_${TERRAIN[name]}`];
      this.terrainEnds = 0;
    } else if (name in ROOMS) {
      this.rooms[ROOMS[name]] = 0;
    }
    this.cause(args, 3);
  }

  fieldEnd(args) {
    const name = bare(args[2]);
    if (TERRAIN[name]) this.terrain = -1;
    else if (name in ROOMS) this.rooms[ROOMS[name]] = -1;
  }

  sideStart(args) {
    const condition = SIDE[bare(args[3])];
    if (condition === undefined) return;
    const side = this.sides[args[2].charCodeAt(1) === this.me ? 0 : 1];
    side[condition] = LAYERED.has(condition) ? side[condition] + 1 : 0;
  }

  sideEnd(args) {
    const condition = SIDE[bare(args[3])];
    if (condition !== undefined) this.sides[args[2].charCodeAt(1) === this.me ? 0 : 1][condition] = -1;
  }

  // --- the player's own side -----------------------------------------------------------------------------------------

  // The request is the truth about one's own side: who is where (also under an own Illusion), health, items, moves.
  request(req) {
    this.req = req;
    const team = req.side.pokemon;
    for (let i = 0; i < team.length; i++) {
      const entry = team[i];
      const {species, level} = vocab.details(entry.details);
      const name = entry.ident.slice(4);
      let mon = this.own.get(name);
      if (!mon) {
        mon = new Mon(name, species, level);
        this.own.set(name, mon);
      }
      mon.species = species;
      this.condition(mon, entry.condition);
      mon.item = entry.item ? vocab.item(entry.item) : vocab.NONE;
      mon.ability = vocab.ability(entry.ability || entry.baseAbility);
      mon.tera = entry.teraType ? vocab.type(entry.teraType) : 0;
      mon.terastallized = !!entry.terastallized;
      if (mon.terastallized) this.ownTera = true;
      mon.entry = entry;
      if (i < 2 && entry.active) this.slots[i].mon = mon;
    }
    if (req.active) {
      for (let i = 0; i < req.active.length; i++) {
        const mon = this.own.get(team[i].ident.slice(4));
        for (const move of req.active[i].moves) {
          if (!move.maxpp) continue;
          if (!mon.ppLeft) mon.ppLeft = new Map();
          mon.ppLeft.set(vocab.move(move.id), move.pp / move.maxpp);
        }
      }
    }
  }

  typesOf(slot) {
    const mon = slot.mon;
    if (mon.terastallized && mon.tera !== vocab.STELLAR) return [mon.tera, 0, 0];
    if (slot.typesChanged) return [slot.types[0], slot.types[1], slot.type3];
    const facts = vocab.typesOf(this.appearance(slot));
    return [facts[0], facts[1], slot.type3];
  }
}

module.exports = {BattleView};
