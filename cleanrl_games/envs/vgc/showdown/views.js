'use strict';
// The PlayerView of VGCVecEnv for battles that are played elsewhere: on a server, or in a saved replay.
//
//   views.py ── one JSON line ──> {key, role, entries: [{line} | {request} | {observe: true}], close}
//            <── one JSON line ── {frames: [base64, one for each `observe`]} or {error}
//
// A key names one player's seat in one battle; its view lives from the first message to the one with `close`. A frame
// is what sim.js writes behind a frame's head: the mask, the ids as int16, the numbers as float32. vec_env.py has the
// table.

const fs = require('fs');
const mdbo = require('./mdbo');
const {PlayerView, INTS, FLOATS} = require('./features');

const AT_FLOATS = mdbo.MASK_BYTES + 2 * (INTS + INTS % 2);
const frame = new ArrayBuffer(AT_FLOATS + 4 * FLOATS);
const bytes = Buffer.from(frame);
const ints = new Int16Array(frame, mdbo.MASK_BYTES, INTS);
const floats = new Float32Array(frame, AT_FLOATS, FLOATS);
const views = new Map();

function observe(view) {
  mdbo.fillMask(view.req, bytes, 0);
  view.write(ints, 0, floats, 0);
  return bytes.toString('base64');
}

function answer({key, role, entries, close}) {
  if (!views.has(key)) views.set(key, new PlayerView(role));
  const view = views.get(key);
  const frames = [];
  try {
    for (const {line, request, observe: asked} of entries) {
      if (line !== undefined) view.line(line);
      else if (request) view.request(request);
      else if (asked) frames.push(observe(view));
    }
  } catch (error) {
    views.delete(key);
    return {error: error.stack};
  }
  if (close) views.delete(key);
  return {frames};
}

function say(message) {
  const text = Buffer.from(JSON.stringify(message) + '\n');
  for (let at = 0; at < text.length;) at += fs.writeSync(1, text, at, text.length - at);
}

// Read by hand: a stream's events would only come when nothing else is to be done, and nothing else is.
const chunk = Buffer.alloc(1 << 16);
let pieces = [];
say({bytes: frame.byteLength});
for (;;) {
  const count = fs.readSync(0, chunk, 0, chunk.length, null);
  if (count === 0) break; // the parent closed the pipe or died
  let from = 0;
  for (let end; (end = chunk.indexOf(10, from)) >= 0 && end < count; from = end + 1) {
    pieces.push(Buffer.from(chunk.subarray(from, end)));
    const text = Buffer.concat(pieces).toString();
    pieces = [];
    say(answer(JSON.parse(text)));
  }
  if (from < count) pieces.push(Buffer.from(chunk.subarray(from, count)));
}
