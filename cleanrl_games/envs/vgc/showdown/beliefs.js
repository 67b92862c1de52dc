'use strict';
// What follows about the opponent's hidden side from what was seen.
class Beliefs {
  constructor(view) {
    this.view = view;
  }
  adopt(mon) {}
  turn() {}
  entered(index) {}
  disturb() {}
  muddle(a, b) {}
  health(index, mon, args, before) {}
  moved(index, move, chosen) {}
  stopped(index) {}
  activated(index, effect) {}
  itemChanged(mon, from) {}
  upkeep() {}
  write(mon, floats, at) {}
}
module.exports = {Beliefs};
