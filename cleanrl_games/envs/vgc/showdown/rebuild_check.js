'use strict';
// Is a battle rebuilt from a view the battle? Seeded battles with random legal choices: at every decision one player's
// view and the hidden truth make a second battle, both play the same choices with the same dice, and what stands after
// that is compared: HP, faints, status, stages, field, sides, who stands where, what is asked next.
//
//   node rebuild_check.js < job.json
//   job: {format, openTeamSheets, teams, seed, positions, turnCap, details}
//   result: {positions, equal, not: {reason: count}, different: {what: count}, examples}

const fs = require('fs');
const mdbo = require('./mdbo');
const {battleFormat, createBattle, mix} = require('./battles');
const {copyBattle} = require('./copies');
const {Seat, NotRebuilt, rebuild, truth} = require('./rebuild');

const VAGUE = ['lastresult', 'asked', 'speed', 'stats', 'hp']; // signs of something else, most of the time
const mask = new Uint8Array(mdbo.MASK_BYTES);

function outcome(battle) {
  const lengths = table => Object.entries(table).map(([id, state]) => `${id} ${state.duration ?? ''}`).sort().join();
  const found = {turn: battle.turn, ended: battle.ended, winner: battle.winner || '', request: battle.requestState};
  found.field = `${battle.field.weather} ${battle.field.weatherState.duration ?? ''} ${battle.field.terrain} ` +
    `${battle.field.terrainState.duration ?? ''} ${lengths(battle.field.pseudoWeather)}`;
  for (const side of battle.sides) {
    found[`${side.id} side`] = lengths(side.sideConditions);
    side.pokemon.forEach((pokemon, i) => {
      const where = `${side.id} ${i}`;
      found[`${where} name`] = pokemon.name;
      found[`${where} species`] = pokemon.species.id;
      found[`${where} hp`] = `${pokemon.hp}/${pokemon.maxhp}`;
      found[`${where} fainted`] = pokemon.fainted;
      found[`${where} status`] = pokemon.status;
      found[`${where} stages`] = Object.values(pokemon.boosts).join();
      found[`${where} item`] = pokemon.item;
      found[`${where} active`] = pokemon.isActive;
    });
  }
  return found;
}

// For people who look for the cause: fields that differ before the turn.
function position(battle) {
  const found = outcome(battle);
  for (const side of battle.sides) {
    found[`${side.id} asked`] = JSON.stringify(side.activeRequest);
    side.active.forEach((pokemon, i) => {
      if (!pokemon || pokemon.fainted) return;
      const where = `${side.id} ${i}`;
      for (const [id, state] of Object.entries(pokemon.volatiles)) {
        const {target, source, sourceEffect, effectOrder, sourceSlot, linkedPokemon, linkedStatus, name,
          ...rest} = state;
        found[`${where} volatile ${id}`] = JSON.stringify(Object.entries({...rest, slot: id === 'leechseed' ?
          sourceSlot : ''}).sort());
      }
      found[`${where} ability`] = pokemon.ability;
      found[`${where} types`] = `${pokemon.getTypes().join()} ${pokemon.addedType}`;
      found[`${where} stats`] = JSON.stringify(pokemon.storedStats);
      found[`${where} actions`] = `${pokemon.activeTurns} ${pokemon.activeMoveActions}`;
      found[`${where} speed`] = pokemon.getActionSpeed();
      found[`${where} last`] = pokemon.lastMove?.id || '';
      found[`${where} lastresult`] = pokemon.moveLastTurnResult === false;
      found[`${where} times`] = pokemon.timesAttacked;
    });
    found[`${side.id} slots`] = JSON.stringify(side.slotConditions.map(spot => Object.keys(spot)));
    found[`${side.id} fallen`] = side.totalFainted;
  }
  return found;
}

function differences(a, b) {
  const names = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...names].filter(name => a[name] !== b[name]);
}

function run(job) {
  const format = battleFormat(job.format, job.openTeamSheets);
  const result = {positions: 0, equal: 0, not: {}, different: {}, examples: []};
  const count = (table, name) => { table[name] = (table[name] || 0) + 1; };
  for (let index = 0; result.positions < job.positions; index++) {
    let state = mix(job.seed, index, 77);
    const random = n => {
      state = mix(state, 1, 2);
      return state % n;
    };
    const seats = [new Seat('p1'), new Seat('p2')];
    const {battle} = createBattle(format, job.teams, job.teams, job.seed, index, 0, () => {});
    let at = 0;
    while (!battle.ended && battle.turn <= job.turnCap && result.positions < job.positions) {
      at = distribute(battle, seats, at);
      const requests = battle.sides.map(side => JSON.parse(JSON.stringify(side.activeRequest)));
      requests.forEach((request, side) => seats[side].request(request));
      const asked = requests.map(request => !request.wait);
      let copy = null;
      let about = [];
      let before = null;
      if (!requests[0].teamPreview) {
        const me = asked[0] && asked[1] ? result.positions % 2 : asked[0] ? 0 : 1;
        result.positions++;
        try {
          copy = rebuild(format, seats[me], truth(battle, seats[me]), battle.prng.getSeed());
          before = [position(battle), position(copy)];
          about = differences(...before);
        } catch (error) {
          if (!(error instanceof NotRebuilt) && job.details) process.stderr.write(error.stack + '\n');
          count(result.not, error instanceof NotRebuilt ? error.message : `error: ${error.message}`);
          copy = null;
        }
      }
      const choices = [];
      for (const side of battle.sides) {
        if (!asked[side.n]) continue;
        for (let tries = 0; ; tries++) {
          const request = side.activeRequest;
          mdbo.fillMask(request, mask, 0);
          const choice = mdbo.choiceOf(tries < 10 ? mdbo.sampleAction(request, mask, 0, random) : -1, request);
          if (copy) choices.push([side.id, choice]);
          if (battle.choose(side.id, choice)) break;
        }
      }
      if (!copy) continue;
      // Played in a copy, and then in another one: the first must have left no trace in what both were made from.
      const second = copyBattle(copy);
      const third = copyBattle(copy);
      copy = second;
      try {
        for (const [side, choice] of choices) second.choose(side, choice);
        for (const [side, choice] of choices) third.choose(side, choice);
        if (differences(outcome(second), outcome(third)).length) count(result.different, 'two copies');
      } catch (error) {
        if (job.details) process.stderr.write(error.stack + '\n');
        count(result.not, `error in play: ${error.message}`);
        continue;
      }
      const wrong = differences(outcome(battle), outcome(copy));
      if (!wrong.length) {
        result.equal++;
        continue;
      }
      // One cause each: what differed before the turn, the rarer signs first.
      const kinds = about.map(name => name.replace(/^p[12]( \d)? ?/, ''));
      const cause = kinds.find(name => !VAGUE.includes(name)) || kinds[0] || 'nothing that was looked at before';
      count(result.different, cause);
      if (result.examples.length < (job.details || 0)) {
        result.examples.push({
          battle: index, turn: battle.turn, choices,
          before: about.map(name => `${name}: ${before[0][name]} | ${before[1][name]}`),
          after: wrong.map(name => `${name}: ${outcome(battle)[name]} | ${outcome(copy)[name]}`),
          log: battle.log.slice(-40).join('\n'), copyLog: copy.log.join('\n'),
        });
      }
    }
    battle.destroy();
  }
  return result;
}

function distribute(battle, seats, from) {
  const {log} = battle;
  for (let i = from; i < log.length; i++) {
    const line = log[i];
    if (!line.startsWith('|split|p')) {
      for (const seat of seats) hear(seat, line);
      continue;
    }
    const owner = line.charCodeAt(8) - 49;
    hear(seats[owner], log[i + 1]);
    hear(seats[1 - owner], log[i + 2]);
    i += 2;
  }
  battle.sentLogPos = log.length;
  return log.length;
}

function hear(seat, text) {
  for (const line of text.split('\n')) if (line) seat.line(line);
}

const job = JSON.parse(fs.readFileSync(0, 'utf8'));
if (job.dispatch !== false) require('./dispatch').install();
process.stdout.write(JSON.stringify(run(job)));
