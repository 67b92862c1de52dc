// The eight places. Each is built anew from the seed whenever it is entered. SPDX-License-Identifier: MIT
#include "quest.h"

const char *const map_names[8] = {"HOME", "EMBERLY", "LAB", "COTTAGE", "ROUTE 1", "GLOW WOOD", "HIGHMOOR", "GYM"};

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
  state.width = w, state.height = h;
  fill(0, 0, w, h, border);
  fill(1, 1, w - 2, h - 2, ground);
}

// Four wide, three high; the door is the third tile of the lowest row.
static void house(int x, int y, int roof) {
  fill(x, y, 4, 2, roof);
  fill(x, y + 2, 4, 1, T_WALL);
  *tile(x + 1, y + 2) = T_WINDOW;
  *tile(x + 2, y + 2) = T_DOOR;
}

// Which corner of the town has which house: 0 home, 1 lab, 2 cottage, 3 the pond.
static void town_corners(u8 corners[4]) {
  for (int i = 0; i < 4; i++) corners[i] = i;
  for (int i = 3; i > 0; i--) {
    int other = layout_roll(i + 1), keep = corners[i];
    corners[i] = corners[other], corners[other] = keep;
  }
}

static void build_town(void) {
  u8 corners[4];
  int street = 8 + layout_roll(3);
  start_map(19, 14, T_GRASS, T_TREE);
  for (int i = 0; i < 10; i++) *tile(1 + layout_roll(17), 1 + layout_roll(12)) = T_FLOWERS;
  town_corners(corners);
  fill(street, 1, 1, 12, T_PATH);
  fill(2, 6, 15, 1, T_PATH);
  fill(2, 12, 15, 1, T_PATH);
  *tile(street, 0) = T_GATE;
  for (int i = 0; i < 4; i++) {
    int x = i & 1 ? 13 : 2, y = i & 2 ? 8 : 2;
    if (corners[i] == 3) {
      fill(x, y, 4, 3, T_WATER);
      continue;
    }
    house(x, y, corners[i] == 0 ? T_ROOF_RED : corners[i] == 1 ? T_ROOF_BLUE : T_ROOF_GOLD);
    *tile(x + 2, y + 3) = T_PATH;
  }
  *tile(street + 1, 7) = T_SIGN;
}

static void build_route(void) {
  start_map(15, 22, T_GRASS, T_TREE);
  *tile(7, 21) = T_GATE;
  *tile(3 + layout_roll(9), 0) = T_GATE;
  fill(1, 16, 13, 3, T_TALL);
  fill(1, 14, 13, 1, T_FENCE);
  *tile(2 + layout_roll(11), 14) = T_GRASS;
  fill(1, 9, 13, 3, T_WATER);
  fill(3 + layout_roll(9), 9, 1, 3, T_BRIDGE);
  fill(1, 5, 13, 1, T_FENCE);
  *tile(2 + layout_roll(11), 5) = T_GRASS;
  fill(2 + layout_roll(5), 2, 4, 2, T_TALL);
  for (int i = 0; i < 6; i++) *tile(1 + layout_roll(13), 6 + layout_roll(3)) = T_FLOWERS;
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
  *tile(7, 13) = T_GATE;
  int exit = 2 * layout_roll(CELLS_X) + 1;
  *tile(exit, 1) = T_MOSS;
  *tile(exit, 0) = T_GATE;
}

// What it costs to go to the objective by way of a tile, 0: one cannot. Steps, of which those into tall grass count twice unless it is sought.
static u8 costs[MAP_SIZE * MAP_SIZE] __attribute__((aligned(4)));

FAST void measure_ways(int avoid_grass) {
  static const s8 steps[4] = {MAP_SIZE, -MAP_SIZE, -1, 1};
  u16 queue[256];
  u8 head = 0, tail = 0;  // they go round
  int goal = state.target_y * MAP_SIZE + state.target_x, price_of_grass = avoid_grass ? 2 : 1;
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

// The first step of a cheapest way; of equal ones the one that looks more like the right direction.
static int way_from(int x, int y) {
  int dx = state.target_x - x, dy = state.target_y - y, best = NOWHERE, least = 256;
  int straight = (dx < 0 ? -dx : dx) > (dy < 0 ? -dy : dy) ? (dx < 0 ? LEFT : RIGHT) : dy > 0 ? DOWN : UP;
  if (!dx && !dy) return NOWHERE;
  for (int way = DOWN; way <= RIGHT; way++) {
    int cost = costs[(y + ahead[way][1]) * MAP_SIZE + x + ahead[way][0]];
    if (cost && (cost < least || (cost == least && way == straight))) least = cost, best = way;
  }
  return best;
}

static void set_tile(int x, int y, int kind) {
  *tile(x, y) = kind;
  draw_tile(x, y);
}

// The compass; and in the wood mushrooms glow on the way that lies ahead, and on that only.
void show_way(void) {
  int x = state.x, y = state.y;
  state.way = way_from(x, y);
  if (state.map != FOREST) return;
  for (int j = 0; j < state.height; j++)
    for (int i = 0; i < state.width; i++)
      if (*tile(i, j) == T_GLOW) set_tile(i, j, T_MOSS);
  for (int way = state.way; way != NOWHERE; way = way_from(x, y)) {
    x += ahead[way][0], y += ahead[way][1];
    if (*tile(x, y) == T_MOSS) set_tile(x, y, T_GLOW);
  }
}

static void build_highmoor(void) {
  int x = 2 + layout_roll(8);
  start_map(15, 11, T_GRASS, T_TREE);
  *tile(7, 10) = T_GATE;
  for (int i = 0; i < 8; i++) *tile(1 + layout_roll(13), 1 + layout_roll(9)) = T_FLOWERS;
  house(x, 2, T_ROOF_GREY);
  fill(x + 2, 5, 1, 1, T_PATH);
  fill(2, 6, 11, 1, T_PATH);
  fill(7, 7, 1, 3, T_PATH);
}

static void build_room(int w, int h, int floor, int wall) {
  start_map(w, h, floor, wall);
  *tile(w / 2, h - 1) = T_MAT;
}

static void build_home(void) {
  build_room(9, 7, T_FLOOR, T_INNER);
  *tile(1, 1) = T_BED;
  *tile(7, 1) = *tile(6, 1) = T_SHELF;
  fill(3, 3, 2, 1, T_RUG);
  *tile(7, 4) = T_TABLE;
}

static void build_lab(void) {
  build_room(11, 8, T_TILES, T_INNER);
  fill(1, 1, 2, 1, T_SHELF);
  fill(8, 1, 2, 1, T_SHELF);
  fill(3, 3, 5, 1, T_TABLE);
}

static void build_cottage(void) {
  build_room(9, 7, T_FLOOR, T_INNER);
  fill(1, 1, 3, 1, T_SHELF);
  *tile(1, 4) = T_TABLE;
  *tile(7, 1) = T_BED;
}

static void build_gym(void) {
  build_room(11, 12, T_TILES, T_STONE);
  for (int row = 5; row <= 8; row += 3) {
    fill(1, row, 9, 1, T_STATUE);
    *tile(1 + layout_roll(9), row) = T_RUG;
  }
}

void build_map(void) {
  static void (*const builders[8])(void) = {build_home,  build_town,   build_lab,      build_cottage,
                                            build_route, build_forest, build_highmoor, build_gym};
  layout_seed(0);
  builders[state.map]();
}

static int leads_to(int map, int x, int y) {
  int kind = *tile(x, y);
  if (kind == T_MAT) return map == GYM ? HIGHMOOR : TOWN;
  if (kind == T_DOOR) {
    int roof = *tile(x, y - 1);
    return roof == T_ROOF_RED ? HOME : roof == T_ROOF_BLUE ? LAB : roof == T_ROOF_GOLD ? COTTAGE : GYM;
  }
  if (kind != T_GATE) return -1;
  if (map == TOWN) return ROUTE;
  if (map == ROUTE) return y ? TOWN : FOREST;
  return map == FOREST ? (y ? ROUTE : HIGHMOOR) : FOREST;
}

// The tile of this map that leads to the place `towards`.
void find_exit(int towards, u8 *x, u8 *y) {
  for (int j = 0; j < state.height; j++)
    for (int i = 0; i < state.width; i++)
      if (leads_to(state.map, i, j) == towards) *x = i, *y = j;
}
