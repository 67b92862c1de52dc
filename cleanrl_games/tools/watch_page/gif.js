'use strict';
// Draws scenes with Node's canvas. stdin: JSON {info, frames, score, camera, width, height, subframes, font};
// stdout: one picture after another as raw RGBA. Python makes the GIF of them.
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const { createCanvas, loadImage, GlobalFonts, Path2D } = require('@napi-rs/canvas');

function writeAll(data) {
  for (let at = 0; at < data.length;) {
    try {
      at += fs.writeSync(1, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error; // the pipe is full: its reader is at work
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

async function main() {
  const job = JSON.parse(fs.readFileSync(0, 'utf8'));
  GlobalFonts.registerFromPath(job.font, 'Watch');
  const context = vm.createContext({ Path2D, Math, console });
  for (const name of ['space', `draw_${job.info.game}`]) vm.runInContext(fs.readFileSync(path.join(__dirname,
    `${name}.js`), 'utf8'), context);
  const painter = vm.runInContext('Painters', context)[job.info.game];
  const canvas = createCanvas(job.width, job.height);
  const ctx = canvas.getContext('2d');
  const memory = {};
  let image = null;
  for (let at = 0; at < job.frames.length; at++) {
    const frame = job.frames[at];
    painter.prepare(frame, job.frames[at - 1], job.info);
    if (painter.images) image = await loadImage(Buffer.from(frame.scene.png, 'base64'));
    for (let sub = 1; sub <= job.subframes; sub++) {
      const view = { info: job.info, frames: job.frames, at, part: sub / job.subframes, camera: job.camera, memory,
        softness: 0.35, score: job.score, image: () => image };
      painter.draw(ctx, job.width, job.height, view);
      writeAll(canvas.data());
    }
  }
}

main().catch(error => { console.error(error); process.exit(1); });
