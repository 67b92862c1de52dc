'use strict';
// The observation of one player: BattleView gathers what the player knows, write() puts it into the columns of
// columns.json. The only place where an observation is made: VGCVecEnv, VGCPlayer (views.js) and replays all come here.
const {LAYOUT, VOLATILE} = require('./columns.js');
const {Damage} = require('./damage.js');
const {gimmick} = require('./mdbo.js');
const {Order} = require('./order.js');
const {BattleView} = require('./view.js');
const vocab = require('./vocabulary.js');

const {own: OWN, opp: OPP, active: ACTIVE, field: FIELD, history: EVENTS, belief: BELIEF,
  damage: DAMAGE} = LAYOUT.groups;
const MON = OWN.float; // own and opponent's rows begin with the same columns
const MOVES = OWN.int.move_1;
const SIDE_FLOATS = ['own', 'opp'].map(name => FIELD.float[`${name}_tailwind`]);

// Tools without a memory: all views share them.
const damage = new Damage();
const order = new Order();

class PlayerView extends BattleView {
  writeMon(mon, slotIndex, ints, at, floats, to) {
    const slot = slotIndex >= 0 && this.slots[slotIndex].mon === mon ? this.slots[slotIndex] : null;
    const species = (slot && slot.species) || mon.species;
    const facts = vocab.typesOf(species);
    const plain = !mon.terastallized || mon.tera === vocab.STELLAR;
    const changed = slot !== null && slot.typesChanged;
    ints[at] = species;
    ints[at + 1] = slot && slot.suppressed ? vocab.NONE : slot && slotIndex > 1 ? this.abilityOf(slot) : mon.ability;
    ints[at + 2] = mon.item;
    ints[at + 3] = mon.lostItem;
    ints[at + 4] = !plain ? mon.tera : changed ? slot.types[0] : facts[0];
    ints[at + 5] = !plain ? 0 : changed ? slot.types[1] : facts[1];
    ints[at + 6] = plain && slot ? slot.type3 : 0;
    ints[at + 7] = mon.tera;
    floats[to] = 1;
    floats[to + 1] = mon.hp;
    if (mon.fainted) floats[to + 2] = 1;
    if (mon.status) floats[to + 2 + mon.status] = 1;
    floats[to + MON.status_turns] = Math.min(1, mon.statusTurns / 8);
    if (slot && !mon.fainted) floats[to + MON.active_a + (slotIndex & 1)] = 1;
    if (mon.shown) floats[to + MON.shown] = 1;
    if (mon.terastallized) floats[to + MON.terastallized] = 1;
    for (let i = 0; i < 6; i++) floats[to + MON.base_hp + i] = vocab.baseColumns[6 * species + i];
  }

  writeMove(id, left, usable, floats, to) {
    for (let i = 0; i < vocab.MOVE_COLUMNS; i++) floats[to + i] = vocab.moveColumns[vocab.MOVE_COLUMNS * id + i];
    floats[to + 4] = left;
    floats[to + 5] = usable;
  }

  writeOwn(ints, at, floats, to) {
    const {req} = this;
    const team = req.side.pokemon;
    let left = 0;
    for (let row = 0; row < team.length; row++, at += OWN.intWidth, to += OWN.floatWidth) {
      const entry = team[row];
      const mon = this.team[row];
      const active = !req.teamPreview && row < 2 && entry.active;
      this.writeMon(mon, active ? row : -1, ints, at, floats, to);
      if (!mon.fainted) left++;
      const offered = active && req.active && req.active[row] ? req.active[row].moves : null;
      for (let i = 0; i < entry.moves.length && i < 4; i++) {
        const id = mon.told.moves[i];
        ints[at + MOVES + i] = id;
        let choice = offered ? offered[i] : undefined; // in the same place, unless it is locked or has transformed
        if (offered && (!choice || choice.id !== entry.moves[i])) choice =
          offered.find(move => move.id === entry.moves[i]);
        const usable = offered ? choice !== undefined && !choice.disabled : true;
        this.writeMove(id, mon.ppOf(id), usable ? 1 : 0, floats, to + MON.move_1_power + 6 * i);
      }
      const stats = to + MON.stat_hp;
      floats[stats] = mon.maxhp / 250;
      floats[stats + 1] = entry.stats.atk / 250;
      floats[stats + 2] = entry.stats.def / 250;
      floats[stats + 3] = entry.stats.spa / 250;
      floats[stats + 4] = entry.stats.spd / 250;
      floats[stats + 5] = entry.stats.spe / 250;
      if (entry.commanding) floats[stats + 6] = 1;
      if (entry.reviving) floats[stats + 7] = 1;
    }
    return left;
  }

  writeOpp(ints, at, floats, to, beliefs) {
    const picks = Math.min(this.picks, this.opp.length);
    let shown = 0;
    let fainted = 0;
    for (const mon of this.opp) {
      if (mon.shown) shown++;
      if (mon.fainted) fainted++;
    }
    for (let row = 0; row < this.opp.length && row < 6; row++) {
      const mon = this.opp[row];
      const slotIndex = this.slots[2].mon === mon ? 2 : this.slots[3].mon === mon ? 3 : -1;
      this.writeMon(mon, slotIndex, ints, at, floats, to);
      const off = slotIndex >= 0 ? this.slots[slotIndex].disabledMove : 0;
      for (let i = 0; i < mon.moves.length && i < 4; i++) {
        const id = mon.moves[i];
        ints[at + MOVES + i] = id;
        const left = Math.max(0, 1 - mon.uses[i] / vocab.moveFacts[id][5]);
        this.writeMove(id, left, id === off ? 0 : 1, floats, to + MON.move_1_power + 6 * i);
      }
      if (!mon.shown && shown >= picks) floats[to + MON.not_picked] = 1;
      this.beliefs.write(mon, slotIndex >= 0 ? this.slots[slotIndex] : null, floats, beliefs);
      at += OPP.intWidth;
      to += OPP.floatWidth;
      beliefs += BELIEF.floatWidth;
    }
    return [picks - fainted, picks - Math.min(shown, picks)];
  }

  writeActive(ints, at, floats, to) {
    const {req} = this;
    for (let index = 0; index < 4; index++, at += ACTIVE.intWidth, to += ACTIVE.floatWidth) {
      const slot = this.slots[index];
      const request = index < 2 && req.active ? req.active[index] : null;
      if (index < 2 && req.forceSwitch && req.forceSwitch[index]) floats[to + VOLATILE.force_switch] = 1;
      if (!slot.mon || slot.mon.fainted) continue;
      ints[at] = index < 2 ? index + 1 : this.opp.indexOf(slot.mon) + 1;
      ints[at + 1] = slot.lastMove;
      ints[at + 2] = slot.disabledMove;
      const {volatile} = slot;
      for (let i = 0; i < 7; i++) floats[to + i] = volatile[i] / 6;
      floats[to + VOLATILE.turns_active] = Math.min(1, slot.ends / 10);
      if (!slot.actions) floats[to + VOLATILE.first_turn] = 1;
      floats[to + VOLATILE.protect_count] = Math.min(1, slot.protects / 3);
      for (let i = VOLATILE.substitute; i < volatile.length; i++) floats[to + i] = volatile[i];
      this.writeMatchup(slot, index, floats, to + VOLATILE.move_1_vs_a);
      if (request) {
        if (gimmick(request)) floats[to + VOLATILE.can_tera] = 1;
        if (request.trapped) floats[to + VOLATILE.trapped] = 1;
        if (request.maybeTrapped) floats[to + VOLATILE.maybe_trapped] = 1;
      }
    }
  }

  // The type chart alone: the move's type (Tera Blast of the terastallized has the tera type) against what a hit meets
  // now.
  writeMatchup(slot, index, floats, to) {
    const own = index < 2;
    const {moves} = own ? this.team[index].told : slot.mon;
    for (let target = 0; target < 2; target++) {
      const other = this.slots[(own ? 2 : 0) + target];
      if (!other.mon || other.mon.fainted) continue;
      const types = this.typesOf(other);
      for (let i = 0; i < moves.length && i < 4; i++) {
        const id = moves[i];
        const facts = vocab.moveFacts[id];
        if (facts[1] === 0) continue;
        const row = vocab.chart[id === vocab.TERA_BLAST && slot.mon.terastallized ? slot.mon.tera : facts[0]];
        const times = row[types[0]] * row[types[1]] * row[types[2]];
        floats[to + 2 * i + target] = times === 0 ? -1 : times < 1 ? Math.max(-0.5, -0.125 / times) : Math.min(1,
          (times - 1) / 2);
      }
    }
  }

  // What a player works out in the head: each move of the four on each target, and who moves first.
  writeDamage(floats, to, active) {
    const {fighters} = damage;
    damage.look(this);
    order.look(this, damage);
    for (let index = 0; index < 4; index++) {
      const user = fighters[index];
      if (!user.present) continue;
      const foes = index < 2 ? 2 : 0;
      const first = active + index * ACTIVE.floatWidth + VOLATILE.first_vs_a;
      for (let i = 0; i < 2; i++) {
        if (fighters[foes + i].present) floats[first + i] = order.first(index, foes + i);
      }
      const ally = fighters[index ^ 1];
      if (ally.present) floats[first + 2] = order.first(index, index ^ 1);
      const {moves} = index < 2 ? this.team[index].told : user.mon;
      for (let i = 0; i < moves.length && i < 4; i++) {
        const id = moves[i];
        const at = to + (4 * index + i) * DAMAGE.floatWidth;
        const bracket = damage.priority(user, id);
        for (let place = 0; place < 2; place++) {
          const target = fighters[foes + place];
          if (!target.present) continue;
          this.writeHit(user, id, target, floats, at + 4 * place);
          floats[at + 4 * place + 3] = bracket > 0 ? 1 : bracket < 0 ? -1 : floats[first + place];
        }
        if (ally.present && damage.hitsAll(id)) this.writeHit(user, id, ally, floats, at + 8);
      }
    }
  }

  writeHit(user, id, target, floats, at) {
    if (!damage.whole(user, id, target)) return;
    floats[at] = Math.min(2, damage.low / target.hp);
    floats[at + 1] = Math.min(2, damage.high / target.hp);
    floats[at + 2] = damage.ko;
  }

  writeField(floats, to, ownLeft, oppLeft, oppUnseen) {
    const {float} = FIELD;
    if (this.req.teamPreview) floats[to + float.preview] = 1;
    if (this.req.forceSwitch) floats[to + float.forced] = 1;
    floats[to + float.turn] = this.turn / 25;
    if (this.sheets) floats[to + float.open_sheets] = 1;
    floats[to + float.own_left] = ownLeft / 6;
    floats[to + float.opp_left] = oppLeft / 6;
    floats[to + float.opp_unseen] = oppUnseen / 4;
    if (!this.ownTera) floats[to + float.own_tera_left] = 1;
    if (!this.oppTera) floats[to + float.opp_tera_left] = 1;
    if (this.weather >= 0) {
      floats[to + this.weather] = 1;
      if (this.weather < float.weather_harsh_sun) this.span(this.weatherEnds, floats, to + float.weather_left_min);
    }
    if (this.terrain >= 0) {
      floats[to + this.terrain] = 1;
      this.span(this.terrainEnds, floats, to + float.terrain_left_min);
    }
    for (let i = 0; i < 4; i++) {
      if (this.rooms[i] >= 0) floats[to + float.trick_room + i] = Math.max(0, 5 - this.rooms[i]) / 5;
    }
    for (let mine = 0; mine < 2; mine++) {
      const side = this.sides[mine];
      const at = to + SIDE_FLOATS[mine];
      if (side[0] >= 0) floats[at] = Math.max(0, 4 - side[0]) / 4;
      for (let i = 0; i < 3; i++) if (side[1 + i] >= 0) this.span(side[1 + i], floats, at + 1 + 2 * i);
      if (side[4] >= 0) floats[at + 7] = Math.max(0, 5 - side[4]) / 5;
      if (side[5] >= 0) floats[at + 8] = Math.max(0, 5 - side[5]) / 5;
      floats[at + 9] = (side[6] + 1) / 3;
      floats[at + 10] = (side[7] + 1) / 2;
      for (let i = 8; i < 13; i++) if (side[i] >= 0) floats[at + 3 + i] = 1;
    }
  }

  // Five ends of turn, or eight if an item that was not shown prolongs it: past the fifth, eight is certain.
  span(passed, floats, to) {
    floats[to] = Math.max(0, passed < 5 ? 5 - passed : 8 - passed) / 8;
    floats[to + 1] = Math.max(0, 8 - passed) / 8;
  }

  writeHistory(ints, at, floats, to) {
    for (const event of this.history) {
      ints[at] = event.actor;
      ints[at + 1] = event.species;
      ints[at + 2] = event.move;
      ints[at + 3] = event.target;
      ints[at + 4] = event.targetSpecies;
      floats[to] = 1;
      floats[to + 1] = Math.min(1, (this.turn - event.turn) / 4);
      floats[to + 2] = event.isSwitch;
      floats[to + 3] = event.isCant;
      floats[to + 4] = event.damageOwn;
      floats[to + 5] = event.damageOpp;
      floats[to + 6] = Math.min(1, event.noEffect / 2);
      floats[to + 7] = event.faints / 2;
      at += EVENTS.intWidth;
      to += EVENTS.floatWidth;
    }
  }

  write(ints, intOffset, floats, floatOffset) {
    ints.fill(0, intOffset, intOffset + LAYOUT.ints);
    floats.fill(0, floatOffset, floatOffset + LAYOUT.floats);
    const ownLeft = this.writeOwn(ints, intOffset + OWN.ints, floats, floatOffset + OWN.floats);
    const [oppLeft, oppUnseen] = this.writeOpp(ints, intOffset + OPP.ints, floats, floatOffset + OPP.floats,
      floatOffset + BELIEF.floats);
    this.writeActive(ints, intOffset + ACTIVE.ints, floats, floatOffset + ACTIVE.floats);
    if (!this.req.teamPreview) this.writeDamage(floats, floatOffset + DAMAGE.floats, floatOffset + ACTIVE.floats);
    this.writeField(floats, floatOffset + FIELD.floats, ownLeft, oppLeft, oppUnseen);
    this.writeHistory(ints, intOffset + EVENTS.ints, floats, floatOffset + EVENTS.floats);
  }
}

module.exports = {INTS: LAYOUT.ints, FLOATS: LAYOUT.floats, PlayerView, LAYOUT};
