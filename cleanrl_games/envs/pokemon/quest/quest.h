// What the rooms of this game share. SPDX-License-Identifier: MIT
#pragma once
#include "state.h"

// Ground one can stand on is 1 to 15; 0 and 16 upwards are solid.
enum {
  T_VOID, T_GRASS, T_FLOWERS, T_TALL, T_PATH, T_FLOOR, T_MAT, T_DOOR, T_MOSS, T_GLOW, T_TILES, T_BRIDGE, T_RUG, T_GATE,
      T_SKY, T_CLEAR_SKY,
  T_TREE = 16, T_WATER, T_FENCE, T_SIGN, T_ROOF_RED, T_ROOF_BLUE, T_ROOF_GOLD, T_ROOF_GREY, T_ROOF_GREEN, T_WALL,
      T_WINDOW, T_INNER, T_SHELF, T_TABLE,
  T_BED, T_PINE, T_STONE, T_STATUE, NUM_TILES
};
enum {
  NOBODY, MOTHER, PROFESSOR, RIVAL, NEIGHBOUR, GUARD, SCOUT, LEADER, FOLK, FOLK_2, ORB_RED, ORB_BLUE, ORB_GREEN, CHARM,
      THORN
};
// pictures among the sprites' tiles
enum { PIC_FRONT = 0, PIC_BACK = 4, PIC_SIDE = 8, PIC_ORB = 12, PIC_CHARM = 16, PIC_THORN = 20, PIC_ARROW_UP = 24,
    PIC_ARROW_SIDE = 28, PIC_CURSOR = 32,
       PIC_HOUSE = 36, PIC_TUFT = 40, PIC_PINE = 44, PIC_HILL = 48, PIC_CREATURE = 64 };
enum { CREATURE_FOX, CREATURE_DUCK, CREATURE_SPROUT, CREATURE_MOTH, CREATURE_GOLEM, CREATURE_SHADE };

// art.c, font.c
extern const u16 base_palette[16];
extern const char *const tile_art[NUM_TILES];
extern const char *const sprite_art[13];
extern const char *const creature_art[6];
extern const u8 font[64][7];

// video.c
void video_start(void);
void text_clear(int row, int rows);
void text_at(int column, int row, const char *line);
void text_glyph(int column, int row, int glyph);
void text_panel(int row, int rows);
void draw_map(void);
void draw_tile(int x, int y);
void draw_battlefield(void);
void draw_frame(void);
void draw_plan(void);
void draw_corner_plan(void);
void set_sprite(int slot, int x, int y, int tile, int bank, int flip, int big);
void hide_sprites(int from);
extern int step_offset;
enum { GLYPH_PANEL = 64, GLYPH_BAR, GLYPH_EMPTY_BAR, GLYPH_DONE, GLYPH_TODO, GLYPH_EDGE, GLYPH_LOW_BAR, GLYPH_MAP };

// main.c
extern u16 pressed;
u32 roll(u32 below);
void wait_frame(void);
void say(const char *first, const char *second);
void reach(int milestone);
int has(int milestone);

// maps.c, world.c, people.c
u32 layout_roll(u32 below);
void layout_seed(u32 part);
void build_map(void);
void measure_ways(int goal_x, int goal_y, int avoid_grass);
void show_way(void);
void grow_trail(void);
int turn_of(int map);
void turn(int turned, int height, int x, int y, u8 *to_x, u8 *to_y);
extern const s8 ahead[4][2];
void find_exit(int towards, u8 *x, u8 *y);
int exit_at(int x, int y);
void enter_map(int map, int from);
void walk(u16 held);
Person *person_at(int x, int y);
Person *person_of(int kind);
void add_person(int kind, int x, int y, int facing);
void place_people(void);
void speak_to(Person *person);
void update_objective(void);
int counter_of(int element);
void objective_icon(int *picture, int *bank);
extern const char *const map_names[NUM_MAPS], *const turn_names[3];

// battle.c
int battle(int creature, int element, int hp, int strength, int is_wild, const char *name);
