'use strict';
// Protocol lines as their parts. The simulator joins the parts of a line with "|" and a view cuts them again; of a
// battle that nobody reads as text (no scripted player, no log) neither is done: battle.log then holds arrays [reader,
// command, …], as parts() would give.
//
// Only how a line is kept changes. That a view hears the same is tested: tests/test_vgc_env.py plays the same battles
// both ways.

const {Battle} = require('pokemon-showdown/dist/sim/battle');
const {READERS} = require('./view');

const UNHEARD = []; // a line that no view reads
// the next line is for this side, the one after for the other
const SPLITS = [[null, 'split', 'p1'], [null, 'split', 'p2']];

function cut(values) {
  const read = READERS.get(values[0]);
  if (!read) return UNHEARD;
  const args = [read, values[0]];
  for (let i = 1; i < values.length; i++) push(args, values[i]);
  return args;
}

function push(args, value) {
  const text = typeof value === 'string' ? value : value === null || value === undefined ? '' : String(value);
  if (text.includes('|')) args.push(...text.split('|')); // a packed team
  else args.push(text);
}

function add(battle, values) {
  for (let i = 0; i < values.length; i++) {
    if (typeof values[i] === 'function') return addSecret(battle, values);
  }
  battle.log.push(cut(values));
}

// Health and the like: exact for its owner, in per cent for the other side.
function addSecret(battle, values) {
  let side = null;
  const secret = [];
  const shared = [];
  for (const value of values) {
    const split = typeof value === 'function' ? value() : null;
    if (split && side && side !== split.side) throw new Error('Multiple sides passed to add');
    if (split) side = split.side;
    secret.push(split ? split.secret : value);
    shared.push(split ? split.shared : value);
  }
  addSplit(battle, [side, secret, shared]);
}

function addSplit(battle, [side, secret, shared]) {
  battle.log.push(SPLITS[side === 'p1' ? 0 : 1], cut(secret), shared ? cut(shared) : UNHEARD);
}

function addMove(battle, values) {
  battle.lastMoveLine = battle.log.length;
  battle.log.push(cut(values));
}

function attrLastMove(battle, values) {
  const {log, lastMoveLine} = battle;
  if (lastMoveLine < 0) return;
  if (values.includes('[still]')) {
    if (log[lastMoveLine][1] === '-anim') {
      log.splice(lastMoveLine, 1);
      battle.lastMoveLine = -1;
      return;
    }
    log[lastMoveLine][4] = '';
  }
  for (const value of values) push(log[lastMoveLine], value);
}

function retargetLastMove(battle, [newTarget]) {
  if (battle.lastMoveLine >= 0) battle.log[battle.lastMoveLine][4] = newTarget.toString();
}

// Battles made from now on keep their lines so; the constructor writes the first ones.
function keepAs(asParts) {
  Battle.prototype.asParts = asParts;
}

function install() {
  for (const ours of [add, addSplit, addMove, attrLastMove, retargetLastMove]) {
    const stock = Battle.prototype[ours.name];
    Battle.prototype[ours.name] = function (...values) {
      return this.asParts ? ours(this, values) : stock.apply(this, values);
    };
  }
}

function textOf(args) {
  return args === UNHEARD ? '' : `|${args.slice(1).join('|')}`;
}

module.exports = {SPLITS, UNHEARD, install, keepAs, textOf};
