'use strict';
// The page: draws the game as its frames arrive (or from a saved file), shows what the policies think, and sends what a
// person does. Text from the server only ever enters through textContent.

const MOST_FRAMES = 6000;
const at = id => document.getElementById(id);
const saved = document.getElementById('game') ? JSON.parse(at('game').textContent) : null;
const state = {
  info: null, frames: [], shown: 0, follow: true, arrived: 0, paused: false, speed: 1, score: {}, memory: {},
    camera: '',
  question: null, plan: {}, keys: new Set(), socket: null, scenesSince: 0, thought: -1, logged: 0, person: null,
    teamText: '',
};

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function send(message) {
  if (state.socket?.readyState === WebSocket.OPEN) state.socket.send(JSON.stringify(message));
}

let noteTimer = null;
function note(text, seconds = 6) {
  at('note').textContent = text;
  at('note').hidden = false;
  clearTimeout(noteTimer);
  noteTimer = setTimeout(() => { at('note').hidden = true; }, 1000 * seconds);
}

// ------------------------------------------------------------------------------------------------------- frames

const painter = () => Painters[state.info.game];

function addFrame(frame) {
  const frames = state.frames;
  painter().prepare(frame, frames[frames.length - 1], state.info);
  // the newest thought of each player holds until it thinks again
  const last = frames[frames.length - 1]?.minds || state.info.names.map(() => null);
  frame.thinks = frame.minds || null;
  frame.minds = (frame.minds || []).concat(last.slice((frame.minds || []).length)).map((mind, i) => mind || last[i]);
  frames.push(frame);
  if (frames.length > MOST_FRAMES) {
    frames.splice(0, frames.length - MOST_FRAMES);
    state.shown = Math.max(0, state.shown - 1);
  }
}

function newGame() {
  state.frames = [];
  state.shown = 0;
  state.follow = true;
  state.memory = {};
  state.logged = 0;
  state.thought = -1;
  at('lines').replaceChildren();
  at('verdict').hidden = true;
}

// A picture is decoded once and forgotten soon: a game has hundreds.
const pictures = new Map();
function imageOf(frame) {
  const known = pictures.get(frame);
  if (known) return known.complete && known.naturalWidth ? known : null;
  const image = new Image();
  image.src = `data:image/png;base64,${frame.scene.png}`;
  pictures.set(frame, image);
  for (const old of pictures.keys()) {
    if (pictures.size <= 6) break;
    pictures.delete(old);
  }
  return null;
}

function resize() {
  const canvas = at('canvas');
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = Math.max(1, canvas.parentElement.clientWidth);
  // As large as the window leaves room for, so that the controls stay in sight.
  const wanted = width / painter().aspect;
  const height = Math.min(wanted, Math.max(220, window.innerHeight - 210));
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  return [width, height, ratio];
}

let lastTime = 0;
function draw(time) {
  requestAnimationFrame(draw);
  if (!state.info || !state.frames.length || document.hidden) return;
  if (saved && !state.paused) playSaved(time);
  const [width, height, ratio] = resize();
  const ctx = at('canvas').getContext('2d');
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  const inside = Math.min(width, height * painter().aspect);
  ctx.fillStyle = '#0a0e16';
  ctx.fillRect(0, 0, width, height);
  ctx.translate((width - inside) / 2, 0);
  const seconds = state.info.frame_seconds / (state.speed || 16);
  const part = state.follow ? Math.min(1, (time - state.arrived) / (1000 * Math.max(seconds, 0.03))) : 1;
  const elapsed = Math.min(0.1, (time - lastTime) / 1000);
  lastTime = time;
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, 0, inside, height);
  ctx.clip();
  painter().draw(ctx, inside, height, {
    info: state.info, frames: state.frames, at: state.shown, part: Math.max(0, part), camera: state.camera,
      memory: state.memory,
    softness: 1 - Math.exp(-elapsed * 5 * Math.max(1, state.speed || 16)), score: state.score, image: imageOf,
  });
  ctx.restore();
  if (state.thought !== state.shown) {
    state.thought = state.shown;
    showMinds();
    showLog();
    showVerdict();
    at('slider').max = Math.max(0, state.frames.length - 1);
    at('slider').value = state.shown;
    document.body.dataset.frame = state.shown;
  }
}

function playSaved(time) {
  const seconds = state.info.frame_seconds / (state.speed || 64);
  if (time - state.arrived < 1000 * seconds) return;
  if (state.shown < state.frames.length - 1) {
    state.shown += 1;
    state.arrived = time;
  } else setPaused(true);
}

// ------------------------------------------------------------------------------------------- what the policies think

function polyline(points, width, height, low, high) {
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const x = v => ((v - first) / Math.max(1e-9, last - first)) * (width - 4) + 2;
  const y = v => height - 4 - ((v - low) / Math.max(1e-9, high - low)) * (height - 8);
  return points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(' ');
}

function svg(tag, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function chart(points, color, zero) {
  const picture = svg('svg', { viewBox: '0 0 300 62', preserveAspectRatio: 'none' });
  if (points.length < 2) return picture;
  const values = points.map(point => point[1]);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (zero) { low = Math.min(low, -0.05); high = Math.max(high, 0.05); }
  if (high - low < 1e-9) { low -= 1; high += 1; }
  if (zero) picture.append(svg('polyline', { points: polyline([[0, 0], [1, 0]], 300, 62, low, high), stroke: '#3a465c',
    fill: 'none', 'stroke-dasharray': '4 4' }));
  picture.append(svg('polyline', { points: polyline(points, 300, 62, low, high), stroke: color, 'stroke-width': 1.8,
    fill: 'none', 'vector-effect': 'non-scaling-stroke' }));
  return picture;
}

// At most `most` points, each the newest of its stretch
function thin(points, most) {
  if (points.length <= most) return points;
  const step = points.length / most;
  return Array.from({ length: most }, (_, i) => points[Math.min(points.length - 1, Math.ceil((i + 1) * step) - 1)]);
}

function showMinds() {
  const now = state.frames[state.shown];
  for (const side of [0, 1]) {
    const mind = now.minds[side];
    const section = at(`mind-${side}`);
    section.hidden = !mind;
    if (!mind) continue;
    const heading = make('h2');
    heading.append(make('span', `name side-${side}`, state.info.names[side]), make('span', 'soft', ' thinks'));
    const parts = [heading];
    if (mind.value !== null && mind.value !== undefined) {
      const value = make('span', `value side-${side}`, mind.value.toFixed(3));
      value.title = state.info.value_means;
      heading.append(value);
      const points = [];
      for (let i = 0; i <= state.shown; i++) {
        const thought = state.frames[i].thinks?.[side];
        if (thought && thought.value !== null) points.push([i, thought.value]);
      }
      const picture = chart(thin(points, 300), SIDES[side], true);
      picture.dataset.points = points.length;
      parts.push(picture);
    }
    for (const group of mind.groups) {
      const box = make('div', 'group');
      box.append(make('span', '', group.name));
      for (const [words, chance, taken] of group.options) {
        const row = make('div', `option side-${side}${taken ? ' taken' : ''}`);
        const bar = make('i');
        bar.style.width = `${100 * chance}%`;
        row.append(bar, make('span', '', words), make('b', '', `${(100 * chance).toFixed(chance < 0.1 ? 1 : 0)} %`));
        row.title = words;
        box.append(row);
      }
      parts.push(box);
    }
    section.replaceChildren(...parts);
  }
}

function showLog() {
  const told = state.info.game === 'vgc';
  at('log').hidden = !told;
  if (!told) return;
  const lines = at('lines');
  while (lines.childElementCount > state.shown + 1) lines.lastElementChild.remove();
  for (let i = lines.childElementCount; i <= state.shown; i++) {
    const event = state.frames[i].scene.event;
    const line = make('p', event.kind);
    for (const piece of event.text) {
      if (typeof piece === 'string') line.append(piece);
      else line.append(make('b', piece[0] === 'p1' || piece[0] === 'p2' ? piece[0] : '', piece[1]));
    }
    lines.append(line);
  }
  lines.scrollTop = lines.scrollHeight;
}

function showVerdict() {
  const over = state.frames[state.shown].over;
  at('verdict').hidden = !over;
  if (over) at('verdict').textContent = over.text;
}

function showCurves(curves) {
  const names = Object.keys(curves.series || {});
  at('curves').hidden = !names.length;
  at('run').textContent = curves.note || '';
  at('charts').replaceChildren(...names.map(name => {
    const points = curves.series[name];
    const box = make('div', 'chart');
    const title = make('div');
    const value = points[points.length - 1][1];
    title.append(make('span', '', name), make('b', '', Math.abs(value) >= 1000 ?
      Math.round(value).toLocaleString('en') : Number(value.toPrecision(3)).toString()));
    title.title = name;
    box.append(title, chart(points, '#7fd0a8', false));
    return box;
  }));
}

function showHead() {
  const { names } = state.info;
  at('name-0').textContent = names[0];
  at('name-1').textContent = names[1] || '';
  at('versus').hidden = names.length < 2;
  at('detail').textContent = state.info.detail || '';
  document.title = names.join(' vs ');
  const cameras = painter().cameras;
  at('camera-label').hidden = !cameras.length;
  if (at('camera').options.length !== cameras.length) {
    at('camera').replaceChildren(...cameras.map(name => new Option(name, name)));
    state.camera = cameras[0] || '';
    if (state.info.game === 'rocketleague' && state.info.you !== null &&
      state.info.you !== undefined) state.camera = state.info.you ? 'orange car' : 'blue car';
    at('camera').value = state.camera;
  }
  at('seat').textContent = state.info.you === null || state.info.you === undefined ? 'Play yourself' : 'Only watch';
  const { games = 0, won = 0, tied = 0, lost = 0 } = state.score;
  at('score').replaceChildren();
  if (!saved && names.length > 1) {
    at('score').append(make('b', 'side-0', `${won}`), ' : ', make('b', 'side-1', `${lost}`),
      make('span', 'soft', ` ${tied ? `· ${tied} tied ` : ''}of ${games} game${games === 1 ? '' : 's'}`));
  } else if (!saved) {
    at('score').append(make('b', 'side-0', `${won}`), make('span', 'soft', ` finished of ${games}`));
  }
}

// ----------------------------------------------------------------------------------------------------------- a person

function button(text, action, className) {
  const element = make('button', className, text);
  element.type = 'button';
  element.addEventListener('click', action);
  return element;
}

function showPerson() {
  const section = at('person');
  const playing = state.info.you !== null && state.info.you !== undefined;
  section.hidden = !playing || Boolean(saved);
  if (section.hidden) return;
  const panels = { vgc: personVgc, osrs: personOsrs, rocketleague: personRocketLeague, pokemon: personPokemon };
  panels[state.info.game](section, state.question);
}

function personVgc(section, question) {
  if (!question) {
    if (state.person !== 'waiting') section.replaceChildren(make('p', 'soft',
      'The battle goes on; your next choice comes.'), teamBox());
    state.person = 'waiting';
    return;
  }
  state.person = 'asked';
  const parts = [];
  if (question.again)
    parts.push(make('p', '', 'That was not possible, for a reason that was hidden from you. Choose again.'));
  if (question.kind === 'preview') {
    const chosen = state.plan.team || [];
    parts.push(make('p', '', chosen.length < 2 ? 'Choose the two that lead.' : chosen.length < 4 ?
      'Now the two behind them.' : 'These four.'));
    const row = make('div', 'row');
    question.team.forEach((name, place) => {
      const index = chosen.indexOf(place);
      const choose = button(index >= 0 ? `${index + 1}. ${name}` : name, () => {
        state.plan.team = index >= 0 ? chosen.filter(other => other !== place) : chosen.length < 4 ? [...chosen,
          place] : chosen;
        showPerson();
      }, index >= 0 ? 'chosen option-button' : 'option-button');
      row.append(choose);
    });
    const go = button('Go', () => answer({ team: chosen }), 'go');
    go.disabled = chosen.length !== 4;
    parts.push(row, go, teamBox());
  } else {
    const plan = state.plan.slots || [null, null];
    const columns = make('div', 'columns');
    const allowed = (slot, action) => {
      const other = plan[1 - slot];
      if (other === null) return true;
      return slot ? (question.pairs[other] || []).includes(action) : (question.pairs[action] || []).includes(other);
    };
    question.slots.forEach((slot, index) => {
      const column = make('div');
      column.append(make('span', 'soft', slot.name));
      if (slot.options.length === 1) plan[index] = slot.options[0][0];
      for (const [action, words] of slot.options) {
        const choose = button(words, () => {
          plan[index] = plan[index] === action ? null : action;
          if (plan[index] !== null && !allowed(index, action)) plan[1 - index] = null;
          state.plan.slots = plan;
          showPerson();
        }, plan[index] === action ? 'chosen option-button' : 'option-button');
        if (!allowed(index, action)) choose.style.opacity = 0.45;
        column.append(choose);
      }
      columns.append(column);
    });
    const go = button('Go', () => answer({ slots: plan }), 'go');
    go.disabled = plan.includes(null);
    state.plan.slots = plan;
    parts.push(columns, make('p'), go);
  }
  section.replaceChildren(...parts);
}

function teamBox() {
  const box = make('details');
  const text = make('textarea');
  text.value = state.teamText;
  text.placeholder = 'A PokePaste team';
  text.addEventListener('input', () => { state.teamText = text.value; });
  box.append(make('summary', '', state.info.own_team ? 'You play with your own team' : 'Play with your own team'), text,
    button('Take this team into a new battle', () => send({ type: 'team', text: text.value })));
  return box;
}

function answer(value) {
  send({ type: 'answer', answer: value });
  state.plan = {};
  state.question = null;
  showPerson();
}

function personOsrs(section, question) {
  const rows = state.info.clicks.map(row => {
    const line = make('div', 'row');
    line.append(make('span', '', row.name));
    row.options.forEach((option, i) => {
      const chosen = (state.plan[row.name] || row.options[0]) === option;
      const choose = button(option, () => {
        state.plan[row.name] = option;
        send({ type: 'answer', answer: state.plan });
        showPerson();
      }, chosen ? 'chosen option-button' : 'option-button');
      if (question?.possible && i && !question.possible[row.name][i]) choose.style.opacity = 0.45;
      line.append(choose);
    });
    return line;
  });
  const words = 'A tick takes 0.6 s at speed 1; choose a slower speed, or pause and go on tick by tick with Step. ' +
    'Attack and prayer stay, the rest is done once.';
  section.replaceChildren(make('p', 'soft', words), ...rows);
}

const DRIVE = { KeyW: ['throttle', 1], ArrowUp: ['throttle', 1], KeyS: ['throttle', -1], ArrowDown: ['throttle', -1],
  KeyA: ['steer', -1], ArrowLeft: ['steer', -1], KeyD: ['steer', 1], ArrowRight: ['steer', 1], KeyQ: ['roll', -1],
    KeyE: ['roll', 1], Space: ['jump', 1], ShiftLeft: ['boost', 1], ShiftRight: ['boost', 1], KeyC: ['handbrake', 1],
      ControlLeft: ['handbrake', 1] };

function drive() {
  const held = {};
  for (const key of state.keys) if (DRIVE[key]) { const [name, value] = DRIVE[key]; held[name] = Math.max(-1,
    Math.min(1, (held[name] || 0) + value)); }
  if (held.throttle) held.pitch = -held.throttle; // in the air, forward lowers the nose
  send({ type: 'answer', answer: held });
}

function personRocketLeague(section) {
  if (state.person === 'drive') return;
  state.person = 'drive';
  const keys = make('p');
  const words = [['W S', 'drive, or pitch in the air'], ['A D', 'steer'], ['Q E', 'roll'], ['Space', 'jump'],
    ['Shift', 'boost'], ['C', 'slide']];
  for (const [key, what] of words) keys.append(make('kbd', '', key), ` ${what}   `);
  const pad = make('div', 'pad');
  for (const [text, code] of [['◀', 'KeyA'], ['▶', 'KeyD'], ['▲', 'KeyW'], ['▼', 'KeyS'], ['jump', 'Space'],
    ['boost', 'ShiftLeft'], ['slide', 'KeyC']]) pad.append(holdButton(text, code));
  const honest = `Your keys are taken ${state.info.hertz} times a second, as the agent's are, ` +
    `and the picture follows one step behind: a key acts up to ${(2 / state.info.hertz).toFixed(2)} s late. ` +
    `That is enough to drive and to score; fine aerial control it is not.`;
  section.replaceChildren(keys, make('p', 'soft', honest), pad);
}

const GBA_KEYS = { KeyZ: 'A', KeyX: 'B', Enter: 'START', ShiftRight: 'SELECT', ArrowUp: 'UP', ArrowDown: 'DOWN',
  ArrowLeft: 'LEFT', ArrowRight: 'RIGHT', KeyA: 'L', KeyS: 'R' };

function press() {
  const held = [...state.keys].filter(key => GBA_KEYS[key]);
  if (held.length && state.question) {
    state.question = null;
    send({ type: 'answer', answer: { button: GBA_KEYS[held[held.length - 1]] } });
  }
}

function personPokemon(section) {
  const recording = state.frames[state.frames.length - 1]?.scene.recording || false;
  if (state.person === `buttons ${recording}`) return;
  state.person = `buttons ${recording}`;
  const keys = make('p');
  for (const [key, what] of [['arrows', 'walk'], ['Z', 'A'], ['X', 'B'], ['Enter', 'Start'],
    ['right Shift', 'Select']]) keys.append(make('kbd', '', key), ` ${what}   `);
  const pad = make('div', 'pad');
  for (const [text, code] of [['◀', 'ArrowLeft'], ['▶', 'ArrowRight'], ['▲', 'ArrowUp'], ['▼', 'ArrowDown'],
    ['A', 'KeyZ'], ['B', 'KeyX'], ['start', 'Enter'], ['select', 'ShiftRight']]) pad.append(holdButton(text, code));
  const record = button(recording ? 'Do not record' : 'Record this episode for cloning',
    () => send({ type: 'record', on: !recording }));
  const words = `A recorded episode is written to ${state.info.record_dir} when it is over.`;
  section.replaceChildren(keys, record, make('p', 'soft', words), pad);
}

function holdButton(text, code) {
  const element = make('button', '', text);
  element.type = 'button';
  const set = down => event => { event.preventDefault(); keyChanged(code, down); };
  element.addEventListener('pointerdown', set(true));
  for (const name of ['pointerup', 'pointercancel', 'pointerleave']) element.addEventListener(name, set(false));
  return element;
}

function keyChanged(code, down) {
  if (down === state.keys.has(code)) return;
  if (down) state.keys.add(code); else state.keys.delete(code);
  if (state.info.game === 'rocketleague') drive();
  if (state.info.game === 'pokemon' && down) press();
}

function takesKeys(code) {
  if (!state.info || saved || state.info.you === null || state.info.you === undefined) return false;
  return (state.info.game === 'rocketleague' && code in DRIVE) || (state.info.game === 'pokemon' && code in GBA_KEYS);
}

// ----------------------------------------------------------------------------------------------------------- controls

function setPaused(on) {
  state.paused = on;
  at('pause').textContent = on ? '▶ Go on' : '❚❚ Pause';
}

at('pause').addEventListener('click', () => {
  if (saved) {
    if (state.paused && state.shown === state.frames.length - 1) state.shown = 0;
    state.follow = true;
    setPaused(!state.paused);
  } else {
    state.follow = true;
    send({ type: state.paused ? 'resume' : 'pause' });
  }
});
at('step').addEventListener('click', () => {
  if (saved) {
    setPaused(true);
    state.shown = Math.min(state.frames.length - 1, state.shown + 1);
    state.arrived = performance.now();
  } else if (!state.follow && state.shown < state.frames.length - 1) {
    state.shown += 1; // looking back: on through what has been played already
    state.follow = state.shown === state.frames.length - 1;
  } else send({ type: 'step' });
});
at('next').addEventListener('click', () => send({ type: 'next' }));
at('speed').addEventListener('change', () => {
  state.speed = Number(at('speed').value);
  send({ type: 'speed', value: state.speed });
});
at('camera').addEventListener('change', () => { state.camera = at('camera').value; state.memory = {}; });
at('seat').addEventListener('click', () => send({ type: 'seat',
  person: state.info.you === null || state.info.you === undefined }));
at('slider').addEventListener('input', () => {
  state.shown = Number(at('slider').value);
  state.follow = state.shown === state.frames.length - 1;
  if (saved) setPaused(true);
  else if (!state.follow && !state.paused) send({ type: 'pause' });
});
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || ['TEXTAREA', 'SELECT',
    'INPUT'].includes(event.target.tagName)) return;
  if (takesKeys(event.code)) {
    event.preventDefault();
    keyChanged(event.code, true);
  } else if (event.key === ' ' && event.target.tagName !== 'BUTTON') {
    event.preventDefault();
    at('pause').click();
  } else if (event.key === '.') at('step').click();
});
document.addEventListener('keyup', event => { if (state.info) keyChanged(event.code, false); });
window.addEventListener('blur', () => { for (const code of [...state.keys]) keyChanged(code, false); });

// -------------------------------------------------------------------------------------------------------- the server

const handlers = {
  hello(message) {
    handlers.state(message);
    showCurves(message.curves);
    if (!message.info) return; // the first game is being made
    handlers.begin(message);
    for (const frame of message.frames) addFrame(frame);
    state.shown = Math.max(0, state.frames.length - 1);
    handlers.question(message);
  },
  begin(message) {
    const other = state.info && (state.info.game !== message.info.game || state.info.you !== message.info.you);
    state.info = message.info;
    state.score = message.score;
    state.question = null;
    if (other) { state.person = null; state.plan = {}; at('camera').replaceChildren(); }
    newGame();
    showHead();
    showPerson();
  },
  frame(message) {
    const atEnd = state.shown >= state.frames.length - 1;
    addFrame(message.frame);
    if (state.follow && atEnd) {
      state.shown = state.frames.length - 1;
      state.arrived = performance.now();
    }
    state.scenesSince += 1;
    if (state.info.game === 'osrs' && state.info.you !== null && state.info.you !== undefined) {
      for (const row of state.info.clicks) if (!row.sticky) delete state.plan[row.name];
    }
    if (state.info.game === 'pokemon') showPerson();
  },
  question(message) {
    state.question = message.question;
    if (state.info.game === 'vgc') state.plan = {};
    showPerson();
    if (state.info.game === 'pokemon') press();
  },
  score(message) { state.score = message.score; showHead(); },
  state(message) {
    setPaused(message.paused);
    state.speed = message.speed;
    at('speed').value = String(message.speed);
  },
  curves(message) { showCurves(message.curves); },
  note(message) { note(message.text); },
  error(message) { note(message.text, 10); },
};

function connect() {
  const socket = new WebSocket(`ws://${location.host}/ws`);
  state.socket = socket;
  socket.addEventListener('open', () => { at('status').textContent = 'live'; at('status').className = 'chip on'; });
  socket.addEventListener('message', event => {
    const message = JSON.parse(event.data);
    handlers[message.type]?.(message);
  });
  socket.addEventListener('close', () => {
    at('status').textContent = 'the server is gone; trying again';
    at('status').className = 'chip off';
    setTimeout(connect, 1500);
  });
}

if (saved) {
  document.body.classList.add('saved');
  state.info = { you: null, ...saved.info };
  for (const frame of saved.frames) addFrame(frame);
  at('status').textContent = 'a saved game';
  showHead();
} else connect();
requestAnimationFrame(draw);
