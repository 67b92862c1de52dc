'use strict';
// One player's knowledge of a battle, built from exactly what a server sends that player: protocol lines and requests.
const {COLUMNS, LAYOUT, VOLATILE} = require('./columns.js');
const {Roster} = require('./roster.js');
const vocab = require('./vocabulary.js');

const {STATUS} = vocab;
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

// What each line does to a view. Lines that are not here (a sixth of all) tell a player nothing, and nobody cuts them
// up.
const READERS = new Map(Object.entries({
  move: (view, args) => view.move(args),
  switch: (view, args) => view.enter(args),
  drag: (view, args) => view.enter(args),
  faint: (view, args) => view.faint(args),
  upkeep: view => view.upkeep(),
  '': view => view.beliefs.pause(),
  turn: (view, args) => view.newTurn(args),
  cant: (view, args) => view.cant(args),
  detailschange: (view, args) => view.detailsChange(args),
  swap: (view, args) => view.swap(args),
  replace: (view, args) => view.replace(args),
  poke: (view, args) => view.poke(args),
  teampreview: (view, args) => { if (args[2]) view.picks = +args[2]; },
  showteam: (view, args) => view.sheet(args),
  '-boost': (view, args) => view.boost(args, 1),
  '-unboost': (view, args) => view.boost(args, -1),
  '-weather': (view, args) => view.setWeather(args),
  '-start': (view, args) => view.start(args),
  '-end': (view, args) => view.end(args),
  '-activate': (view, args) => view.activate(args),
  '-singleturn': (view, args) => view.singleTurn(args),
  '-enditem': (view, args) => view.endItem(args),
  '-item': (view, args) => view.setItem(args),
  '-ability': (view, args) => view.setAbility(args),
  '-status': (view, args) => view.setStatus(args),
  '-curestatus': (view, args) => view.cure(args),
  '-cureteam': (view, args) => view.cureTeam(args),
  '-sidestart': (view, args) => view.sideStart(args),
  '-sideend': (view, args) => view.sideEnd(args),
  '-fieldstart': (view, args) => view.fieldStart(args),
  '-fieldend': (view, args) => view.fieldEnd(args),
  '-swapsideconditions': view => view.sides.reverse(),
  '-miss': view => { if (view.event) view.event.noEffect++; },
  '-terastallize': (view, args) => view.terastallize(args),
  '-mega': (view, args) => view.megaEvolve(args),
  '-formechange': (view, args) => view.formeChange(args),
  '-transform': (view, args) => view.transform(args),
  '-singlemove': (view, args) => view.singleMove(args),
  '-prepare': (view, args) => view.mark(args[2], 'preparing', 1),
  '-anim': (view, args) => view.mark(args[2], 'preparing', 0),
  '-mustrecharge': (view, args) => view.mark(args[2], 'recharge', 1),
  '-endability': (view, args) => view.endAbility(args),
}));
for (const command of ['-damage', '-heal', '-sethp']) READERS.set(command, (view, args) => view.health(args));
for (const command of ['-immune', '-fail', '-block']) READERS.set(command, (view, args) => view.noEffect(args));
for (const command of ['-setboost', '-clearboost', '-clearallboost', '-clearpositiveboost', '-clearnegativeboost',
  '-copyboost',
  '-swapboost', '-invertboost']) READERS.set(command, (view, args) => view.otherBoost(args));

function commandOf(line) {
  const end = line.indexOf('|', 1);
  return end < 0 ? line.slice(1) : line.slice(1, end);
}

// line.split('|') for a line whose command is known already. split() itself leaves compiled code.
function parts(line, command) {
  const args = ['', command];
  for (let from = command.length + 2, to; from <= line.length; from = to + 1) {
    to = line.indexOf('|', from);
    if (to < 0) to = line.length;
    args.push(line.slice(from, to));
  }
  return args;
}

class BattleView extends Roster {
  line(text) {
    const command = commandOf(text);
    const read = READERS.get(command);
    if (read) read(this, parts(text, command));
  }

  newTurn(args) {
    this.turn = +args[2];
    this.beliefs.turn();
  }

  // --- actions ------------------------------------------------------------------------------------------------------

  push(index, move, target, isSwitch, isCant) {
    const event = {
      actor: index + 1, species: this.appearance(this.slots[index]), move, target: target + 1,
      targetSpecies: target >= 0 ? this.appearance(this.slots[target]) : 0, turn: this.turn, isSwitch, isCant,
      damageOwn: 0, damageOpp: 0, noEffect: 0, faints: 0,
    };
    const {history} = this;
    if (history.length < HISTORY) history.push(null);
    for (let i = history.length - 1; i > 0; i--) history[i] = history[i - 1];
    history[0] = this.event = event;
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
    if (slot.dancing) from = 'ability: Dancer'; // a copy that fails loses its tag
    slot.dancing = false;
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
    slot.dancing = false;
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
    } else if (effect.startsWith('fallen')) {
      slot.fallen = effect.charCodeAt(6) - 48;
    } else if (effect.startsWith('protosynthesis') || effect.startsWith('quarkdrive')) {
      slot.volatile[VOLATILE[`paradox_${effect.slice(-3)}`]] = 1;
    }
    if (args[3].startsWith('ability: ')) this.showAbility(index, effect);
    this.cause(args, 4);
  }

  changeTypes(slot, args) {
    if (slot.mon.terastallized) return; // Double Shock says so, and nothing changes
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
      if (effect === 'Mummy' || effect === 'Lingering Aroma') this.infect(args, effect);
      if (effect === 'Dancer') slot.dancing = true;
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

  // |-activate|HOLDER|ability: Mummy|VICTIM|[ability] OLD
  infect(args, effect) {
    const index = this.slotOf(args[4]);
    this.showAbility(index, args[5].slice(10));
    this.slots[index].ability = vocab.ability(effect);
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
      this.slots[index].ability = second || -1; // -1: swapped, and nobody said what it is
      this.slots[other].ability = first || -1;
    }
  }

  terastallize(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    slot.mon.tera = vocab.type(args[3]);
    slot.mon.terastallized = true;
    slot.type3 = 0;
    this.spendGimmick(index);
  }

  // |-mega|WHO|SPECIES|STONE, after the |detailschange| that says what it has become.
  megaEvolve(args) {
    const mon = this.monOf(args[2]);
    if (mon && args[4]) mon.item = vocab.item(args[4]);
    this.spendGimmick(this.slotOf(args[2]));
  }

  // Once a battle and side: to terastallize, or to mega evolve where a format has that.
  spendGimmick(index) {
    if (index < 2) this.ownTera = true;
    else this.oppTera = true;
  }

  detailsChange(args) {
    const index = this.slotOf(args[2]);
    if (index >= 0) {
      this.slots[index].species = 0;
      this.slots[index].ability = 0;
    }
    const mon = this.monOf(args[2]); // off the field too: Terapagos changes back when it faints
    if (mon) this.changeSpecies(mon, vocab.details(args[3]).species);
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
    slot.ability = this.abilityOf(into) || -1;
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
    const from = args[4] || '';
    // A White Herb that comes by Trick can be used up before the line that announces it.
    const gone = (from === '[from] move: Trick' || from === '[from] move: Switcheroo') &&
      mon.lostItem === item && mon.lostEvent === this.event;
    if (!gone) mon.item = item;
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
    mon.lostEvent = this.event;
    for (const slot of this.slots) if (slot.mon === mon) slot.lostItem = true;
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
    return slot.ability < 0 ? 0 : slot.ability || slot.mon.ability;
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
}

module.exports = {BattleView, READERS, commandOf, parts};
