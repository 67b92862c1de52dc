'use strict';
// A small 3-D world on a 2-D canvas: polygons sorted by distance and shaded by where they face. The same code draws in
// a browser and, through Node's canvas, into a GIF. World axes are right-handed, z up.

const Vec = {
  add: (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]],
  sub: (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]],
  scale: (a, k) => [a[0] * k, a[1] * k, a[2] * k],
  dot: (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2],
  cross: (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]],
  unit: a => { const n = Math.hypot(...a) || 1; return [a[0] / n, a[1] / n, a[2] / n]; },
  mix: (a, b, t) => [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t],
};
const SUN = Vec.unit([-0.45, -0.35, 0.82]);

function tint(color, light) {
  const n = parseInt(color.slice(1), 16);
  const part = shift => Math.max(0, Math.min(255, Math.round(((n >> shift) & 255) * light)));
  return `rgb(${part(16)},${part(8)},${part(0)})`;
}

class Space {
  constructor(ctx, width, height) {
    this.ctx = ctx;
    this.width = width;
    this.height = height;
    this.items = [];
  }

  look(eye, target, fov) {
    this.eye = eye;
    this.ahead = Vec.unit(Vec.sub(target, eye));
    this.right = Vec.unit(Vec.cross(this.ahead, [0, 0, 1]));
    this.up = Vec.cross(this.right, this.ahead);
    this.zoom = this.height / 2 / Math.tan(fov / 2);
    this.near = 0.02 * Math.hypot(...Vec.sub(target, eye));
  }

  view(p) {
    const d = Vec.sub(p, this.eye);
    return [Vec.dot(d, this.right), Vec.dot(d, this.up), Vec.dot(d, this.ahead)];
  }

  screen(v) {
    const k = this.zoom / v[2];
    return [this.width / 2 + v[0] * k, this.height / 2 - v[1] * k, k];
  }

  // → [x, y, pixels per unit], or null behind the camera
  project(p) {
    const v = this.view(p);
    return v[2] > this.near ? this.screen(v) : null;
  }

  // The outline of a polygon on the screen, cut off where it passes behind the camera
  outline(points) {
    const seen = points.map(p => this.view(p));
    const kept = [];
    for (let i = 0; i < seen.length; i++) {
      const a = seen[i];
      const b = seen[(i + 1) % seen.length];
      if (a[2] > this.near) kept.push(a);
      if ((a[2] > this.near) !== (b[2] > this.near)) kept.push(Vec.mix(a, b, (this.near - a[2]) / (b[2] - a[2])));
    }
    return kept.length > 2 ? kept.map(v => this.screen(v)) : null;
  }

  trace(points) {
    const shape = this.outline(points);
    if (!shape) return false;
    this.ctx.beginPath();
    shape.forEach(([x, y], i) => (i ? this.ctx.lineTo(x, y) : this.ctx.moveTo(x, y)));
    this.ctx.closePath();
    return true;
  }

  // Drawn at once, in the order of the calls: floors and what lies on them
  fill(points, style) {
    if (!this.trace(points)) return;
    this.ctx.fillStyle = style;
    this.ctx.fill();
  }

  line(a, b, style, width) {
    let [u, v] = [this.view(a), this.view(b)];
    if (u[2] < this.near && v[2] < this.near) return;
    if (u[2] < this.near) u = Vec.mix(u, v, (this.near - u[2]) / (v[2] - u[2]) + 1e-6);
    if (v[2] < this.near) v = Vec.mix(v, u, (this.near - v[2]) / (u[2] - v[2]) + 1e-6);
    const [x0, y0] = this.screen(u);
    const [x1, y1] = this.screen(v);
    this.ctx.strokeStyle = style;
    this.ctx.lineWidth = width;
    this.ctx.beginPath();
    this.ctx.moveTo(x0, y0);
    this.ctx.lineTo(x1, y1);
    this.ctx.stroke();
  }

  // A circle that lies on the ground
  ring(center, radius, fill, stroke, width) {
    const points = [];
    for (let i = 0; i < 48; i++) {
      const a = (i / 48) * 2 * Math.PI;
      points.push([center[0] + radius * Math.cos(a), center[1] + radius * Math.sin(a), center[2]]);
    }
    if (!this.trace(points)) return;
    if (fill) { this.ctx.fillStyle = fill; this.ctx.fill(); }
    if (stroke) { this.ctx.strokeStyle = stroke; this.ctx.lineWidth = width; this.ctx.stroke(); }
  }

  // Kept until `flush`, farthest first. `bias` moves it nearer in the order, in world units.
  later(place, paint, bias = 0) {
    this.items.push({ depth: this.view(place)[2] - bias, paint });
  }

  polygon(points, color, { bias = 0, flat = false, alpha = 1, both = false } = {}) {
    const normal = Vec.unit(Vec.cross(Vec.sub(points[1], points[0]), Vec.sub(points[2], points[0])));
    const middle = Vec.scale(points.reduce(Vec.add), 1 / points.length);
    const facing = Vec.dot(normal, Vec.sub(this.eye, middle)) > 0;
    if (!facing && !both) return;
    const light = flat ? 1 : 0.62 + 0.45 * Math.max(-0.3, Vec.dot(facing ? normal : Vec.scale(normal, -1), SUN));
    this.later(middle, () => {
      if (!this.trace(points)) return;
      this.ctx.globalAlpha = alpha;
      this.ctx.fillStyle = this.ctx.strokeStyle = tint(color, light);
      this.ctx.lineWidth = 0.6;
      this.ctx.fill();
      if (alpha === 1) this.ctx.stroke(); // closes the hairlines between neighbours
      this.ctx.globalAlpha = 1;
    }, bias);
  }

  // A body of eight corners: `low` and `high` are [front, back, half width] at two heights of the body's own axes
  block(at, axes, low, high, from, to, color, options) {
    const [f, r, u] = axes;
    const corner = (along, side, up) => Vec.add(at, Vec.add(Vec.scale(f, along),
      Vec.add(Vec.scale(r, side), Vec.scale(u, up))));
    const level = ([front, back, half], h) => [corner(front, half, h), corner(front, -half, h), corner(back, -half, h),
      corner(back, half, h)];
    const a = level(low, from);
    const b = level(high, to);
    const faces = [[b[0], b[1], b[2], b[3]], [a[3], a[2], a[1], a[0]]];
    for (let i = 0; i < 4; i++) faces.push([a[i], a[(i + 1) % 4], b[(i + 1) % 4], b[i]]);
    const handed = Vec.dot(Vec.cross(f, r), u) > 0 ? 1 : -1;
    for (const face of faces) this.polygon(handed > 0 ? [...face].reverse() : face, color, options);
  }

  box(at, axes, half, color, options) {
    this.block(at, axes, [half[0], -half[0], half[1]], [half[0], -half[0], half[1]], -half[2], half[2], color, options);
  }

  flush() {
    this.items.sort((a, b) => b.depth - a.depth);
    for (const item of this.items) item.paint();
    this.items = [];
  }
}

function label(ctx, text, x, y, size, { color = '#fff', align = 'center', weight = 600, shadow = true } = {}) {
  ctx.font = `${weight} ${size}px ${FONT}`;
  ctx.textAlign = align;
  ctx.textBaseline = 'middle';
  if (shadow) {
    ctx.lineJoin = 'round';
    ctx.lineWidth = Math.max(2, size / 5);
    ctx.strokeStyle = 'rgba(10,14,22,.72)';
    ctx.strokeText(text, x, y);
  }
  ctx.fillStyle = color;
  ctx.fillText(text, x, y);
}

function panel(ctx, x, y, w, h, radius, fill, stroke) {
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, radius);
  ctx.fillStyle = fill;
  ctx.fill();
  if (stroke) { ctx.strokeStyle = stroke; ctx.lineWidth = 1; ctx.stroke(); }
}

function gauge(ctx, x, y, w, h, share, color, back = 'rgba(0,0,0,.45)') {
  panel(ctx, x, y, w, h, h / 2, back);
  const filled = Math.max(0, Math.min(1, share)) * w;
  if (filled > 0.5) panel(ctx, x, y, Math.max(filled, h), h, h / 2, color);
}

// Shortens a text with an ellipsis until it fits
function fit(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  while (text.length > 1 && ctx.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}

const FONT = 'Watch, system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const SIDES = ['#4f9dff', '#ff8a4c'];
const Painters = {};
