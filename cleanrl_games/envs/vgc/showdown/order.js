'use strict';
// Who moves first, as a player works it out from one PlayerView: the Speed of each slot as an interval that is certain
// and as one that is likely, with stages, Tailwind, the swamp, paralysis, weather, terrain, items and abilities.
//
// Certain is what the request says of the own side and what `beliefs.js` has drawn from the order of moves; an item
// that is not known may be a Choice Scarf or an Iron Ball, an ability that is not known any of the species'. Likely is
// that neither is at work and that every Speed between the plain bounds is as likely as any other.
const {effective, statRange, SCARF, SLOW, LATE, WEATHER_SPEED} = require('./beliefs.js');
const {LAYOUT, VOLATILE} = require('./columns.js');
const vocab = require('./vocabulary.js');

const ELECTRIC_TERRAIN = LAYOUT.groups.field.float.terrain_electric;
const [SURGE_SURFER, UNBURDEN, QUICK_FEET, STALL] =
  ['surgesurfer', 'unburden', 'quickfeet', 'stall'].map(vocab.ability);
const TAILWIND = 0, SWAMP = 12; // places in view.sides
const TRICK_ROOM = 0, MAGIC_ROOM = 2; // places in view.rooms
const PARALYSIS = 2;
const LIKELY = 0.9; // no more than this where it is not certain

class Order {
  constructor() {
    this.sureLow = new Int32Array(4);
    this.sureHigh = new Int32Array(4);
    this.low = new Int32Array(4); // what is likely
    this.high = new Int32Array(4);
    this.late = new Uint8Array(4); // moves last in its bracket whatever its Speed
    this.reversed = false;
  }

  look(view, damage) {
    this.reversed = view.rooms[TRICK_ROOM] >= 0;
    for (const fighter of damage.fighters) if (fighter.present) this.read(fighter, view, damage);
  }

  read(fighter, view, damage) {
    const {index, mon, slot, volatile, ability, species} = fighter;
    const {belief} = mon;
    const mine = index < 2;
    const stage = volatile[VOLATILE.boost_spe];

    // raw stat: certain bounds, likely bounds
    let rawLow, rawHigh, plainLow, plainHigh;
    const odd = volatile[VOLATILE.transformed] > 0 || slot.odd ||
      (!mine && vocab.baseStatsOf(species)[5] !== vocab.baseStatsOf(mon.species)[5]);
    if (odd) {
      [rawLow, rawHigh] = statRange(vocab.baseStatsOf(species)[5], mon.level);
      plainLow = rawLow;
      plainHigh = rawHigh;
    } else if (mine) {
      rawLow = rawHigh = plainLow = plainHigh = mon.entry.stats.spe;
    } else {
      view.beliefs.certain(mon);
      rawLow = view.beliefs.low;
      rawHigh = view.beliefs.high;
      plainLow = Math.max(rawLow, Math.min(belief.lowPlain, rawHigh));
      plainHigh = Math.max(plainLow, Math.min(rawHigh, belief.highPlain));
    }

    // factors
    const side = view.sides[index >> 1];
    let factor = (side[TAILWIND] >= 0 ? 2 : 1) * (side[SWAMP] >= 0 ? 0.25 : 1);
    if (volatile[VOLATILE.paradox_spe] && ability) factor *= 1.5;
    if (volatile[VOLATILE.slow_start] && ability) factor *= 0.5;
    let more = 1; // what an ability that is not known could add
    const known = mine || slot.ability > 0 || (slot.ability === 0 && mon.ability > 0);
    if (known) {
      factor *= this.ofAbility(ability, fighter, damage);
    } else {
      for (const could of vocab.abilitiesOf(species)) more = Math.max(more, this.ofAbility(could, fighter, damage));
    }
    let [least, likely, most] = [1, 1, 1]; // the item
    if (fighter.item === SCARF) {
      least = likely = most = 1.5;
    } else if (SLOW.has(fighter.item)) {
      least = likely = most = 0.5;
    } else if (mon.item === 0 && view.rooms[MAGIC_ROOM] < 0) {
      least = 0.5;
      most = belief && belief.noChoice ? 1 : 1.5;
      if (belief && belief.lowPlain > belief.top) likely = 1.5; // only a Choice Scarf explains the order seen
    }
    const halved = mon.status === PARALYSIS && ability !== QUICK_FEET;
    this.sureLow[index] = effective(rawLow, stage, factor * least, halved);
    this.sureHigh[index] = effective(rawHigh, stage, factor * more * most, halved);
    this.low[index] = effective(plainLow, stage, factor * likely, halved);
    this.high[index] = effective(plainHigh, stage, factor * likely, halved);
    this.late[index] = LATE.has(fighter.item) || ability === STALL ? 1 : 0;
    fighter.speed = (this.low[index] + this.high[index]) >> 1;
  }

  ofAbility(ability, {mon, slot, status}, damage) {
    const weathers = WEATHER_SPEED.get(ability);
    if (weathers) return weathers.has(damage.weather) ? 2 : 1;
    if (ability === SURGE_SURFER) return damage.terrain === ELECTRIC_TERRAIN ? 2 : 1;
    if (ability === UNBURDEN) return mon.item === vocab.NONE && slot.lostItem ? 2 : 1;
    return ability === QUICK_FEET && status ? 1.5 : 1;
  }

  // 1: the first slot surely moves before the second, with moves of one bracket; -1: surely after it.
  first(one, other) {
    if (this.late[one] !== this.late[other]) return this.late[one] ? -1 : 1;
    const sign = this.reversed ? -1 : 1;
    if (this.sureLow[one] > this.sureHigh[other]) return sign;
    if (this.sureHigh[one] < this.sureLow[other]) return -sign;
    const distance = this.low[one] + this.high[one] - this.low[other] - this.high[other];
    const width = this.high[one] - this.low[one] + this.high[other] - this.low[other];
    const share = width === 0 ? Math.sign(distance) : Math.max(-1, Math.min(1, distance / width));
    return sign * LIKELY * share || 0;
  }
}

module.exports = {Order};
