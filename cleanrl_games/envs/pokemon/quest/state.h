// The game's whole state that others may read, at 0x02000000. ../ram.py describes the same bytes.
// SPDX-License-Identifier: MIT
#pragma once
#include "gba.h"

enum { MODE_TITLE, MODE_WALK, MODE_TALK, MODE_MENU, MODE_MESSAGE, MODE_FINISHED, MODE_MAP };
enum { DOWN, UP, LEFT, RIGHT };
enum { NOWHERE = 4 };
enum { NORTH, EAST, WEST };
enum { COMPASS_NONE, COMPASS_BEARING, COMPASS_PATH };
enum { HOME, TOWN, LAB, COTTAGE, ROUTE, FOREST, HIGHMOOR, GYM, COTTAGE_2, NUM_MAPS };
enum { NONE, FIRE, WATER, LEAF, PLAIN, SHADE };
enum {
  LEFT_HOME, LAB_ENTERED, STARTER_CHOSEN, RIVAL_BEATEN, PASS_RECEIVED, ROUTE_ENTERED, WILD_BEATEN, SCOUT_BEATEN,
      FOREST_ENTERED,
  CHARM_FOUND, HIGHMOOR_REACHED, GYM_ENTERED, LEADER_BEATEN, NUM_MILESTONES
};

typedef struct {
  u8 x, y, kind, facing;  // kind 0: nobody
} Person;

#define MAX_PEOPLE 8
#define MAP_SIZE 32

typedef struct {
  u32 magic;               // 0x00 "QST1"
  u8 version;              // 0x04
  u8 spare;                // 0x05
  u8 mode;                 // 0x06 MODE_*
  u8 map;                  // 0x07
  u8 x, y, facing, moving; // 0x08 moving: frames of a step that are left
  u16 milestones;          // 0x0c bit n: milestone n
  u8 objective;            // 0x0e index of the line in the top bar
  u8 starter;              // 0x0f element of one's own creature
  u8 hp, max_hp;           // 0x10
  u8 enemy, enemy_element; // 0x12 creature, element
  u8 enemy_hp, enemy_max_hp;
  u8 cursor, tonics;       // 0x16
  u8 talked_to_mother;     // 0x18
  u8 leader_element;       // 0x19
  u8 target_x, target_y;   // 0x1a where the objective is on this map, or the way out towards it
  u8 width, height;        // 0x1c
  u8 grass_steps, losses;  // 0x1e
  u32 frames, rng;         // 0x20
  Person people[MAX_PEOPLE];         // 0x28
  u8 way;                            // 0x48 what the compass shows: DOWN, UP, LEFT, RIGHT, or NOWHERE
  u8 compass;                        // 0x49 COMPASS_*; read when START is pressed on the title screen
  u8 route_turn, forest_turn;        // 0x4a where the roads of this world lead: NORTH, EAST, WEST
  u8 pass_house;                     // 0x4c COTTAGE or COTTAGE_2
  u8 rival_element, scout_element;   // 0x4d
  u8 enemy_blow;                     // 0x4f the hardest blow of the present enemy
  u8 grass_y, bridge_x, bridge_y;    // 0x50 on Route 1 before it is turned
  u8 charm_x, charm_y;               // 0x53
  u8 wild_met;                       // 0x55
  u16 seed;                          // 0x56 the world; read when START is pressed on the title screen
  u8 unused[0x100 - 0x58];
  u8 tiles[MAP_SIZE * MAP_SIZE];     // 0x100 rows of 32; 0 and everything from 16 on is solid
} State;

extern State state;
