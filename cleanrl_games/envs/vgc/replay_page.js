'use strict';
// The page of one battle. Text from the log only ever enters through textContent: a name cannot become markup.
const battle = JSON.parse(document.getElementById('battle').textContent);
const COLORS = {
  Normal: '#8f9188', Fire: '#e8692c', Water: '#3d86dd', Grass: '#4aa544', Electric: '#dcae10', Ice: '#4fb9bd',
  Fighting: '#b8413a', Poison: '#9450b0', Ground: '#b58641', Flying: '#7d97dd', Psychic: '#e4568a', Bug: '#8c9c1c',
  Rock: '#a08c4b', Ghost: '#65548f', Dragon: '#5a52cf', Dark: '#5a4a42', Steel: '#6d8ca0', Fairy: '#da77b6',
  Stellar: '#3aa4a0', '?': '#77808f',
};
const STATUS = {
  brn: ['burned', '#d1582a'], par: ['paralysed', '#b8930c'], slp: ['asleep', '#6b7280'], frz: ['frozen', '#3597a8'],
  psn: ['poisoned', '#8a46a5'], tox: ['badly poisoned', '#6d2f8f'],
};
const STATS = { atk: 'Atk', def: 'Def', spa: 'SpA', spd: 'SpD', spe: 'Spe', accuracy: 'Acc', evasion: 'Eva' };

// The board after every event; unchanged parts are shared between neighbours.
const boards = [];
for (const event of battle.events) boards.push({ ...boards[boards.length - 1], ...event.changes });
const turns = battle.events.flatMap((event, index) => (event.kind === 'turn' ? [index] : []));
const last = battle.events.length - 1;
let now = 0;
let timer = null;

const at = id => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function crest(mon) {
  const types = mon.tera ? [mon.tera] : mon.types.length ? mon.types : ['?'];
  const [one, two] = [types[0], types[types.length - 1]].map(type => (COLORS[type] ? type : '?'));
  const element = make('div', mon.tera ? 'crest tera' : 'crest');
  element.style.background = `linear-gradient(135deg, ${COLORS[one]} 48%, ${COLORS[two]} 52%)`;
  element.append(document.querySelector(`#glyphs [data-type="${one}"]`).cloneNode(true));
  return element;
}

function bar(mon) {
  const outer = make('div', 'bar');
  const inner = make('i', mon.hp > 50 ? '' : mon.hp > 20 ? 'mid' : 'low');
  inner.style.width = `${Math.max(0, Math.min(100, mon.hp))}%`;
  outer.append(inner);
  return outer;
}

function typeBadge(type, tera) {
  const badge = make('span', tera ? 'type tera' : 'type', tera ? `Tera ${type}` : type);
  badge.style.background = COLORS[type] || COLORS['?'];
  return badge;
}

function describe(mon) {
  const parts = [mon.species, mon.ability, mon.item, mon.sheet_tera && `Tera ${mon.sheet_tera}`, mon.moves.join(', ')];
  return parts.filter(Boolean).join('\n');
}

function card(side, mon, acting) {
  if (!mon) return make('div', 'card empty');
  const element = make('div', `card of-${side}${mon.fainted ? ' fainted' : ''}${acting ? ' acting' : ''}`);
  element.title = describe(mon);
  const body = make('div');
  const heading = make('h2');
  const gender = mon.gender === 'M' ? '♂ ' : mon.gender === 'F' ? '♀ ' : '';
  heading.append(make('span', 'name', mon.name), make('small', '', `${gender}Lv ${mon.level}`));
  const types = make('div', 'types');
  for (const type of mon.types) types.append(typeBadge(type, false));
  if (mon.tera) types.append(typeBadge(mon.tera, true));
  const health = make('div', 'health');
  health.append(bar(mon), make('span', '', mon.fainted ? 'fainted' : mon.hp_text || `${mon.hp}%`));
  const forme = mon.species !== mon.name ? mon.species : '';
  const carry = make('div', 'carry', [forme, mon.ability, mon.item].filter(Boolean).join(' · '));
  const moves = make('div', 'moves', mon.moves.join(' / '));
  const chips = make('div', 'chips');
  if (STATUS[mon.status]) {
    const chip = make('span', 'chip status', STATUS[mon.status][0]);
    chip.style.background = STATUS[mon.status][1];
    chips.append(chip);
  }
  for (const [stat, stage] of Object.entries(mon.boosts)) {
    chips.append(make('span', `chip ${stage > 0 ? 'up' : 'down'}`,
      `${stage > 0 ? '+' : '−'}${Math.abs(stage)} ${STATS[stat] || stat}`));
  }
  for (const effect of [...mon.effects, ...mon.brief]) chips.append(make('span', 'chip', effect));
  body.append(heading, types, health, carry, moves, chips);
  element.append(crest(mon), body);
  return element;
}

function roster(side, board) {
  const active = [board.slots[`${side}a`], board.slots[`${side}b`]];
  return Object.keys(board).filter(key => key.startsWith(`${side}.`) && key !== `${side}.side`).map(key => {
    const mon = board[key];
    const onField = active.includes(Number(key.slice(3)));
    const marks = `${mon.seen ? '' : ' unseen'}${mon.fainted ? ' fainted' : ''}${onField ? ' active' : ''}`;
    const element = make('div', `mini of-${side}${marks}`);
    element.title = describe(mon);
    element.append(crest(mon), make('span', 'name', mon.name), bar(mon));
    return element;
  });
}

function chipsOf(conditions, className) {
  return Object.entries(conditions).map(([name, turn]) => {
    const chip = make('span', `chip ${className}`, `${name} `);
    chip.append(make('small', '', turn ? `since turn ${turn}` : 'since the start'));
    return chip;
  });
}

function write(element, pieces) {
  for (const piece of pieces) {
    if (typeof piece === 'string') element.append(piece);
    else element.append(make('b', `name ${piece[0] === 'p1' || piece[0] === 'p2' ? piece[0] : ''}`, piece[1]));
  }
}

function writeLog() {
  const lines = at('lines');
  // Going back removes lines, going on adds some: the rest stays, so a long battle scrolls smoothly.
  while (lines.childElementCount > now + 1) lines.lastElementChild.remove();
  for (let index = lines.childElementCount; index <= now; index++) {
    const line = make('p', battle.events[index].kind);
    write(line, battle.events[index].text);
    lines.append(line);
  }
  for (const old of lines.querySelectorAll('.now')) old.classList.remove('now');
  lines.lastElementChild.classList.add('now');
  lines.scrollTop = lines.scrollHeight;
}

function show(index) {
  now = Math.max(0, Math.min(last, index));
  const event = battle.events[now];
  const board = boards[now];
  const subject = event.text.find(piece => typeof piece !== 'string');
  for (const slot of ['p1a', 'p1b', 'p2a', 'p2b']) {
    const side = slot.slice(0, 2);
    const mon = board.slots[slot] === null ? null : board[`${side}.${board.slots[slot]}`];
    const acting = Boolean(mon && event.kind === 'move' && subject && subject[0] === side && subject[1] === mon.name);
    at(slot).replaceChildren(card(side, mon, acting));
  }
  for (const side of ['p1', 'p2']) {
    at(`roster-${side}`).replaceChildren(...roster(side, board));
    at(`side-${side}`).replaceChildren(...chipsOf(board[`${side}.side`], `side-${side}`));
  }
  const terrain = Object.keys(board.field).find(name => name.endsWith(' Terrain'));
  const [weather] = Object.keys(board.weather);
  if (weather) at('field').dataset.weather = weather; else delete at('field').dataset.weather;
  if (terrain) at('field').dataset.terrain = terrain.split(' ')[0]; else delete at('field').dataset.terrain;
  at('conditions').replaceChildren(...chipsOf({ ...board.weather, ...board.field }, 'field'));
  at('turn').textContent = event.turn ? `Turn ${event.turn} of ${battle.turns}` : 'Before turn 1';
  at('caption').replaceChildren();
  write(at('caption'), event.text);
  at('slider').value = now;
  document.body.dataset.turn = event.turn;
  document.body.dataset.event = now;
  writeLog();
}

function play(on) {
  clearInterval(timer);
  timer = null;
  if (on && now === last) show(0);
  if (on) timer = setInterval(() => { show(now + 1); if (now === last) play(false); }, Number(at('speed').value));
  at('play').textContent = on ? '❚❚ Pause' : '▶ Play';
}

function go(index) { play(false); show(index); }
const nextTurn = () => turns.find(start => start > now) ?? last;
const previousTurn = () => turns.findLast(start => start < now) ?? 0;

const actions = {
  first: () => go(0), prev: () => go(previousTurn()), next: () => go(nextTurn()), last: () => go(last),
  play: () => play(timer === null),
};
for (const [id, action] of Object.entries(actions)) at(id).addEventListener('click', action);
at('slider').addEventListener('input', () => go(Number(at('slider').value)));
at('speed').addEventListener('change', () => { if (timer !== null) play(true); });
at('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});

const keys = {
  ArrowRight: actions.next, ArrowLeft: actions.prev, ArrowDown: () => go(now + 1), ArrowUp: () => go(now - 1),
  Home: actions.first, End: actions.last, ' ': actions.play,
};
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === 'SELECT' || !keys[event.key]) return;
  event.preventDefault(); // else the slider or a focused button would move a second time
  keys[event.key]();
});

at('name-p1').textContent = battle.players.p1;
at('name-p2').textContent = battle.players.p2;
at('tier').textContent = battle.tier;
at('slider').max = last;
const wanted = /^#turn-(\d+)$/.exec(location.hash); // page.html#turn-5 opens there
show(wanted ? Math.max(0, battle.events.findIndex(event => event.turn === Number(wanted[1]))) : 0);
