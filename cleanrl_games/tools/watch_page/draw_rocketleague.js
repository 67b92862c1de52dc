'use strict';
// Rocket League in 3-D. The game's world is left-handed: x is turned round before it is drawn, or right would be left.

const FLOOR = [[4096, 3968], [2944, 5120], [-2944, 5120], [-4096, 3968], [-4096, -3968], [-2944, -5120], [2944, -5120],
  [4096, -3968]];
const WALL = 2044;
const GOAL = { half: 893, height: 643, line: 5120, back: 6000 };
const BALL_SPOTS = (() => {
  const g = (1 + Math.sqrt(5)) / 2;
  const spots = [];
  for (const a of [-1, 1]) for (const b of [-g, g]) spots.push([0, a, b], [a, b, 0], [b, 0, a]);
  return spots.map(Vec.unit);
})();
const mirror = p => [-p[0], p[1], p[2]];

function turn(v, axis, angle) {
  const c = Math.cos(angle);
  const s = Math.sin(angle);
  return Vec.add(Vec.add(Vec.scale(v, c), Vec.scale(Vec.cross(axis, v), s)),
    Vec.scale(axis, Vec.dot(axis, v) * (1 - c)));
}

function carOf(scene, index) {
  const c = scene.cars[index];
  return { at: c.slice(0, 3), forward: c.slice(3, 6), up: c.slice(6, 9), boost: c[9], flags: c[10], speed: c[11] };
}

function between(a, b, t) {
  const car = { ...b };
  if (Math.hypot(...Vec.sub(a.at, b.at)) < 700) { // more is a new kickoff or a respawn
    car.at = Vec.mix(a.at, b.at, t);
    car.forward = Vec.unit(Vec.mix(a.forward, b.forward, t));
    car.up = Vec.unit(Vec.mix(a.up, b.up, t));
  }
  return car;
}

Painters.rocketleague = {
  aspect: 16 / 9,
  subframes: 1,
  cameras: ['stands', 'ball', 'blue car', 'orange car', 'above'],

  // The ball's own axes, turned on by its spin from scene to scene
  prepare(frame, previous, info) {
    const spin = frame.scene.spin || [0, 0, 0];
    const rate = Math.hypot(...spin);
    const axes = previous?.axes || [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    frame.axes = rate < 1e-3 ? axes : axes.map(v => turn(v, Vec.scale(spin, 1 / rate),
      rate * (info.frame_seconds || 1 / 15)));
  },

  draw(ctx, w, h, view) {
    const frame = view.frames[view.at];
    const before = view.frames[Math.max(0, view.at - 1)];
    const scene = frame.scene;
    const t = view.part;
    const size = view.info.team_size || 1;
    const ball = Math.hypot(...Vec.sub(scene.ball, before.scene.ball)) < 900 ? Vec.mix(before.scene.ball, scene.ball,
      t) : scene.ball;
    const cars = scene.cars.map((_, i) => between(carOf(before.scene, i), carOf(scene, i), t));
    const space = new Space(ctx, w, h);
    this.aim(space, view, ball, cars, size);
    this.field(space, ctx, w, h, view.info.pads || [], scene.pads);
    this.shadow(space, ball, 95);
    cars.forEach(car => { if (!(car.flags & 4)) this.shadow(space, car.at, 90); });
    this.goals(space);
    this.ball(space, ctx, ball, frame.axes || [[1, 0, 0], [0, 1, 0], [0, 0, 1]]);
    cars.forEach((car, i) => { if (!(car.flags & 4)) this.car(space, ctx, car, i < size ? 0 : 1, view, i); });
    space.flush();
    this.front(space);
    this.hud(ctx, w, h, view, scene, cars, ball, size);
  },

  aim(space, view, ball, cars, size) {
    const mode = view.camera || 'stands';
    const memory = view.memory;
    let eye; let target; let fov = 0.9;
    if (mode === 'above') {
      eye = [0.1, 0, 9800];
      target = [0, 0, 0];
      // seen from above the field lies on its side, as on television
      eye = [-2500, 0, 9300];
    } else if (mode === 'ball') {
      const back = ball[1] > 0 ? -1 : 1;
      eye = [ball[0] * 0.7 - 900, ball[1] + back * 1500, ball[2] + 700];
      target = ball;
    } else if (mode === 'blue car' || mode === 'orange car') {
      const car = cars[mode === 'blue car' ? 0 : size] || cars[0];
      const way = Vec.unit([ball[0] - car.at[0], ball[1] - car.at[1], 0]);
      const flat = Math.hypot(ball[0] - car.at[0], ball[1] - car.at[1]) < 150 ?
        Vec.unit([car.forward[0], car.forward[1], 0]) : way;
      eye = Vec.add(car.at, Vec.add(Vec.scale(flat, -520), [0, 0, 230]));
      target = Vec.add(car.at, Vec.add(Vec.scale(flat, 600), [0, 0, Math.max(60, ball[2] * 0.5)]));
      fov = 1.15;
    } else {
      // From the side: the ball and the cars near it stay in the picture, as near as they allow.
      const near = cars.filter(car => !(car.flags & 4)).sort((a,
        b) => Math.hypot(...Vec.sub(a.at, ball)) - Math.hypot(...Vec.sub(b.at, ball)));
      const group = [ball, ...near.filter((car, i) => i === 0 ||
        Math.hypot(...Vec.sub(car.at, ball)) < 3000).map(car => car.at)];
      const low = Math.min(...group.map(p => p[1]));
      const high = Math.max(...group.map(p => p[1]));
      const nearest = Math.min(...group.map(p => p[0]));
      const middle = [group.reduce((sum, p) => sum + p[0], 0) / group.length, (low + high) / 2,
        Math.max(...group.map(p => p[2]))];
      const away = Math.max(1900, (high - low) * 0.72 + 1100 + middle[2] * 0.5) + (middle[0] - nearest) * 0.7;
      eye = [middle[0] - away, middle[1] * 0.96, away * 0.36 + 120];
      target = [middle[0], middle[1], middle[2] * 0.45 + 60];
      fov = 0.86;
    }
    const soft = memory.mode === mode && memory.index <= view.at ? view.softness : 1;
    memory.eye = memory.eye ? Vec.mix(memory.eye, eye, soft) : eye;
    memory.target = memory.target ? Vec.mix(memory.target, target, soft) : target;
    memory.fov = memory.fov ? memory.fov + (fov - memory.fov) * soft : fov;
    memory.mode = mode;
    memory.index = view.at;
    space.look(mirror(memory.eye), mirror(memory.target), memory.fov);
  },

  field(space, ctx, w, h, pads, there) {
    const sky = ctx.createLinearGradient(0, 0, 0, h);
    sky.addColorStop(0, '#0b1226');
    sky.addColorStop(0.55, '#1c2b4f');
    sky.addColorStop(1, '#0d1424');
    ctx.fillStyle = sky;
    ctx.fillRect(0, 0, w, h);
    space.fill(FLOOR.map(([x, y]) => mirror([x * 1.9, y * 1.6, -30])), '#101a2d');
    // far walls, seen from inside
    for (let i = 0; i < 8; i++) {
      const a = FLOOR[i];
      const b = FLOOR[(i + 1) % 8];
      const quad = [[...a, 0], [...b, 0], [...b, WALL], [...a, WALL]].map(mirror);
      const middle = Vec.scale(quad.reduce(Vec.add), 0.25);
      const outward = [middle[0], middle[1], 0];
      const end = i === 1 || i === 5;
      if (Vec.dot(outward, Vec.sub(middle, space.eye)) < 0) continue;
      const hue = end ? (i === 1 ? '255,138,76' : '79,157,255') : '120,160,220';
      space.fill(quad, `rgba(${hue},.10)`);
      for (let k = 1; k < 5; k++) {
        const z = (k / 5) * WALL;
        space.line(mirror([...a, z]), mirror([...b, z]), `rgba(${hue},.16)`, 1);
      }
      space.line(mirror([...a, WALL]), mirror([...b, WALL]), `rgba(${hue},.7)`, 2);
      space.line(mirror([...a, 0]), mirror([...a, WALL]), `rgba(${hue},.3)`, 1);
    }
    space.fill(FLOOR.map(([x, y]) => mirror([x, y, 0])), '#1f5a3a');
    const stripes = 12;
    for (let i = 0; i < stripes; i += 2) {
      const y0 = -5120 + (10240 * i) / stripes;
      const y1 = y0 + 10240 / stripes;
      const edge = y => Math.min(4096, 4096 + 3968 - Math.abs(y));
      space.fill([[edge(y0), y0, 0], [edge(y1), y1, 0], [-edge(y1), y1, 0], [-edge(y0), y0, 0]].map(mirror), '#256843');
    }
    for (const side of [-1, 1]) {
      space.fill([[-GOAL.half, side * GOAL.line, 0], [GOAL.half, side * GOAL.line, 0], [GOAL.half, side * GOAL.back, 0],
        [-GOAL.half, side * GOAL.back, 0]].map(mirror), side < 0 ? '#22518f' : '#9a4a1f');
      const glow = side < 0 ? 'rgba(79,157,255,.55)' : 'rgba(255,138,76,.55)';
      const box = [[-1800, side * 5120, 1], [-1800, side * 3900, 1], [1800, side * 3900, 1],
        [1800, side * 5120, 1]].map(mirror);
      for (let i = 0; i < 3; i++) space.line(box[i], box[i + 1], 'rgba(235,245,255,.35)', 1.5);
      space.line(mirror([-GOAL.half, side * 5120, 2]), mirror([GOAL.half, side * 5120, 2]), glow, 4);
    }
    for (let i = 0; i < 8; i++) space.line(mirror([...FLOOR[i], 0]), mirror([...FLOOR[(i + 1) % 8], 0]),
      'rgba(235,245,255,.45)', 2);
    space.line(mirror([-4096, 0, 1]), mirror([4096, 0, 1]), 'rgba(235,245,255,.45)', 2);
    space.ring([0, 0, 1], 950, null, 'rgba(235,245,255,.45)', 2);
    pads.forEach(([x, y, big], i) => {
      const on = !there || there[i] === '1';
      const at = mirror([x, y, 2]);
      space.ring(at, big ? 150 : 70, on ? 'rgba(255,214,80,.30)' : 'rgba(20,30,40,.35)',
        on ? 'rgba(255,224,110,.9)' : 'rgba(20,30,40,.5)', 1.2);
      if (on && big) {
        space.later(at, () => {
          const p = space.project([at[0], at[1], 110]);
          if (!p) return;
          const glow = ctx.createRadialGradient(p[0], p[1], 0, p[0], p[1], 110 * p[2]);
          glow.addColorStop(0, 'rgba(255,240,170,.95)');
          glow.addColorStop(0.35, 'rgba(255,200,60,.55)');
          glow.addColorStop(1, 'rgba(255,180,40,0)');
          ctx.fillStyle = glow;
          ctx.beginPath();
          ctx.arc(p[0], p[1], 110 * p[2], 0, 7);
          ctx.fill();
        });
      }
    });
  },

  goals(space) {
    for (const side of [-1, 1]) {
      const color = side < 0 ? '#4f9dff' : '#ff8a4c';
      const far = (side * GOAL.line - space.eye[1]) * side > 0;
      const post = (x, y, z) => mirror([x, side * y, z]);
      const frame = [[post(-GOAL.half, GOAL.line, 0), post(-GOAL.half, GOAL.line, GOAL.height)],
        [post(GOAL.half, GOAL.line, 0), post(GOAL.half, GOAL.line, GOAL.height)],
        [post(-GOAL.half, GOAL.line, GOAL.height), post(GOAL.half, GOAL.line, GOAL.height)]];
      const net = () => {
        for (let i = 0; i <= 6; i++) {
          const x = -GOAL.half + (2 * GOAL.half * i) / 6;
          space.line(post(x, GOAL.back, 0), post(x, GOAL.back, GOAL.height), 'rgba(230,240,255,.25)', 1);
          space.line(post(x, GOAL.line, GOAL.height), post(x, GOAL.back, GOAL.height), 'rgba(230,240,255,.2)', 1);
        }
        for (let i = 0; i <= 4; i++) {
          const z = (GOAL.height * i) / 4;
          space.line(post(-GOAL.half, GOAL.back, z), post(GOAL.half, GOAL.back, z), 'rgba(230,240,255,.25)', 1);
          for (const x of [-GOAL.half, GOAL.half]) space.line(post(x, GOAL.line, z), post(x, GOAL.back, z),
            'rgba(230,240,255,.2)', 1);
        }
      };
      space.later(mirror([0, side * (far ? GOAL.back : GOAL.line), 0]), net);
      space.later(mirror([0, side * GOAL.line, 0]), () => frame.forEach(([a, b]) => space.line(a, b, color, 4)));
    }
  },

  // The wall between the camera and the field: its upper edge only
  front(space) {
    for (let i = 0; i < 8; i++) {
      const a = FLOOR[i];
      const b = FLOOR[(i + 1) % 8];
      const middle = mirror([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2, WALL / 2]);
      if (Vec.dot([middle[0], middle[1], 0], Vec.sub(middle, space.eye)) >= 0) continue;
      space.line(mirror([...a, WALL]), mirror([...b, WALL]), 'rgba(150,190,255,.14)', 1);
    }
  },

  shadow(space, at, radius) {
    const fade = Math.max(0.12, 0.5 - at[2] / 4200);
    space.ring(mirror([at[0], at[1], 3]), radius * (1 + at[2] / 2600), `rgba(0,10,6,${fade})`);
    if (at[2] > 320) space.line(mirror([at[0], at[1], 3]), mirror(at), 'rgba(255,255,255,.18)', 1);
  },

  ball(space, ctx, at, axes) {
    const place = mirror(at);
    space.later(place, () => {
      const p = space.project(place);
      if (!p) return;
      const r = 92 * p[2];
      const [x, y] = p;
      const shade = ctx.createRadialGradient(x - r * 0.35, y - r * 0.45, r * 0.1, x, y, r * 1.05);
      shade.addColorStop(0, '#ffffff');
      shade.addColorStop(0.6, '#d4dbe6');
      shade.addColorStop(1, '#6d7890');
      ctx.fillStyle = shade;
      ctx.beginPath();
      ctx.arc(x, y, r, 0, 7);
      ctx.fill();
      ctx.save();
      ctx.clip();
      const toEye = Vec.unit(Vec.sub(space.eye, place));
      ctx.fillStyle = 'rgba(40,50,72,.55)';
      for (const spot of BALL_SPOTS) {
        const world = mirror(Vec.add(Vec.add(Vec.scale(axes[0], spot[0]), Vec.scale(axes[1], spot[1])),
          Vec.scale(axes[2], spot[2])));
        const facing = Vec.dot(world, toEye);
        if (facing < 0.05) continue;
        const q = space.project(Vec.add(place, Vec.scale(world, 90)));
        if (!q) continue;
        ctx.beginPath();
        ctx.ellipse(q[0], q[1], r * 0.26, r * 0.26 * Math.max(0.25, facing),
          Math.atan2(q[1] - y, q[0] - x) + Math.PI / 2, 0, 7);
        ctx.fill();
      }
      ctx.restore();
      ctx.strokeStyle = 'rgba(255,255,255,.5)';
      ctx.lineWidth = 1;
      ctx.beginPath();
      ctx.arc(x, y, r, 0, 7);
      ctx.stroke();
    }, 60);
  },

  car(space, ctx, car, team, view, index) {
    const k = 1.6; // a little larger than life: at true size a car is a few pixels long
    const f = mirror(car.forward);
    const u = mirror(car.up);
    const r = Vec.cross(f, u);
    const at = Vec.add(mirror(car.at), Vec.scale(u, 6));
    const main = team ? '#ff8436' : '#3f92ff';
    const dark = team ? '#c2561f' : '#2462bd';
    const axes = [f, r, u];
    const s = list => list.map(v => v * k);
    const put = (low, high, from, to, color, bias) => space.block(at, axes, s(low), s(high), from * k, to * k, color, {
      bias });
    put([58, -58, 36], [64, -60, 40], -14, 2, dark, 0);
    put([64, -60, 40], [44, -56, 36], 2, 16, main, 1);
    put([22, -42, 33], [2, -30, 24], 16, 34, '#1a2333', 3);
    put([2, -30, 24], [0, -28, 22], 34, 37, main, 5);
    put([-50, -64, 38], [-52, -66, 38], 24, 28, dark, 4);
    for (const [along, side, radius] of [[40, 40, 15], [40, -40, 15], [-38, 41, 17], [-38, -41, 17]]) {
      const hub = Vec.add(at, Vec.add(Vec.scale(f, along * k), Vec.add(Vec.scale(r, side * k), Vec.scale(u, -12 * k))));
      const rim = [];
      for (let i = 0; i < 10; i++) {
        const a = (i / 10) * 2 * Math.PI;
        rim.push(Vec.add(hub, Vec.add(Vec.scale(f, radius * k * Math.cos(a)), Vec.scale(u, radius * k * Math.sin(a)))));
      }
      space.polygon(rim, '#14181f', { bias: 2, both: true });
      space.polygon(rim.map(p => Vec.mix(p, hub, 0.5)), '#8c97a8', { bias: 3, both: true });
    }
    if (car.flags & 1) {
      const length = (150 + 40 * Math.sin(view.at * 2.3 + index)) * k;
      for (const [share, color] of [[1, '#ff7b1c'], [0.6, '#ffd65a']]) {
        const tip = Vec.add(at, Vec.scale(f, -58 * k - length * share));
        const base = side => Vec.add(at, Vec.add(Vec.scale(f, -58 * k), side));
        const wide = Vec.scale(r, 22 * k * share);
        const tall = Vec.scale(u, 14 * k * share);
        space.polygon([base(wide), tip, base(Vec.scale(wide, -1))], color, { both: true, flat: true, alpha: 0.85 });
        space.polygon([base(tall), tip, base(Vec.scale(tall, -1))], color, { both: true, flat: true, alpha: 0.85 });
      }
    }
    const follows = (view.camera === 'blue car' && team === 0) || (view.camera === 'orange car' && team === 1);
    if (follows) return;
    space.later(at, () => {
      const p = space.project(Vec.add(at, [0, 0, 150]));
      if (!p) return;
      const size = Math.max(9, Math.min(15, 90 * p[2]));
      label(ctx, view.info.names[team], p[0], p[1] - 9, size, { color: SIDES[team] });
      gauge(ctx, p[0] - 22, p[1] + 1, 44, 4, car.boost / 100, '#ffd257');
    }, 400);
  },

  hud(ctx, w, h, view, scene, cars, ball, size) {
    const k = Math.max(0.55, Math.min(1.15, w / 900));
    const [a, b] = view.info.names;
    const score = view.score || {};
    const mid = w / 2;
    panel(ctx, mid - 62 * k, 10 * k, 124 * k, 40 * k, 10 * k, 'rgba(8,12,22,.82)');
    label(ctx, `${scene.seconds.toFixed(1)} s`, mid, 30 * k, 18 * k, { shadow: false });
    const wide = Math.min(300 * k, mid - 74 * k);
    for (const [side, name, goals] of [[0, a, score.won], [1, b, score.lost]]) {
      const x = side ? mid + 68 * k : mid - 68 * k - wide;
      panel(ctx, x, 10 * k, wide, 40 * k, 10 * k, side ? 'rgba(190,84,28,.88)' : 'rgba(32,92,176,.88)');
      ctx.font = `600 ${15 * k}px ${FONT}`;
      label(ctx, fit(ctx, name, wide - 62 * k), side ? x + wide - 12 * k : x + 12 * k, 30 * k, 15 * k, {
        align: side ? 'right' : 'left', shadow: false });
      if (goals !== undefined) label(ctx, `${goals}`, side ? x + 20 * k : x + wide - 20 * k, 30 * k, 22 * k, {
        shadow: false });
    }
    for (const team of [0, 1]) {
      cars.slice(team * size, team * size + size).forEach((car, i) => {
        const radius = 25 * k;
        const x = team ? w - 40 * k - i * 66 * k : 40 * k + i * 66 * k;
        const y = h - 40 * k;
        ctx.lineWidth = 7 * k;
        ctx.strokeStyle = 'rgba(8,12,22,.7)';
        ctx.beginPath();
        ctx.arc(x, y, radius, 0, 7);
        ctx.stroke();
        ctx.strokeStyle = SIDES[team];
        ctx.beginPath();
        ctx.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + (2 * Math.PI * car.boost) / 100);
        ctx.stroke();
        label(ctx, car.flags & 4 ? '✕' : `${car.boost}`, x, y, 16 * k);
      });
    }
    label(ctx, `ball ${Math.round(ball[2] / 100)} m high`, mid, h - 18 * k, 12 * k, { color: '#cfd9ea', weight: 500 });
    if (scene.goal !== undefined && scene.goal !== null) {
      const text = scene.goal ? 'GOAL' : 'TIME';
      const color = scene.goal > 0 ? SIDES[0] : scene.goal < 0 ? SIDES[1] : '#fff';
      label(ctx, text, mid, h * 0.42, 92 * k, { color, weight: 800 });
    }
  },
};
