'use strict';
// What a hit would do, as a player works it out: generation 9's damage formula on what one PlayerView knows, in the
// simulator's order of modifiers and with its rounding.
//
//   look(view)                   reads the four slots and the field, once a decision
//   hit(attacker, move, target)  one hit: low and high roll, and `reaches(hp)`, how many of the 16 rolls do as much
//
// THE ASSUMPTION about what is hidden: level as shown, 31 in every IV, a neutral nature, and the EVs below, which are
// the mean of the shipped teams. An item or ability that is not known does nothing. The opponent's HP are the shown
// share of the assumed maximum. Own stats are the request's. What the order of moves tells of the Speed is in order.js.
// Not modelled, and how often that matters: `python -m cleanrl_games.envs.vgc damage` and docs/vgc_features.md.
const {LAYOUT, VOLATILE} = require('./columns.js');
const tables = require('./damage_tables.js');
const vocab = require('./vocabulary.js');

const {
  A, I, R, SPECIES, TYPE, DOUBLINGS, IMMUNE, moveType, moveCategory, movePower, movePriority, moveFlags,
  moveRule, minHits, maxHits, moveReach, NOT_TURNED, FALLEN, ABSORBS, BLOCKS_FLAG, TURNS_NORMAL, RAISES_FLAG,
  RAISES_TYPE, PINCH, ITEM_TYPE, BERRY_TYPE, SIGNATURE, STAYS,
} = tables;
const {contact: CONTACT, punch: PUNCH, sound: SOUND, heal: HEAL, recoil: RECOIL, secondary: SECONDARY,
  always_crits: ALWAYS_CRITS, ignores_stages: IGNORES_STAGES, ignores_ability: IGNORES_ABILITY,
  hits_defense: HITS_DEFENSE, bypasssub: BYPASSES_SUBSTITUTE} = tables.FLAG;

const ASSUMED = {hp: 156, attack: 212, otherAttack: 0, defense: 52}; // EVs; `attack` is the higher one of the species

const FIELD = LAYOUT.groups.field.float;
const {weather_sun: SUN, weather_rain: RAIN, weather_sand: SAND, weather_snow: SNOW, weather_harsh_sun: HARSH_SUN,
  weather_heavy_rain: HEAVY_RAIN, weather_strong_winds: WINDS} = FIELD;
const {terrain_electric: ELECTRIC_TERRAIN, terrain_grassy: GRASSY_TERRAIN, terrain_misty: MISTY_TERRAIN,
  terrain_psychic: PSYCHIC_TERRAIN} = FIELD;
const GRAVITY = 1, MAGIC_ROOM = 2, WONDER_ROOM = 3; // places in view.rooms
const REFLECT = 1, LIGHT_SCREEN = 2, AURORA_VEIL = 3; // places in view.sides
const HP = 0, ATK = 1, DEF = 2, SPA = 3, SPD = 4, SPE = 5;
const BRN = 1, SLP = 3, PSN = 5, TOX = 6;
const PHYSICAL = 1;

// The simulator's: factors are 4096ths, chained with rounding, applied with rounding half down.
const chain = (first, second) => (first * second + 2048) >> 12;
const modify = (value, factor) => (value * factor + 2047) >> 12;
const HALF = 2048, THREE_QUARTERS = 3072, ONE = 4096, FIVE_QUARTERS = 5120, ONE_AND_A_HALF = 6144, DOUBLE = 8192;
const TIMES_1_2 = 4915, TIMES_1_3 = 5325; // as the simulator writes them
const SCREEN = 2732; // two thirds: there are two on each side

function staged(stat, stage) {
  return stage >= 0 ? Math.floor(stat * (2 + stage) / 2) : Math.floor(stat * 2 / (2 - stage));
}

function assumedStat(base, level, evs) {
  return Math.floor((2 * base + 31 + (evs >> 2)) * level / 100) + 5;
}

function weightOf({species, ability}) {
  const weight = vocab.speciesTraits[species][0];
  return ability === A.heavymetal ? 2 * weight : ability === A.lightmetal ? weight >> 1 : weight;
}

// One of the four slots, as the formula wants it.
class Fighter {
  constructor(index) {
    this.index = index;
    this.stats = new Int32Array(6); // maximum HP, then the raw stats
    this.types = new Uint8Array(3); // what a hit meets
    this.born = new Uint8Array(3); // the same but for terastallizing: STAB
    this.present = false;
    this.slot = this.mon = this.volatile = null;
    this.hp = this.level = this.species = this.ability = this.item = this.status = this.tera = this.speed = 0;
    this.grounded = this.floats = false;
  }

  has(type) {
    return this.types[0] === type || this.types[1] === type || this.types[2] === type;
  }

  wasBorn(type) {
    return this.born[0] === type || this.born[1] === type || this.born[2] === type;
  }
}

class Damage {
  constructor() {
    this.fighters = [0, 1, 2, 3].map(index => new Fighter(index));
    this.view = null;
    this.weather = this.terrain = -1;
    this.gravity = this.wonderRoom = false;
    this.sword = this.tablets = this.vessel = this.beads = this.darkAura = this.fairyAura = false;
    this.helpingHand = false; // never at a decision: the check of the formula sets it
    this.fixed = 0; // damage that no roll changes
    this.base = this.stab = this.doublings = this.final = 0;
    this.burnt = this.crit = false;
    this.low = this.high = this.ko = 0;
  }

  // --- the four slots and the field --------------------------------------------------------------------------------

  look(view) {
    this.view = view;
    const {rooms, slots} = view;
    const magicRoom = rooms[MAGIC_ROOM] >= 0;
    this.gravity = rooms[GRAVITY] >= 0;
    this.wonderRoom = rooms[WONDER_ROOM] >= 0;
    this.terrain = view.terrain;
    this.weather = view.weather;
    this.sword = this.tablets = this.vessel = this.beads = this.darkAura = this.fairyAura = false;
    let gas = false;
    for (let index = 0; index < 4; index++) {
      const fighter = this.fighters[index];
      this.read(fighter, slots[index], view, magicRoom);
      if (fighter.present && fighter.ability === A.neutralizinggas) gas = true;
    }
    for (let index = 0; index < 4; index++) {
      const fighter = this.fighters[index];
      if (!fighter.present) continue;
      if (gas && fighter.item !== I.abilityshield) fighter.ability = 0;
      const {ability} = fighter;
      if (ability === A.cloudnine || ability === A.airlock) this.weather = -1;
      else if (ability === A.swordofruin) this.sword = true;
      else if (ability === A.tabletsofruin) this.tablets = true;
      else if (ability === A.vesselofruin) this.vessel = true;
      else if (ability === A.beadsofruin) this.beads = true;
      else if (ability === A.darkaura) this.darkAura = true;
      else if (ability === A.fairyaura) this.fairyAura = true;
      fighter.floats = ability === A.levitate;
      const {volatile, item} = fighter;
      fighter.grounded = this.gravity || volatile[VOLATILE.smack_down] > 0 || item === I.ironball ||
        !(fighter.has(TYPE.flying) || fighter.floats || volatile[VOLATILE.magnet_rise] > 0 || item === I.airballoon);
    }
  }

  read(fighter, slot, view, magicRoom) {
    const {mon} = slot;
    const mine = fighter.index < 2;
    fighter.present = mon !== null && !mon.fainted && (!mine || mon.entry !== null);
    if (!fighter.present) return;
    const {volatile} = slot;
    fighter.slot = slot;
    fighter.mon = mon;
    fighter.volatile = volatile;
    fighter.level = mon.level;
    fighter.status = mon.status;
    fighter.species = slot.species || mon.species;
    fighter.ability = slot.suppressed ? 0 : mine ? mon.ability : slot.ability < 0 ? 0 : slot.ability || mon.ability;
    fighter.item = magicRoom || fighter.ability === A.klutz ? 0 : mon.item;
    fighter.tera = mon.terastallized ? mon.tera : 0;
    const {types, born, stats} = fighter;
    const facts = vocab.typesOf(fighter.species);
    born[0] = slot.typesChanged ? slot.types[0] : facts[0];
    born[1] = slot.typesChanged ? slot.types[1] : facts[1];
    born[2] = slot.type3;
    const turned = fighter.tera > 0 && fighter.tera !== vocab.STELLAR;
    types[0] = turned ? fighter.tera : born[0];
    types[1] = turned ? 0 : born[1];
    types[2] = turned ? 0 : born[2];
    if (mine && !volatile[VOLATILE.transformed]) {
      const told = mon.entry.stats;
      stats[ATK] = told.atk;
      stats[DEF] = told.def;
      stats[SPA] = told.spa;
      stats[SPD] = told.spd;
      stats[SPE] = told.spe;
    } else {
      this.assume(fighter, vocab.baseStatsOf(fighter.species));
    }
    if (mine) stats[HP] = mon.maxhp;
    else this.assumeHp(fighter, vocab.baseStatsOf(mon.species)[0]);
    fighter.hp = mon.hp === 1 ? stats[HP] : Math.max(1, mine ? Math.round(mon.hp * stats[HP]) :
      Math.floor(mon.hp * stats[HP]));
  }

  assume({stats, level}, base) {
    const physical = base[1] >= base[3];
    stats[ATK] = assumedStat(base[1], level, physical ? ASSUMED.attack : ASSUMED.otherAttack);
    stats[DEF] = assumedStat(base[2], level, ASSUMED.defense);
    stats[SPA] = assumedStat(base[3], level, physical ? ASSUMED.otherAttack : ASSUMED.attack);
    stats[SPD] = assumedStat(base[4], level, ASSUMED.defense);
    stats[SPE] = assumedStat(base[5], level, 0);
  }

  assumeHp({stats, level}, base) {
    stats[HP] = base === 1 ? 1 : Math.floor((2 * base + 31 + (ASSUMED.hp >> 2)) * level / 100) + level + 10;
  }

  // --- who moves before whom, as far as the move decides -----------------------------------------------------------

  // Its bracket, with what abilities and Grassy Terrain add.
  priority(user, id) {
    let priority = movePriority[id];
    switch (user.ability) {
    case A.prankster: if (moveCategory[id] === 0) priority++; break;
    case A.galewings: if (moveType[id] === TYPE.flying && user.hp >= user.stats[HP]) priority++; break;
    case A.triage: if (moveFlags[id] & HEAL) priority += 3; break;
    }
    if (moveRule[id] === R.grassyglide && this.terrain === GRASSY_TERRAIN && user.grounded) priority++;
    return priority;
  }

  // Psychic Terrain, Armor Tail and its kin.
  stopped(user, id, target) {
    if (this.priority(user, id) <= 0) return false;
    if (this.terrain === PSYCHIC_TERRAIN && target.grounded) return true;
    const first = target.ability;
    const ally = this.fighters[target.index ^ 1];
    const second = ally.present ? ally.ability : 0;
    if (user.ability === A.moldbreaker || user.ability === A.teravolt || user.ability === A.turboblaze) return false;
    return first === A.armortail || first === A.dazzling || first === A.queenlymajesty ||
      second === A.armortail || second === A.dazzling || second === A.queenlymajesty;
  }

  // --- the hit -----------------------------------------------------------------------------------------------------

  weatherFor(fighter) {
    return fighter.item === I.utilityumbrella && this.weather !== SAND && this.weather !== SNOW ? -1 : this.weather;
  }

  // Does it hit two or three at once, so that each takes three quarters?
  spreads(user, id) {
    let reach = moveReach[id];
    if (moveRule[id] === R.expandingforce && this.terrain === PSYCHIC_TERRAIN && user.grounded) reach = 1;
    if (moveRule[id] === R.terastarstorm && user.species === SPECIES.terapagosstellar) reach = 1;
    if (reach === 0) return false;
    const {fighters} = this;
    const foes = user.index < 2 ? 2 : 0;
    let targets = (fighters[foes].present ? 1 : 0) + (fighters[foes + 1].present ? 1 : 0);
    if (reach === 2 && fighters[user.index ^ 1].present) targets++;
    return targets > 1;
  }

  typeOf(user, id) {
    const rule = moveRule[id];
    let type = moveType[id];
    switch (rule) {
    case R.terablast: if (user.tera) return user.tera; break;
    case R.terastarstorm: return user.species === SPECIES.terapagosstellar ? vocab.STELLAR : type;
    case R.weatherball:
      switch (this.weatherFor(user)) {
      case SUN: case HARSH_SUN: return TYPE.fire;
      case RAIN: case HEAVY_RAIN: return TYPE.water;
      case SAND: return TYPE.rock;
      case SNOW: return TYPE.ice;
      }
      return type;
    case R.terrainpulse:
      if (!user.grounded) return type;
      switch (this.terrain) {
      case ELECTRIC_TERRAIN: return TYPE.electric;
      case GRASSY_TERRAIN: return TYPE.grass;
      case MISTY_TERRAIN: return TYPE.fairy;
      case PSYCHIC_TERRAIN: return TYPE.psychic;
      }
      return type;
    case R.ivycudgel:
      if (user.species === SPECIES.ogerponwellspring || user.species === SPECIES.ogerponwellspringtera)
        return TYPE.water;
      if (user.species === SPECIES.ogerponhearthflame || user.species === SPECIES.ogerponhearthflametera)
        return TYPE.fire;
      if (user.species === SPECIES.ogerponcornerstone || user.species === SPECIES.ogerponcornerstonetera)
        return TYPE.rock;
      return type;
    case R.ragingbull:
      if (user.species === SPECIES.taurospaldeacombat) type = TYPE.fighting;
      if (user.species === SPECIES.taurospaldeablaze) type = TYPE.fire;
      if (user.species === SPECIES.taurospaldeaaqua) type = TYPE.water;
      break;
    case R.aurawheel: if (user.species === SPECIES.morpekohangry) type = TYPE.dark; break;
    case R.revelationdance: return user.types[0];
    case R.struggle: return 0;
    }
    if (type === TYPE.normal && TURNS_NORMAL[user.ability] && !NOT_TURNED.has(rule)) return TURNS_NORMAL[user.ability];
    if (user.ability === A.liquidvoice && moveFlags[id] & SOUND) return TYPE.water;
    return type;
  }

  categoryOf(user, id, target) {
    switch (moveRule[id]) {
    case R.terablast: if (!user.tera) break; // falls through
    case R.photongeyser:
    case R.terastarstorm:
      if (moveRule[id] === R.terastarstorm && user.species !== SPECIES.terapagosstellar) break;
      if (staged(user.stats[ATK], user.volatile[0]) > staged(user.stats[SPA], user.volatile[2])) return PHYSICAL;
      break;
    case R.shellsidearm: {
      const physical = staged(user.stats[ATK], user.volatile[0]) / staged(target.stats[DEF], target.volatile[1]);
      const special = staged(user.stats[SPA], user.volatile[2]) / staged(target.stats[SPD], target.volatile[3]);
      if (physical > special) return PHYSICAL;
    }
    }
    return moveCategory[id];
  }

  // Doublings of the type chart, or -100 for no effect.
  effectiveness(user, id, type, target, ability, rule) {
    if (type < 2) return 0;
    const row = type * vocab.TYPES;
    const {types} = target;
    if (type === TYPE.ground) {
      if (!target.grounded && !(ability !== A.levitate && target.floats && !target.has(TYPE.flying) &&
        !target.volatile[VOLATILE.magnet_rise] && target.item !== I.airballoon)) return -100;
    } else if (IMMUNE[row + types[0]] || IMMUNE[row + types[1]] || IMMUNE[row + types[2]]) {
      const seesGhosts = (user.ability === A.scrappy || user.ability === A.mindseye) &&
        (type === TYPE.normal || type === TYPE.fighting);
      if (!seesGhosts) return -100;
    }
    if (type === vocab.STELLAR) return target.tera ? 1 : 0;
    let doublings = 0;
    for (let i = 0; i < 3; i++) {
      const other = types[i];
      if (other < 2) continue;
      let one = DOUBLINGS[row + other];
      if (rule === R.freezedry && other === TYPE.water) one = 1;
      else if (rule === R.flyingpress) one += DOUBLINGS[TYPE.flying * vocab.TYPES + other];
      if (this.weather === WINDS && other === TYPE.flying && one > 0) one = 0;
      if (type === TYPE.ground && other === TYPE.flying && target.item === I.ironball) one = 0;
      doublings += one;
    }
    if ((ability === A.disguise && target.species === SPECIES.mimikyu) ||
      (ability === A.iceface && target.species === SPECIES.eiscue && moveCategory[id] === PHYSICAL)) return 0;
    if (ability === A.terashell && target.species === SPECIES.terapagosterastal && target.hp >= target.stats[HP] &&
      doublings >= 0) return -1;
    return doublings;
  }

  // One hit of a move. false: it does nothing. Else `low` and `high` are its rolls and `reaches` counts them.
  hit(user, id, target, spread) {
    this.fixed = 0;
    this.crit = false;
    let category = moveCategory[id];
    if (category === 0) return false;
    const rule = moveRule[id];
    const flags = moveFlags[id];
    const ally = (user.index ^ 1) === target.index;
    if (rule) {
      if (rule === R.nothing) return false;
      if (rule === R.dreameater && target.status !== SLP) return false;
      if (rule === R.poltergeist && target.mon.item === vocab.NONE) return false;
      if (rule === R.steelroller && this.terrain < 0) return false;
      category = this.categoryOf(user, id, target);
    }
    if (!ally && this.stopped(user, id, target)) return false;

    const breaks = (user.ability === A.moldbreaker || user.ability === A.teravolt || user.ability === A.turboblaze ||
      flags & IGNORES_ABILITY) && target.item !== I.abilityshield;
    const ability = breaks && vocab.breakable[target.ability] ? 0 : target.ability;
    const type = this.typeOf(user, id);
    const doublings = this.effectiveness(user, id, type, target, ability, rule);
    if (doublings < -10) return false;
    if (ability) {
      if (ABSORBS[ability] && ABSORBS[ability] === type) return false;
      if (BLOCKS_FLAG[ability] & flags) return false;
      if (ability === A.wonderguard && doublings <= 0 && type) return false;
      if (ability === A.telepathy && ally) return false;
    }
    const weather = this.weatherFor(target);
    if (this.weather === HEAVY_RAIN && type === TYPE.fire) return false;
    if (this.weather === HARSH_SUN && type === TYPE.water) return false;

    switch (rule) {
    case R.level: return this.fix(user.level);
    case R.superfang: return this.fix(Math.max(1, target.hp >> 1));
    case R.endeavor: return target.hp > user.hp && this.fix(target.hp - user.hp);
    case R.finalgambit: return this.fix(user.hp);
    case R.ohko: return ability !== A.sturdy && user.level >= target.level && this.fix(target.stats[HP]);
    }

    const turned = type > 0 && TURNS_NORMAL[user.ability] === type && moveType[id] === TYPE.normal &&
      !NOT_TURNED.has(rule) && !(rule === R.terablast && user.tera);
    const power = this.powerOf(user, id, target, rule, type, category, flags, ability, doublings, turned);
    if (power === 0) return false;

    this.crit = (flags & ALWAYS_CRITS) !== 0 && ability !== A.battlearmor && ability !== A.shellarmor;
    const attack = this.attackOf(user, target, rule, type, category, ability);
    const defense = this.defenseOf(user, target, category === PHYSICAL || (flags & HITS_DEFENSE) !== 0, flags, ability);
    let base = Math.floor(Math.floor((Math.floor(2 * user.level / 5) + 2) * power * attack / defense) / 50) + 2;
    if (spread) base = modify(base, THREE_QUARTERS);
    if (weather >= 0) {
      if (weather === SUN || weather === HARSH_SUN) {
        if (type === TYPE.fire || rule === R.hydrosteam) base = modify(base, ONE_AND_A_HALF);
        else if (type === TYPE.water) base = modify(base, HALF);
      } else if (weather === RAIN || weather === HEAVY_RAIN) {
        if (type === TYPE.water) base = modify(base, ONE_AND_A_HALF);
        else if (type === TYPE.fire) base = modify(base, HALF);
      }
    }
    if (this.crit) base = Math.floor(base * 1.5);
    this.base = base;
    this.stab = this.stabOf(user, type);
    this.doublings = doublings;
    this.burnt = user.status === BRN && category === PHYSICAL && user.ability !== A.guts && rule !== R.facade;
    this.final = this.finalOf(user, target, rule, type, category, flags, ability);
    this.low = this.roll(85);
    this.high = this.roll(100);
    return true;
  }

  fix(damage) {
    this.fixed = this.low = this.high = damage;
    return damage > 0;
  }

  roll(percent) {
    let damage = modify(Math.floor(this.base * percent / 100), this.stab);
    damage = this.doublings >= 0 ? damage << this.doublings : damage >> -this.doublings;
    if (this.burnt) damage = modify(damage, HALF);
    return modify(damage, this.final) || 1;
  }

  // How many of the 16 rolls do at least so much. A higher roll never does less.
  reaches(hp) {
    if (this.low >= hp) return 16;
    if (this.high < hp) return 0;
    let [below, above] = [85, 100];
    while (above - below > 1) {
      const middle = (below + above) >> 1;
      if (this.roll(middle) >= hp) above = middle;
      else below = middle;
    }
    return 101 - above;
  }

  stabOf(user, type) {
    if (type < 2) return ONE;
    const born = user.wasBorn(type);
    if (user.tera === vocab.STELLAR) {
      const fresh = user.species === SPECIES.terapagosstellar || !(user.mon.stellarTypes & (1 << type));
      return fresh ? (born ? DOUBLE : TIMES_1_2) : born ? ONE_AND_A_HALF : ONE;
    }
    const has = user.has(type);
    const both = user.tera === type && born;
    if (user.ability === A.adaptability && has) return both ? 9216 : DOUBLE;
    return both ? DOUBLE : has || born ? ONE_AND_A_HALF : ONE;
  }

  powerOf(user, id, target, rule, type, category, flags, ability, doublings, turned) {
    let power = movePower[id];
    let own = ONE; // what the move itself adds, last of all
    switch (rule) {
    case R.acrobatics: if (user.mon.item === vocab.NONE) power *= 2; break;
    case R.brine: if (target.hp * 2 <= target.stats[HP]) own = DOUBLE; break;
    case R.collisioncourse: if (doublings > 0) own = 5461; break;
    case R.crushgrip: case R.hardpress:
      power = Math.max(1, Math.floor((rule === R.hardpress ? 100 : 120) * target.hp / target.stats[HP]));
      break;
    case R.electroball: {
      const ratio = Math.min(4, Math.floor(user.speed / Math.max(1, target.speed)));
      power = ratio === 0 ? 40 : ratio === 1 ? 60 : ratio === 2 ? 80 : ratio === 3 ? 120 : 150;
      break;
    }
    case R.eruption: power = Math.max(1, Math.floor(power * user.hp / user.stats[HP])); break;
    case R.expandingforce: if (this.terrain === PSYCHIC_TERRAIN && user.grounded) own = ONE_AND_A_HALF; break;
    case R.facade: if (user.status && user.status !== SLP) own = DOUBLE; break;
    case R.flail: {
      const part = Math.max(1, Math.floor(user.hp * 48 / user.stats[HP]));
      power = part < 2 ? 200 : part < 5 ? 150 : part < 10 ? 100 : part < 17 ? 80 : part < 33 ? 40 : 20;
      break;
    }
    case R.grassknot: {
      const weight = weightOf(target);
      power = weight >= 2000 ? 120 : weight >= 1000 ? 100 : weight >= 500 ? 80 : weight >= 250 ? 60 :
        weight >= 100 ? 40 : 20;
      break;
    }
    case R.heavyslam: {
      const ratio = weightOf(user) / weightOf(target);
      power = ratio >= 5 ? 120 : ratio >= 4 ? 100 : ratio >= 3 ? 80 : ratio >= 2 ? 60 : 40;
      break;
    }
    case R.gravapple: if (this.gravity) own = ONE_AND_A_HALF; break;
    case R.gyroball: power = Math.min(150, Math.floor(25 * target.speed / Math.max(1, user.speed)) + 1); break;
    case R.hex: if (target.status) power *= 2; break;
    case R.knockoff: if (target.mon.item !== vocab.NONE && !STAYS[target.mon.item]) own = ONE_AND_A_HALF; break;
    case R.lastrespects: power = 50 + 50 * Math.min(100, this.view.faints[user.index >> 1]); break;
    case R.mistyexplosion: if (this.terrain === MISTY_TERRAIN && user.grounded) own = ONE_AND_A_HALF; break;
    case R.psyblade: if (this.terrain === ELECTRIC_TERRAIN) own = ONE_AND_A_HALF; break;
    case R.ragefist: power = Math.min(350, 50 + 50 * user.mon.hitsTaken); break;
    case R.risingvoltage: if (this.terrain === ELECTRIC_TERRAIN && target.grounded) power *= 2; break;
    case R.solarbeam: {
      const weather = this.weatherFor(user);
      if (weather === RAIN || weather === HEAVY_RAIN || weather === SAND || weather === SNOW) own = HALF;
      break;
    }
    case R.spitup: power = Math.round(300 * user.volatile[VOLATILE.stockpile]); break;
    case R.storedpower:
      for (let stat = 0; stat < 7; stat++) power += 20 * Math.max(0, user.volatile[stat]);
      break;
    case R.terablast: if (user.tera === vocab.STELLAR) power = 100; break;
    case R.terrainpulse: if (this.terrain >= 0 && user.grounded) power *= 2; break;
    case R.venoshock: if (target.status === PSN || target.status === TOX) own = DOUBLE; break;
    case R.weatherball: if (type !== TYPE.normal) power *= 2; break;
    }
    if (power === 0) return 0;
    const written = power;

    let factor = ONE;
    const mine = user.ability;
    const {item} = user;
    if (mine) {
      if (mine === A.technician) {
        if (power <= 60) factor = ONE_AND_A_HALF;
      } else if (turned || (mine === A.reckless && flags & RECOIL) || (mine === A.ironfist && flags & PUNCH)) {
        factor = TIMES_1_2;
      }
    }
    if (item === I.punchingglove && flags & PUNCH) factor = chain(factor, 4506);
    const partner = this.fighters[user.index ^ 1];
    if (partner.present) {
      if ((partner.ability === A.battery && category !== PHYSICAL) || partner.ability === A.powerspot)
        factor = chain(factor, TIMES_1_3);
      else if (partner.ability === A.steelyspirit && type === TYPE.steel) factor = chain(factor, ONE_AND_A_HALF);
    }
    if (mine) {
      if (mine === A.steelyspirit && type === TYPE.steel) factor = chain(factor, ONE_AND_A_HALF);
      if ((mine === A.sheerforce && flags & SECONDARY) ||
        (mine === A.toughclaws && flags & CONTACT && !(item === I.punchingglove && flags & PUNCH)) ||
        (mine === A.sandforce && this.weather === SAND &&
          (type === TYPE.rock || type === TYPE.ground || type === TYPE.steel))) factor = chain(factor, TIMES_1_3);
      else if (mine === A.supremeoverlord) factor = chain(factor, FALLEN[user.slot.fallen]);
    }
    if ((this.darkAura && type === TYPE.dark) || (this.fairyAura && type === TYPE.fairy)) factor = chain(factor, 5448);
    if (mine && (RAISES_FLAG[mine] & flags || (mine === A.flareboost && user.status === BRN && category !== PHYSICAL) ||
      (mine === A.toxicboost && (user.status === PSN || user.status === TOX) && category === PHYSICAL)))
      factor = chain(factor, ONE_AND_A_HALF);
    if (ability === A.dryskin && type === TYPE.fire) factor = chain(factor, FIVE_QUARTERS);
    if (item > 1) {
      if (ITEM_TYPE[item] === type && type) factor = chain(factor, TIMES_1_2);
      else if (item === I.muscleband && category === PHYSICAL) factor = chain(factor, 4505);
      else if (item === I.wiseglasses && category !== PHYSICAL) factor = chain(factor, 4505);
      else if (item === I.normalgem && type === TYPE.normal) factor = chain(factor, TIMES_1_3);
      else if (SIGNATURE.has(item)) factor = chain(factor, this.signature(user, item, type));
    }
    if (this.helpingHand) factor = chain(factor, ONE_AND_A_HALF);
    if (type === TYPE.electric && user.volatile[VOLATILE.charge]) factor = chain(factor, DOUBLE);
    if (mine === A.punkrock && flags & SOUND) factor = chain(factor, TIMES_1_3);
    if (this.terrain >= 0) {
      if (this.terrain === GRASSY_TERRAIN && rule === R.earthquake) {
        if (target.grounded) factor = chain(factor, HALF);
      } else if (this.terrain === MISTY_TERRAIN) {
        if (type === TYPE.dragon && target.grounded) factor = chain(factor, HALF);
      } else if (user.grounded && type === (this.terrain === GRASSY_TERRAIN ? TYPE.grass :
        this.terrain === ELECTRIC_TERRAIN ? TYPE.electric : TYPE.psychic)) {
        factor = chain(factor, TIMES_1_3);
      }
    }
    if (own !== ONE) factor = chain(factor, own);
    power = Math.max(1, modify(power, factor));
    if (power < 60 && user.tera && type && movePriority[id] <= 0 && maxHits[id] === 1 && movePower[id] !== 0 &&
      (user.tera === vocab.STELLAR ? !(user.mon.stellarTypes & (1 << type)) : user.has(type)) &&
      !(movePower[id] === 150 && written !== 150)) return 60;
    return power;
  }

  signature(user, item, type) {
    const {number, types} = SIGNATURE.get(item);
    const dex = vocab.typesOf(user.mon.species)[4];
    if (dex !== number && !(number === 380 && dex === 381)) return ONE;
    return types.length === 0 || types.includes(type) ? TIMES_1_2 : ONE;
  }

  attackOf(user, target, rule, type, category, ability) {
    const physical = category === PHYSICAL;
    const source = rule === R.foulplay ? target : user;
    const stat = rule === R.bodypress ? DEF : physical ? ATK : SPA;
    let stage = source.volatile[stat - 1];
    if (this.crit && stage < 0) stage = 0;
    if (ability === A.unaware) stage = 0;
    let attack = staged(stat === DEF && this.wonderRoom ? source.stats[SPD] : source.stats[stat], stage);
    const mine = user.ability;
    let factor = ONE;
    if (mine) {
      if (physical) {
        if (mine === A.hustle) attack = modify(attack, ONE_AND_A_HALF);
        else if (mine === A.hugepower || mine === A.purepower) factor = DOUBLE;
        else if (mine === A.gorillatactics || (mine === A.guts && user.status)) factor = ONE_AND_A_HALF;
        else if (mine === A.orichalcumpulse && this.sunny(user)) factor = 5461;
      } else if (mine === A.solarpower && this.sunny(user)) {
        factor = ONE_AND_A_HALF;
      } else if (mine === A.hadronengine && this.terrain === ELECTRIC_TERRAIN) {
        factor = 5461;
      }
      if (RAISES_TYPE[mine] && RAISES_TYPE[mine] === type) factor = ONE_AND_A_HALF;
      else if (PINCH[mine] && PINCH[mine] === type && user.hp * 3 <= user.stats[HP]) factor = ONE_AND_A_HALF;
      else if (mine === A.transistor && type === TYPE.electric) factor = TIMES_1_3;
      else if (mine === A.waterbubble && type === TYPE.water) factor = DOUBLE;
      else if (mine === A.flashfire && type === TYPE.fire && user.volatile[VOLATILE.flash_fire])
        factor = ONE_AND_A_HALF;
      else if (mine === A.defeatist && user.hp * 2 <= user.stats[HP]) factor = HALF;
    }
    const {volatile} = user;
    if (physical ? volatile[VOLATILE.paradox_atk] : volatile[VOLATILE.paradox_spa]) {
      if (mine) factor = chain(factor, TIMES_1_3);
    }
    if (physical && volatile[VOLATILE.slow_start] && mine) factor = chain(factor, HALF);
    if (ability && ((ability === A.thickfat && (type === TYPE.ice || type === TYPE.fire)) ||
      ((ability === A.heatproof || ability === A.waterbubble) && type === TYPE.fire) ||
      (ability === A.purifyingsalt && type === TYPE.ghost))) factor = chain(factor, HALF);
    if (physical ? this.tablets && mine !== A.tabletsofruin : this.vessel && mine !== A.vesselofruin)
      factor = chain(factor, THREE_QUARTERS);
    const {item} = user;
    if (item === (physical ? I.choiceband : I.choicespecs)) factor = chain(factor, ONE_AND_A_HALF);
    else if (item === I.lightball && vocab.sameSpecies(user.species, SPECIES.pikachu)) factor = chain(factor, DOUBLE);
    return modify(attack, factor);
  }

  sunny(fighter) {
    const weather = this.weatherFor(fighter);
    return weather === SUN || weather === HARSH_SUN;
  }

  defenseOf(user, target, physical, flags, ability) {
    const stat = physical ? DEF : SPD;
    let stage = target.volatile[stat - 1];
    if ((this.crit && stage > 0) || flags & IGNORES_STAGES || user.ability === A.unaware) stage = 0;
    let defense = staged(target.stats[this.wonderRoom ? DEF + SPD - stat : stat], stage);
    const {weather} = this;
    if (physical ? weather === SNOW && target.has(TYPE.ice) : weather === SAND && target.has(TYPE.rock))
      defense = modify(defense, ONE_AND_A_HALF);
    let factor = ONE;
    const {volatile, item} = target;
    if (physical) {
      if (ability === A.furcoat) factor = DOUBLE;
      else if ((ability === A.marvelscale && target.status) ||
        (ability === A.grasspelt && this.terrain === GRASSY_TERRAIN)) factor = ONE_AND_A_HALF;
    }
    if ((physical ? volatile[VOLATILE.paradox_def] : volatile[VOLATILE.paradox_spd]) && target.ability)
      factor = chain(factor, TIMES_1_3);
    if (item === I.eviolite && vocab.speciesTraits[target.mon.species][1]) factor = chain(factor, ONE_AND_A_HALF);
    else if (item === I.assaultvest && !physical) factor = chain(factor, ONE_AND_A_HALF);
    if (physical ? this.sword && target.ability !== A.swordofruin : this.beads && target.ability !== A.beadsofruin)
      factor = chain(factor, THREE_QUARTERS);
    return Math.max(1, modify(defense, factor));
  }

  finalOf(user, target, rule, type, category, flags, ability) {
    let factor = ONE;
    const {doublings} = this;
    const side = this.view.sides[target.index >> 1];
    const physical = category === PHYSICAL;
    const mine = user.ability;
    if (!this.crit && mine !== A.infiltrator && rule !== R.behindscreens && rule !== R.ragingbull &&
      (side[AURORA_VEIL] >= 0 || side[physical ? REFLECT : LIGHT_SCREEN] >= 0)) factor = SCREEN;
    if (ability) {
      const full = target.hp >= target.stats[HP];
      if ((ability === A.multiscale || ability === A.shadowshield) && full) factor = chain(factor, HALF);
      else if ((ability === A.filter || ability === A.solidrock || ability === A.prismarmor) && doublings > 0)
        factor = chain(factor, THREE_QUARTERS);
      else if (ability === A.icescales && !physical) factor = chain(factor, HALF);
      else if (ability === A.punkrock && flags & SOUND) factor = chain(factor, HALF);
      else if (ability === A.fluffy) {
        if (type === TYPE.fire) factor = chain(factor, DOUBLE);
        if (flags & CONTACT && user.item !== I.protectivepads) factor = chain(factor, HALF);
      }
    }
    const partner = this.fighters[target.index ^ 1];
    if (partner.present && partner.ability === A.friendguard &&
      mine !== A.moldbreaker && mine !== A.teravolt && mine !== A.turboblaze && !(flags & IGNORES_ABILITY))
      factor = chain(factor, THREE_QUARTERS);
    if (mine) {
      if (mine === A.tintedlens && doublings < 0) factor = chain(factor, DOUBLE);
      else if (mine === A.neuroforce && doublings > 0) factor = chain(factor, FIVE_QUARTERS);
      else if (mine === A.sniper && this.crit) factor = chain(factor, ONE_AND_A_HALF);
    }
    if (user.item === I.lifeorb) factor = chain(factor, 5324);
    else if (user.item === I.expertbelt && doublings > 0) factor = chain(factor, TIMES_1_2);
    if (BERRY_TYPE[target.item] && BERRY_TYPE[target.item] === type && (doublings > 0 || type === TYPE.normal) &&
      !this.unnerved(target)) factor = chain(factor, HALF);
    if (target.volatile[VOLATILE.glaive_rush]) factor = chain(factor, DOUBLE);
    return factor;
  }

  unnerved(fighter) {
    const foes = fighter.index < 2 ? 2 : 0;
    for (let index = foes; index < foes + 2; index++) {
      const foe = this.fighters[index];
      if (foe.present && (foe.ability === A.unnerve || foe.ability === A.asoneglastrier ||
        foe.ability === A.asonespectrier)) return true;
    }
    return false;
  }

  hitsAll(id) {
    return moveReach[id] === 2 && moveCategory[id] !== 0;
  }

  // --- a whole move ------------------------------------------------------------------------------------------------

  // What the move does to the target with all its hits: `low`, `high` in HP and `ko`, the chance that they are enough,
  // if it hits. Of 2 to 5 hits the low is two low rolls, the high five high ones; all hits roll alike for `ko`.
  whole(user, id, target) {
    this.ko = 0;
    if (moveRule[id] === R.firstturn && user.slot.actions > 0) return false;
    if (!this.hit(user, id, target, this.spreads(user, id))) return false;
    if (target.volatile[VOLATILE.substitute] && !(moveFlags[id] & (SOUND | BYPASSES_SUBSTITUTE)) &&
      user.ability !== A.infiltrator) return false;
    if (target.volatile[VOLATILE.commander]) return false;
    const busts = !(user.ability === A.moldbreaker || user.ability === A.teravolt || user.ability === A.turboblaze);
    if (busts && target.ability === A.disguise && target.species === SPECIES.mimikyu) return false;
    if (busts && target.ability === A.iceface && target.species === SPECIES.eiscue && moveCategory[id] === PHYSICAL)
      return false;
    let most = maxHits[id];
    const {hp} = target;
    if (most === 1) {
      const holds = hp >= target.stats[HP] && (target.item === I.focussash || (target.ability === A.sturdy && busts));
      if (!holds) this.ko = this.fixed ? (this.fixed >= hp ? 1 : 0) : this.reaches(hp) / 16;
      return true;
    }
    let least = minHits[id];
    if (moveRule[id] === R.thirds) least = most = 6; // the second and third hit are twice and three times the first
    else if (user.ability === A.skilllink) least = most;
    else if (user.item === I.loadeddice && most === 5) least = 4;
    if (least === most) {
      this.ko = this.reaches(Math.ceil(hp / most)) / 16;
    } else {
      // 2, 3, 4, 5 hits in 35, 35, 15, 15 of 100; with Loaded Dice 4 and 5 in half each
      const four = this.reaches(Math.ceil(hp / 4)) / 16;
      const five = this.reaches(Math.ceil(hp / 5)) / 16;
      this.ko = least === 4 ? (four + five) / 2 : 0.35 * (this.reaches(Math.ceil(hp / 2)) +
        this.reaches(Math.ceil(hp / 3))) / 16 + 0.15 * (four + five);
    }
    this.low *= least;
    this.high *= most;
    return true;
  }
}

module.exports = {ASSUMED, Damage};
