'use strict';
// A doubles battle: both pairs on the field, their plates with HP, status and stages, the benches, and what happens in
// words.

const TYPE_COLORS = {
  Normal: '#8f9188', Fire: '#e8692c', Water: '#3d86dd', Grass: '#4aa544', Electric: '#dcae10', Ice: '#4fb9bd',
  Fighting: '#b8413a', Poison: '#9450b0', Ground: '#b58641', Flying: '#7d97dd', Psychic: '#e4568a', Bug: '#8c9c1c',
  Rock: '#a08c4b', Ghost: '#65548f', Dragon: '#5a52cf', Dark: '#5a4a42', Steel: '#6d8ca0', Fairy: '#da77b6',
  Stellar: '#3aa4a0', '?': '#77808f',
};
const STATUS_CHIPS = { brn: ['BRN', '#d1582a'], par: ['PAR', '#b8930c'], slp: ['SLP', '#6b7280'],
  frz: ['FRZ', '#3597a8'], psn: ['PSN', '#8a46a5'], tox: ['TOX', '#6d2f8f'] };
const STAT_CHIPS = { atk: 'Atk', def: 'Def', spa: 'SpA', spd: 'SpD', spe: 'Spe', accuracy: 'Acc', evasion: 'Eva' };
const SKIES = { Rain: ['#4a6486', '#6d8197'], 'Heavy rain': ['#3d5472', '#5b6f86'], 'Harsh sun': ['#f3b65b', '#f7d79a'],
  'Extremely harsh sun': ['#ee9a45', '#f6c583'], Sandstorm: ['#b09163', '#cdb58c'], Snow: ['#9fb7cf', '#d8e4ee'] };
const GROUNDS = { Grassy: '#7cc06a', Electric: '#e0c94e', Psychic: '#c987c9', Misty: '#e3b7d3' };
const plain = pieces => pieces.map(piece => (typeof piece === 'string' ? piece : piece[1])).join('');

Painters.vgc = {
  aspect: 16 / 10,
  subframes: 2,
  cameras: [],

  // The board after every event; unchanged parts are shared between neighbours.
  prepare(frame, previous) {
    frame.board = { ...(previous ? previous.board : {}), ...frame.scene.event.changes };
    frame.acting = null;
    const event = frame.scene.event;
    if (event.kind === 'move' && Array.isArray(event.text[0])) {
      const [side, name] = event.text[0];
      frame.acting = ['a', 'b'].map(letter => `${side}${letter}`).find(slot => this.mon(frame.board,
        slot)?.name === name) || null;
    }
  },

  mon(board, slot) {
    const index = board.slots ? board.slots[slot] : null;
    return index === null || index === undefined ? null : board[`${slot.slice(0, 2)}.${index}`];
  },

  draw(ctx, w, h, view) {
    const frame = view.frames[view.at];
    const before = view.frames[Math.max(0, view.at - 1)];
    const board = frame.board;
    const k = Math.max(0.5, Math.min(1.25, w / 820));
    const near = (view.info.view || 0) ? 'p2' : 'p1';
    const far = near === 'p1' ? 'p2' : 'p1';
    this.stage(ctx, w, h, board, k);
    const bar = 40 * k;
    const caption = 44 * k;
    const plateHeight = 74 * k;
    const usable = h - caption;
    this.banner(ctx, 0, 0, w, bar, far, frame, view, k);
    this.banner(ctx, 0, usable - bar, w, bar, near, frame, view, k);
    const gap = 10 * k;
    const plateWidth = Math.min(300 * k, w / 2 - 1.5 * gap);
    for (const [side, row] of [[far, 0], [near, 1]]) {
      ['a', 'b'].forEach((letter, column) => {
        const slot = `${side}${letter}`;
        // each pair stands as its player sees it: the opponent's is the other way round
        const place = row ? column : 1 - column;
        const centre = row ? w * (place ? 0.45 : 0.2) : w * (place ? 0.8 : 0.56);
        const x = place ? w - plateWidth - gap : gap;
        const y = row ? usable - bar - plateHeight - 6 * k : bar + 6 * k;
        const mon = this.mon(board, slot);
        const old = this.mon(before.board || board, slot);
        const middle = usable * (row ? 0.62 : 0.4);
        if (mon) this.creature(ctx, centre, middle, k * (row ? 1.12 : 0.95), mon, old, frame, slot, view, row);
        if (mon) this.plate(ctx, x, y, plateWidth, plateHeight, mon, old, k, view.part, side);
      });
    }
    if (!Object.values(board.slots || {}).some(index => index !== null)) this.teams(ctx, w, usable, bar, board, far,
      near, view, k);
    this.caption(ctx, w, h, caption, frame, k);
  },

  // Team preview: both sixes side by side
  teams(ctx, w, h, bar, board, far, near, view, k) {
    [far, near].forEach((side, row) => {
      const keys = Object.keys(board).filter(key => key.startsWith(`${side}.`) && key !== `${side}.side`);
      keys.forEach((key, i) => {
        const x = (w / keys.length) * (i + 0.5);
        const y = row ? h - bar - 74 * k : bar + 56 * k;
        this.crest(ctx, x, y, 34 * k, board[key], view.info);
        ctx.font = `600 ${13 * k}px ${FONT}`;
        label(ctx, fit(ctx, board[key].name, w / keys.length - 6 * k), x, y + 50 * k, 13 * k);
      });
    });
  },

  stage(ctx, w, h, board, k) {
    const weather = Object.keys(board.weather || {})[0];
    const terrain = Object.keys(board.field || {}).find(name => name.endsWith(' Terrain'));
    const [top, low] = SKIES[weather] || ['#5a86c4', '#bcd6ef'];
    const sky = ctx.createLinearGradient(0, 0, 0, h * 0.5);
    sky.addColorStop(0, top);
    sky.addColorStop(1, low);
    ctx.fillStyle = sky;
    ctx.fillRect(0, 0, w, h);
    const floor = ctx.createLinearGradient(0, h * 0.3, 0, h);
    const ground = terrain ? GROUNDS[terrain.split(' ')[0]] || '#8fb978' : '#8fb978';
    floor.addColorStop(0, tint(ground, 0.86));
    floor.addColorStop(1, tint(ground, 1.1));
    ctx.fillStyle = floor;
    ctx.fillRect(0, h * 0.3, w, h);
    for (const [y, rx, x] of [[0.41, 0.26, 0.68], [0.61, 0.28, 0.325]]) {
      ctx.fillStyle = 'rgba(255,255,255,.22)';
      ctx.strokeStyle = 'rgba(255,255,255,.4)';
      ctx.lineWidth = 2 * k;
      ctx.beginPath();
      ctx.ellipse(w * x, h * y, w * rx, h * 0.075, 0, 0, 7);
      ctx.fill();
      ctx.stroke();
    }
  },

  banner(ctx, x, y, w, h, side, frame, view, k) {
    const board = frame.board;
    const color = SIDES[side === 'p1' ? 0 : 1];
    ctx.fillStyle = 'rgba(16,22,34,.86)';
    ctx.fillRect(x, y, w, h);
    ctx.fillStyle = color;
    ctx.fillRect(x, y, 5 * k, h);
    const name = view.info.names[side === 'p1' ? 0 : 1];
    ctx.font = `700 ${16 * k}px ${FONT}`;
    label(ctx, fit(ctx, name, w * 0.45), x + 16 * k, y + h / 2, 16 * k, {
      align: 'left', color, weight: 700, shadow: false });
    const keys = Object.keys(board).filter(key => key.startsWith(`${side}.`) && key !== `${side}.side`);
    keys.forEach((key, i) => {
      const mon = board[key];
      const cx = w - 22 * k - (keys.length - 1 - i) * 30 * k;
      ctx.globalAlpha = mon.fainted ? 0.3 : mon.seen ? 1 : 0.55;
      this.crest(ctx, cx, y + h / 2 - 3 * k, 10 * k, mon, view.info);
      ctx.globalAlpha = 1;
      gauge(ctx, cx - 10 * k, y + h - 9 * k, 20 * k, 4 * k, mon.hp / 100,
        mon.hp > 50 ? '#45c27a' : mon.hp > 20 ? '#eeb83c' : '#f06a5d');
    });
    const conditions = Object.keys(board[`${side}.side`] || {});
    if (conditions.length) {
      ctx.font = `500 ${11 * k}px ${FONT}`;
      const room = w * 0.5 - 190 * k;
      if (room > 40 * k) label(ctx, fit(ctx, conditions.join(', '), room), w * 0.5, y + h / 2, 11 * k, {
        align: 'left', color: '#cbd6ea', weight: 500, shadow: false });
    }
  },

  crest(ctx, x, y, r, mon, info) {
    const types = mon.tera ? [mon.tera] : mon.types.length ? mon.types : ['?'];
    const known = types.map(type => (TYPE_COLORS[type] ? type : '?'));
    const shade = ctx.createLinearGradient(x - r, y - r, x + r, y + r);
    shade.addColorStop(0.46, TYPE_COLORS[known[0]]);
    shade.addColorStop(0.54, TYPE_COLORS[known[known.length - 1]]);
    ctx.beginPath();
    if (mon.tera) { // a cut crystal
      for (let i = 0; i < 6; i++) {
        const a = (i / 6) * 2 * Math.PI + Math.PI / 6;
        if (i) ctx.lineTo(x + 1.12 * r * Math.cos(a), y + 1.12 * r * Math.sin(a));
        else ctx.moveTo(x + 1.12 * r * Math.cos(a), y + 1.12 * r * Math.sin(a));
      }
      ctx.closePath();
    } else ctx.arc(x, y, r, 0, 7);
    ctx.fillStyle = shade;
    ctx.fill();
    ctx.lineWidth = Math.max(1, r / 9);
    ctx.strokeStyle = mon.tera ? '#e8fbff' : 'rgba(255,255,255,.75)';
    ctx.stroke();
    const glyph = (info.glyphs || {})[known[0]];
    if (glyph) {
      ctx.save();
      ctx.translate(x - r * 0.6, y - r * 0.6);
      ctx.scale((1.2 * r) / 24, (1.2 * r) / 24);
      ctx.fillStyle = 'rgba(255,255,255,.92)';
      ctx.fill(new Path2D(glyph), 'evenodd');
      ctx.restore();
    }
  },

  creature(ctx, x, y, k, mon, old, frame, slot, view, row) {
    const t = view.part;
    const fresh = !old || old.name !== mon.name;
    const hurt = old && !fresh && mon.hp < old.hp - 0.01;
    let [dx, dy] = [0, 0];
    if (frame.acting === slot) {
      const push = Math.sin(Math.min(1, t * 1.4) * Math.PI);
      dx = push * 14 * k;
      dy = push * (row ? -26 : 26) * k;
    }
    if (hurt) dx += Math.sin(t * 30) * 7 * k * (1 - t);
    const sink = mon.fainted ? (old && !old.fainted ? t : 1) : 0;
    const grow = fresh ? Math.min(1, 0.3 + t * 1.4) : 1;
    const r = 42 * k * grow;
    ctx.fillStyle = 'rgba(20,40,20,.28)';
    ctx.beginPath();
    ctx.ellipse(x, y + 34 * k, 40 * k * grow * (1 - sink * 0.6), 10 * k, 0, 0, 7);
    ctx.fill();
    if (sink >= 1) return;
    ctx.globalAlpha = 1 - sink;
    if (mon.effects.some(effect => /substitute/i.test(effect))) ctx.globalAlpha *= 0.6;
    if (mon.brief.some(effect => /protect|guard|shield|bulwark|endure/i.test(effect))) {
      ctx.strokeStyle = 'rgba(170,235,255,.95)';
      ctx.lineWidth = 4 * k;
      ctx.beginPath();
      ctx.arc(x + dx, y + dy - 6 * k + sink * 40 * k, r * 1.28, 0, 7);
      ctx.stroke();
    }
    this.crest(ctx, x + dx, y + dy - 6 * k + sink * 40 * k, r, mon, view.info);
    if (hurt && t < 0.5) {
      ctx.fillStyle = `rgba(255,255,255,${0.8 * (1 - t * 2)})`;
      ctx.beginPath();
      ctx.arc(x + dx, y + dy - 6 * k, r, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    if (hurt) label(ctx, `−${Math.round(old.hp - mon.hp)}%`, x, y - (54 + 22 * t) * k, 20 * k, {
      color: '#ffd9d3', weight: 800 });
    else if (old && !fresh && mon.hp > old.hp + 0.01) label(ctx, `+${Math.round(mon.hp - old.hp)}%`, x,
      y - (54 + 22 * t) * k, 20 * k, { color: '#c9ffd9', weight: 800 });
    else if (k > 0.75) label(ctx, mon.name, x, y + 50 * k, 13 * k); // in a small picture the plate says it
  },

  plate(ctx, x, y, w, h, mon, old, k, t, side) {
    ctx.globalAlpha = mon.fainted ? 0.55 : 1;
    panel(ctx, x, y, w, h, 12 * k, 'rgba(20,27,41,.88)', SIDES[side === 'p1' ? 0 : 1]);
    ctx.font = `700 ${15 * k}px ${FONT}`;
    label(ctx, fit(ctx, mon.name, w * 0.58), x + 12 * k, y + 16 * k, 15 * k, {
      align: 'left', weight: 700, shadow: false });
    let edge = x + w - 10 * k;
    for (const type of mon.tera ? [mon.tera] : [...mon.types].reverse()) {
      const words = mon.tera ? `Tera ${type}` : type;
      ctx.font = `600 ${10 * k}px ${FONT}`;
      const wide = ctx.measureText(words).width + 12 * k;
      if (edge - wide < x + w * 0.5) break;
      panel(ctx, edge - wide, y + 8 * k, wide, 16 * k, 8 * k, TYPE_COLORS[type] || TYPE_COLORS['?']);
      label(ctx, words, edge - wide / 2, y + 16 * k, 10 * k, { shadow: false });
      edge -= wide + 4 * k;
    }
    const same = old && old.name === mon.name;
    const hp = same ? old.hp + (mon.hp - old.hp) * Math.min(1, t * 1.5) : mon.hp;
    gauge(ctx, x + 12 * k, y + 30 * k, w - 78 * k, 11 * k, hp / 100,
      hp > 50 ? '#45c27a' : hp > 20 ? '#eeb83c' : '#f06a5d');
    label(ctx, mon.fainted ? 'fainted' : mon.hp_text || `${Math.round(hp)}%`, x + w - 10 * k, y + 36 * k, 12 * k, {
      align: 'right', shadow: false });
    let cx = x + 12 * k;
    const chip = (words, color) => {
      ctx.font = `600 ${10 * k}px ${FONT}`;
      const wide = ctx.measureText(words).width + 10 * k;
      if (cx + wide > x + w - 8 * k) return;
      panel(ctx, cx, y + 50 * k, wide, 16 * k, 5 * k, color);
      label(ctx, words, cx + wide / 2, y + 58 * k, 10 * k, { shadow: false });
      cx += wide + 4 * k;
    };
    if (STATUS_CHIPS[mon.status]) chip(...STATUS_CHIPS[mon.status]);
    for (const [stat, stage] of Object.entries(mon.boosts)) {
      const text = `${stage > 0 ? '+' : '−'}${Math.abs(stage)} ${STAT_CHIPS[stat] || stat}`;
      chip(text, stage > 0 ? '#2e8a57' : '#b23c33');
    }
    for (const effect of [...mon.brief, ...mon.effects]) chip(effect, '#465370');
    if (cx === x + 12 * k) {
      ctx.font = `500 ${11 * k}px ${FONT}`;
      label(ctx, fit(ctx, [mon.item, mon.ability].filter(Boolean).join(' · '), w - 24 * k), x + 12 * k, y + 58 * k,
        11 * k, { align: 'left', color: '#b6c2d8', weight: 500, shadow: false });
    }
    ctx.globalAlpha = 1;
  },

  caption(ctx, w, h, height, frame, k) {
    const event = frame.scene.event;
    ctx.fillStyle = 'rgba(10,14,22,.94)';
    ctx.fillRect(0, h - height, w, height);
    const y = h - height / 2;
    label(ctx, event.turn ? `Turn ${event.turn}` : 'Preview', 14 * k, y, 13 * k, {
      align: 'left', color: '#8fa0bd', shadow: false });
    let x = 92 * k;
    const room = w - 12 * k;
    const size = 16 * k;
    for (const piece of event.text) {
      const words = typeof piece === 'string' ? piece : piece[1];
      const color = typeof piece === 'string' ? '#eef3fb' : piece[0] === 'p1' ? SIDES[0] : piece[0] === 'p2' ?
        SIDES[1] : '#ffe08a';
      ctx.font = `${typeof piece === 'string' ? 500 : 700} ${size}px ${FONT}`;
      const shown = fit(ctx, words, room - x);
      label(ctx, shown, x, y, size, { align: 'left', color, weight: typeof piece === 'string' ? 500 : 700,
        shadow: false });
      x += ctx.measureText(shown).width;
      if (shown !== words) break;
    }
  },
};
