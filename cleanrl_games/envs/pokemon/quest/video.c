// Everything that reaches the screen: palettes, tiles, letters, sprites, camera. SPDX-License-Identifier: MIT
#include "quest.h"

int step_offset;  // pixels that the current step still has to go
static u16 sprites[32][4];
static int is_battle;

#define RGB(r, g, b) ((r) >> 3 | (g) >> 3 << 5 | (b) >> 3 << 10)

// Clothes and hides are colours 9 (dark) and a (light), hair is 7: a bank changes those and nothing else.
static const u16 banks[16][3] = {
    {RGB(200, 60, 60), RGB(240, 130, 90), RGB(110, 66, 38)},   // the player
    {RGB(196, 80, 150), RGB(240, 160, 200), RGB(150, 80, 40)}, // mother
    {RGB(200, 208, 220), RGB(246, 246, 238), RGB(130, 130, 140)},
    {RGB(50, 90, 180), RGB(110, 170, 240), RGB(230, 180, 70)}, // rival
    {RGB(60, 140, 80), RGB(150, 210, 120), RGB(60, 40, 30)},
    {RGB(90, 100, 120), RGB(160, 175, 190), RGB(50, 50, 60)},  // guard
    {RGB(220, 130, 40), RGB(250, 190, 90), RGB(60, 40, 30)},   // scout
    {RGB(110, 60, 160), RGB(180, 120, 220), RGB(40, 30, 60)},  // leader
    {RGB(40, 140, 150), RGB(110, 200, 200), RGB(160, 90, 50)},
    {RGB(150, 130, 40), RGB(220, 200, 90), RGB(90, 50, 40)},
    {RGB(216, 72, 48), RGB(250, 150, 70), RGB(255, 220, 90)},  // fire
    {RGB(50, 100, 210), RGB(110, 180, 250), RGB(200, 235, 255)},
    {RGB(50, 140, 60), RGB(130, 210, 90), RGB(240, 130, 170)}, // leaf
    {RGB(130, 110, 90), RGB(190, 170, 140), RGB(230, 220, 190)},
    {RGB(120, 60, 140), RGB(200, 150, 60), RGB(110, 66, 38)},
    {RGB(240, 190, 40), RGB(255, 235, 120), RGB(150, 100, 20)}, // the arrow
};

static int colour_of(char c) {
  if (c >= '1' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
}

// Pictures are written as letters, whole or as their left half (a mirror completes them).
static void load_art(volatile u16 *tiles, const char *art, int width, int height, int mirrored) {
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x += 4) {
      u16 value = 0;
      for (int i = 0; i < 4; i++) {
        int column = mirrored && x + i >= width / 2 ? width - 1 - x - i : x + i;
        value |= colour_of(art[y * (mirrored ? width / 2 : width) + column]) << 4 * i;
      }
      tiles[((y / 8) * (width / 8) + x / 8) * 16 + y % 8 * 2 + x % 8 / 4] = value;
    }
}

static void fill_tile(volatile u16 *tile, int colour) {
  for (int i = 0; i < 16; i++) tile[i] = colour * 0x1111;
}

// The map in the menu: a tile is a square of 8 x 8.
enum { PLAN_GROUND, PLAN_SOLID, PLAN_WATER, PLAN_RED, PLAN_BLUE, PLAN_GOLD, PLAN_GREY, PLAN_GREEN, PLAN_EXIT,
    PLAN_PERSON, PLAN_YOU, NUM_PLAN_KINDS };
static const u8 plan_colours[NUM_PLAN_KINDS] = {4, 2, 12, 9, 11, 5, 13, 3, 15, 10, 9};

static void load_letters(void) {
  for (int glyph = 0; glyph < 64; glyph++)
    for (int y = 0; y < 8; y++)
      for (int half = 0; half < 2; half++) {
        u16 value = 0;
        for (int i = 0; i < 4; i++) {
          int column = 4 * half + i - 1, row = y - 1;
          int ink = row >= 0 && column >= 0 && column < 5 && font[glyph][row] >> (4 - column) & 1;
          value |= (ink ? 15 : 1) << 4 * i;
        }
        TEXT_TILES[(glyph + 1) * 16 + y * 2 + half] = value;
      }
  fill_tile(TEXT_TILES, 0);
  fill_tile(TEXT_TILES + (GLYPH_PANEL + 1) * 16, 1);
  load_art(TEXT_TILES + (GLYPH_BAR + 1) * 16, "11111111ffffffff44444444333333333333333333333333ffffffff11111111", 8, 8,
      0);
  load_art(TEXT_TILES + (GLYPH_LOW_BAR + 1) * 16, "11111111ffffffffaaaaaaaa999999999999999999999999ffffffff11111111", 8,
      8, 0);
  load_art(TEXT_TILES + (GLYPH_EMPTY_BAR + 1) * 16, "11111111ffffffffddddddddddddddddddddddddddddddddffffffff11111111",
      8, 8, 0);
  load_art(TEXT_TILES + (GLYPH_DONE + 1) * 16, "111111111aaaaaa11a5555a11a5555a11a5555a11a5555a11aaaaaa111111111", 8, 8,
      0);
  load_art(TEXT_TILES + (GLYPH_EDGE + 1) * 16, "11111111ffffffffeeeeeeee1111111111111111111111111111111111111111", 8, 8,
      0);
  for (int kind = 0; kind < NUM_PLAN_KINDS; kind++) fill_tile(TEXT_TILES + (GLYPH_MAP + kind + 1) * 16,
      plan_colours[kind]);
  load_art(TEXT_TILES + (GLYPH_MAP + PLAN_YOU + 1) * 16,
           "111111111ffffff11f9999f11f9999f11f9999f11f9999f11ffffff111111111", 8, 8, 0);
  load_art(TEXT_TILES + (GLYPH_TODO + 1) * 16, "111111111dddddd11d1111d11d1111d11d1111d11d1111d11dddddd111111111", 8, 8,
      0);
}

static u16 darker(u16 colour) {
  int r = colour & 31, g = colour >> 5 & 31, b = colour >> 10;
  return r * 5 / 8 | g * 11 / 16 << 5 | (b * 3 / 4 + 3) << 10;
}

void video_start(void) {
  for (int bank = 0; bank < 16; bank++)
    for (int i = 0; i < 16; i++) {
      OBJ_PALETTE[bank * 16 + i] = i == 9 ? banks[bank][0] : i == 10 ? banks[bank][1] : i == 7 ?
          banks[bank][2] : base_palette[i];
      if (bank < 6) BG_PALETTE[bank * 16 + i] = base_palette[i];
    }
  // roofs: bank 1 blue, 2 gold, 3 grey; the forest is the daylight palette at dusk, where mushrooms glow
  const u16 roofs[4][2] = {{0, 0}, {base_palette[11], base_palette[12]}, {RGB(190, 140, 30), RGB(240, 205, 90)},
      {base_palette[13], base_palette[14]}};
  for (int bank = 1; bank < 4; bank++) BG_PALETTE[bank * 16 + 9] = roofs[bank][0],
      BG_PALETTE[bank * 16 + 10] = roofs[bank][1];
  for (int i = 1; i < 15; i++) BG_PALETTE[4 * 16 + i] = i == 5 ? RGB(255, 230, 90) : darker(base_palette[i]);
  BG_PALETTE[5 * 16 + 9] = base_palette[2], BG_PALETTE[5 * 16 + 10] = base_palette[3];  // and 5 green
  load_letters();
  for (int tile = 0; tile < NUM_TILES; tile++)
    if (tile_art[tile]) load_art(WORLD_TILES + tile * 64, tile_art[tile], 16, 16, 0);
  for (int i = 0; i < 13; i++) load_art(OBJ_TILES + i * 64, sprite_art[i], 16, 16, i != 2 && i != 7);
  for (int i = 0; i < 6; i++) load_art(OBJ_TILES + (PIC_CREATURE + 16 * i) * 16, creature_art[i], 32, 32, 1);
  text_clear(0, 20);
  hide_sprites(0);
  BGCNT(0) = 0 | 24 << 8;
  BGCNT(1) = 2 | 1 << 2 | 28 << 8 | 3 << 14;
  // one matrix, a half: creatures are drawn at twice their size
  for (int i = 0; i < 128; i++) OAM[i * 4] = 1 << 9;
  OAM[3] = OAM[15] = 0x80, OAM[7] = OAM[11] = 0;
  DISPCNT = 0x40 | 1 << 8 | 1 << 9 | 1 << 12;
}

void text_glyph(int column, int row, int glyph) { TEXT_MAP[row * 32 + column] = glyph + 1; }

void text_at(int column, int row, const char *line) {
  for (; *line && column < 30; line++) text_glyph(column++, row, *line - 32);
}

static void fill_text(int row, int rows, u16 value) {
  for (int i = row * 32; i < (row + rows) * 32; i++) TEXT_MAP[i] = value;
}

void text_clear(int row, int rows) { fill_text(row, rows, 0); }

void text_panel(int row, int rows) {
  fill_text(row, rows, GLYPH_PANEL + 1);
  if (row) fill_text(row, 1, GLYPH_EDGE + 1);  // the top bar needs no edge
}

static void put_tile(int x, int y, int tile, int bank) {
  // four tiles of 8 x 8, two of them in one 32-bit write; blocks of 32 x 32 tiles follow one another
  volatile u32 *at = (volatile u32 *)WORLD_MAP + (y >> 4 << 1 | x >> 4) * 512 + (y & 15) * 32 + (x & 15);
  u32 entry = (tile * 4) | bank << 12;
  at[0] = entry | (entry + 1) << 16;
  at[16] = (entry + 2) | (entry + 3) << 16;
}

static int is_roof(int tile) { return tile >= T_ROOF_RED && tile <= T_ROOF_GREEN; }

static int bank_of(int tile) {
  if (state.map == FOREST) return 4;
  return tile == T_ROOF_GREEN ? 5 : is_roof(tile) ? tile - T_ROOF_RED : 0;
}

void draw_tile(int x, int y) {
  int tile = state.tiles[y * MAP_SIZE + x];
  // out of doors the trees at the edge of a map go on for ever
  if (tile == T_VOID && (state.map == TOWN || (state.map >= ROUTE && state.map <= HIGHMOOR))) tile = state.tiles[0];
  put_tile(x, y, is_roof(tile) ? T_ROOF_RED : tile, bank_of(tile));
}

// Each region has ground of its own colour: meadows, dry grass on the route, frost in Highmoor.
static void colour_region(void) {
  static const u16 dry[3] = {RGB(150, 112, 40), RGB(206, 178, 88), RGB(240, 222, 140)};
  static const u16 frost[3] = {RGB(92, 104, 150), RGB(158, 178, 208), RGB(222, 232, 244)};
  for (int i = 0; i < 3; i++) BG_PALETTE[2 + i] = state.map == ROUTE ? dry[i] : state.map == HIGHMOOR ||
      state.map == GYM ? frost[i] : base_palette[2 + i];
}

FAST void draw_map(void) {
  is_battle = 0;
  colour_region();
  for (int y = 0; y < MAP_SIZE; y++)
    for (int x = 0; x < MAP_SIZE; x++) draw_tile(x, y);
}

void draw_battlefield(void) {
  is_battle = 1;
  text_clear(0, 20);
  for (int y = 0; y < 10; y++)
    for (int x = 0; x < 15; x++) put_tile(x, y, y < 4 ? (x * 5 + y * 7) % 6 ? T_CLEAR_SKY : T_SKY : y == 4 ?
        T_GRASS : (x + y) % 3 ? T_GRASS : T_FLOWERS, 0);
  BGX(1) = BGY(1) = 0;
}

void set_sprite(int slot, int x, int y, int tile, int bank, int flip, int big) {
  // a creature: 32 x 32 in a doubled frame, so that the matrix can enlarge it to 64 x 64
  sprites[slot][0] = (y & 255) | (big ? 3 << 8 : 0);
  sprites[slot][1] = (x & 511) | (big ? 2 << 14 : (flip ? 1 << 12 : 0) | 1 << 14);
  sprites[slot][2] = tile | 1 << 10 | bank << 12;
}

void hide_sprites(int from) {
  for (int i = from; i < 32; i++) sprites[i][0] = 1 << 9;
}

static int picture_of(int facing) { return facing == UP ? PIC_BACK : facing == DOWN ? PIC_FRONT : PIC_SIDE; }

static void draw_world(void) {
  int forward_x = ahead[state.facing][0], forward_y = ahead[state.facing][1];
  int px = state.x * 16 - forward_x * step_offset, py = state.y * 16 - forward_y * step_offset;
  int cx = px + 8 - 120, cy = py + 8 - 88;  // the player is always in the middle of what the top bar leaves
  BGX(1) = cx, BGY(1) = cy;
  int slot = 0, picture, bank;
  objective_icon(&picture, &bank);
  set_sprite(slot, 192, 0, picture, bank, 0, 0);
  sprites[slot++][2] &= ~(1 << 10);  // above the bar, whose layer is 0
  if (state.way != NOWHERE) {
    // the compass: its needle also swings to the side it points to
    int sideways = ahead[state.way][0];
    set_sprite(slot++, 216 + 8 * sideways, 0, sideways ? PIC_ARROW_SIDE : PIC_ARROW_UP, 15, state.way == LEFT, 0);
    if (state.way == DOWN) sprites[1][1] |= 1 << 13;
    sprites[1][2] &= ~(1 << 10);
  }
  // a frame around what one is facing
  set_sprite(slot++, px - cx + 16 * forward_x, py - cy + 16 * forward_y, PIC_CURSOR, 1, 0, 0);
  set_sprite(slot++, px - cx, py - cy - (step_offset & 4 ? 1 : 0), picture_of(state.facing), 0, state.facing == LEFT,
      0);
  for (int i = 0; i < MAX_PEOPLE; i++) {
    Person *person = &state.people[i];
    int x = person->x * 16 - cx, y = person->y * 16 - cy;
    if (!person->kind || x <= -16 || x >= 240 || y <= -16 || y >= 160) continue;
    int tile = person->kind < ORB_RED ? picture_of(person->facing) : person->kind < CHARM ?
        PIC_ORB : person->kind == CHARM ? PIC_CHARM : PIC_THORN;
    int bank = person->kind < CHARM ? person->kind : person->kind == CHARM ? 15 : 12;
    set_sprite(slot++, x, y, tile, bank, person->facing == LEFT, 0);
  }
  hide_sprites(slot);
}

static int plan_kind(int x, int y) {
  static const u8 roofs[5] = {PLAN_RED, PLAN_BLUE, PLAN_GOLD, PLAN_GREY, PLAN_GREEN};
  int tile = state.tiles[y * MAP_SIZE + x];
  if (x == state.x && y == state.y) return PLAN_YOU;
  if (person_at(x, y)) return PLAN_PERSON;
  if (is_roof(tile)) return roofs[tile - T_ROOF_RED];
  if (tile == T_WATER) return PLAN_WATER;
  if (tile == T_DOOR || tile == T_GATE || tile == T_MAT) return PLAN_EXIT;
  return tile < T_TREE ? PLAN_GROUND : PLAN_SOLID;
}

void draw_plan(void) {
  text_panel(2, 18);
  int left = (30 - state.width) / 2;
  for (int y = 0; y < state.height; y++)
    for (int x = 0; x < state.width; x++) text_glyph(left + x, 2 + y, GLYPH_MAP + plan_kind(x, y));
}

// The town's four roofs, each in its corner and its colour, on the right below the top bar. Elsewhere there is no plan.
void draw_corner_plan(void) {
  text_clear(2, 4);
  if (state.map != TOWN) return;
  for (int row = 2; row < 6; row++)
    for (int column = 24; column < 30; column++) text_glyph(column, row, GLYPH_PANEL);
  for (int corner = 0; corner < 4; corner++) {
    int right = corner & 1, low = corner >> 1, roof = state.tiles[(low ? 8 : 2) * MAP_SIZE + (right ? 13 : 2)];
    for (int i = 0; i < 2; i++)
      TEXT_MAP[(2 + 2 * low) * 32 + 25 + 3 * right + i] = (GLYPH_MAP + PLAN_RED + 1) | bank_of(roof) << 12;
  }
}

void draw_frame(void) {
  if (!is_battle && state.mode != MODE_MAP) draw_world();
  for (int i = 0; i < 32; i++)
    for (int j = 0; j < 3; j++) OAM[i * 4 + j] = sprites[i][j];
}
