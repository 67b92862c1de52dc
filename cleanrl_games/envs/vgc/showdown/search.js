'use strict';
// The battles behind search.py: follows seats by their lines, rebuilds their positions in drawn worlds, plays turns.
//
//   search.py ── {job} ──> {bytes}
//             ── {see: [{key, role, lines, worlds, seeds, …}]} ──> of each world: whom it asks, the opponent's frame
//             ── {play: [{key, worlds: [{world, own, opp}]}]} ──> of each pair of actions: frames after it, or who won
//             ── {forget: [key]} ──> {}
//
//   message  int32 bytes, JSON        reply  int32 bytes of JSON, int32 bytes of frames, JSON, frames as in views.py
//
// A seat is known by its own lines and requests; nothing else comes in. What its opponent sees in a world is made of
// the same public lines, with our HP as others are shown it, and of the request that the rebuilt battle makes.

const fs = require('fs');
const mdbo = require('./mdbo');
const {battleFormat} = require('./battles');
const {copyBattle, copyView} = require('./copies');
const {PlayerView, INTS, FLOATS} = require('./features');
const {Seat, NotRebuilt, rebuild, previewOf} = require('./rebuild');
const {Library, Drawer} = require('./worlds');
const vocab = require('./vocabulary.js');

const AT_FLOATS = mdbo.MASK_BYTES + 2 * (INTS + INTS % 2);
const FRAME = AT_FLOATS + 4 * FLOATS;
const HEALTH = new Set(['switch', 'drag', 'replace', '-damage', '-heal', '-sethp']);

let format, library;
const seats = new Map(); // key -> {seat, worlds}

// ---------------------------------------------------------------- frames

let room = 64;
let bytes = Buffer.from(new ArrayBuffer(room * FRAME));
let frames = 0;

function writeFrame(view) {
  if (frames === room) {
    const old = bytes;
    room *= 2;
    bytes = Buffer.from(new ArrayBuffer(room * FRAME));
    old.copy(bytes);
  }
  const at = frames * FRAME;
  const {buffer} = bytes;
  if (view.req.wait) bytes.fill(0, at, at + mdbo.MASK_BYTES); // it is not asked: only what it sees counts
  else mdbo.fillMask(view.req, bytes, at);
  const ints = new Int16Array(buffer, at + mdbo.MASK_BYTES, INTS);
  view.write(ints, 0, new Float32Array(buffer, at + AT_FLOATS, FLOATS), 0);
  return frames++;
}

// ---------------------------------------------------------------- one decision

// "137/202 brn" -> "68/100 brn": health as the other side is told it.
function inPercent(text) {
  return text.replace(/^(\d+)\/(\d+)/, (_, hp, max) => {
    if (max === '100') return `${hp}/100`;
    const percent = Math.ceil(100 * hp / max);
    return `${percent === 100 && +hp < +max ? 99 : percent}/100`;
  });
}

// The public lines as the opponent heard them.
function publicLine(line, role) {
  const end = line.indexOf('|', 1);
  if (end < 0 || !HEALTH.has(line.slice(1, end)) || !line.startsWith(role, end + 1)) return line;
  return line.split('|').map(inPercent).join('|');
}

// What the opponent sees here. Its own side is told by the request of the world's battle.
function opponentView(known, battle) {
  const {seat} = known;
  const other = seat.role === 'p1' ? 'p2' : 'p1';
  const side = battle.sides[1 - seat.me];
  const request = JSON.parse(JSON.stringify(side.activeRequest));
  if (!known.other) { // the first world of this decision; the others differ in the request only
    const view = new PlayerView(other);
    view.request({teamPreview: true, side: request.side});
    for (const line of seat.chronicle.lines) view.line(publicLine(line, seat.role));
    known.other = view;
  }
  const view = copyView(known.other);
  view.request(request);
  for (const pokemon of side.pokemon) {
    const mon = view.own.get(pokemon.name);
    if (mon) for (const move of pokemon.baseMoveSlots) mon.setPp(vocab.move(move.id), move.pp / move.maxpp);
  }
  return view;
}

function follow(seat, lines) {
  for (const line of lines) {
    if (line.startsWith('|request|')) seat.request(JSON.parse(line.slice(9)));
    else seat.line(line);
  }
}

function see({key, role, lines, fresh, worlds, seeds}) {
  if (fresh || !seats.has(key)) seats.set(key, {seat: new Seat(role), worlds: new Map(), other: null,
    lost: ''});
  const known = seats.get(key);
  known.other = null;
  known.worlds.clear();
  try {
    if (!known.lost) follow(known.seat, lines);
  } catch (error) {
    // Without the preview's request this process was begun in the middle of the battle: lines speak of strangers.
    known.lost = known.seat.preview ? `error: ${error.message}` : 'a battle that was joined after its preview';
  }
  if (known.lost) return worlds.map(() => ({failed: known.lost}));
  return worlds.map((world, i) => {
    try {
      return enter(known, world, seeds[i]);
    } catch (error) {
      if (!(error instanceof NotRebuilt) && process.env.SEARCH_DEBUG) process.stderr.write(`${error.stack}\n`);
      return {failed: error instanceof NotRebuilt ? error.message : `error: ${error.message}`};
    }
  });
}

function enter(known, world, seed) {
  const {seat} = known;
  const drawn = new Drawer(library, seat, seed).draw();
  const battle = seat.view.req.teamPreview ? previewOf(format, drawn, seed) : rebuild(format, seat, drawn, seed);
  const [mine, theirs] = [battle.sides[seat.me], battle.sides[1 - seat.me]];
  if (mine.activeRequest.wait) throw new NotRebuilt('a request of one\'s own');
  const asked = !theirs.activeRequest.wait;
  const view = opponentView(known, battle);
  known.worlds.set(world, {battle, view, asked});
  return {asked, frame: writeFrame(view)};
}

// ---------------------------------------------------------------- its futures

function choose(battle, side, action) {
  const {activeRequest} = side;
  if (!activeRequest || activeRequest.wait || side.isChoiceDone()) return;
  // A choice that this world does not allow (a trap that nobody had seen) becomes the simulator's own.
  if (!battle.choose(side.id, mdbo.choiceOf(action, activeRequest)) && !battle.ended && !side.isChoiceDone())
    battle.choose(side.id, 'default');
}

function hear(view, side, log) {
  for (let i = 0; i < log.length; i++) {
    let line = log[i];
    if (line.startsWith('|split|p')) {
      line = line.charCodeAt(8) - 49 === side ? log[i + 1] : log[i + 2];
      i += 2;
    }
    if (!line) continue;
    if (line.includes('\n')) line.split('\n').forEach(part => part && view.line(part));
    else view.line(line);
  }
}

// [frame of ours, frame of theirs, value]: -1 where that seat is not asked; value: of ours, if the battle is over
function future(known, {battle: position, view}, own, opp) {
  const {seat} = known;
  const battle = copyBattle(position);
  const sides = [battle.sides[seat.me], battle.sides[1 - seat.me]];
  choose(battle, sides[0], own);
  if (opp >= 0) choose(battle, sides[1], opp);
  if (battle.ended) return [-1, -1, battle.winner === sides[0].name ? 1 : battle.winner === sides[1].name ? -1 : 0];
  const found = [-1, -1, 0];
  [seat.view, view].forEach((from, i) => {
    if (sides[i].activeRequest.wait) return;
    const after = copyView(from);
    hear(after, sides[i].n, battle.log);
    after.request(sides[i].activeRequest);
    found[i] = writeFrame(after);
  });
  return found;
}

function play({key, worlds}, deadline) {
  const known = seats.get(key);
  return worlds.map(({world, own, opp}, place) => {
    const results = [];
    for (const mine of own) {
      for (const theirs of opp) {
        if (place && deadline && Date.now() > deadline) return {late: true};
        try {
          results.push(future(known, known.worlds.get(world), mine, theirs));
        } catch (error) {
          if (process.env.SEARCH_DEBUG) process.stderr.write(`${error.stack}\n`);
          return {failed: `error in play: ${error.message}`};
        }
      }
    }
    return {results};
  });
}

// ---------------------------------------------------------------- pipes

function readFully(length) {
  const buffer = Buffer.alloc(length);
  for (let at = 0; at < length;) {
    const count = fs.readSync(0, buffer, at, length - at, null);
    if (count === 0) process.exit(0); // the parent closed the pipe or died
    at += count;
  }
  return buffer;
}

function writeFully(buffer) {
  for (let at = 0; at < buffer.length;) at += fs.writeSync(1, buffer, at, buffer.length - at);
}

function answer(message) {
  if (message.job) {
    require('./dispatch').install();
    format = battleFormat(message.job.format, false);
    library = new Library(format, message.job.library);
    return {bytes: FRAME};
  }
  if (message.see) return {rows: message.see.map(see)};
  if (message.play) {
    const deadline = message.seconds ? Date.now() + 1000 * message.seconds : 0;
    return {rows: message.play.map(row => play(row, deadline))};
  }
  for (const key of message.forget || []) seats.delete(key);
  return {};
}

for (;;) {
  const message = JSON.parse(readFully(readFully(4).readInt32LE(0)).toString());
  frames = 0;
  let text;
  try {
    text = answer(message);
  } catch (error) {
    text = {error: error.stack};
  }
  const json = Buffer.from(JSON.stringify(text));
  const head = Buffer.alloc(8);
  head.writeInt32LE(json.length, 0);
  head.writeInt32LE(frames * FRAME, 4);
  writeFully(head);
  writeFully(json);
  writeFully(bytes.subarray(0, frames * FRAME));
}
