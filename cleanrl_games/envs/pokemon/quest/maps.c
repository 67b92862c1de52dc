// The nine places. Each is built anew from the seed whenever it is entered. SPDX-License-Identifier: MIT
#include "quest.h"

const char *const map_names[NUM_MAPS] = {"HOME", "EMBERLY", "LAB", "GOLD ROOF", "ROUTE 1", "GLOW WOOD", "HIGHMOOR",
    "GYM", "GREEN ROOF"};
const char *const turn_names[3] = {"NORTH", "EAST", "WEST"};

typedef struct {
  u8 x, y, to;
} Exit;

static Exit exits[5];
static int num_exits;
static u32 layout_rng;

u32 layout_roll(u32 below) {
  layout_rng = layout_rng * 1103515245u + 12345;
  return (layout_rng >> 16) % below;
}

void layout_seed(u32 part) {
  layout_rng = (state.seed + 1) * 40503u + state.map * 9973u + part * 77u;
  layout_roll(2), layout_roll(2);
}

static u8 *tile(int x, int y) { return &state.tiles[y * MAP_SIZE + x]; }

static void fill(int x, int y, int w, int h, int kind) {
  for (int j = y; j < y + h; j++)
    for (int i = x; i < x + w; i++) *tile(i, j) = kind;
}

static void start_map(int w, int h, int ground, int border) {
  fill(0, 0, MAP_SIZE, MAP_SIZE, T_VOID);
  state.width = w, state.height = h, num_exits = 0;
  fill(0, 0, w, h, border);
  fill(1, 1, w - 2, h - 2, ground);
}

static void add_exit(int x, int y, int to, int kind) {
  *tile(x, y) = kind;
  exits[num_exits++] = (Exit){x, y, to};
}

// Four wide, three high; the door is the third tile of the lowest row.
static void house(int x, int y, int roof, int to) {
  fill(x, y, 4, 2, roof);
  fill(x, y + 2, 4, 1, T_WALL);
  *tile(x + 1, y + 2) = T_WINDOW;
  add_exit(x + 2, y + 2, to, T_DOOR);
  *tile(x + 2, y + 3) = T_PATH;
}

// Roads of this world go north, east or west. A map is drawn as if its road went north, from the bottom to the top;
// then it is turned.
int turn_of(int map) { return map == ROUTE || map == TOWN ? state.route_turn : state.forest_turn; }

void turn(int turned, int height, int x, int y, u8 *to_x, u8 *to_y) {
  *to_x = turned == NORTH ? x : turned == EAST ? height - 1 - y : y;
  *to_y = turned == NORTH ? y : x;
}

static void turn_map(int turned) {
  static u8 before[MAP_SIZE * MAP_SIZE];
  int width = state.width, height = state.height;
  if (turned == NORTH) return;
  for (int i = 0; i < MAP_SIZE * MAP_SIZE; i++) before[i] = state.tiles[i], state.tiles[i] = T_VOID;
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x++) {
      u8 to_x, to_y;
      turn(turned, height, x, y, &to_x, &to_y);
      *tile(to_x, to_y) = before[y * MAP_SIZE + x];
    }
  for (int i = 0; i < num_exits; i++) {
    u8 x = exits[i].x, y = exits[i].y;
    turn(turned, height, x, y, &exits[i].x, &exits[i].y);
  }
  state.width = height, state.height = width;
}

// Four houses in the corners, in an order of this world; the road out begins where the streets cross.
static void build_town(void) {
  static const u8 roofs[4] = {T_ROOF_RED, T_ROOF_BLUE, T_ROOF_GOLD, T_ROOF_GREEN};
  static const u8 insides[4] = {HOME, LAB, COTTAGE, COTTAGE_2};
  u8 corners[4] = {0, 1, 2, 3};
  int street = 8 + layout_roll(3);
  start_map(19, 14, T_GRASS, T_TREE);
  for (int i = 0; i < 10; i++) *tile(1 + layout_roll(17), 1 + layout_roll(12)) = T_FLOWERS;
  for (int i = 3; i > 0; i--) {
    int other = layout_roll(i + 1), keep = corners[i];
    corners[i] = corners[other], corners[other] = keep;
  }
  fill(street, 6, 1, 7, T_PATH);
  fill(4, 6, 12, 1, T_PATH);
  fill(4, 12, 12, 1, T_PATH);
  for (int i = 0; i < 4; i++) house(i & 1 ? 13 : 2, i & 2 ? 8 : 2, roofs[corners[i]], insides[corners[i]]);
  if (state.route_turn == NORTH) {
    fill(street, 1, 1, 5, T_PATH);
    add_exit(street, 0, ROUTE, T_GATE);
  } else if (state.route_turn == EAST) {
    fill(street, 6, 10 - (street - 8), 1, T_PATH);
    add_exit(18, 6, ROUTE, T_GATE);
  } else {
    fill(1, 6, street, 1, T_PATH);
    add_exit(0, 6, ROUTE, T_GATE);
  }
  *tile(street + 1, 7) = T_SIGN;
}

// Tall grass, fences with a gap, a river with a bridge: in one of three orders, from the bottom to the top. The grass
// is before the river.
static void build_route(void) {
  static const char orders[3][5] = {"GFRF", "FGRF", "FGFR"};
  const char *order = orders[layout_roll(3)];
  int y = 15;
  start_map(15, 18, T_GRASS, T_TREE);
  for (int i = 0; i < 12; i++) *tile(1 + layout_roll(13), 1 + layout_roll(16)) = T_FLOWERS;
  add_exit(7, 17, TOWN, T_GATE);
  add_exit(4 + layout_roll(7), 0, FOREST, T_GATE);
  for (int i = 0; i < 4; i++) {
    int gap = 3 + layout_roll(9);
    if (order[i] == 'G') {
      fill(1, y - 2, 13, 3, T_TALL);
      state.grass_y = y - 1;
      y -= 4;
    } else if (order[i] == 'F') {
      fill(1, y, 13, 1, T_FENCE);
      *tile(gap, y) = T_GRASS;
      y -= 3;
    } else {
      fill(1, y - 1, 13, 2, T_WATER);
      fill(gap, y - 1, 1, 2, T_BRIDGE);
      state.bridge_x = gap, state.bridge_y = y;
      y -= 4;
    }
  }
  *tile(13, 16) = T_SIGN;
  turn_map(state.route_turn);
}

enum { CELLS_X = 7, CELLS_Y = 6 };

// A maze by depth-first search; cell (cx, cy) is the tile (2 cx + 1, 2 cy + 2).
static void build_forest(void) {
  static const s8 ways[4][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}};
  u8 stack[CELLS_X * CELLS_Y];
  int depth = 0;
  start_map(15, 14, T_PINE, T_PINE);
  stack[depth++] = 5 * CELLS_X + 3;
  *tile(7, 12) = T_MOSS;
  while (depth) {
    int cx = stack[depth - 1] % CELLS_X, cy = stack[depth - 1] / CELLS_X, first = layout_roll(4), way;
    for (way = 0; way < 4; way++) {
      int nx = cx + ways[(first + way) & 3][0], ny = cy + ways[(first + way) & 3][1];
      if (nx < 0 || ny < 0 || nx >= CELLS_X || ny >= CELLS_Y || *tile(2 * nx + 1, 2 * ny + 2) != T_PINE) continue;
      *tile(cx + nx + 1, cy + ny + 2) = *tile(2 * nx + 1, 2 * ny + 2) = T_MOSS;
      stack[depth++] = ny * CELLS_X + nx;
      break;
    }
    if (way == 4) depth--;
  }
  add_exit(7, 13, ROUTE, T_GATE);
  int exit = 2 * layout_roll(CELLS_X) + 1;
  *tile(exit, 1) = T_MOSS;
  add_exit(exit, 0, HIGHMOOR, T_GATE);
  turn_map(state.forest_turn);
}

// One arrives at the end of the road from the wood: from the south, the west or the east.
static void build_highmoor(void) {
  int x = 3 + layout_roll(7);
  start_map(15, 11, T_GRASS, T_TREE);
  for (int i = 0; i < 8; i++) *tile(1 + layout_roll(13), 1 + layout_roll(9)) = T_FLOWERS;
  house(x, 2, T_ROOF_GREY, GYM);
  fill(2, 6, 11, 1, T_PATH);
  if (state.forest_turn == NORTH) {
    fill(7, 7, 1, 3, T_PATH);
    add_exit(7, 10, FOREST, T_GATE);
  } else if (state.forest_turn == EAST) {
    fill(1, 6, 1, 1, T_PATH);
    add_exit(0, 6, FOREST, T_GATE);
  } else {
    fill(13, 6, 1, 1, T_PATH);
    add_exit(14, 6, FOREST, T_GATE);
  }
}

static void build_room(int w, int h, int floor, int wall, int outside) {
  start_map(w, h, floor, wall);
  add_exit(w / 2, h - 1, outside, T_MAT);
}

static void build_home(void) {
  build_room(9, 7, T_FLOOR, T_INNER, TOWN);
  *tile(1, 1) = T_BED;
  *tile(7, 1) = *tile(6, 1) = T_SHELF;
  fill(3, 3, 2, 1, T_RUG);
  *tile(7, 4) = T_TABLE;
}

static void build_lab(void) {
  build_room(11, 8, T_TILES, T_INNER, TOWN);
  fill(1, 1, 2, 1, T_SHELF);
  fill(8, 1, 2, 1, T_SHELF);
  fill(3, 3, 5, 1, T_TABLE);
}

static void build_cottage(void) {
  build_room(9, 7, T_FLOOR, T_INNER, TOWN);
  fill(1, 1, 3, 1, T_SHELF);
  *tile(1, 4) = T_TABLE;
  *tile(7, 1) = T_BED;
}

static void build_gym(void) {
  build_room(11, 12, T_TILES, T_STONE, HIGHMOOR);
  for (int row = 5; row <= 8; row += 3) {
    fill(1, row, 9, 1, T_STATUE);
    *tile(1 + layout_roll(9), row) = T_RUG;
  }
}

void build_map(void) {
  static void (*const builders[NUM_MAPS])(void) = {build_home,   build_town,     build_lab, build_cottage, build_route,
                                                   build_forest, build_highmoor, build_gym, build_cottage};
  layout_seed(0);
  builders[state.map]();
}

// The tile of this map that leads to the place `towards`.
void find_exit(int towards, u8 *x, u8 *y) {
  for (int i = 0; i < num_exits; i++)
    if (exits[i].to == towards) *x = exits[i].x, *y = exits[i].y;
}

// The place that this tile leads to.
int exit_at(int x, int y) {
  for (int i = 0; i < num_exits; i++)
    if (exits[i].x == x && exits[i].y == y) return exits[i].to;
  return state.map;
}

// What it costs to go to the objective by way of a tile, 0: one cannot. Steps, of which those into tall grass count
// twice unless it is sought.
static u8 costs[MAP_SIZE * MAP_SIZE] __attribute__((aligned(4)));

FAST void measure_ways(int goal_x, int goal_y, int avoid_grass) {
  static const s8 steps[4] = {MAP_SIZE, -MAP_SIZE, -1, 1};
  u16 queue[256];
  u8 head = 0, tail = 0;  // they go round
  int goal = goal_y * MAP_SIZE + goal_x, price_of_grass = avoid_grass ? 2 : 1;
  for (int i = 0; i < MAP_SIZE * MAP_SIZE; i += 4) *(u32 *)&costs[i] = 0;
  // people are in the way: nothing is cheaper than 1, so nobody goes there
  for (int i = 0; i < MAX_PEOPLE; i++)
    if (state.people[i].kind) costs[state.people[i].y * MAP_SIZE + state.people[i].x] = 1;
  costs[goal] = state.tiles[goal] == T_TALL ? price_of_grass : 1;
  for (queue[tail++] = goal; head != tail;) {
    u32 here = queue[head++], cost = costs[here] + 1;
    for (int way = 0; way < 4; way++) {
      u32 next = here + steps[way], kind = next < MAP_SIZE * MAP_SIZE ? state.tiles[next] : T_VOID;
      if (kind == T_VOID || kind >= T_TREE || kind == T_MAT || kind == T_DOOR || kind == T_GATE) continue;
      u32 total = kind == T_TALL ? cost + price_of_grass - 1 : cost;
      if (costs[next] && costs[next] <= total) continue;
      costs[next] = total;
      queue[tail++] = next;
    }
  }
  for (int i = 0; i < MAX_PEOPLE; i++) {
    int at = state.people[i].y * MAP_SIZE + state.people[i].x;
    if (state.people[i].kind && at != goal) costs[at] = 0;
  }
}

static int straight_to(int dx, int dy) {
  if ((dx < 0 ? -dx : dx) > (dy < 0 ? -dy : dy)) return dx < 0 ? LEFT : RIGHT;
  return dy > 0 ? DOWN : UP;
}

// The first step of a cheapest way; of equal ones the one that looks more like the right direction.
static int way_from(int x, int y) {
  int dx = state.target_x - x, dy = state.target_y - y, best = NOWHERE, least = 256;
  if (!dx && !dy) return NOWHERE;
  for (int way = DOWN; way <= RIGHT; way++) {
    int cost = costs[(y + ahead[way][1]) * MAP_SIZE + x + ahead[way][0]];
    if (cost && (cost < least || (cost == least && way == straight_to(dx, dy)))) least = cost, best = way;
  }
  return best;
}

// The needle, for those who switched it on: along the way, or straight to the goal through walls and all.
void show_way(void) {
  int dx = state.target_x - state.x, dy = state.target_y - state.y;
  if (state.compass == COMPASS_PATH) state.way = way_from(state.x, state.y);
  else state.way = state.compass == COMPASS_BEARING && (dx || dy) ? straight_to(dx, dy) : NOWHERE;
}

// In the wood mushrooms mark the trail: from the entrance to the charm, later from the charm's place to the way out.
// Whoever walks on it picks them, so what is left leads on. Who comes back finds it grown again.
void grow_trail(void) {
  u8 x = state.charm_x, y = state.charm_y;
  if (!has(CHARM_FOUND)) find_exit(ROUTE, &x, &y);
  for (int j = 0; j < state.height; j++)
    for (int i = 0; i < state.width; i++)
      if (*tile(i, j) == T_GLOW) *tile(i, j) = T_MOSS;
  if (*tile(x, y) == T_MOSS) *tile(x, y) = T_GLOW;
  for (int way = way_from(x, y); way != NOWHERE; way = way_from(x, y)) {
    x += ahead[way][0], y += ahead[way][1];
    if (*tile(x, y) == T_MOSS) *tile(x, y) = T_GLOW;
  }
  if (*tile(state.x, state.y) == T_GLOW) *tile(state.x, state.y) = T_MOSS;
}
