'use strict';
// What a player can remember of a battle beside the view's columns, from the same lines: who did an effect to whom, at
// which end of turn it began, who has acted in this turn. rebuild.js needs it to put a Battle into a position.

const {commandOf, parts} = require('./view');
const {toID} = require('pokemon-showdown');

const STALLS = new Set(['protect', 'endure', 'wideguard', 'quickguard']);
const BINDING = new Set(['bind', 'clamp', 'firespin', 'infestation', 'magmastorm', 'sandtomb', 'snaptrap',
  'thundercage', 'whirlpool', 'wrap']);
const RAMPAGES = new Set(['outrage', 'petaldance', 'thrash', 'ragingfury']);
const SHIELDS = new Set(['protect', 'wideguard', 'quickguard', 'matblock', 'craftyshield']);
const SIDE_ITEMS = new Set(['reflect', 'lightscreen', 'auroraveil']);
const PASSED = new Set(['substitute', 'confusion', 'leechseed', 'perishsong', 'focusenergy', 'dragoncheer',
  'magnetrise',
  'ingrain', 'aquaring', 'curse', 'healblock']);

const bare = text => toID(text.replace(/^(move|ability|item): /, ''));

// One slot of the field since somebody came in.
class Stand {
  constructor() {
    this.effects = new Map(); // id -> {ends, of, arg, …}
    this.turns = 0; // |turn| lines heard
    this.moves = []; // ids of moves it chose, the last one last
    this.target = 0; // slot of the last one's target, as a number of this file, -1 none
    this.failed = false; // its last action came to nothing
    this.actedIn = -1; // the turn of that
    this.usedItem = false;
    this.stallTurn = -1; // the last turn in which a protecting move worked
    this.toxicOrb = false; // poisoned so late in a turn that its first end did not count
    this.brief = []; // ids of what lasts for this turn
  }
}

class Chronicle {
  constructor(role) {
    this.me = role.charCodeAt(1);
    this.stands = [new Stand(), new Stand(), new Stand(), new Stand()]; // own a, own b, opponent's a, b
    this.names = ['', '', '', '']; // who stands there: "0 Name" of one's own, "1 Name" of the opponent's
    this.acted = [false, false, false, false];
    this.turn = 0;
    this.upkept = false; // the end of this turn is over
    this.mover = -1;
    this.move = '';
    this.field = new Map(); // weather, terrain and rooms: id -> {ends, of, long}
    this.sides = [new Map(), new Map()]; // own, the opponent's: id -> {ends, of, long, layers}
    this.spots = [new Map(), new Map(), new Map(), new Map()]; // wishes and future attacks by slot
    this.fell = [false, false]; // somebody fell in this turn
    this.once = new Set(); // "2 Name word": what a Pokémon does once in a battle
    this.details = new Map(); // "2 Name" -> its details as last told
    this.poked = [[], []]; // details in team preview
    this.items = [new Map(), new Map()]; // name -> {last, ate}
    this.sheet = null; // the opponent's open sheet, packed
    this.lines = [];
  }

  slotOf(ident) {
    if (!ident || ident.charCodeAt(0) !== 112 || ident.charCodeAt(3) !== 58) return -1;
    return (ident.charCodeAt(1) === this.me ? 0 : 2) + ident.charCodeAt(2) - 97;
  }

  sideOf(ident) {
    return ident.charCodeAt(1) === this.me ? 0 : 1;
  }

  who(ident) {
    return `${this.sideOf(ident)} ${ident.slice(ident.indexOf(': ') + 2)}`;
  }

  line(text) {
    const command = commandOf(text);
    this.lines.push(text);
    const read = READ[command];
    if (read) read(this, parts(text, command));
  }

  begin(slot, id, more = {}) {
    this.stands[slot].effects.set(id, {ends: 0, of: this.mover, acted: this.acted[slot], turns: this.stands[slot].turns,
      move: this.move, ...more});
  }

  enter(args) {
    const slot = this.slotOf(args[2]);
    const old = this.stands[slot];
    const stand = this.stands[slot] = new Stand();
    if (args[5] === '[from] Baton Pass') {
      for (const [id, effect] of old.effects) if (PASSED.has(id)) stand.effects.set(id, effect);
    } else if (args[5] === '[from] Shed Tail' && old.effects.has('substitute')) {
      stand.effects.set('substitute', old.effects.get('substitute'));
    }
    for (const other of this.stands) { // what the one that left did to others
      for (const [id, effect] of other.effects) {
        if (effect.of === slot && ['trapped', 'octolock', 'partiallytrapped', 'syrupbomb'].includes(id))
          effect.gone = true;
      }
    }
    this.acted[slot] = true;
    this.names[slot] = this.who(args[2]);
    this.details.set(this.who(args[2]), args[3]);
  }

  leave(slot) {
    this.stands[slot] = new Stand();
  }

  moved(args) {
    const slot = this.slotOf(args[2]);
    const stand = this.stands[slot];
    const id = toID(args[3]);
    const from = args.slice(5).find(word => word.startsWith('[from] ')) || '';
    this.mover = slot;
    this.move = id;
    stand.failed = args.includes('[notarget]') || args.includes('[miss]');
    if (from && from !== '[from] lockedmove') return;
    this.acted[slot] = true;
    stand.actedIn = this.turn;
    for (const over of ['destinybond', 'glaiverush', 'mustrecharge']) stand.effects.delete(over);
    const going = stand.effects.get('twoturnmove');
    if (going) {
      stand.effects.delete('twoturnmove');
      stand.effects.delete(going.arg);
    }
    if (id === 'wish' && !(this.spots[slot].get('wish')?.turn >= this.turn - 1)) { // the move is all that tells of it
      this.spots[slot].set('wish', {turn: this.turn, who: this.names[slot]});
    }
    stand.moves.push(id);
    stand.target = this.slotOf(args[4]);
    const rampage = stand.effects.get('lockedmove');
    if (RAMPAGES.has(id)) {
      if (rampage) rampage.uses++;
      else this.begin(slot, 'lockedmove', {arg: id, uses: 1});
    } else if (rampage) {
      stand.effects.delete('lockedmove');
    }
  }

  start(args) {
    const slot = this.slotOf(args[2]);
    if (slot < 0) return;
    const id = bare(args[3]);
    if (id === 'futuresight' || id === 'doomdesire') {
      const target = this.stands[slot].target >= 0 ? this.stands[slot].target : slot < 2 ? 2 : 0;
      this.spots[target].set('futuremove', {turn: this.turn, of: slot, who: this.who(args[2]), move: id});
    } else if (id.startsWith('perish')) {
      this.begin(slot, 'perishsong', {left: +id.slice(6), of: this.mover});
    } else if (id.startsWith('stockpile')) {
      const old = this.stands[slot].effects.get('stockpile');
      this.begin(slot, 'stockpile', {layers: +id.slice(9), raised: old ? old.raised : [0, 0]});
    } else if (id.startsWith('protosynthesis') || id.startsWith('quarkdrive')) {
      const name = id.slice(0, -3);
      const booster = this.stands[slot].booster;
      this.begin(slot, name, {stat: id.slice(-3), booster});
    } else if (id === 'uproar' && args.includes('[upkeep]')) {
      return;
    } else if (id === 'confusion' && args.includes('[fatigue]')) {
      this.stands[slot].effects.delete('lockedmove');
      this.begin(slot, id);
    } else if (id === 'typechange' || id === 'typeadd' || id.startsWith('fallen')) {
      if (args.includes('[from] ability: Protean') || args.includes('[from] ability: Libero'))
        this.stands[slot].libero = true;
    } else {
      this.begin(slot, id, {arg: args[4] && !args[4].startsWith('[') ? toID(args[4]) : '',
        ability: args.some(word => word.startsWith('[from] ability: '))});
    }
  }

  end(args) {
    const slot = this.slotOf(args[2]);
    if (slot < 0) return;
    const id = bare(args[3]);
    const {effects} = this.stands[slot];
    if (BINDING.has(id)) effects.delete('partiallytrapped');
    else if (id === 'futuresight' || id === 'doomdesire') this.spots[slot].delete('futuremove');
    else effects.delete(id);
  }

  activate(args) {
    const slot = this.slotOf(args[2]);
    if (slot < 0) return;
    const id = bare(args[3]);
    if (BINDING.has(id)) {
      const of = args.find(word => word.startsWith('[of] '));
      this.begin(slot, 'partiallytrapped', {arg: id, of: of ? this.slotOf(of.slice(5)) : this.mover});
    } else if (id === 'trapped') {
      this.begin(slot, 'trapped');
    } else if ((id === 'protosynthesis' || id === 'quarkdrive')) {
      this.stands[slot].booster = args.includes('[fromitem]');
    } else if (SHIELDS.has(id) && slot !== this.mover && this.mover >= 0) {
      this.stands[this.mover].failed = true;
    }
  }

  turnBegins(args) {
    this.turn = +args[2];
    this.acted.fill(false);
    this.upkept = false;
    this.fell.fill(false);
    for (const stand of this.stands) {
      stand.turns++;
      stand.usedItem = false;
      stand.brief = [];
    }
    this.mover = -1;
  }

  upkeep() {
    this.upkept = true;
    for (const stand of this.stands) for (const effect of stand.effects.values()) effect.ends++;
    for (const table of [this.field, ...this.sides]) for (const effect of table.values()) effect.ends++;
  }

  // Who made a field or side effect; whether an item of theirs prolongs it is for rebuild.js to say.
  source(args) {
    const of = args.find(word => word.startsWith('[of] '));
    const who = this.names[of ? this.slotOf(of.slice(5)) : this.mover] || '';
    const lost = who ? this.items[+who.charAt(0)].get(who.slice(2)) : null;
    return {who, lost: lost ? lost.last : ''}; // an item that was gone by then
  }
}

const READ = {
  switch: (self, args) => self.enter(args),
  drag: (self, args) => self.enter(args),
  replace: (self, args) => {
    self.names[self.slotOf(args[2])] = self.who(args[2]);
    self.details.set(self.who(args[2]), args[3]);
  },
  detailschange: (self, args) => self.details.set(self.who(args[2]), args[3]),
  poke: (self, args) => self.poked[self.sideOf(args[2])].push(args[3]),
  showteam: (self, args) => {
    if (self.sideOf(args[2]) === 1) self.sheet = args.slice(3).join('|');
  },
  swap: (self, args) => {
    const slot = self.slotOf(args[2]);
    if (slot - (slot & 2) === +args[3]) return;
    const {stands, acted, names} = self;
    [names[slot], names[slot ^ 1]] = [names[slot ^ 1], names[slot]];
    [stands[slot], stands[slot ^ 1]] = [stands[slot ^ 1], stands[slot]];
    [acted[slot], acted[slot ^ 1]] = [acted[slot ^ 1], acted[slot]];
  },
  faint: (self, args) => {
    const slot = self.slotOf(args[2]);
    self.fell[slot >> 1] = true;
    self.leave(slot);
  },
  move: (self, args) => self.moved(args),
  cant: (self, args) => {
    const slot = self.slotOf(args[2]);
    if (args[3].startsWith('ability: ') && args[3] !== 'ability: Truant') return;
    const {effects} = self.stands[slot];
    self.acted[slot] = true;
    self.stands[slot].actedIn = self.turn;
    self.stands[slot].failed = true;
    for (const over of ['mustrecharge', 'lockedmove', 'glaiverush', 'destinybond']) {
      if (over !== 'destinybond' || args[3] !== 'flinch') effects.delete(over);
    }
    const going = effects.get('twoturnmove');
    if (going) {
      effects.delete('twoturnmove');
      effects.delete(going.arg);
    }
  },
  turn: (self, args) => self.turnBegins(args),
  upkeep: self => self.upkeep(),
  '-start': (self, args) => self.start(args),
  '-end': (self, args) => self.end(args),
  '-activate': (self, args) => self.activate(args),
  '-singlemove': (self, args) => self.begin(self.slotOf(args[2]), bare(args[3])),
  '-singleturn': (self, args) => {
    const stand = self.stands[self.slotOf(args[2])];
    const id = bare(args[3]);
    if (STALLS.has(id)) stand.stallTurn = self.turn;
    // "Protect" is what all shields say; each has a volatile of its own.
    if (id === 'protect') stand.brief.push(self.move === 'detect' ? 'protect' : self.move);
    else stand.brief.push(id);
  },
  '-prepare': (self, args) => {
    const slot = self.slotOf(args[2]);
    self.begin(slot, 'twoturnmove', {arg: toID(args[3])});
  },
  '-anim': (self, args) => {
    const slot = self.slotOf(args[2]);
    if (slot >= 0) self.stands[slot].effects.delete('twoturnmove');
  },
  '-mustrecharge': (self, args) => self.begin(self.slotOf(args[2]), 'mustrecharge'),
  '-endability': (self, args) => self.begin(self.slotOf(args[2]), 'gastroacid'),
  '-status': (self, args) => {
    const slot = self.slotOf(args[2]);
    if (slot >= 0) self.stands[slot].toxicOrb = args[3] === 'tox' && args.includes('[from] item: Toxic Orb');
  },
  '-weather': (self, args) => {
    if (args.includes('[upkeep]')) return;
    for (const id of [...self.field.keys()]) if (id.startsWith('weather ')) self.field.delete(id);
    if (args[2] !== 'none') self.field.set(`weather ${toID(args[2])}`, {ends: 0, ...self.source(args)});
  },
  '-fieldstart': (self, args) => {
    const id = bare(args[2]);
    if (id.endsWith('terrain')) {
      for (const old of [...self.field.keys()]) if (old.endsWith('terrain')) self.field.delete(old);
    }
    self.field.set(id, {ends: 0, ...self.source(args)});
  },
  '-fieldend': (self, args) => self.field.delete(bare(args[2])),
  '-sidestart': (self, args) => {
    const table = self.sides[self.sideOf(args[2])];
    const id = bare(args[3]);
    const old = table.get(id);
    table.set(id, {ends: 0, ...self.source(args), layers: old ? old.layers + 1 : 1});
  },
  '-sideend': (self, args) => self.sides[self.sideOf(args[2])].delete(bare(args[3])),
  '-swapsideconditions': self => self.sides.reverse(),
  '-fail': (self, args) => {
    const slot = self.slotOf(args[2]);
    if (slot >= 0 && slot === self.mover) self.stands[slot].failed = true;
  },
  '-miss': (self, args) => {
    const slot = self.slotOf(args[2]);
    if (slot >= 0) self.stands[slot].failed = true;
  },
  '-damage': (self, args) => {
    const slot = self.slotOf(args[2]);
    const struck = args.length === 4 && slot >= 0 && slot !== self.mover && self.mover >= 0;
    if (struck) self.stands[self.mover].failed = false;
  },
  '-immune': self => {
    if (self.mover >= 0) self.stands[self.mover].failed = true;
  },
  '-enditem': (self, args) => {
    const slot = self.slotOf(args[2]);
    const key = self.who(args[2]);
    self.items[self.sideOf(args[2])].set(key.slice(2), {last: toID(args[3]),
      eaten: args.includes('[eat]'), knocked: args.some(word => word === '[from] move: Knock Off')});
    if (args.includes('[eat]')) self.once.add(`${key} berry`);
    if (slot >= 0) self.stands[slot].usedItem = true;
  },
  '-ability': (self, args) => {
    const key = self.who(args[2]);
    self.once.add(`${key} ${toID(args[3])}`);
  },
  '-boost': (self, args) => {
    const slot = self.slotOf(args[2]);
    const stock = self.stands[slot].effects.get('stockpile');
    if (stock && self.mover === slot && self.move === 'stockpile' && +args[4]) {
      if (args[3] === 'def') stock.raised[0]++;
      if (args[3] === 'spd') stock.raised[1]++;
    }
    const from = args.find(word => word.startsWith('[from] ability: '));
    if (from) self.once.add(`${self.who(args[2])} ${toID(from.slice(16))}`);
  },
};
module.exports = {Chronicle, SIDE_ITEMS, RAMPAGES};
