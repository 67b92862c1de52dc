'use strict';
// What damage.js looks up by id: facts of moves, and the names of the abilities, items, species and moves that have a
// part in the formula.
const vocab = require('./vocabulary.js');

// 'one two' -> {one: id, two: id}; a name that the vocabulary lacks is a fault of this file.
function named(find, words) {
  return Object.freeze(Object.fromEntries(words.trim().split(/\s+/).map(word => {
    if (!find(word)) throw new Error(`damage_tables.js: there is no "${word}"`);
    return [word, find(word)];
  })));
}

const TYPE = Object.fromEntries(vocab.types.map((name, id) => [name, id]));

// chart as powers of two, and immunities apart
const DOUBLINGS = new Int8Array(vocab.TYPES * vocab.TYPES);
const IMMUNE = new Uint8Array(vocab.TYPES * vocab.TYPES);
vocab.chart.forEach((row, attack) => row.forEach((times, defence) => {
  if (times === 0) IMMUNE[attack * vocab.TYPES + defence] = 1;
  else DOUBLINGS[attack * vocab.TYPES + defence] = Math.log2(times);
}));

const FLAG = Object.fromEntries(vocab.moveFlags.map((name, place) => [name, 2 ** place]));
const count = vocab.moveFacts.length;
const moveType = new Uint8Array(count);
const moveCategory = new Int8Array(count);
const movePower = new Int32Array(count);
const movePriority = new Int8Array(count);
const moveFlags = new Int32Array(count);
const minHits = new Uint8Array(count);
const maxHits = new Uint8Array(count);
const moveReach = new Uint8Array(count);
vocab.moveFacts.forEach(([type, category, power, , priority], id) => {
  moveType[id] = type;
  moveCategory[id] = category;
  movePower[id] = power;
  movePriority[id] = priority;
  [moveFlags[id], minHits[id], maxHits[id], moveReach[id]] = vocab.moveTraits[id];
});

// Moves whose power, type or damage needs a rule of its own; a rule has the name of its first move.
const R = Object.freeze(Object.fromEntries(`none
  acrobatics aurawheel behindscreens brine collisioncourse crushgrip dreameater earthquake electroball endeavor
  eruption expandingforce facade finalgambit firstturn flail flyingpress freezedry grassknot grassyglide
  gravapple gyroball heavyslam hex hydrosteam ivycudgel knockoff lastrespects level mistyexplosion nothing ohko
  photongeyser poltergeist psyblade ragefist ragingbull revelationdance risingvoltage solarbeam spitup
  steelroller storedpower struggle superfang terablast terastarstorm terrainpulse thirds venoshock weatherball
  bodypress foulplay hardpress shellsidearm`.split(/\s+/).map((name, number) => [name, number])));
const SHARED_RULES = {
  behindscreens: ['brickbreak', 'psychicfangs'], collisioncourse: ['electrodrift'], earthquake: ['bulldoze'],
  eruption: ['waterspout', 'dragonenergy'], firstturn: ['fakeout', 'firstimpression'], flail: ['reversal'],
  grassknot: ['lowkick'], heavyslam: ['heatcrash'], hex: ['infernalparade'], level: ['nightshade', 'seismictoss'],
  // damage that nobody can foresee
  nothing: ['counter', 'mirrorcoat', 'metalburst', 'comeuppance', 'beatup', 'fling', 'present', 'naturalgift',
    'futuresight', 'doomdesire'],
  ohko: ['fissure', 'guillotine', 'horndrill', 'sheercold'], solarbeam: ['solarblade'], storedpower: ['powertrip'],
  superfang: ['ruination', 'naturesmadness'], thirds: ['tripleaxel', 'triplekick'], venoshock: ['barbbarrage'],
};
const moveRule = new Uint8Array(count);
for (const [name, number] of Object.entries(R)) if (vocab.move(name)) moveRule[vocab.move(name)] = number;
for (const [name, moves] of Object.entries(SHARED_RULES)) {
  for (const move of moves) moveRule[vocab.move(move)] = R[name];
}

const NOT_TURNED = new Set([R.weatherball, R.terrainpulse, R.revelationdance, R.struggle]);
const FALLEN = [4096, 4506, 4915, 5325, 5734, 6144];

const byId = (size, entries) => {
  const values = new Int32Array(size);
  for (const [id, value] of entries) {
    if (!id) throw new Error(`damage_tables.js: a name for the value ${value} is in no vocabulary`);
    values[id] = value;
  }
  return values;
};
const ABILITIES = vocab.breakable.length;
const ITEMS = vocab.items;
const abilitiesOfType = entries => byId(ABILITIES, Object.entries(entries).map(([name, type]) =>
  [vocab.ability(name), TYPE[type]]));
const itemsOfType = entries => byId(ITEMS, Object.entries(entries).flatMap(([type, names]) =>
  names.split(' ').map(name => [vocab.item(name), TYPE[type]])));

const ABSORBS = abilitiesOfType({voltabsorb: 'electric', lightningrod: 'electric', motordrive: 'electric',
  waterabsorb: 'water', stormdrain: 'water', dryskin: 'water', flashfire: 'fire', wellbakedbody: 'fire',
  sapsipper: 'grass', eartheater: 'ground'});
const BLOCKS_FLAG = byId(ABILITIES, [['bulletproof', FLAG.bullet], ['soundproof', FLAG.sound], ['windrider', FLAG.wind]]
  .map(([name, flag]) => [vocab.ability(name), flag]));
const TURNS_NORMAL = abilitiesOfType({pixilate: 'fairy', aerilate: 'flying', refrigerate: 'ice', galvanize: 'electric',
  dragonize: 'dragon'});
const RAISES_FLAG = byId(ABILITIES, [['sharpness', FLAG.slicing], ['strongjaw', FLAG.bite],
  ['megalauncher', FLAG.pulse]].map(([name, flag]) => [vocab.ability(name), flag]));
const RAISES_TYPE = abilitiesOfType({dragonsmaw: 'dragon', rockypayload: 'rock', steelworker: 'steel',
  firemane: 'fire'});
const PINCH = abilitiesOfType({blaze: 'fire', torrent: 'water', overgrow: 'grass', swarm: 'bug'});
const ITEM_TYPE = itemsOfType({
  bug: 'silverpowder insectplate', dark: 'blackglasses dreadplate', dragon: 'dragonfang dracoplate',
  electric: 'magnet zapplate', fairy: 'fairyfeather pixieplate', fighting: 'blackbelt fistplate',
  fire: 'charcoal flameplate', flying: 'sharpbeak skyplate', ghost: 'spelltag spookyplate',
  grass: 'miracleseed meadowplate roseincense', ground: 'softsand earthplate', ice: 'nevermeltice icicleplate',
  normal: 'silkscarf', poison: 'poisonbarb toxicplate', psychic: 'twistedspoon mindplate oddincense',
  rock: 'hardstone stoneplate rockincense', steel: 'metalcoat ironplate', water: 'mysticwater splashplate seaincense',
});
const BERRY_TYPE = itemsOfType({
  bug: 'tangaberry', dark: 'colburberry', dragon: 'habanberry', electric: 'wacanberry', fairy: 'roseliberry',
  fighting: 'chopleberry', fire: 'occaberry', flying: 'cobaberry', ghost: 'kasibberry', grass: 'rindoberry',
  ground: 'shucaberry', ice: 'yacheberry', poison: 'kebiaberry', psychic: 'payapaberry', rock: 'chartiberry',
  steel: 'babiriberry', water: 'passhoberry', normal: 'chilanberry',
});
// Items that belong to one species: [item, dex number, type, type]; without types, all.
const SIGNATURE = new Map([['adamantorb', 483, 'steel', 'dragon'], ['adamantcrystal', 483, 'steel', 'dragon'],
  ['lustrousorb', 484, 'water', 'dragon'], ['lustrousglobe', 484, 'water', 'dragon'],
  ['griseousorb', 487, 'ghost', 'dragon'], ['griseouscore', 487, 'ghost', 'dragon'],
  ['souldew', 380, 'psychic', 'dragon'], ['wellspringmask', 1017], ['hearthflamemask', 1017],
  ['cornerstonemask', 1017]].map(([name, number, ...types]) =>
  [vocab.item(name), {number, types: types.map(type => TYPE[type])}]));
// Knock Off gains nothing on these.
const STAYS = byId(ITEMS, ['wellspringmask', 'hearthflamemask', 'cornerstonemask', 'boosterenergy', 'rustedsword',
  'rustedshield', 'griseouscore', 'adamantcrystal', 'lustrousglobe'].map(name => [vocab.item(name), 1]));

const A = named(vocab.ability, `
  adaptability airlock armortail asoneglastrier asonespectrier battery battlearmor beadsofruin cloudnine darkaura
  dazzling defeatist disguise dryskin fairyaura filter flareboost flashfire fluffy friendguard furcoat galewings
  gorillatactics grasspelt guts hadronengine heatproof heavymetal hugepower hustle iceface icescales infiltrator
  ironfist klutz levitate lightmetal liquidvoice marvelscale mindseye moldbreaker multiscale neuroforce
  neutralizinggas orichalcumpulse powerspot prankster prismarmor punkrock purepower purifyingsalt queenlymajesty
  reckless sandforce scrappy shadowshield sheerforce shellarmor skilllink sniper solarpower solidrock steelyspirit
  sturdy supremeoverlord swordofruin tabletsofruin technician telepathy terashell teravolt thickfat tintedlens
  toughclaws toxicboost transistor triage turboblaze unaware unnerve vesselofruin waterbubble wonderguard`);
const I = named(vocab.item, `
  abilityshield airballoon assaultvest choiceband choicespecs eviolite expertbelt focussash ironball lifeorb
  lightball loadeddice muscleband normalgem protectivepads punchingglove utilityumbrella wiseglasses`);
const SPECIES = named(vocab.species, `
  pikachu terapagosstellar terapagosterastal morpekohangry taurospaldeacombat taurospaldeablaze taurospaldeaaqua
  ogerponwellspring ogerponwellspringtera ogerponhearthflame ogerponhearthflametera ogerponcornerstone
  ogerponcornerstonetera mimikyu eiscue`);

module.exports = {
  A, I, R, SPECIES, TYPE, DOUBLINGS, IMMUNE, FLAG, moveType, moveCategory, movePower, movePriority, moveFlags,
  moveRule, minHits, maxHits, moveReach, NOT_TURNED, FALLEN, ABSORBS, BLOCKS_FLAG, TURNS_NORMAL, RAISES_FLAG,
  RAISES_TYPE, PINCH, ITEM_TYPE, BERRY_TYPE, SIGNATURE, STAYS,
};
