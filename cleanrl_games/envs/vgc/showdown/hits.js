'use strict';
// Are the damage formula and the order of moves the simulator's? Plays seeded random battles and compares
// - every hit with the rolls that damage.js foresees from one player's view of that moment, the true spreads, the
//   number of targets and Helping Hand given;
// - at every decision, what order.js says of each pair of opponents, nothing given, with their true Speeds.
//
//   node hits.js < job.json
//   job: {format, openTeamSheets, teams: [packed], seed, hits, turnCap}
//   out: {hits, within, misses: [{about, damage, low, high}], seen: {"move x": hits, …},
//         sure, wrong: [text], likely, likelyRight}
const fs = require('fs');
const {BattleActions} = require('pokemon-showdown/dist/sim/battle-actions');
require('./dispatch').install();
const mdbo = require('./mdbo');
const {battleFormat, createBattle, mix} = require('./battles');
const {Damage} = require('./damage');
const {Order} = require('./order');
const {PlayerView} = require('./features');
const vocab = require('./vocabulary');

const job = JSON.parse(fs.readFileSync(0, 'utf8'));
const damage = new Damage();
const order = new Order();
const mask = new Uint8Array(mdbo.MASK_BYTES);
const LATE = new Set(['laggingtail', 'fullincense']);
const STATS = ['atk', 'def', 'spa', 'spd', 'spe'];
const result = {hits: 0, within: 0, misses: [], seen: {}, sure: 0, wrong: [], likely: 0, likelyRight: 0};
let current = null; // {battle, view, position}

// What the player p1 has been told so far, also in the middle of a turn.
function listen() {
  const {battle, view} = current;
  const {log} = battle;
  for (; current.position < log.length; current.position++) {
    let line = log[current.position];
    if (line.startsWith('|split|p')) {
      line = log[current.position + (line.charCodeAt(8) === 49 ? 1 : 2)];
      current.position += 2;
    }
    for (const part of line.split('\n')) if (part) view.line(part);
  }
}

function fighterOf(pokemon) {
  return damage.fighters[2 * pokemon.side.n + pokemon.position];
}

function compare(source, target, move, hp, real) {
  const {battle, view} = current;
  damage.look(view);
  for (const pokemon of battle.getAllActive()) {
    const fighter = fighterOf(pokemon);
    if (!fighter.present) return;
    STATS.forEach((stat, i) => { fighter.stats[i + 1] = pokemon.storedStats[stat]; });
    fighter.stats[0] = pokemon.maxhp;
    fighter.hp = pokemon.hp;
    if (move.id === 'gyroball' || move.id === 'electroball') fighter.speed = pokemon.getStat('spe');
  }
  fighterOf(source).hp = hp;
  damage.helpingHand = !!source.volatiles.helpinghand;
  const [user, victim] = [fighterOf(source), fighterOf(target)];
  const hits = damage.hit(user, vocab.move(move.id), victim, !!move.spreadHit);
  const {crit} = target.getMoveHitData(move);
  if (hits && !!crit !== damage.crit) return; // a lucky critical hit: no part of the rolls
  if (!hits && crit) return;
  const inside = hits && real >= damage.low && real <= damage.high;
  const about = [`move ${move.id}`, `user's ability ${source.ability}`, `target's ability ${target.ability}`,
    `user's item ${source.item}`, `target's item ${target.item}`, ...Object.keys(source.volatiles).map(name =>
      `user's ${name}`), ...Object.keys(target.volatiles).map(name => `target's ${name}`)];
  if (current.illusion) about.push('an Illusion on a team');
  if (source.transformed || target.transformed) about.push('Transform');
  result.hits++;
  for (const what of about) result.seen[what] = (result.seen[what] || 0) + 1;
  if (inside) result.within++;
  else result.misses.push({about, damage: real, low: hits ? damage.low : 0, high: hits ? damage.high : 0});
}

function describe(mon) {
  return `${mon.species.id} (${mon.getActionSpeed()}, ${mon.item}, ${mon.ability})`;
}

// What the view says of who is first, against the Speeds that the simulator sorts by.
function compareOrder() {
  const {battle, view, illusion} = current;
  if (illusion || view.req.teamPreview) return; // whoever stands behind an Illusion, the view shows the disguise
  damage.look(view);
  order.look(view, damage);
  for (const mine of battle.sides[0].active) {
    for (const theirs of battle.sides[1].active) {
      if (!mine || !theirs || mine.fainted || theirs.fainted) continue;
      const said = order.first(fighterOf(mine).index, fighterOf(theirs).index);
      const real = Math.sign(mine.getActionSpeed() - theirs.getActionSpeed());
      const late = [mine, theirs].some(mon => LATE.has(mon.item) || mon.ability === 'stall');
      if (late || !said) continue;
      if (Math.abs(said) < 1) {
        result.likely++;
        if (Math.sign(said) === real) result.likelyRight++;
      } else {
        result.sure++;
        if (said !== real) result.wrong.push(`${describe(mine)} against ${describe(theirs)}: said ${said}`);
      }
    }
  }
}

const {getDamage} = BattleActions.prototype;
BattleActions.prototype.getDamage = function (source, target, move, quiet) {
  if (!current || typeof move !== 'object' || !move.id) return getDamage.call(this, source, target, move, quiet);
  listen(); // before the hit: what it leaves behind is not to be known
  const look = move.hit <= 1 && source.isActive && target.isActive && source !== target;
  const hp = source.hp; // Final Gambit takes it
  const real = getDamage.call(this, source, target, move, quiet);
  if (look && typeof real === 'number' && real > 0) compare(source, target, move, hp, real);
  return real;
};

function play(index) {
  let state = mix(job.seed, index, 77);
  const random = n => {
    state = mix(state, 1, 2);
    return state % n;
  };
  const {battle} = createBattle(battleFormat(job.format, job.openTeamSheets), job.teams, job.teams, job.seed, index, 0,
    () => {});
  const illusion = battle.sides.some(side => side.pokemon.some(mon => mon.baseAbility === 'illusion'));
  current = {battle, view: new PlayerView('p1'), position: 0, illusion};
  while (!battle.ended && battle.turn <= job.turnCap && result.hits < job.hits) {
    listen();
    battle.sentLogPos = battle.log.length;
    const pending = battle.sides.filter(side => side.activeRequest && !side.activeRequest.wait && !side.isChoiceDone());
    if (battle.sides[0].activeRequest) {
      current.view.request(JSON.parse(JSON.stringify(battle.sides[0].activeRequest)));
      compareOrder();
    }
    for (const side of pending) {
      for (let tries = 0; ; tries++) {
        mdbo.fillMask(side.activeRequest, mask, 0);
        const action = tries < 10 ? mdbo.sampleAction(side.activeRequest, mask, 0, random) : -1;
        if (battle.choose(side.id, mdbo.choiceOf(action, side.activeRequest))) break;
      }
    }
  }
  current = null;
  battle.destroy();
}

for (let index = job.first || 0; result.hits < job.hits; index++) play(index);
process.stdout.write(JSON.stringify(result) + '\n');
