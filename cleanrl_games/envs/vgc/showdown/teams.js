'use strict';
/**
 * Teams: read PokePaste, judge with Showdown's own TeamValidator, pack, export, generate.
 *
 *   NODE_PATH=FOLDER_WITH_SHOWDOWN/node_modules node teams.js < request.json > answer.json
 *
 * One request, one answer:
 *   {command: "validate", format, teams: [{name, text}]}  -> {teams: [{name, title, packed, species, problems}]}
 *   {command: "generate", format, size, seed, split}      -> {teams: [{name, packed, species}]}
 *   {command: "export", teams: [packed]}                  -> {texts: [paste]}
 * What the caller did wrong comes back as {error: "a sentence"}; anything else is a crash with its stack.
 */
const crypto = require('crypto');
const fs = require('fs');
const { Dex, PRNG, TeamValidator, Teams } = require('pokemon-showdown');
const { simulatorFormat } = require('./formats');
const { RandomTeams } = require('pokemon-showdown/dist/data/random-battles/gen9/teams');

class RequestError extends Error {}

// ---------------------------------------------------------------- PokePaste

// Showdown's importer drops lines that it does not know, so a misspelt "Tera Tpye:" would silently change the team.
const KNOWN_LINE = new RegExp(
  '^(===|---|[-~]|[A-Za-z]+ [Nn]ature|' +
  '(Ability|Trait|Level|Shiny|Gender|Happiness|Pokeball|Hidden Power|Tera Type|EVs|IVs|Gigantamax|Dynamax Level): )'
);

function readPaste(text) {
  const problems = [];
  let title = '';
  let inSet = false;
  // PokePaste serves CRLF; the importer trims each line but looks at line 1 untrimmed.
  const lines = text.replace(/^\uFEFF/, '').replace(/\r\n?/g, '\n').split('\n').map(line => line.trim());
  lines.forEach((line, index) => {
    if (line.startsWith('===')) {
      title = line.replace(/^=+|=+$/g, '').replace(/^\s*\[[^\]]*\]/, '').trim();
    } else if (line === '' || line === '---') {
      inSet = false;
    } else if (!inSet) {
      inSet = true;
    } else if (!KNOWN_LINE.test(line)) {
      problems.push(`line ${index + 1} is not part of the PokePaste format: "${line.slice(0, 80)}"`);
    } else if (/^[EI]Vs: /.test(line)) {
      for (const part of line.slice(5).split('/')) {
        if (!/^\s*\d+ (HP|Atk|Def|SpA|SpD|Spe)\s*$/i.test(part)) {
          problems.push(`line ${index + 1}: "${part.trim().slice(0, 40)}" is not a number and a stat like "252 SpA"`);
        }
      }
    }
  });
  const team = Teams.import(lines.join('\n')) || [];
  return { team, title, problems };
}

function validate({ format, teams }) {
  const validator = TeamValidator.get(format);
  return teams.map(({ name, text }) => {
    const { team, title, problems } = readPaste(text);
    // The validator repairs sets in place (formes, tera types, levels), so what it leaves behind is what is packed.
    if (!team.length) {
      problems.push('there is no Pokémon in it');
    } else {
      problems.push(...(validator.validateTeam(team) || []));
    }
    return {
      name, title, problems,
      packed: problems.length ? '' : Teams.pack(team),
      species: team.map(set => set.species),
    };
  });
}

// ---------------------------------------------------------------- generated teams

const ITEMS = {
  choice: { Physical: 'Choice Band', Special: 'Choice Specs' },
  attacker: ['Life Orb', 'Focus Sash', 'Clear Amulet', 'Lum Berry', 'Expert Belt', 'Safety Goggles', 'Mental Herb',
    'Covert Cloak', 'Sitrus Berry', 'Weakness Policy', 'Scope Lens'],
  supporter: ['Sitrus Berry', 'Leftovers', 'Rocky Helmet', 'Safety Goggles', 'Covert Cloak', 'Mental Herb', 'Lum Berry',
    'Eject Button', 'Clear Amulet', 'Red Card'],
};

/** Random-battle sets spread 85 EVs over every stat at odd levels; give them what a level 50 team would carry. */
function trainForTournament(dex, raw) {
  const species = dex.species.get(raw.species);
  const moves = raw.moves.map(move => dex.moves.get(move));
  // Moves that strike with a number of their own (Seismic Toss) or another stat (Body Press, Foul Play) need no Attack.
  const striking = moves.filter(m => m.category !== 'Status' && !m.damage && !m.damageCallback &&
    !m.overrideOffensiveStat && !m.overrideOffensivePokemon);
  const physical = striking.filter(m => m.category === 'Physical').length;
  const special = striking.length - physical;
  const { atk, spa, spe } = species.baseStats;
  const main = physical * atk > special * spa ? 'atk' : 'spa';
  const other = main === 'atk' ? 'spa' : 'atk';
  const mixed = physical > 0 && special > 0;
  const wantsSlow = moves.some(m => m.id === 'trickroom' || m.id === 'gyroball');
  const supports = striking.length < 2 || /Support/.test(raw.role);

  const evs = { hp: 252, atk: 0, def: 0, spa: 0, spd: 0, spe: 0 };
  let plus, minus;
  if (supports) {
    plus = species.baseStats.def < species.baseStats.spd ? 'def' : 'spd';
    minus = striking.length === 0 ? 'atk' : mixed ? 'spe' : other;
    evs[plus] = 140;
    evs[plus === 'def' ? 'spd' : 'def'] = 116;
  } else if (wantsSlow || spe <= 50) {
    [plus, minus] = [main, wantsSlow || mixed ? 'spe' : other];
    evs[main] = 252;
    evs.spd = 4;
  } else {
    plus = spe >= 85 ? 'spe' : main;
    minus = mixed ? 'spd' : other;
    Object.assign(evs, { hp: 4, [main]: 252, spe: 252 });
  }
  const nature = dex.natures.all().find(n => n.plus === plus && n.minus === minus);
  const ivs = { hp: 31, atk: physical ? 31 : 0, def: 31, spa: 31, spd: 31, spe: wantsSlow ? 0 : 31 };
  return {
    name: '', species: species.name, item: raw.item, ability: raw.ability, gender: '', nature: nature.name,
    evs, ivs, level: 50, teraType: raw.teraType, moves: moves.map(m => m.name),
    options: itemOptions(species, moves, raw, { main, supports }),
  };
}

function itemOptions(species, moves, raw, { main, supports }) {
  // A forme that its item makes (Ogerpon's masks, the Rusted Sword) can carry nothing else.
  if (species.requiredItem || species.requiredItems) return [raw.item];
  // Nobody lays hazards in a four-a-side game of a dozen turns: the boots are a wasted slot.
  const own = raw.item === 'Heavy-Duty Boots' ? [] : [raw.item];
  const options = [...own, ...(supports ? ITEMS.supporter : ITEMS.attacker)];
  if (!moves.some(m => m.category === 'Status')) {
    options.splice(own.length, 0, 'Assault Vest', ITEMS.choice[main === 'atk' ? 'Physical' : 'Special'],
      'Choice Scarf');
  }
  return options;
}

/** Which third of all possible species combinations: by content, so that no held-out team is ever trained on. */
function splitOf(team) {
  const key = team.map(set => set.species.toLowerCase().replace(/[^a-z0-9]/g, '')).sort().join(',');
  return crypto.createHash('sha256').update(key).digest()[0] % 3 === 0 ? 'eval' : 'train';
}

function generate({ format, size, seed, split }) {
  const dex = Dex.forFormat(format);
  const rules = Dex.formats.getRuleTable(Dex.formats.get(format));
  const restrictedLimit = rules.has('limitonerestricted') ? 1 : rules.has('limittworestricted') ? 2 : 0;
  const validator = TeamValidator.get(format);
  const prng = new PRNG(`sodium,${crypto.createHash('sha256').update(`${format}/${seed}`).digest('hex').slice(0, 32)}`);
  const generator = new RandomTeams('gen9randomdoublesbattle', prng);

  const usable = Object.keys(generator.randomDoublesSets).map(id => dex.species.get(id))
    .filter(species => species.exists && !species.isNonstandard && !rules.isBannedSpecies(species));
  const restricted = usable.filter(species => rules.isRestrictedSpecies(species));
  const ordinary = usable.filter(species => !rules.isRestrictedSpecies(species));
  const teamSize = rules.maxTeamSize;
  const statPoints = rules.evLimit !== null && rules.evLimit < 510; // Champions: 66 points, 32 a stat, worth 8 EVs each

  // Champions: who may hold which mega stones. Of 150 tournament and ladder teams 82 held one and 68 two.
  const stones = new Map();
  for (const item of dex.items.all()) {
    if (!item.megaStone || item.isNonstandard || rules.isBanned(`item:${item.id}`)) continue;
    for (const holder of Object.keys(item.megaStone)) stones.set(holder, [...(stones.get(holder) || []), item.name]);
  }
  const evolving = ordinary.filter(species => stones.has(species.name));
  const stonesOfATeam = () => (evolving.length ? (prng.randomChance(82, 150) ? 1 : 2) : 0);

  const verdicts = new Map(); // the same set comes up again and again; the validator's answer does not change
  const isLegal = set => {
    const key = JSON.stringify(set);
    if (!verdicts.has(key)) verdicts.set(key, !validator.validateSet(structuredClone(set), {}));
    return verdicts.get(key);
  };

  function pick(pool, team, details, withStone) {
    const taken = new Set(team.map(set => dex.species.get(set.species).num)); // Species Clause goes by Pokédex number
    const items = new Set(team.map(set => set.item));
    for (let attempt = 0; attempt < 400; attempt++) {
      const species = prng.sample(pool);
      if (taken.has(species.num)) continue;
      const { options, ...set } = trainForTournament(dex, generator.randomSet(species.id, details, team.length < 2,
        true));
      const item = withStone ? prng.sample(stones.get(species.name)) :
        options.find(name => name && !items.has(name) && !dex.items.get(name).isNonstandard);
      if (!item || items.has(item)) continue;
      set.item = item;
      if (statPoints) for (const stat in set.evs) set.evs[stat] = set.evs[stat] === 4 ?
        2 : Math.ceil(set.evs[stat] / 8);
      // Some gifts of the story come with fixed IVs (Raging Bolt 20 Attack, Miraidon 31): 0 is only a wish.
      for (const attack of set.ivs.atk === 0 ? [0, 20, 15, 31] : [31]) {
        set.ivs.atk = attack;
        if (isLegal(set)) return set;
      }
    }
    return null;
  }

  const teams = [];
  const seen = new Set();
  let failures = 0;
  while (teams.length < size) {
    if (failures > 60) {
      throw new RequestError(`only ${teams.length} of ${size} teams for ${format} could be built from the package's ` +
        'random-doubles sets: ask for fewer, or give a folder of teams');
    }
    failures++;
    const team = [];
    const wanted = stonesOfATeam();
    for (let slot = 0; slot < teamSize; slot++) {
      const pool = slot < restrictedLimit && restricted.length ? restricted : slot < wanted ? evolving : ordinary;
      const set = pick(pool, team, {}, slot < wanted);
      if (!set) break;
      team.push(set);
    }
    if (team.length < teamSize || (split !== 'all' && splitOf(team) !== split)) continue;
    prng.shuffle(team);
    const species = team.map(set => set.species);
    if (validator.validateTeam(team)) continue;
    const packed = Teams.pack(team);
    if (seen.has(packed)) continue;
    seen.add(packed);
    failures = 0;
    teams.push({ name: `generated_${seed}_${String(teams.length).padStart(5, '0')}`, packed, species });
  }
  return teams;
}

// ---------------------------------------------------------------- one request, one answer

function main() {
  const request = JSON.parse(fs.readFileSync(0, 'utf8'));
  if (request.command === 'export') {
    return { texts: request.teams.map(packed => Teams.export(Teams.unpack(packed)).trim() + '\n') };
  }
  const format = simulatorFormat(request.format);
  if (Dex.formats.get(format).effectType !== 'Format')
    throw new RequestError(`Showdown knows no format called "${request.format}"`);
  const known = { ...request, format };
  if (request.command === 'validate') return { teams: validate(known) };
  if (request.command === 'generate') return { teams: generate(known) };
  throw new RequestError(`unknown command "${request.command}": validate, generate and export are known`);
}

if (require.main === module) {
  let answer;
  try {
    answer = main();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer));
}

module.exports = { readPaste, splitOf };
