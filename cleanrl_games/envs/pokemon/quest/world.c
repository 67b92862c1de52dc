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
    // one tile inwards: doors open to the south, everything else is at an edge
    state.facing = tile_at(x, y) == T_DOOR || y == 0 ? DOWN : y == state.height - 1 ? UP : x == 0 ? RIGHT : LEFT;
    state.x = x + ahead[state.facing][0], state.y = y + ahead[state.facing][1];
  }
  place_people();
  static const s8 arrivals[NUM_MAPS] = {-1, -1, LAB_ENTERED, -1, ROUTE_ENTERED, FOREST_ENTERED, HIGHMOOR_REACHED,
      GYM_ENTERED, -1};
  int milestone = map == TOWN && from == HOME ? LEFT_HOME : arrivals[map];
  if (milestone >= 0) state.milestones |= 1 << milestone;
  update_objective();
  draw_map();
}

static void lose(void) {
  state.losses++;
  // whoever took the wrong orb gets there, too, only much later
  if (state.starter != counter_of(state.leader_element) && state.max_hp < 80) state.max_hp += 4;
  state.hp = state.max_hp;
  enter_map(HOME, HOME);
  say("YOU WOKE UP AT HOME.", "TRY ANOTHER MOVE NEXT TIME.");
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
    enter_map(exit_at(state.x, state.y), state.map);
  } else if (tile == T_GLOW) {
    state.tiles[state.y * MAP_SIZE + state.x] = T_MOSS;  // picked: what is left of the trail leads on
    draw_tile(state.x, state.y);
  } else if (tile == T_TALL) {
    state.grass_steps++;
    // the first encounters wait at the third step, so that nobody has to look for them
    int met = has(WILD_BEATEN) ? roll(20) == 0 : state.grass_steps >= 3;
    if (!met) {
      if (state.x == state.target_x && state.y == state.target_y) update_objective();  // go on searching
      return;
    }
    state.grass_steps = 0;
    // in two worlds of three a shade comes first, which one can only run from; later it may come again
    int is_shade = has(WILD_BEATEN) ? roll(2) : state.wild_met == 0 && state.seed % 3 != 0;
    state.wild_met = 1;
    if (is_shade) battle(CREATURE_SHADE, SHADE, 60, 9, 1, "WILD SHADE");
    else if (battle(CREATURE_MOTH, PLAIN, 20, 4, 1, "WILD DUSKMOTH")) reach(WILD_BEATEN);
    if (!state.hp) {
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

static void read_sign(void) {
  static const char *const lines[3] = {"ROUTE 1 IS IN THE NORTH.", "ROUTE 1 IS IN THE EAST.",
      "ROUTE 1 IS IN THE WEST."};
  if (state.map == TOWN) say("EMBERLY. LAB: BLUE ROOF.", lines[state.route_turn]);
  else say("ROUTE 1, TO GLOW WOOD.", "SHADES IN THE GRASS: RUN!");
}

// The map of this place, on START. Any of START, A and B closes it.
static void show_plan(void) {
  state.mode = MODE_MAP;
  hide_sprites(0);
  draw_plan();
  do wait_frame();
  while (!(pressed & (KEY_START | KEY_A | KEY_B)));
  text_clear(2, 18);
  draw_corner_plan();
  state.mode = MODE_WALK;
}

void walk(u16 held) {
  static const u8 offsets[5] = {0, 3, 6, 10, 13};
  static u16 waiting;
  u16 directions = KEY_DOWN | KEY_UP | KEY_LEFT | KEY_RIGHT;
  held_frames = held & directions ? held_frames + 1 : 0;
  if (pressed & (directions | KEY_A | KEY_START)) waiting = pressed;
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
    else if (tile_at(x, y) == T_SIGN) read_sign();
  } else if (keys & KEY_START) {
    show_plan();
  }
}
