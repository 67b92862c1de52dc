'use strict';
// The worker process behind VGCVecEnv: many battles, one loop, no event loop.
//
//   vec_env.py ── message ──> read() ─> Table.choose() ─> Battle ─> log lines, requests ─> PlayerView ─> frame
//              <── reply ───  write()       (every message gets exactly one reply: what became pending through it)
//
//   message  int32 type, int32 bytes, payload     0: the job, as JSON
//                                                 1: triples (battle, episode, players or null) to start, as JSON
//                                                 2: quadruples of int32 (battle, side, action, episode)
//                                                 3: the job's mix, as JSON
//   reply    int32 × 8 header, frames, JSON text  header: magic, frames, text bytes, then five counters
//
// A side's frame is built by its PlayerView from that player's own protocol lines and requests; nothing else reaches
// it.

const fs = require('fs');
const v8 = require('v8');
const vm = require('vm');
const mdbo = require('./mdbo');
const {battleFormat, createBattle, mix, Dex, Teams} = require('./battles');
const {PlayerView, INTS, FLOATS} = require('./features');
const {READERS, commandOf, parts} = require('./view');
const lines = require('./lines');

const [IN, OUT] = process.argv.slice(2).map(Number);
const JOB = 0, START = 1, ACTIONS = 2, MIX = 3;
const PREVIEW = 0, TURN = 1, END = 2;
const MAGIC = 0x56474331;
const HEADER = 32;
const COLLECT = 2500; // battles between full collections
const RETRIES = 8; // unavailable choices in a row before the simulator's own default answers
// A frame: 8 int32, 1 float32, 4 bytes of flags, the mask, INTS int16 (padded to even), FLOATS float32. vec_env.py has
// the same table.
const AT_REWARD = 32, AT_FLAGS = 36, AT_MASK = 40;
const AT_INTS = AT_MASK + mdbo.MASK_BYTES;
const AT_FLOATS = AT_INTS + 2 * (INTS + INTS % 2);
const FRAME = AT_FLOATS + 4 * FLOATS;

let job;
let out, int32, int16, float32, bytes;
let frames = 0;
let texts = [];
const counts = {invalid: 0, unavailable: 0, decisions: 0, battles: 0, errors: 0};
const tables = new Map();
// What a message's choices brought about is told after all of them are played: the processor's caches hold the
// simulator's code or the views', and going from one to the other at every battle made a decision 7 % dearer.
let news = [];

// ---------------------------------------------------------------- pipes

function readFully(buffer) {
  for (let at = 0; at < buffer.length;) {
    const n = fs.readSync(IN, buffer, at, buffer.length - at, null);
    if (n === 0) process.exit(0); // the parent closed the pipe or died: nothing is left to do
    at += n;
  }
  return buffer;
}

function writeFully(buffer) {
  for (let at = 0; at < buffer.length;) at += fs.writeSync(OUT, buffer, at, buffer.length - at);
}

function reserve(count) {
  if (bytes && HEADER + count * FRAME <= bytes.length) return;
  const old = bytes;
  out = new ArrayBuffer(HEADER + Math.ceil(count * 1.5) * FRAME);
  bytes = Buffer.from(out);
  if (old) old.copy(bytes);
  int32 = new Int32Array(out);
  int16 = new Int16Array(out);
  float32 = new Float32Array(out);
}

function reply() {
  const text = texts.length ? Buffer.from(JSON.stringify(texts)) : null;
  int32.set([MAGIC, frames, text ? text.length : 0, counts.decisions, counts.battles, counts.invalid,
    counts.unavailable, counts.errors]);
  writeFully(bytes.subarray(0, HEADER + frames * FRAME));
  if (text) writeFully(text);
  frames = 0;
  texts = [];
}

// ---------------------------------------------------------------- one battle after another

class Table {
  constructor(index, episode, players) {
    this.index = index;
    this.episode = episode - 1;
    this.seats = [null, null]; // views for one battle after another
    this.restart(players);
  }

  restart(players) {
    this.episode++;
    this.players = players || opponents(this.index, this.episode);
    this.errors = [];
    this.broken = false;
    this.position = 0; // log lines already given to the views
    this.pending = [false, false];
    this.retries = [0, 0];
    this.score = [0, 0];
    this.views = this.players.map((code, side) => code && !job.record ? null : this.seat(side));
    this.lines = this.players.map(code => code || job.protocol ? [] : null);
    // Lines are text only for those who read text.
    this.asParts = !job.logs && !this.lines[0] && !this.lines[1];
    lines.keepAs(this.asParts);
    const made = createBattle(job.battleFormat, job.teams[0], job.teams[1], job.seed, this.index, this.episode,
      (type, data) => {
      if (type === 'sideupdate' && data.includes('|error|')) this.errors.push(data);
    });
    this.battle = made.battle;
    this.battle.asParts = this.asParts;
    this.picks = made.picks;
    this.deliver();
  }

  seat(side) {
    if (this.seats[side]) this.seats[side].begin();
    else this.seats[side] = new PlayerView(`p${side + 1}`);
    return this.seats[side];
  }

  choose(side, action, episode) {
    if (episode !== this.episode || this.broken) return; // its battle broke off under the other side's choice
    if (!this.pending[side]) throw new Error(`battle ${this.index} has no pending decision of side ${side}`);
    const {battle} = this;
    const request = battle.sides[side].activeRequest;
    this.errors.length = 0;
    let accepted;
    try {
      accepted = battle.choose(battle.sides[side].id, mdbo.choiceOf(action, request));
      if (!accepted && ++this.retries[side] >= RETRIES) accepted = battle.choose(battle.sides[side].id, 'default');
    } catch (error) {
      this.broken = true; // a bug of the simulator itself ends one battle, not the process
      news.push(() => this.fail(error));
      return;
    }
    if (!accepted) {
      const error = this.errors.join(' ');
      if (error.includes('[Unavailable choice]')) counts.unavailable++;
      else {
        counts.invalid++;
        process.stderr.write(
          `invalid choice ${mdbo.choiceOf(action, request)}: ${error} for ${JSON.stringify(request)}\n`);
      }
      news.push(() => this.ask(side, 1));
      return;
    }
    this.pending[side] = false;
    this.retries[side] = 0;
    counts.decisions++;
    if (battle.ended || battle.log.length !== this.position) news.push(() => this.deliver());
  }

  // Each player's share of what happened since, then what is asked of whom.
  deliver() {
    const {battle} = this;
    if (this.asParts) this.distributeParts();
    else this.distribute();
    // The request that a capped battle made is never answered, but its view is part of the final observation.
    const capped = !battle.ended && battle.turn > job.turnCap;
    for (let side = 0; side < 2; side++) {
      const request = battle.sides[side].activeRequest;
      if (!request) continue;
      if (request.wait || capped) this.show(side, request);
      else this.ask(side, 0);
    }
    if (battle.ended || capped) this.finish(capped, '');
  }

  distribute() {
    const {log} = this.battle;
    for (let i = this.position; i < log.length; i++) {
      const line = log[i];
      if (line.charCodeAt(2) !== 112 || !line.startsWith('|split|p')) {
        this.hear(0, 1, line);
        continue;
      }
      const owner = line.charCodeAt(8) - 49;
      this.hear(owner, owner, log[i + 1]);
      this.hear(1 - owner, 1 - owner, log[i + 2]);
      i += 2;
    }
    this.position = this.battle.sentLogPos = log.length;
  }

  distributeParts() {
    const {log} = this.battle;
    for (let i = this.position; i < log.length; i++) {
      const owner = lines.SPLITS.indexOf(log[i]);
      if (owner < 0) {
        this.tell(0, log[i]);
        this.tell(1, log[i]);
      } else {
        this.tell(owner, log[i + 1]);
        this.tell(1 - owner, log[i + 2]);
        i += 2;
      }
    }
    this.position = this.battle.sentLogPos = log.length;
  }

  tell(side, args) {
    if (args !== lines.UNHEARD) args[0](this.views[side], args);
  }

  // What the sides from `first` to `last` are told.
  hear(first, last, line) {
    if (!line) return;
    if (line.includes('\n')) {
      for (const part of line.split('\n')) this.hear(first, last, part);
      return;
    }
    const command = commandOf(line);
    const read = READERS.get(command);
    const args = read ? parts(line, command) : null; // cut once for both: nobody writes to them
    for (let side = first; side <= last; side++) {
      if (read && this.views[side]) read(this.views[side], args);
      if (this.lines[side]) this.lines[side].push(line);
    }
  }

  show(side, request) {
    if (this.views[side]) this.views[side].request(request);
    if (this.lines[side]) this.lines[side].push(`|request|${JSON.stringify(request)}`);
  }

  ask(side, retry) {
    const request = this.battle.sides[side].activeRequest;
    this.show(side, request);
    this.pending[side] = true;
    this.emit(side, request.teamPreview ? PREVIEW : TURN, request, 0, false, false, retry, -1);
  }

  finish(truncated, error) {
    const {battle} = this;
    const winner = truncated || error ? -1 : battle.winner === 'p1' ? 0 : battle.winner === 'p2' ? 1 : 2;
    for (let side = 0; side < 2; side++) {
      const won = winner < 0 || winner === 2 ? 0 : winner === side ? 1 : -1;
      this.emit(side, END, null, won, winner >= 0, winner < 0, 0, winner);
    }
    texts.push({
      finished: [this.index, this.episode, winner, battle.turn, winner < 0 ? 1 : 0, ...this.players, ...this.picks],
      log: job.logs || error ? spectatorLog(this.asParts ? battle.log.map(lines.textOf) : battle.log) : undefined,
      error: error || undefined,
    });
    if (++counts.battles % COLLECT === 0) collect();
    battle.destroy();
    this.restart();
  }

  fail(error) {
    counts.errors++;
    process.stderr.write(`battle ${this.index}, episode ${this.episode}: ${error.stack}\n`);
    this.finish(true, String(error.message));
  }

  emit(side, kind, request, reward, terminated, truncated, retry, winner) {
    const code = this.players[side];
    let row = -1;
    if (!code || (job.record && kind !== END)) {
      row = frames;
      reserve(frames + 1);
      const at = HEADER + frames++ * FRAME;
      const i = at / 4;
      int32[i] = this.index;
      int32[i + 1] = side;
      int32[i + 2] = kind;
      int32[i + 3] = this.episode;
      int32[i + 4] = this.battle.turn;
      int32[i + 5] = winner;
      int32[i + 6] = this.picks[side];
      int32[i + 7] = this.picks[1 - side];
      float32[(at + AT_REWARD) / 4] = reward + this.shaping(side);
      const flags = at + AT_FLAGS;
      bytes[flags] = terminated ? 1 : 0;
      bytes[flags + 1] = truncated ? 1 : 0;
      bytes[flags + 2] = retry;
      bytes[flags + 3] = this.players[1 - side];
      if (request) mdbo.fillMask(request, bytes, at + AT_MASK);
      else bytes.fill(0, at + AT_MASK, at + AT_INTS);
      this.views[side].write(int16, (at + AT_INTS) / 2, float32, (at + AT_FLOATS) / 4);
    }
    if (this.lines[side]) {
      const opponent = this.players[1 - side];
      texts.push({row, battle: this.index, side, episode: this.episode, kind, player: code, opponent,
        lines: this.lines[side]});
      this.lines[side] = [];
    }
  }

  // The change of a zero-sum score since this side was last asked; the score is 0 when a battle starts.
  shaping(side) {
    if (!job.rewardFaint && !job.rewardHp) return 0;
    let score = 0;
    for (let s = 0; s < 2; s++) {
      const sign = s === side ? 1 : -1;
      for (const mon of this.battle.turn ? this.battle.sides[s].pokemon : []) {
        score += sign * (job.rewardHp * (mon.hp / mon.maxhp - 1) - (mon.hp ? 0 : job.rewardFaint));
      }
    }
    const change = score - this.score[side];
    this.score[side] = score;
    return change;
  }
}

// V8 by itself waits until there are 300 MB of old objects; 1,000 battles leave 25. A collection takes 55 ms.
function collect() {
  // here, not among the flags that Node starts with: with it there a decision was 5 % dearer
  v8.setFlagsFromString('--expose-gc');
  vm.runInNewContext('gc')();
}

// Which sides a scripted player answers: a fixed pair per battle, or a seeded draw for each new battle. 0 is the
// caller.
function opponents(index, episode) {
  if (job.fixed) return job.fixed[index];
  let u = mix(mix(job.seed, index, episode), 9, 9) / 2 ** 32;
  for (const [code, share] of job.mix) {
    u -= share;
    if (u < 0) return mix(job.seed, index, episode) & 1 ? [code, 0] : [0, code];
  }
  return [0, 0];
}

function spectatorLog(log) {
  const shown = [];
  for (let i = 0; i < log.length; i++) {
    if (log[i].startsWith('|split|')) {
      if (log[i + 2]) shown.push(log[i + 2]);
      i += 2;
    } else {
      shown.push(log[i]);
    }
  }
  return shown.join('\n');
}

// ---------------------------------------------------------------- the job

// What would otherwise end in a crash or, worse, in a battle with a nameless Pokémon.
function teamProblem(packed) {
  const team = Teams.unpack(packed);
  if (!team) return 'it cannot be unpacked';
  if (team.length < 4 || team.length > 6) return `it has ${team.length} Pokémon, and VGC teams have 4 to 6`;
  for (const set of team) {
    const dex = Dex.forFormat(job.battleFormat);
    if (!dex.species.get(set.species || set.name).exists) return `"${set.species || set.name}" is no Pokémon`;
    if (!dex.abilities.get(set.ability).exists)
      return `${set.species || set.name} has no such ability: "${set.ability}"`;
    if (set.item && !dex.items.get(set.item).exists)
      return `${set.species || set.name} holds no such item: "${set.item}"`;
    for (const move of set.moves)
      if (!dex.moves.get(move).exists)
        return `${set.species || set.name} knows no such move: "${move}"`;
  }
  return '';
}

function start(payload) {
  job = JSON.parse(payload.toString());
  if (job.dispatch) require('./dispatch').install();
  lines.install();
  job.battleFormat = battleFormat(job.format, job.openTeamSheets);
  reserve(4 * job.battles.length + 4);
  const problems = [];
  job.teams.forEach((pool, side) => pool.forEach((packed, i) => {
    const problem = teamProblem(packed);
    if (problem) problems.push(`team ${i} of side ${side}: ${problem}`);
  }));
  texts.push({ints: INTS, floats: FLOATS, frame: FRAME, pid: process.pid, problems});
}

for (;;) {
  const head = readFully(Buffer.alloc(8));
  const type = head.readInt32LE(0);
  const payload = readFully(Buffer.alloc(head.readInt32LE(4)));
  if (type === JOB) start(payload);
  if (type === START) {
    for (const [index, episode, players] of JSON.parse(payload.toString())) tables.set(index,
      new Table(index, episode, players));
  }
  if (type === MIX) job.mix = JSON.parse(payload.toString());
  if (type === ACTIONS) {
    for (let at = 0; at < payload.length; at += 16) {
      tables.get(payload.readInt32LE(at)).choose(payload.readInt32LE(at + 4), payload.readInt32LE(at + 8),
        payload.readInt32LE(at + 12));
    }
    for (const tell of news) tell();
    news = [];
  }
  reply();
}
