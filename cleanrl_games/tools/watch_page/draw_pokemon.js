'use strict';
// The console's screen with its buttons, and the milestones of the quest.

Painters.pokemon = {
  aspect: 3 / 2,
  subframes: 1,
  cameras: [],
  images: true, // a scene has a PNG, which is decoded before it is drawn

  prepare() {},

  draw(ctx, w, h, view) {
    const frame = view.frames[view.at];
    const scene = frame.scene;
    const body = ctx.createLinearGradient(0, 0, 0, h);
    body.addColorStop(0, '#4b3f87');
    body.addColorStop(1, '#2f2759');
    ctx.fillStyle = body;
    ctx.fillRect(0, 0, w, h);
    const k = w / 720;
    const screen = { w: 432 * k, h: 288 * k };
    const x = (w - screen.w) / 2;
    const y = 42 * k;
    panel(ctx, x - 22 * k, y - 24 * k, screen.w + 44 * k, screen.h + 56 * k, 16 * k, '#15131f', '#0a0910');
    ctx.imageSmoothingEnabled = false;
    const image = view.image(frame) || view.memory.image;
    if (image) {
      ctx.drawImage(image, x, y, screen.w, screen.h);
      view.memory.image = image;
    }
    label(ctx, view.info.names[0], x, y + screen.h + 16 * k, 13 * k, {
      align: 'left', shadow: false, color: '#d9d4f2' });
    const words = scene.world === null ? `step ${scene.step}` : `world ${scene.world} · step ${scene.step}`;
    label(ctx, words, x + screen.w, y + screen.h + 16 * k, 13 * k, {
      align: 'right', shadow: false, color: '#a79fd0', weight: 500 });
    if (scene.recording) {
      ctx.fillStyle = '#ff5b5b';
      ctx.beginPath();
      ctx.arc(x + 8 * k, y - 12 * k, 5 * k, 0, 7);
      ctx.fill();
      label(ctx, 'recording', x + 18 * k, y - 12 * k, 11 * k, { align: 'left', shadow: false, color: '#ffb3b3' });
    }
    this.buttons(ctx, k, w, y + screen.h / 2, scene.pressed);
    this.milestones(ctx, k, w, h, view.info.milestones || [], scene.reached || []);
  },

  buttons(ctx, k, w, y, pressed) {
    const lit = name => (pressed === name ? '#ffd65a' : '#1d1934');
    const arm = 26 * k;
    const left = 60 * k;
    for (const [name, dx, dy] of [['UP', 0, -1], ['DOWN', 0, 1], ['LEFT', -1, 0], ['RIGHT', 1, 0]]) {
      panel(ctx, left + dx * arm - arm / 2, y + dy * arm - arm / 2, arm, arm, 4 * k, lit(name));
    }
    panel(ctx, left - arm / 2, y - arm / 2, arm, arm, 2 * k, '#1d1934');
    for (const [name, dx, dy] of [['A', 16, -16], ['B', -18, 14]]) {
      ctx.fillStyle = lit(name);
      ctx.beginPath();
      ctx.arc(w - 60 * k + dx * k, y + dy * k, 17 * k, 0, 7);
      ctx.fill();
      label(ctx, name, w - 60 * k + dx * k, y + dy * k, 14 * k, {
        shadow: false, color: pressed === name ? '#2b2452' : '#9e95c9' });
    }
    for (const [name, dy] of [['START', 70], ['SELECT', 96]]) {
      panel(ctx, left - 24 * k, y + dy * k, 48 * k, 16 * k, 8 * k, lit(name));
      label(ctx, name.toLowerCase(), left, y + (dy + 8) * k, 9 * k, {
        shadow: false, color: pressed === name ? '#2b2452' : '#9e95c9' });
    }
    for (const [name, x] of [['L', 60 * k], ['R', w - 60 * k]]) {
      panel(ctx, x - 34 * k, 14 * k, 68 * k, 18 * k, 8 * k, lit(name));
      label(ctx, name, x, 23 * k, 11 * k, { shadow: false, color: pressed === name ? '#2b2452' : '#9e95c9' });
    }
  },

  milestones(ctx, k, w, h, names, reached) {
    if (!names.length) return;
    const per = Math.ceil(names.length / 2);
    const wide = (w - 40 * k) / per;
    names.forEach((name, i) => {
      const x = 20 * k + (i % per) * wide;
      const y = h - 62 * k + Math.floor(i / per) * 28 * k;
      panel(ctx, x + 2 * k, y, wide - 4 * k, 22 * k, 6 * k, reached[i] ? '#3fae6a' : 'rgba(10,8,20,.45)');
      ctx.font = `600 ${9.5 * k}px ${FONT}`;
      const words = fit(ctx, name.toLowerCase().replaceAll('_', ' '), wide - 10 * k);
      label(ctx, words, x + wide / 2, y + 11 * k, 9.5 * k, { shadow: false, color: reached[i] ? '#fff' : '#8f87b8' });
    });
  },
};
