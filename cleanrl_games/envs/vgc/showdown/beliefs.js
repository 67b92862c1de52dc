'use strict';
// What follows about the opponent's hidden side from what was seen: bounds on the raw Speed stat from the order of
// moves, and items that can be ruled out. A bound is only drawn where nothing unseen could have turned the order; what
// depends on an unseen item has its own "plain" columns.
const {LAYOUT, VOLATILE} = require('./columns.js');
const vocab = require('./vocabulary.js');

const BELIEF = LAYOUT.groups.belief.float;
const FIELD = LAYOUT.groups.field.float;
const STAGE = VOLATILE.boost_spe;
const items = names => new Set(names.map(vocab.item));
const abilities = names => new Set(names.map(vocab.ability));

const SCARF = vocab.item('choicescarf');
const CHOICE = items(['choiceband', 'choicescarf', 'choicespecs']);
const SLOW = items(['ironball', 'machobrace', 'poweranklet', 'powerband', 'powerbelt', 'powerbracer', 'powerlens',
  'powerweight']);
const LATE = items(['laggingtail', 'fullincense']);
// they move their holder inside a bracket
const ORDER = items(['laggingtail', 'fullincense', 'quickclaw', 'custapberry']);
const TOUCHES_SPEED = new Set([SCARF, ...SLOW, ...ORDER, vocab.item('quickpowder')]);
const [VEST, ORB, LEFTOVERS, SASH, BOOTS, BALLOON] = ['assaultvest', 'lifeorb', 'leftovers', 'focussash',
  'heavydutyboots', 'airballoon'].map(vocab.item);

const WEATHER_SPEED = new Map([['chlorophyll', ['sun', 'harsh_sun']], ['swiftswim', ['rain', 'heavy_rain']],
  ['sandrush', ['sand']], ['slushrush', ['snow']]].map(([name, weathers]) =>
  [vocab.ability(name), new Set(weathers.map(weather => FIELD[`weather_${weather}`]))]));
const [SURGE_SURFER, UNBURDEN, QUICK_FEET, KLUTZ, GAS, PRANKSTER, GALE_WINGS, MIGHT] = ['surgesurfer', 'unburden',
  'quickfeet', 'klutz', 'neutralizinggas', 'prankster', 'galewings', 'myceliummight'].map(vocab.ability);
const NEVER = abilities(['triage', 'stall', 'quickdraw']); // the bracket of their moves is not to be read off the line
const NO_RECOIL = abilities(['sheerforce', 'magicguard', 'klutz']);
const TURNS_ORDER = new Set(['afteryou', 'quash', 'round', 'firepledge', 'grasspledge', 'waterpledge', 'shelltrap',
  'instruct',
  'allyswitch'].map(vocab.move));
const GRASSY_GLIDE = vocab.move('grassyglide');
const STRUGGLE = vocab.move('struggle');
const FLYING = vocab.type('flying');
const MAGIC_ROOM = 2;
const STAGES = [1, 1.5, 2, 2.5, 3, 3.5, 4];

// The simulator's arithmetic: stages, then all factors chained in 4096ths, then paralysis.
function effective(raw, stage, factor, halved) {
  let speed = Math.floor(stage >= 0 ? raw * STAGES[stage] : raw / STAGES[-stage]);
  speed = Math.trunc((speed * factor * 4096 + 2047) / 4096);
  return halved ? Math.floor(speed / 2) : speed;
}

// Lowest raw stat that reaches `goal`; `effective` grows with raw, so halving the interval finds it.
function lowest(goal, stage, factor, halved) {
  let [low, high] = [1, 1000];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (effective(middle, stage, factor, halved) >= goal) high = middle;
    else low = middle + 1;
  }
  return low;
}

function statRange(base, level) {
  const plain = (iv, ev) => Math.floor((2 * base + iv + ev / 4) * level / 100) + 5;
  return [Math.floor(plain(0, 0) * 90 / 100), Math.floor(plain(31, 252) * 110 / 100)];
}

// What is believed of one Pokémon: bounds of its Speed stat (bottom and top are the species'), items it does not hold.
class Belief {
  constructor() {
    this.begin();
  }

  begin() {
    this.noChoice = this.noVest = this.noOrb = this.noLeftovers = this.noSash = this.noBoots = this.noBalloon =
      this.swapped = false;
    this.bound(0, 0);
  }

  bound(low, high) {
    this.bottom = this.low = this.lowPlain = low;
    this.top = this.high = this.highPlain = high;
  }
}

class Beliefs {
  constructor(view) {
    this.view = view;
    this.pairs = []; // who moved before whom in this turn, with both Speeds as they stood then
    this.acted = [false, false, false, false];
    this.flagged = [false, false, false, false];
    this.low = this.high = 0; // what `certain` found
    this.begin();
  }

  begin() {
    this.pairs.length = 0;
    this.acted.fill(false);
    this.flagged.fill(false);
    this.dirty = false;
    this.swing = null; // a damaging move of the opponent whose recoil is still to come
  }

  adopt(mon) {
    let [low, high] = statRange(vocab.baseStatsOf(mon.species)[5], mon.level);
    if (mon.hiddenForme && !mon.shown) { // "Zacian-*": any forme may stand behind it
      for (const other of vocab.formesOf(mon.species)) {
        const range = statRange(vocab.baseStatsOf(other)[5], mon.level);
        low = Math.min(low, range[0]);
        high = Math.max(high, range[1]);
      }
    }
    if (mon.belief.bottom !== low || mon.belief.top !== high) mon.belief.bound(low, high);
  }

  // --- Speed --------------------------------------------------------------------------------------------------------

  turn() {
    this.pairs.length = 0;
    this.acted.fill(false);
    this.flagged.fill(false);
    this.dirty = false;
    for (const slot of [this.view.slots[2], this.view.slots[3]]) {
      if (slot.announces && slot.mon && !slot.mon.item) slot.mon.belief.noBalloon = true;
      slot.announces = false;
    }
  }

  disturb() {
    this.dirty = true;
  }

  candidates(index) {
    const slot = this.view.slots[index];
    if (slot.ability < 0) return null;
    const known = slot.ability || slot.mon.ability;
    return known ? [known] : vocab.abilitiesOf(slot.mon.species);
  }

  // An Illusion makes every line about its side doubtful, unless its bearer is in plain sight.
  masked(mine) {
    const {view} = this;
    const [a, b] = mine ? [view.slots[0].mon, view.slots[1].mon] : [view.slots[2].mon, view.slots[3].mon];
    if (!mine && !view.deceivers) return false;
    for (const mon of mine ? view.own.values() : view.opp) {
      if (mon.fainted || mon === a || mon === b) continue;
      if (mon.ability ? mon.ability === vocab.ILLUSION : vocab.abilitiesOf(mon.species).includes(vocab.ILLUSION))
        return true;
    }
    return mine && ((a && a.ability === vocab.ILLUSION) || (b && b.ability === vocab.ILLUSION));
  }

  // Speed of a slot now: raw stat (own side), stage and the factors between which it lies. null: not to be relied on.
  speed(index) {
    const {view} = this;
    const slot = view.slots[index];
    const {mon} = slot;
    const mine = index < 2;
    if (!mon || mon.fainted || slot.volatile[VOLATILE.transformed] || slot.odd) return null;
    const base = vocab.baseStatsOf(mon.species)[5];
    if (slot.species && vocab.baseStatsOf(slot.species)[5] !== base) return null;
    if (mine && (!mon.entry || vocab.baseStatsOf(mon.told.species)[5] !== base)) return null;
    const could = this.candidates(index);
    if (!could) return null;
    const {item} = mon;
    if (LATE.has(item)) return null;
    const side = view.sides[mine ? 0 : 1];
    let low = 1;
    let high = 1;
    if (side[0] >= 0) { low *= 2; high *= 2; }
    if (side[12] >= 0) { low *= 0.25; high *= 0.25; }
    if (slot.volatile[VOLATILE.paradox_spe]) {
      high *= 1.5;
      const gas = view.slots.some(other => other.mon && !other.mon.fainted &&
        (other.ability || other.mon.ability) === GAS);
      if (!gas && !slot.suppressed) low *= 1.5;
    }
    if (slot.volatile[VOLATILE.slow_start]) low *= 0.5;
    for (const ability of could) {
      const weathers = WEATHER_SPEED.get(ability);
      if ((weathers && weathers.has(view.weather)) || (ability === SURGE_SURFER &&
        view.terrain === FIELD.terrain_electric) ||
          (ability === UNBURDEN && (!item || item === vocab.NONE))) high *= 2;
      if (ability === QUICK_FEET && mon.status) high *= 1.5;
    }
    const idle = view.rooms[MAGIC_ROOM] >= 0 || could.includes(KLUTZ);
    let [lowItem, highItem] = [1, 1];
    if (item === SCARF) [lowItem, highItem] = [idle ? 1 : 1.5, 1.5];
    else if (SLOW.has(item)) lowItem = 0.5;
    else if (!item) [lowItem, highItem] = [0.5, 1.5];
    const par = mon.status === 2;
    return {
      mon, mine, species: mon.species, raw: mine ? mon.entry.stats.spe : 0, stage: slot.volatile[STAGE], item,
        unknown: !item,
      low: low * lowItem, high: high * highItem, lowPlain: item ? low * lowItem : low,
        highPlain: item ? high * highItem : high,
      lowHalved: par, highHalved: par && !could.includes(QUICK_FEET),
    };
  }

  // The priority a move line shows, or null where an ability may have changed it.
  bracket(index, move) {
    const could = this.candidates(index);
    const slot = this.view.slots[index];
    if (!could || move === GRASSY_GLIDE || slot.volatile[VOLATILE.encore] || !move) return null;
    const [type, category, , , priority] = vocab.moveFacts[move];
    for (const ability of could) {
      if (NEVER.has(ability)) return null;
      if (category === 0 && (ability === PRANKSTER || ability === MIGHT)) return null;
      if (ability === GALE_WINGS && type === FLYING) return null;
    }
    return priority;
  }

  moved(index, move, chosen) {
    this.settle();
    const {view} = this;
    if (TURNS_ORDER.has(move)) this.dirty = true;
    if (chosen && index > 1) this.sawMove(index, move);
    if (!chosen || this.acted[index] || !view.turn) return;
    this.acted[index] = true;
    if (this.dirty || this.flagged[index]) return;
    const priority = this.bracket(index, move);
    if (priority === null || this.masked(true) || this.masked(false)) return;
    for (const pair of this.pairs) {
      const {earlier, later} = pair;
      const same = later.mon === view.slots[index].mon && later.mon.species === later.species &&
        earlier.mon.species === earlier.species;
      if (pair.second === index && pair.priority === priority && same) this.compare(pair);
    }
    const earlier = this.speed(index);
    if (!earlier) return;
    const other = index < 2 ? 2 : 0;
    for (let second = other; second < other + 2; second++) {
      if (this.acted[second] || this.flagged[second]) continue;
      const later = this.speed(second);
      if (later) this.pairs.push({second, priority, earlier, later, reversed: view.rooms[0] >= 0});
    }
  }

  // `earlier` moved first in the same bracket: it was not slower (in Trick Room not faster).
  compare({earlier, later, reversed}) {
    const [fast, slow] = reversed ? [later, earlier] : [earlier, later];
    const theirs = earlier.mine ? later : earlier;
    const {belief} = theirs.mon;
    // Lagging Tail and Full Incense make their holder late without a word.
    const certain = theirs === earlier || !theirs.unknown;
    if (theirs === fast) {
      const goal = effective(slow.raw, slow.stage, slow.low, slow.lowHalved);
      if (certain) belief.low = Math.max(belief.low, lowest(goal, fast.stage, fast.high, fast.highHalved));
      belief.lowPlain = Math.max(belief.lowPlain, lowest(goal, fast.stage, fast.highPlain, fast.highHalved));
    } else {
      const goal = effective(fast.raw, fast.stage, fast.high, fast.highHalved) + 1;
      if (certain) belief.high = Math.min(belief.high, lowest(goal, slow.stage, slow.low, slow.lowHalved) - 1);
      belief.highPlain = Math.min(belief.highPlain, lowest(goal, slow.stage, slow.lowPlain, slow.lowHalved) - 1);
    }
  }

  stopped(index) {
    this.settle();
    this.acted[index] = true;
  }

  activated(index, effect) {
    if (effect === 'item: Quick Claw' || effect === 'item: Custap Berry' || effect === 'ability: Quick Draw') {
      this.flagged[index] = true;
    } else if (effect === 'move: Speed Swap') {
      for (const slot of this.view.slots) slot.odd = true;
    } else if (effect === 'move: After You' || effect === 'move: Quash') {
      this.dirty = true;
    }
  }

  // --- items --------------------------------------------------------------------------------------------------------

  entered(index) {
    this.settle();
    this.acted[index] = true; // who comes in during a turn does not move in it
    const slot = this.view.slots[index];
    slot.hpAtPause = -1;
    slot.announces = index > 1 && !this.idle(index) && this.view.rooms[1] < 0;
  }

  idle(index) {
    const could = this.candidates(index);
    return this.view.rooms[MAGIC_ROOM] >= 0 || !could || could.includes(KLUTZ);
  }

  sawMove(index, move) {
    const slot = this.view.slots[index];
    const {belief} = slot.mon;
    if (this.idle(index) || this.masked(false) || move === STRUGGLE) return;
    const [, category] = vocab.moveFacts[move];
    if (slot.lastMove && slot.lastMove !== move && slot.lastMove !== STRUGGLE) belief.noChoice = true;
    if (category === 0) belief.noVest = true;
    else if (!this.candidates(index).some(ability => NO_RECOIL.has(ability))) this.swing = {slot, mon: slot.mon,
      hit: false};
  }

  // The next action has begun: recoil that has not come will not come.
  settle() {
    const {swing} = this;
    this.swing = null;
    if (swing && swing.hit && swing.slot.mon === swing.mon && !swing.mon.fainted) swing.mon.belief.noOrb = true;
  }

  health(index, mon, args, before) {
    if (index < 0) return;
    const direct = args.length === 4 && args[1] === '-damage';
    if (direct && this.swing && this.view.slots[index].mon !== this.swing.mon) this.swing.hit = true;
    // full before Leftovers had their turn
    if (args[1] === '-heal' && mon.hp === 1) this.view.slots[index].hpAtPause = -1;
    if (index < 2 || args[1] !== '-damage' || this.idle(index) || this.masked(false)) return;
    if (direct && before === 1 && mon.hp === 0) mon.belief.noSash = true;
    if (args[4] === '[from] Stealth Rock' || args[4] === '[from] Spikes') mon.belief.noBoots = true;
  }

  // An empty line stands before the moves and before the end of a turn.
  pause() {
    this.settle();
    for (const slot of this.view.slots) slot.hpAtPause = slot.mon ? slot.mon.hp : -1;
  }

  upkeep() {
    this.settle();
    for (let index = 2; index < 4; index++) {
      const slot = this.view.slots[index];
      const {mon} = slot;
      if (!mon || mon.fainted || this.masked(false) || this.idle(index) || slot.volatile[VOLATILE.heal_block]) continue;
      if (slot.hpAtPause > 0 && slot.hpAtPause < 1) mon.belief.noLeftovers = true;
    }
  }

  itemChanged(mon, from) {
    this.swing = null; // Red Card, Knock Off …: too much may have changed for a conclusion about recoil
    if (mon.belief && from.startsWith('[from] ') && from !== '[from] ability: Frisk') mon.belief.swapped = true;
    if (ORDER.has(mon.lostItem) || ORDER.has(mon.item)) {
      this.view.slots.forEach((slot, i) => { if (slot.mon === mon) this.flagged[i] = true; });
    }
  }

  // --- the columns --------------------------------------------------------------------------------------------------

  // The certain bounds of the raw Speed, in `low` and `high`.
  certain(mon) {
    const {belief, item} = mon;
    this.low = belief.low;
    this.high = belief.high;
    const first = mon.lostItem || item;
    if (first > vocab.NONE && !belief.swapped && !TOUCHES_SPEED.has(first)) {
      this.low = Math.max(this.low, belief.lowPlain); // the item is known by now, and it never touched the Speed
      this.high = Math.min(this.high, belief.highPlain);
    }
  }

  write(mon, slot, floats, to) {
    const {belief, item} = mon;
    this.certain(mon);
    floats[to] = this.low / 250;
    floats[to + 1] = this.high / 250;
    floats[to + 2] = Math.min(belief.lowPlain, belief.top) / 250;
    floats[to + 3] = Math.max(belief.highPlain, belief.bottom) / 250;
    if (!item && belief.lowPlain > belief.top) floats[to + 4] = 1;
    if (item) floats[to + 5] = 1;
    if (slot ? slot.ability >= 0 && (slot.ability || mon.ability) : mon.ability) floats[to + 6] = 1;
    floats[to + 7] = mon.moves.length / 4;
    if (mon.tera) floats[to + 8] = 1;
    const out = to + BELIEF.no_choice;
    if (item ? !CHOICE.has(item) : belief.noChoice) floats[out] = 1;
    if (item ? item !== VEST : belief.noVest) floats[out + 1] = 1;
    if (item ? item !== ORB : belief.noOrb) floats[out + 2] = 1;
    if (item ? item !== LEFTOVERS : belief.noLeftovers) floats[out + 3] = 1;
    if (item ? item !== SASH : belief.noSash) floats[out + 4] = 1;
    if (item ? item !== BOOTS : belief.noBoots) floats[out + 5] = 1;
    if (item ? item !== BALLOON : belief.noBalloon) floats[out + 6] = 1;
  }
}

module.exports = {Belief, Beliefs, effective, statRange, SCARF, SLOW, LATE, WEATHER_SPEED};
