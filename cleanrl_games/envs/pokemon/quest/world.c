// Walking: steps, doors, tall grass, locked ways. SPDX-License-Identifier: MIT
#include "quest.h"

const s8 ahead[4][2] = {{0, 1}, {0, -1}, {-1, 0}, {1, 0}};
static int held_frames;

static int tile_at(int x, int y) { return state.tiles[y * MAP_SIZE + x]; }
static int is_exit(int tile) { return tile == T_MAT || tile == T_DOOR || tile == T_GATE; }

Person *person_at(int x, int y) {
  for (int i = 0; i < MAX_PEOPLE; i++)
    if (state.people[i].kind && state.people[i].x == x && state.people[i].y == y) return &state.people[i];
  return 0;
}

// `from` is the map one comes from; the start of a game (and waking up after a defeat) comes from the same map.
void enter_map(int map, int from) {
  state.map = map;
  build_map();
  if (map == from) {
    state.x = 2 + layout_roll(4), state.y = 2 + layout_roll(2), state.facing = DOWN;
  } else {
    u8 x = 1, y = 1;
    find_exit(from, &x, &y);
    // one tile inwards: doors open to the south, mats to the north, gates away from the edge
    int outwards = tile_at(x, y) == T_DOOR || y == 0;
    state.x = x, state.y = outwards ? y + 1 : y - 1, state.facing = outwards ? DOWN : UP;
  }
  place_people();
  static const s8 arrivals[8] = {-1, -1, LAB_ENTERED, -1, ROUTE_ENTERED, FOREST_ENTERED, HIGHMOOR_REACHED, GYM_ENTERED};
  int milestone = map == TOWN && from == HOME ? LEFT_HOME : arrivals[map];
  if (milestone >= 0) state.milestones |= 1 << milestone;
  update_objective();
  draw_map();
}

static void lose(void) {
  state.losses++;
  if (state.max_hp < 80) state.max_hp += 10;  // whoever took the wrong orb gets there, too, only later
  state.hp = state.max_hp;
  enter_map(HOME, HOME);
  say("YOU WOKE UP AT HOME.", "YOUR FRIEND GREW STRONGER.");
}

// A way that is not open yet says so.
static int is_locked(int x, int y) {
  if (!is_exit(tile_at(x, y))) return 0;
  if (state.map == HOME && !state.talked_to_mother) say("MOTHER IS CALLING YOU.", "TALK TO HER FIRST.");
  else if (state.map == LAB && !has(STARTER_CHOSEN)) say("PROFESSOR IVY: WAIT!", "TAKE AN ORB FROM THE TABLE.");
  else if (state.map == LAB && !has(RIVAL_BEATEN)) say("REX: NOT SO FAST!", "FIGHT ME FIRST.");
  else return 0;
  return 1;
}

static void arrive(void) {
  int tile = tile_at(state.x, state.y);
  if (is_exit(tile)) {
    static const s8 north[8] = {-1, ROUTE, -1, -1, FOREST, HIGHMOOR, -1, -1};
    static const s8 south[8] = {TOWN, -1, TOWN, TOWN, TOWN, ROUTE, FOREST, HIGHMOOR};
    int to = state.y == 0 ? north[state.map] : south[state.map];
    for (int map = HOME; tile == T_DOOR && map <= GYM; map++) {
      u8 x = 0, y = 0;
      find_exit(map, &x, &y);
      if (x == state.x && y == state.y) to = map;
    }
    enter_map(to, state.map);
  } else if (tile == T_TALL) {
    state.grass_steps++;
    // the first encounter waits at the third step, so that nobody has to look for it
    int met = has(WILD_BEATEN) ? roll(14) == 0 : state.grass_steps >= 3;
    if (!met) {
      if (state.x == state.target_x && state.y == state.target_y) update_objective();  // go on searching
      return;
    }
    state.grass_steps = 0;
    if (battle(CREATURE_MOTH, PLAIN, 18, 4, 1, "WILD DUSKMOTH")) reach(WILD_BEATEN);
    else if (!state.hp) {
      lose();
      return;
    }
    state.hp = state.max_hp;
    draw_map();
    update_objective();
  }
}

void fight_trainer(int milestone, int creature, int element, int hp, int strength, const char *name) {
  if (!battle(creature, element, hp, strength, 0, name)) {
    lose();
    return;
  }
  state.hp = state.max_hp;
  state.milestones |= 1 << milestone;
  place_people();
  update_objective();
  draw_map();
}

void walk(u16 held) {
  static const u8 offsets[5] = {0, 3, 6, 10, 13};
  static u16 waiting;
  u16 directions = KEY_DOWN | KEY_UP | KEY_LEFT | KEY_RIGHT;
  held_frames = held & directions ? held_frames + 1 : 0;
  if (pressed & (directions | KEY_A)) waiting = pressed;
  if (state.moving) {
    state.moving--;
    step_offset = offsets[state.moving];
    if (state.moving) return;
    if (!is_exit(tile_at(state.x, state.y))) show_way();
    arrive();
    return;
  }
  u16 keys = waiting;
  if (held_frames > 20) keys |= held & directions;  // a person at the keys may hold one to keep walking
  waiting = 0;
  if (keys & directions) {
    state.facing = keys & KEY_DOWN ? DOWN : keys & KEY_UP ? UP : keys & KEY_LEFT ? LEFT : RIGHT;
    int x = state.x + ahead[state.facing][0], y = state.y + ahead[state.facing][1], tile = tile_at(x, y);
    if (tile == T_VOID || tile >= T_TREE || person_at(x, y) || is_locked(x, y)) return;
    state.x = x, state.y = y, state.moving = 4;
    step_offset = offsets[4];
  } else if (keys & KEY_A) {
    int x = state.x + ahead[state.facing][0], y = state.y + ahead[state.facing][1];
    Person *person = person_at(x, y);
    if (person) speak_to(person);
    else if (tile_at(x, y) == T_SIGN) say("EMBERLY. ROUTE 1 IS NORTH,", "THE BLUE ROOF IS THE LAB.");
  }
}
