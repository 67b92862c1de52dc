'use strict';
// Worlds: what one player cannot see, drawn from what that player's view allows. Only a Seat goes in here: the lines
// and requests of one player, and a library of public sets, never the battle itself.
//
//   spreads   of a set in the library with this species, or a usual one; inside the Speed that the beliefs allow
//   moves, item, ability, tera type   as shown or on the open sheet, the rest from such a set
//   picks     who was not seen yet: any of those that are left
//   HP        any that is shown as this per cent; sleep and the like: any length that is still possible

const {Dex, Teams, PRNG, toID} = require('pokemon-showdown');
const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {NotRebuilt} = require('./rebuild');
const vocab = require('./vocabulary.js');

const RANDOM_SETS = require('pokemon-showdown/dist/data/random-battles/gen9/doubles-sets.json');
const STATS = ['hp', 'atk', 'def', 'spa', 'spd', 'spe'];
const NATURES = Dex.natures.all();
const CHOICE = new Set(['choiceband', 'choicescarf', 'choicespecs']);
const RULED_OUT = {assaultvest: 'noVest', lifeorb: 'noOrb', leftovers: 'noLeftovers', focussash: 'noSash',
  heavydutyboots: 'noBoots', airballoon: 'noBalloon'};
const USUAL_ITEMS = ['sitrusberry', 'focussash', 'lifeorb', 'leftovers', 'clearamulet', 'safetygoggles', 'lumberry'];

class Library {
  constructor(format, packedTeams) {
    this.format = format;
    this.battle = new Battle({format, formatid: format.id, send: () => {}, prng: new PRNG('1,2,3,4')}); // for its rules
    this.points = this.battle.ruleTable.evLimit !== null && this.battle.ruleTable.evLimit < 510; // Champions
    this.sets = new Map(); // species number -> sets
    this.spreads = new Map();
    for (const packed of packedTeams) {
      for (const set of Teams.unpack(packed)) {
        const {num} = Dex.species.get(set.species || set.name);
        if (!this.sets.has(num)) this.sets.set(num, []);
        this.sets.get(num).push(set);
      }
    }
  }

  of(species) {
    return this.sets.get(species.num) || [];
  }

  stat(species, set, name) {
    return this.battle.statModify(species.baseStats, set, name);
  }

  // A nature and EVs that give these stats: a forme that changes in the battle is then computed right.
  spreadOf(species, level, stats) {
    const key = `${species.id} ${level} ${STATS.map(name => stats[name]).join()}`;
    if (!this.spreads.has(key)) this.spreads.set(key, this.solve(species, level, stats));
    return this.spreads.get(key);
  }

  solve(species, level, stats) {
    let best = null;
    let least = Infinity;
    for (const nature of NATURES) {
      const set = {level, nature: nature.name, evs: {}, ivs: {}};
      let total = 0;
      for (const name of STATS) {
        const cost = this.fit(species, set, name, stats[name]);
        total = cost < 0 ? Infinity : total + cost;
        if (total >= least) break;
      }
      if (total < least) {
        best = {nature: set.nature, evs: set.evs, ivs: set.ivs};
        least = total;
      }
    }
    return best;
  }

  // The least EVs for one stat, with other IVs than 31 only where nothing else fits; -1: this nature cannot.
  fit(species, set, name, wanted) {
    const step = this.points ? 1 : 4;
    const most = this.points ? 32 : 252;
    set.ivs[name] = 31;
    for (let ev = 0; ev <= most; ev += step) {
      set.evs[name] = ev;
      const found = this.stat(species, set, name);
      if (found === wanted) return ev;
      if (found > wanted) break;
    }
    set.evs[name] = 0;
    for (let iv = 30; iv >= 0; iv--) {
      set.ivs[name] = iv;
      if (this.stat(species, set, name) === wanted) return 600 * (31 - iv); // rather any other nature
    }
    return -1;
  }
}

class Drawer {
  constructor(library, seat, seed) {
    this.library = library;
    this.seat = seat;
    this.view = seat.view;
    this.chronicle = seat.chronicle;
    this.prng = new PRNG(seed);
  }

  draw() {
    const mine = this.ours();
    const theirs = this.view.req.teamPreview ? this.view.opp.map((mon, i) => this.entry(mon, i)) : this.theirs();
    return {sides: this.seat.me === 0 ? [mine, theirs] : [theirs, mine]};
  }

  // ---------------------------------------------------------------- one's own side: nothing but counters is unknown

  ours() {
    const {preview, view} = this.seat;
    if (!preview) throw new NotRebuilt('a battle that was joined after its preview');
    return view.req.side.pokemon.map((told, i) => {
      const mon = view.team[i];
      const first = preview.side.pokemon.find(other => other.ident === told.ident);
      if (!first) throw new NotRebuilt('a Pokémon that was not in the preview');
      const stands = told.active && !view.req.teamPreview;
      if (stands && toID(told.ability) === 'illusion') throw new NotRebuilt('an Illusion');
      const [name, ...rest] = first.details.split(', ');
      const level = vocab.details(first.details).level;
      const species = Dex.species.get(name);
      const maxhp = +first.condition.split('/')[1].split(' ')[0];
      const spread = this.library.spreadOf(species, level, {...first.stats, hp: maxhp});
      const entry = {
        mon, name: told.ident.slice(4), hp: parseInt(told.condition),
        set: {
          name: told.ident.slice(4), species: species.name, level,
          gender: rest.find(word => word === 'M' || word === 'F') || 'N',
          item: first.item, ability: first.baseAbility || first.ability, moves: [...first.moves],
          teraType: first.teraType, ...(spread ? structuredClone(spread) : this.usual(species, first.moves)),
        },
      };
      if (!spread) {
        entry.stats = told.stats;
        entry.maxhp = mon.maxhp;
      }
      return this.counters(entry, i < 2 ? i : -1);
    });
  }

  // ---------------------------------------------------------------- the opponent

  theirs() {
    const {view, prng} = this;
    const standing = [view.slots[2].mon, view.slots[3].mon];
    if (standing.some(mon => !mon)) throw new NotRebuilt('an empty slot');
    if (standing[0] === standing[1]) throw new NotRebuilt('an Illusion');
    const bench = view.opp.filter(mon => mon.shown && !standing.includes(mon));
    const unseen = view.opp.filter(mon => !mon.shown && !standing.includes(mon));
    const missing = Math.min(view.picks, view.opp.length) - 2 - bench.length;
    if (missing < 0) throw new NotRebuilt('more Pokémon than may be picked');
    prng.shuffle(unseen);
    return [...standing, ...bench, ...unseen.slice(0, missing)].map((mon, place) =>
      this.counters(this.entry(mon, view.opp.indexOf(mon)), place < 2 ? 2 + place : -1));
  }

  entry(mon, index) {
    const told = this.chronicle.poked[1][index];
    if (!told) throw new NotRebuilt('a Pokémon that was not in the preview');
    const shown = Dex.species.get(told.split(', ')[0].replace('-*', ''));
    const sheet = this.sheet(shown);
    const known = this.library.of(shown);
    // A set of the library that has as much as possible of what was seen.
    const fits = known.length ? this.likeliest(mon, known) : null;
    const species = sheet ? Dex.species.get(sheet.species || sheet.name) : fits && mon.hiddenForme ?
      Dex.species.get(fits.species || fits.name) : mon.shown && !this.changed(mon) ?
      Dex.species.get(vocab.speciesName(mon.species)) : shown;
    const random = RANDOM_SETS[species.id] || RANDOM_SETS[toID(species.baseSpecies)];
    const options = random ? this.prng.sample(random.sets) : null;
    const set = {
      name: mon.name || species.baseSpecies, species: species.name, level: mon.level,
      gender: told.split(', ').find(word => word === 'M' || word === 'F') || 'N',
      item: sheet ? sheet.item : this.item(mon, fits),
      ability: sheet ? sheet.ability : mon.ability ? vocab.abilityName(mon.ability) : fits ? fits.ability :
        this.prng.sample(Object.values(species.abilities)),
      moves: sheet ? [...sheet.moves] : this.moves(mon, fits, options, species),
      teraType: sheet ? sheet.teraType : mon.tera ? Dex.types.get(vocab.types[mon.tera]).name : fits ? fits.teraType :
        options ? this.prng.sample(options.teraTypes) : species.types[0],
    };
    Object.assign(set, this.spread(mon, species, set, known));
    const forme = mon.hiddenForme && !mon.shown ? this.forme(species, set) : undefined;
    const percent = Math.round(100 * mon.hp);
    const maxhp = this.library.stat(Dex.species.get(vocab.speciesName(mon.species)), set, 'hp');
    const low = Math.floor(maxhp * (percent - 1) / 100) + 1;
    const high = Math.max(low, Math.floor(maxhp * percent / 100));
    const hp = mon.hp === 1 ? maxhp : low + this.prng.random(high - low + 1);
    return {mon, name: set.name, set, hp, forme};
  }

  // The forme it had in the preview is what it goes back to.
  changed(mon) {
    const species = Dex.species.get(vocab.speciesName(mon.species));
    return !!(species.battleOnly || species.isMega || species.name.endsWith('-Tera') ||
      species.baseSpecies === 'Terapagos' || species.baseSpecies === 'Palafin');
  }

  forme(species, set) {
    const item = toID(set.item);
    if (species.baseSpecies === 'Zacian' && item === 'rustedsword') return 'zaciancrowned';
    if (species.baseSpecies === 'Zamazenta' && item === 'rustedshield') return 'zamazentacrowned';
    return species.id;
  }

  sheet(species) {
    const packed = this.chronicle.sheet;
    if (!packed) return null;
    return Teams.unpack(packed).find(set => Dex.species.get(set.species || set.name).num === species.num) || null;
  }

  likeliest(mon, sets) {
    const agrees = set => {
      const moves = set.moves.map(move => vocab.move(move));
      let score = mon.moves.filter(move => moves.includes(move)).length;
      if (mon.item > vocab.NONE && vocab.item(set.item) === mon.item) score++;
      if (mon.ability && vocab.ability(set.ability) === mon.ability) score++;
      if (mon.tera && vocab.type(set.teraType || '') === mon.tera) score++;
      return score;
    };
    const scores = sets.map(agrees);
    const best = Math.max(...scores);
    return this.prng.sample(sets.filter((_, i) => scores[i] === best));
  }

  item(mon, fits) {
    if (mon.item === vocab.NONE) return mon.lostItem ? vocab.itemName(mon.lostItem) : '';
    if (mon.item) return vocab.itemName(mon.item);
    const {belief} = mon;
    const allowed = name => {
      const id = toID(name);
      return !(CHOICE.has(id) && belief.noChoice) && !(RULED_OUT[id] && belief[RULED_OUT[id]]);
    };
    if (fits && allowed(fits.item)) return fits.item;
    return this.prng.sample(USUAL_ITEMS.filter(allowed));
  }

  moves(mon, fits, options, species) {
    const moves = mon.moves.map(id => vocab.moveName(id));
    const more = [...(fits ? fits.moves : []), ...(options ? this.shuffled(options.movepool) : []), 'Protect',
      ...(species.types.includes('Normal') ? ['Body Slam'] : ['Tera Blast']), 'Substitute', 'Rest'];
    for (const move of more) {
      if (moves.length >= 4) break;
      if (!moves.includes(toID(move))) moves.push(toID(move));
    }
    return moves;
  }

  shuffled(list) {
    const copy = [...list];
    this.prng.shuffle(copy);
    return copy;
  }

  // ---------------------------------------------------------------- spreads

  // One that has the Speed that was seen; if none does, the nearest.
  spread(mon, species, set, known) {
    const now = Dex.species.get(vocab.speciesName(mon.species));
    const {beliefs} = this.view;
    beliefs.certain(mon);
    let {low, high} = beliefs;
    if (!CHOICE.has(toID(set.item)) || toID(set.item) !== 'choicescarf') {
      low = Math.max(low, Math.min(mon.belief.lowPlain, mon.belief.top));
      high = Math.min(high, Math.max(mon.belief.highPlain, mon.belief.bottom));
    }
    let best = null;
    let nearest = Infinity;
    for (let tries = 0; tries < 12; tries++) {
      const found = known.length && this.prng.randomChance(2, 3) ? this.copied(this.prng.sample(known)) :
        this.usual(species, set.moves);
      const speed = this.library.stat(now, {...set, ...found}, 'spe');
      const off = Math.max(low - speed, speed - high, 0);
      if (off < nearest) [best, nearest] = [found, off];
      if (!off) return found;
    }
    return this.withSpeed(best, now, set, (low + high) >> 1);
  }

  copied(set) {
    return {nature: set.nature || 'Serious', evs: {hp: 0, atk: 0, def: 0, spa: 0, spd: 0, spe: 0, ...set.evs},
      ivs: {hp: 31, atk: 31, def: 31, spa: 31, spd: 31, spe: 31, ...set.ivs}};
  }

  withSpeed(spread, species, set, wanted) {
    const most = this.library.points ? 32 : 252;
    let best = spread;
    let nearest = Infinity;
    for (const [nature, iv] of [[spread.nature, 31], ['Jolly', 31], ['Timid', 31], ['Brave', 31], ['Quiet', 0]]) {
      for (let ev = 0; ev <= most; ev += this.library.points ? 1 : 4) {
        const tried = {nature, evs: {...spread.evs, spe: ev}, ivs: {...spread.ivs, spe: iv}};
        const off = Math.abs(this.library.stat(species, {...set, ...tried}, 'spe') - wanted);
        if (off < nearest) [best, nearest] = [tried, off];
      }
    }
    return best;
  }

  // What teams carry: fast attackers, slower ones with HP, and those that support.
  usual(species, moves) {
    const data = moves.map(move => Dex.moves.get(move)).filter(move => move.category !== 'Status');
    const physical = data.filter(move => move.category === 'Physical').length;
    const {atk, spa, spe, def, spd} = species.baseStats;
    const main = physical * atk >= (data.length - physical) * spa ? 'atk' : 'spa';
    const other = main === 'atk' ? 'spa' : 'atk';
    const full = this.library.points ? 32 : 252;
    const little = this.library.points ? 2 : 4;
    const half = this.library.points ? 16 : 124;
    const evs = {hp: 0, atk: 0, def: 0, spa: 0, spd: 0, spe: 0};
    const ivs = {hp: 31, atk: main === 'atk' ? 31 : 0, def: 31, spa: 31, spd: 31, spe: 31};
    const roll = this.prng.random(10);
    let plus = main;
    let minus = other;
    if (data.length >= 2 && spe >= 80 && roll < 7) {
      Object.assign(evs, {hp: little, [main]: full, spe: full});
      if (roll < 4) plus = 'spe';
    } else if (data.length >= 2 && roll < 8) {
      Object.assign(evs, {hp: full, [main]: full, spd: little});
      if (moves.some(move => toID(move) === 'trickroom')) {
        minus = 'spe';
        ivs.spe = 0;
      }
    } else {
      plus = def < spd ? 'def' : 'spd';
      Object.assign(evs, {hp: full, def: half, spd: half});
    }
    const nature = NATURES.find(one => one.plus === plus && one.minus === minus) || NATURES[0];
    return {nature: nature.name, evs, ivs};
  }

  // ---------------------------------------------------------------- counters that nobody is told

  counters(entry, slot) {
    const {mon} = entry;
    const {prng} = this;
    if (mon.status === vocab.STATUS.slp) {
      const possible = [2, 3, 4].filter(start => start > mon.statusTurns);
      const start = possible.length ? prng.sample(possible) : mon.statusTurns + 1;
      entry.sleep = {start, time: start - mon.statusTurns};
    }
    if (slot < 0) return entry;
    const {effects} = this.chronicle.stands[slot];
    if (effects.has('confusion')) entry.confusion = Math.max(1, 2 + prng.random(4) - effects.get('confusion').ends);
    if (effects.has('partiallytrapped'))
      entry.bound = Math.max(1, 5 + prng.random(2) - effects.get('partiallytrapped').ends);
    if (effects.has('lockedmove')) entry.locked = effects.get('lockedmove').uses > 1 ? 1 : 1 + prng.random(2);
    return entry;
  }
}

module.exports = {Library, Drawer};
