'use strict';
// Who is where, in what state: the Pokémon of both sides as one player knows them, and the four slots of the field.
// All of it comes from that player's protocol lines and requests; simulator objects never come in here.
//
// A view and all it is made of serve one battle after another (`begin`). V8 copies what is alive whenever the room for
// young objects is full: 3.6 MB each time with views made anew for each battle, 3.2 with these.
const {Belief, Beliefs} = require('./beliefs.js');
const {VOLATILE, VOLATILES} = require('./columns.js');
const vocab = require('./vocabulary.js');

const {STATUS, BOOST} = vocab;

// What Baton Pass hands on; Shed Tail hands on the Substitute alone.
const PASSED = ['substitute', 'confusion', 'leech_seed', 'perish', 'heal_block', 'focus_energy', 'magnet_rise',
  'no_escape', 'curse'].map(name => VOLATILE[name]);

const NO_MOVES = [];

class Mon {
  constructor(mine) {
    this.uses = [0, 0, 0, 0]; // by place in moves
    this.ppMoves = []; // own side: move ids, of which the first ppCount count, and what requests said is left of each
    this.ppLeft = [];
    this.told = mine ? new Told() : null; // own side: what the texts of the last request mean
    this.belief = mine ? null : new Belief();
    this.begin('', 0, 0);
  }

  begin(name, species, level) {
    this.name = name;
    this.species = species;
    this.level = level;
    this.hp = 1;
    this.maxhp = 0;
    this.status = 0;
    this.statusTurns = 0;
    this.fainted = false;
    this.shown = false;
    this.hiddenForme = false; // team preview did not say which forme it is
    this.ability = 0;
    this.item = 0;
    this.lostItem = 0;
    this.lostEvent = null; // the action in which it lost that
    this.tera = 0;
    this.terastallized = false;
    this.stellarTypes = 0; // bits of the types whose Stellar boost is used up
    this.hitsTaken = 0; // in the whole battle: Rage Fist
    this.moves = NO_MOVES; // never written to: a sheet's moves are shared by all who read the sheet
    this.uses.fill(0);
    this.ppCount = 0;
    this.entry = null; // own side: what the last request said
    if (this.told) this.told.condition = null;
    if (this.belief) this.belief.begin();
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
      index = this.moves.length;
      this.moves = [...this.moves, move];
    }
    return index;
  }

  setPp(move, left) {
    let at = 0;
    while (at < this.ppCount && this.ppMoves[at] !== move) at++;
    if (at === this.ppCount) this.ppCount++;
    this.ppMoves[at] = move;
    this.ppLeft[at] = left;
  }

  ppOf(move) {
    for (let at = 0; at < this.ppCount; at++) if (this.ppMoves[at] === move) return this.ppLeft[at];
    return 1;
  }
}

// What the texts of a request mean, side by side with the texts: most Pokémon are told of in the same words each time.
class Told {
  constructor() {
    this.details = this.item = this.ability = this.baseAbility = this.teraType = this.condition = null;
    this.texts = [];
    this.species = this.itemId = this.abilityId = this.tera = this.hp = this.status = 0;
    this.fainted = false;
    this.moves = [];
  }

  read(entry) {
    if (this.details !== entry.details) {
      this.details = entry.details;
      this.species = vocab.details(entry.details).species;
    }
    if (this.item !== entry.item) {
      this.item = entry.item;
      this.itemId = entry.item ? vocab.item(entry.item) : vocab.NONE;
    }
    if (this.ability !== entry.ability || this.baseAbility !== entry.baseAbility) {
      this.ability = entry.ability;
      this.baseAbility = entry.baseAbility;
      this.abilityId = vocab.ability(entry.ability || entry.baseAbility);
    }
    if (this.teraType !== entry.teraType) {
      this.teraType = entry.teraType;
      this.tera = entry.teraType ? vocab.type(entry.teraType) : 0;
    }
    const {moves} = entry;
    this.moves.length = this.texts.length = moves.length;
    for (let i = 0; i < moves.length; i++) {
      if (this.texts[i] === moves[i]) continue;
      this.texts[i] = moves[i];
      this.moves[i] = vocab.move(moves[i]);
    }
  }
}

class Slot {
  constructor() {
    this.volatile = new Float32Array(VOLATILES);
    this.types = [0, 0];
    this.begin();
  }

  begin() {
    this.mon = null;
    this.snapshot = null;
    this.types[0] = this.types[1] = 0;
    this.hpAtPause = -1;
    this.announces = false; // an Air Balloon would have been announced by the end of this turn
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
    this.lostItem = false; // since it came in: Unburden
    this.fallen = 0; // Supreme Overlord counts so many
    this.dancing = false; // the next move line is Dancer's copy
    this.odd = false; // its Speed stat is not its own (Speed Swap)
  }
}

// The whole number that begins at a place of a text: no piece of the text is cut out for it.
function number(text, at) {
  let value = 0;
  for (let digit; at < text.length && (digit = text.charCodeAt(at) - 48) >= 0 &&
    digit < 10; at++) value = 10 * value + digit;
  return value;
}

class Roster {
  constructor(side) {
    this.me = side.charCodeAt(1);
    this.slots = [new Slot(), new Slot(), new Slot(), new Slot()];
    // every Pokémon made so far, the opponent's and one's own; the first `used` of them are in this battle
    this.mons = [[], []];
    this.used = [0, 0];
    this.own = new Map(); // name -> Mon
    this.team = []; // own side in the order of the last request
    this.byIdent = new Map(); // "p1: Name" -> Mon
    this.opp = [];
    this.oppByName = new Map();
    this.rooms = new Int8Array(4); // ends of turn since it began, -1 off
    this.sides = [new Int8Array(13), new Int8Array(13)]; // the same; layers - 1 for spikes
    this.faints = [0, 0]; // own and the opponent's, the revived too: Last Respects
    this.history = [];
    this.beliefs = new Beliefs(this);
    this.begin();
  }

  // A new battle: nothing is known.
  begin() {
    for (const slot of this.slots) slot.begin();
    this.used[0] = this.used[1] = 0;
    this.own.clear();
    this.team.length = 0;
    this.byIdent.clear();
    this.opp.length = 0;
    this.oppByName.clear();
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
    this.rooms.fill(-1);
    for (const side of this.sides) side.fill(-1);
    this.faints.fill(0);
    this.history.length = 0;
    this.event = null;
    this.beliefs.begin();
  }

  newMon(mine, name, species, level) {
    const mons = this.mons[mine ? 1 : 0];
    const index = this.used[mine ? 1 : 0]++;
    if (index === mons.length) mons.push(new Mon(mine));
    mons[index].begin(name, species, level);
    return mons[index];
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

  // --- who is where -------------------------------------------------------------------------------------------------

  poke(args) {
    if (args[2].charCodeAt(1) === this.me) return;
    const {species, level, hidden} = vocab.details(args[3]);
    const mon = this.newMon(false, '', species, level);
    mon.hiddenForme = hidden;
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
      mon.hiddenForme = false;
      this.beliefs.adopt(mon);
    }
  }

  // Species Clause: the dex number tells apart all Pokémon of a team, whatever forme or nickname they show.
  find(mine, name, {species, level}) {
    if (mine) {
      const own = this.own.get(name) || this.newMon(true, name, species, level);
      this.own.set(name, own);
      return own;
    }
    let mon = this.opp.find(other => vocab.sameSpecies(other.species, species));
    // An Illusion of somebody who has transformed shows a species that is not on the team, and that somebody's name.
    if (!mon && this.oppByName.has(name)) return this.oppByName.get(name);
    if (!mon) {
      mon = this.newMon(false, name, species, level);
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
    mon.learnFrom(species);
    if (mon.belief) this.beliefs.adopt(mon);
  }

  enter(args) {
    const index = this.slotOf(args[2]);
    const slot = this.slots[index];
    const details = vocab.details(args[3]);
    const mon = this.find(index < 2, args[2].slice(5), details);
    const passed = args[5] === '[from] Baton Pass' ? PASSED.map(column => slot.volatile[column]) : null;
    const boosts = passed ? slot.volatile.slice(0, 7) : null;
    const doll = args[5] === '[from] Shed Tail' && slot.volatile[VOLATILE.substitute];
    this.leave(index);
    slot.mon = mon;
    slot.clear();
    if (index > 1 && mon.species !== details.species) slot.species = details.species;
    if (passed) {
      slot.volatile.set(boosts);
      PASSED.forEach((column, i) => { slot.volatile[column] = passed[i]; });
    }
    if (doll) slot.volatile[VOLATILE.substitute] = 1;
    if (mon.status === STATUS.tox) mon.statusTurns = 0;
    slot.snapshot = index > 1 && this.deceivers ? {...mon, uses: mon.uses.slice()} : null;
    if (slot.snapshot) slot.snapshot.belief = Object.assign(new Belief(), mon.belief);
    if (!mon.shown && mon.hiddenForme) {
      mon.shown = true;
      this.beliefs.adopt(mon);
    }
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
    const real = this.find(index < 2, args[2].slice(5), vocab.details(args[3]));
    const posed = slot.mon;
    slot.mon = real;
    real.shown = true;
    if (index < 2 || posed === real || !slot.snapshot) return;
    const before = slot.snapshot;
    slot.snapshot = null;
    for (const key of ['hp', 'status', 'statusTurns', 'fainted']) real[key] = posed[key];
    const twin = this.slots[index ^ 1].mon === posed; // the true one stands beside it: whose item was it?
    if (!twin && posed.item !== before.item) real.item = posed.item;
    if (!twin && posed.lostItem !== before.lostItem) real.lostItem = posed.lostItem;
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
    if (!twin) Object.assign(posed, before);
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
    slot.mon.terastallized = false; // and should it be revived, it is not any more
    this.faints[index >> 1]++;
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
    mon.hp = number(text, 0) / number(text, slash + 1);
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
      if (this.event.actor !== index + 1) this.struck(mon, this.event);
    }
    if (!direct) this.cause(args, 4);
    this.beliefs.health(index, mon, args, before);
  }

  struck(mon, {actor, move}) {
    mon.hitsTaken++;
    const attacker = this.slots[actor - 1].mon;
    if (attacker && attacker.terastallized && attacker.tera === vocab.STELLAR) {
      attacker.stellarTypes |= 1 << (move === vocab.TERA_BLAST ? vocab.STELLAR : vocab.moveFacts[move][0]);
    }
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

  // --- the player's own side -----------------------------------------------------------------------------------------

  introduce(entry) {
    const name = entry.ident.slice(4);
    let mon = this.own.get(name);
    if (!mon) {
      const {species, level} = vocab.details(entry.details);
      mon = this.newMon(true, name, species, level);
      this.own.set(name, mon);
    }
    this.byIdent.set(entry.ident, mon);
    return mon;
  }

  // The request is the truth about one's own side: who is where (also under an own Illusion), health, items, moves.
  request(req) {
    this.req = req;
    const team = req.side.pokemon;
    for (let i = 0; i < team.length; i++) {
      const entry = team[i];
      const last = this.team[i]; // most stay where they were
      const mon = last && last.entry.ident === entry.ident ? last : this.byIdent.get(entry.ident) ||
        this.introduce(entry);
      const {told} = mon;
      told.read(entry);
      this.team[i] = mon;
      mon.species = told.species;
      if (told.condition === entry.condition) {
        mon.hp = told.hp;
        mon.fainted = told.fainted;
        this.status(mon, told.status);
      } else {
        this.condition(mon, entry.condition);
        told.condition = entry.condition;
        told.hp = mon.hp;
        told.fainted = mon.fainted;
        told.status = mon.status;
        const slash = entry.condition.indexOf('/'); // the fainted keep the last maximum; lines may be an Illusion's
        if (slash > 0) mon.maxhp = number(entry.condition, slash + 1);
      }
      mon.item = told.itemId;
      mon.ability = told.abilityId;
      mon.tera = told.tera;
      mon.terastallized = !!entry.terastallized;
      if (mon.terastallized) this.ownTera = true;
      mon.entry = entry;
      if (i < 2 && entry.active && !req.teamPreview) this.slots[i].mon = mon;
    }
    if (req.active) {
      for (let i = 0; i < req.active.length; i++) {
        const mon = this.team[i];
        for (const move of req.active[i].moves) {
          if (move.maxpp) mon.setPp(vocab.move(move.id), move.pp / move.maxpp);
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

module.exports = {Roster};
