'use strict';
// An NH fight from near: low-poly fighters on their tiles, gear, overhead prayers, spells in the air, hitsplats, ice.

const OUTFIT_COLORS = { mage: ['#5b4bb5', '#3d3190'], ranged: ['#2f8a4a', '#1f6335'], melee: ['#a8662c', '#7d4a1d'],
  special: ['#c8952d', '#966c18'], tank: ['#7d8590', '#585f69'] };
const PRAYERS = { 1: ['#5b7cff', 'magic'], 2: ['#39b35a', 'ranged'], 3: ['#e0503c', 'melee'], 4: ['#b061d8', 'smite'],
  5: ['#e6b93a', 'redeem'] };
const FULL_HP = '#3fcf4a';

Painters.osrs = {
  aspect: 16 / 10,
  subframes: 3,
  cameras: ['both', 'blue', 'orange', 'above'],

  prepare() {},

  draw(ctx, w, h, view) {
    const now = view.frames[view.at].scene;
    const before = view.frames[Math.max(0, view.at - 1)].scene;
    const t = view.part;
    const ease = Math.min(1, t * 1.6); // a step is over before the tick is
    const places = now.fighters.map((me, i) => {
      const old = before.fighters[i];
      const near = Math.hypot(me.x - old.x, me.y - old.y) < 6;
      return near ? [old.x + (me.x - old.x) * ease, old.y + (me.y - old.y) * ease, 0] : [me.x, me.y, 0];
    });
    // one under the other: both stay visible
    if (Math.hypot(places[0][0] - places[1][0], places[0][1] - places[1][1]) < 0.4) {
      places[0] = Vec.add(places[0], [-0.28, 0, 0]);
      places[1] = Vec.add(places[1], [0.28, 0, 0]);
    }
    const space = new Space(ctx, w, h);
    this.aim(space, view, places);
    this.ground(space, ctx, w, h, places);
    now.fighters.forEach((me, side) => this.marks(space, me, side, places[side]));
    now.fighters.forEach((me, side) => this.fighter(space, ctx, view, me, before.fighters[side], side, places, t));
    now.fighters.forEach((me, side) => { if (me.attacked) this.attack(space, ctx, view, me, places[side],
      places[1 - side], t, side); });
    space.flush();
    now.fighters.forEach((me, side) => this.overhead(space, ctx, view, me, before.fighters[side], side, places[side],
      t));
    this.hud(ctx, w, h, view, now);
  },

  aim(space, view, places) {
    const mode = view.camera || 'both';
    const middle = mode === 'blue' ? places[0] : mode === 'orange' ? places[1] : Vec.mix(places[0], places[1], 0.5);
    const gap = Math.hypot(places[0][0] - places[1][0], places[0][1] - places[1][1]);
    const reach = mode === 'both' || mode === 'above' ? Math.max(3.0, gap * 0.62 + 1.5) : 3.6;
    const eye = mode === 'above' ? [middle[0], middle[1] - 0.8, reach * 2.6] : [middle[0] + reach * 0.25,
      middle[1] - reach * 1.35, reach * 0.95 + 0.7];
    const target = [middle[0], middle[1] + 0.25, 0.95];
    const memory = view.memory;
    const soft = memory.mode === mode && memory.index <= view.at ? view.softness : 1;
    memory.eye = memory.eye ? Vec.mix(memory.eye, eye, soft) : eye;
    memory.target = memory.target ? Vec.mix(memory.target, target, soft) : target;
    memory.mode = mode;
    memory.index = view.at;
    space.look(memory.eye, memory.target, 0.72);
  },

  ground(space, ctx, w, h, places) {
    const sky = ctx.createLinearGradient(0, 0, 0, h);
    sky.addColorStop(0, '#3b4a3a');
    sky.addColorStop(1, '#27331f');
    ctx.fillStyle = sky;
    ctx.fillRect(0, 0, w, h);
    const cx = Math.round(space.eye[0]);
    const cy = Math.round(space.eye[1] + 5);
    const far = 15;
    for (let y = cy + far; y >= cy - 7; y--) {
      for (let x = cx - far; x <= cx + far; x++) {
        const noise = (((x * 73856093) ^ (y * 19349663)) >>> 0) % 97;
        const fade = Math.max(0.35, 1 - Math.max(0, y - cy - 2) / (far + 6));
        const tile = [[x - 0.5, y - 0.5, 0], [x + 0.5, y - 0.5, 0], [x + 0.5, y + 0.5, 0], [x - 0.5, y + 0.5, 0]];
        const base = (x + y) % 2 ? [88, 124, 72] : [80, 114, 65];
        const shift = (noise % 9) - 4;
        space.fill(tile, `rgb(${base.map(c => Math.round((c + shift) * fade)).join(',')})`);
        if (noise < 7) { // tufts and stones keep their place in the world
          const px = x - 0.3 + (noise / 7) * 0.6;
          const py = y - 0.2 + ((noise * 3) % 7) / 14;
          if (noise < 5) for (const lean of [-0.05, 0, 0.06]) space.line([px, py, 0], [px + lean, py, 0.16 + lean],
            `rgba(140,180,100,${0.8 * fade})`, 1.5);
          else space.ring([px, py, 0.01], 0.09, `rgba(128,134,122,${fade})`);
        }
      }
    }
    for (const place of places) space.ring([place[0], place[1], 0.01], 0.36, 'rgba(10,20,5,.35)');
  },

  marks(space, me, side, place) {
    const c = SIDES[side];
    const x = Math.round(place[0]);
    const y = Math.round(place[1]);
    const square = [[x - 0.48, y - 0.48, 0.01], [x + 0.48, y - 0.48, 0.01], [x + 0.48, y + 0.48, 0.01],
      [x - 0.48, y + 0.48, 0.01]];
    for (let i = 0; i < 4; i++) space.line(square[i], square[(i + 1) % 4], `${c}99`, 1.5);
    if (me.has_destination && (me.destination_x !== me.x || me.destination_y !== me.y)) {
      const [dx, dy] = [me.destination_x, me.destination_y];
      space.line([dx - 0.2, dy - 0.2, 0.01], [dx + 0.2, dy + 0.2, 0.01], '#ffe14d', 2);
      space.line([dx - 0.2, dy + 0.2, 0.01], [dx + 0.2, dy - 0.2, 0.01], '#ffe14d', 2);
    }
  },

  fighter(space, ctx, view, me, old, side, places, t) {
    const place = places[side];
    const to = Vec.sub(places[1 - side], place);
    const f = Math.hypot(to[0], to[1]) > 0.05 ? Vec.unit([to[0], to[1], 0]) : [side ? -1 : 1, 0, 0];
    const u = [0, 0, 1];
    const r = Vec.cross(f, u);
    const dead = me.hp <= 0;
    const outfit = view.info.outfits[me.worn] || 'mage';
    const [main, dark] = OUTFIT_COLORS[outfit];
    const walking = me.moved && t < 0.65;
    const stride = walking ? Math.sin(t * 14) * 0.16 : 0;
    const swing = me.attacked ? Math.sin(Math.min(1, t * 2) * Math.PI) : 0;
    const bob = walking ? Math.abs(Math.sin(t * 14)) * 0.03 : 0;
    const up = dead ? f : u; // a fallen fighter lies on the ground
    const ahead = dead ? Vec.scale(u, -1) : f;
    const base = dead ? [place[0] - f[0] * 0.6, place[1] - f[1] * 0.6, 0.2] : [place[0], place[1], bob];
    const at = (along, across, high) => Vec.add(base, Vec.add(Vec.scale(ahead, along),
      Vec.add(Vec.scale(r, across), Vec.scale(up, high))));
    const axes = [ahead, r, up];
    const skin = '#e8b98e';
    for (const across of [-0.11, 0.11]) {
      const step = across > 0 ? stride : -stride;
      space.block(at(step, across, 0), axes, [0.1, -0.07, 0.075], [0.09 - step * 0.5, -0.08 - step * 0.5, 0.085], 0,
        0.5, dark);
      space.block(at(step + 0.03, across, 0), axes, [0.14, -0.08, 0.085], [0.1, -0.08, 0.08], 0, 0.1, '#3a2c1e');
    }
    space.block(at(0, 0, 0), axes, [0.12, -0.12, 0.21], [0.13, -0.12, 0.26], 0.48, 0.98, main);
    space.block(at(0, 0, 0), axes, [0.135, -0.13, 0.215], [0.135, -0.13, 0.215], 0.5, 0.57, '#5b4326');
    // the cape has the player's colour
    space.block(at(-0.15, 0, 0), axes, [0.01, -0.06, 0.26], [0.01, -0.02, 0.2], 0.2, 0.96, SIDES[side]);
    for (const across of [-0.33, 0.33]) {
      const weapon = across > 0;
      const reach = weapon ? swing * 0.28 : walking ? stride * 0.6 : 0;
      space.block(at(reach * 0.5, across, 0), axes, [0.08 + reach, -0.06 + reach, 0.065], [0.08, -0.07, 0.08],
        0.5 + swing * (weapon ? 0.22 : 0), 0.95, main);
      space.block(at(reach * 0.9 + 0.02, across, 0), axes, [0.07, -0.06, 0.06], [0.07, -0.06, 0.06],
        0.43 + swing * (weapon ? 0.24 : 0), 0.52 + swing * (weapon ? 0.24 : 0), skin);
    }
    space.block(at(0, 0, 0), axes, [0.12, -0.12, 0.12], [0.12, -0.12, 0.12], 1.0, 1.24, skin);
    const hood = outfit === 'mage' ? [0.1, -0.16, 0.15] : [0.14, -0.14, 0.14];
    space.block(at(0, 0, 0), axes, hood, [0.06, -0.1, 0.09], 1.14, outfit === 'mage' ? 1.42 : 1.32, main, {
      bias: 0.04 });
    this.weapon(space, ctx, at, axes, outfit, swing);
    if (me.freeze_timer > 0) {
      for (let i = 0; i < 6; i++) {
        const a = (i / 6) * 2 * Math.PI + 0.4;
        const root = [place[0] + 0.36 * Math.cos(a), place[1] + 0.36 * Math.sin(a), 0];
        const tip = [place[0] + 0.46 * Math.cos(a), place[1] + 0.46 * Math.sin(a), 0.45 + 0.18 * ((i * 7) % 3)];
        const wide = [-0.14 * Math.sin(a), 0.14 * Math.cos(a), 0];
        space.polygon([Vec.add(root, wide), tip, Vec.sub(root, wide)], '#bfeaff', { both: true, alpha: 0.8 });
      }
    }
    if (me.vengeance) space.later(place, () => space.ring([place[0], place[1], 0.03], 0.5, null, 'rgba(220,120,255,.9)',
      2), 0.5);
  },

  weapon(space, ctx, at, axes, outfit, swing) {
    const hand = 0.48 + swing * 0.24;
    const lean = 0.1 + swing * 0.3;
    const shaft = (a, b, color, width) => space.later(at(lean, 0.36, hand),
      () => space.line(a, b, color, width * space.zoom / 900), 0.25);
    if (outfit === 'mage' || outfit === 'tank') {
      shaft(at(lean, 0.37, hand - 0.45), at(lean + 0.05, 0.37, hand + 0.75), '#6b4a2b', 9);
      const orb = at(lean + 0.05, 0.37, hand + 0.8);
      space.later(orb, () => {
        const p = space.project(orb);
        if (!p) return;
        const glow = ctx.createRadialGradient(p[0], p[1], 0, p[0], p[1], 0.17 * p[2]);
        glow.addColorStop(0, '#ffffff');
        glow.addColorStop(0.45, '#7fd6ff');
        glow.addColorStop(1, 'rgba(60,140,255,0)');
        ctx.fillStyle = glow;
        ctx.beginPath();
        ctx.arc(p[0], p[1], 0.17 * p[2], 0, 7);
        ctx.fill();
      }, 0.3);
    } else if (outfit === 'ranged') {
      shaft(at(lean - 0.15, 0.34, hand + 0.06), at(lean + 0.4, 0.34, hand + 0.06), '#6b4a2b', 9);
      shaft(at(lean + 0.33, 0.08, hand + 0.06), at(lean + 0.42, 0.34, hand + 0.06), '#c9ced6', 6);
      shaft(at(lean + 0.33, 0.6, hand + 0.06), at(lean + 0.42, 0.34, hand + 0.06), '#c9ced6', 6);
    } else {
      const color = outfit === 'special' ? '#ffd75e' : '#dfe5ee';
      shaft(at(lean, 0.36, hand), at(lean + 0.25 + swing * 0.55, 0.36, hand + 0.85 - swing * 0.75), color, 11);
      shaft(at(lean - 0.02, 0.28, hand + 0.12), at(lean + 0.06, 0.46, hand + 0.12), '#7a5a26', 8);
    }
  },

  attack(space, ctx, view, me, place, target, t, side) {
    const outfit = view.info.outfits[me.worn];
    const start = Vec.add(place, [0, 0, 1.0]);
    const end = Vec.add(target, [0, 0, 0.8]);
    if (outfit === 'melee' || outfit === 'special') {
      space.later(Vec.mix(start, end, 0.8), () => {
        const p = space.project(end);
        if (!p || t > 0.6) return;
        ctx.strokeStyle = outfit === 'special' ? '#ffd75e' : '#ffffff';
        ctx.globalAlpha = 1 - t / 0.6;
        ctx.lineWidth = 0.09 * p[2];
        ctx.beginPath();
        ctx.arc(p[0], p[1], 0.5 * p[2], -2.4 + t * 3, -0.6 + t * 3);
        ctx.stroke();
        ctx.globalAlpha = 1;
      }, 1);
      return;
    }
    const color = outfit === 'ranged' ? '#d8f59a' : me.spell === 2 ? '#ff5a52' : '#8fe6ff';
    const spot = k => Vec.add(Vec.mix(start, end, k), [0, 0, 0.55 * Math.sin(Math.PI * k)]);
    const head = Math.min(1, t * 1.25);
    for (let i = 0; i < 7; i++) {
      const k = head - i * 0.055;
      if (k < 0 || k > 1) continue;
      const at = spot(k);
      space.later(at, () => {
        const p = space.project(at);
        if (!p) return;
        ctx.globalAlpha = 1 - i / 8;
        ctx.fillStyle = i ? color : '#ffffff';
        ctx.beginPath();
        ctx.arc(p[0], p[1], (0.1 - i * 0.008) * p[2], 0, 7);
        ctx.fill();
        ctx.globalAlpha = 1;
      }, 0.6);
    }
    if (head >= 1 && me.spell === 1 && outfit === 'mage') space.later(target,
      () => space.ring([target[0], target[1], 0.04], 0.3 + (t - 0.8) * 2, null, 'rgba(190,235,255,.9)', 3), 1);
  },

  overhead(space, ctx, view, me, old, side, place, t) {
    const head = space.project(Vec.add(place, [0, 0, 1.5]));
    if (!head) return;
    const k = Math.max(0.7, Math.min(2.2, head[2] / 95));
    let y = head[1];
    const share = (old.hp + (me.hp - old.hp) * Math.min(1, t * 2)) / me.max_hp;
    gauge(ctx, head[0] - 26 * k, y - 4 * k, 52 * k, 7 * k, share, FULL_HP, '#b02a25');
    y -= 20 * k;
    const prayer = PRAYERS[me.overhead];
    if (prayer && me.prayer_points > 0) {
      ctx.fillStyle = prayer[0];
      ctx.strokeStyle = '#ffffff';
      ctx.lineWidth = 2 * k;
      ctx.beginPath();
      ctx.arc(head[0], y, 11 * k, 0, 7);
      ctx.fill();
      ctx.stroke();
      this.prayerSign(ctx, head[0], y, k, me.overhead);
      y -= 22 * k;
    }
    label(ctx, view.info.names[side], head[0], y, 12 * k, { color: SIDES[side] });
    if (me.splatted) {
      const p = space.project(Vec.add(place, [0, 0, 0.85]));
      if (p) this.splat(ctx, p[0], p[1] - 4 * t * k, 15 * k * Math.min(1, 0.6 + t * 2), me.received);
    }
  },

  prayerSign(ctx, x, y, k, kind) {
    ctx.strokeStyle = '#ffffff';
    ctx.lineWidth = 2 * k;
    ctx.beginPath();
    if (kind === 1) { ctx.moveTo(x - 5 * k, y + 5 * k); ctx.lineTo(x + 3 * k, y - 3 * k);
    ctx.moveTo(x + 6 * k, y - 4 * k); ctx.arc(x + 4 * k, y - 4 * k, 2 * k, 0, 7); }
    else if (kind === 2) { ctx.arc(x - 3 * k, y, 6 * k, -1.1, 1.1); ctx.moveTo(x - 5 * k, y); ctx.lineTo(x + 6 * k, y);
    }
    else if (kind === 3) { ctx.moveTo(x - 5 * k, y + 5 * k); ctx.lineTo(x + 5 * k, y - 5 * k); ctx.moveTo(x - 5 * k, y);
    ctx.lineTo(x, y + 5 * k); }
    else { ctx.moveTo(x, y - 6 * k); ctx.lineTo(x, y + 6 * k); ctx.moveTo(x - 4 * k, y - 2 * k);
    ctx.lineTo(x + 4 * k, y - 2 * k); }
    ctx.stroke();
  },

  splat(ctx, x, y, r, damage) {
    ctx.fillStyle = damage ? '#b3201c' : '#2f6fd0';
    ctx.beginPath();
    for (let i = 0; i < 16; i++) {
      const a = (i / 16) * 2 * Math.PI;
      const reach = i % 2 ? r : r * 1.28;
      if (i) ctx.lineTo(x + reach * Math.cos(a), y + reach * Math.sin(a)); else ctx.moveTo(x + reach, y);
    }
    ctx.closePath();
    ctx.fill();
    label(ctx, `${damage}`, x, y + 1, r * 1.05, { weight: 800 });
  },

  hud(ctx, w, h, view, scene) {
    const k = Math.max(0.5, Math.min(1.1, w / 820));
    const wide = Math.min(320 * k, w / 2 - 34 * k);
    scene.fighters.forEach((me, side) => {
      const x = side ? w - wide - 10 * k : 10 * k;
      const y = 10 * k;
      panel(ctx, x, y, wide, 84 * k, 10 * k, 'rgba(20,18,12,.78)', `${SIDES[side]}aa`);
      ctx.font = `600 ${15 * k}px ${FONT}`;
      const outfit = view.info.outfits[me.worn];
      label(ctx, fit(ctx, view.info.names[side], wide - 90 * k), x + 12 * k, y + 17 * k, 15 * k, {
        align: 'left', color: SIDES[side], shadow: false });
      label(ctx, outfit, x + wide - 12 * k, y + 17 * k, 12 * k, {
        align: 'right', color: '#d9ceb2', shadow: false, weight: 500 });
      gauge(ctx, x + 12 * k, y + 30 * k, wide - 24 * k, 15 * k, me.hp / me.max_hp,
        me.hp > me.max_hp ? '#7be0ff' : FULL_HP, '#5b1c19');
      label(ctx, `${Math.max(0, me.hp)} / ${me.max_hp}`, x + wide / 2, y + 38 * k, 12 * k);
      const half = (wide - 32 * k) / 2;
      gauge(ctx, x + 12 * k, y + 51 * k, half, 8 * k, me.energy / 100, '#e3b341');
      gauge(ctx, x + 20 * k + half, y + 51 * k, half, 8 * k, me.prayer_points / 99, '#6fb7ff');
      const small = `spec ${me.energy}  ·  prayer ${me.prayer_points}  ·  ` +
        `food ${me.food}+${me.karambwan}  ·  brew ${me.brew}  ·  rest. ${me.restore}`;
      ctx.font = `500 ${10.5 * k}px ${FONT}`;
      label(ctx, fit(ctx, small, wide - 20 * k), x + wide / 2, y + 72 * k, 10.5 * k, {
        color: '#cfc6ae', weight: 500, shadow: false });
    });
    panel(ctx, w / 2 - 26 * k, 12 * k, 52 * k, 40 * k, 8 * k, 'rgba(20,18,12,.78)');
    label(ctx, `${scene.tick}`, w / 2, 26 * k, 17 * k, { shadow: false });
    label(ctx, 'tick', w / 2, 42 * k, 9 * k, { color: '#bdb49a', shadow: false, weight: 500 });
    if (scene.result) {
      const name = scene.result === 1 || scene.result === 2 ?
        `${view.info.names[scene.result - 1]} wins` : scene.result < 0 ? 'time is up' : 'a tie';
      label(ctx, name, w / 2, h * 0.86, 40 * k, { color: scene.result === 1 ||
        scene.result === 2 ? SIDES[scene.result - 1] : '#fff', weight: 800 });
    }
  },
};
