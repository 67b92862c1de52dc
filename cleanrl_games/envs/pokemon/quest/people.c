// Who stands where, what they say, and what is to be done next. SPDX-License-Identifier: MIT
#include "quest.h"

static const char *const orb_names[3] = {"CINDLE, THE FIRE FOX", "PUDDLE, THE WATER DUCK", "SPROUT, THE LEAF IMP"};

enum { GOAL_NONE, GOAL_MOTHER, GOAL_OUT, GOAL_LAB, GOAL_RED, GOAL_BLUE, GOAL_GREEN, GOAL_RIVAL, GOAL_PASS, GOAL_ROUTE,
    GOAL_GRASS, GOAL_SCOUT,
       GOAL_FOREST, GOAL_CHARM, GOAL_HIGHMOOR, GOAL_GYM, GOAL_LEADER, GOAL_PASS_GREEN, NUM_GOALS };
static const char *const goals[] = {"",                    "TALK TO MOTHER",     "GO OUTSIDE",
    "GO TO THE BLUE LAB",  "TAKE THE RED ORB",
                                    "TAKE THE BLUE ORB",   "TAKE THE GREEN ORB", "BEAT REX IN THE LAB",
                                    "PASS: GOLDEN ROOF",   "TO ROUTE 1",
                                    "SEARCH TALL GRASS",   "BEAT THE SCOUT",     "TO GLOW WOOD",
                                    "FIND THE STAR CHARM", "TO HIGHMOOR",
                                    "GO INTO THE GYM",     "BEAT LEADER ONYXA",  "PASS: GREEN ROOF"};

// The picture in the top bar: whom or what the objective is about. A place is its roof, or what grows there.
void objective_icon(int *picture, int *bank) {
  static const u8 icons[NUM_GOALS][2] = {
      {PIC_FRONT, 0}, {PIC_FRONT, MOTHER}, {PIC_HOUSE, 0},  {PIC_HOUSE, 11}, {PIC_ORB, 10},   {PIC_ORB, 11},
      {PIC_ORB, 12},  {PIC_FRONT, RIVAL},  {PIC_HOUSE, 15}, {PIC_TUFT, 9},   {PIC_TUFT, 12},  {PIC_FRONT, SCOUT},
      {PIC_PINE, 12}, {PIC_CHARM, 15},     {PIC_HILL, 2},   {PIC_HOUSE, 5},  {PIC_FRONT, LEADER}, {PIC_HOUSE, 12}};
  *picture = icons[state.objective][0], *bank = icons[state.objective][1];
}

void fight_trainer(int milestone, int creature, int element, int hp, int strength, const char *name);

static int people;

void add_person(int kind, int x, int y, int facing) { state.people[people++] = (Person){x, y, kind, facing}; }

Person *person_of(int kind) {
  for (int i = 0; i < MAX_PEOPLE; i++)
    if (state.people[i].kind == kind) return &state.people[i];
  return 0;
}

// The element that beats another: fire burns leaf, leaf drinks water, water quenches fire.
int counter_of(int element) { return element == FIRE ? WATER : element == WATER ? LEAF : FIRE; }

// Bystanders stand on open ground, never on a street.
static void add_folk(int kind, int row) {
  int x = 2 + layout_roll(state.width - 4), at = row * MAP_SIZE + x, facing = layout_roll(4);
  if (state.tiles[at] != T_GRASS && state.tiles[at] != T_FLOWERS) return;
  if (x == state.x && row == state.y) return;
  add_person(kind, x, row, facing);
}

// Somebody on a map that is turned: (x, y) as if its road went north.
static void add_turned(int kind, int x, int y) {
  u8 to_x, to_y;
  int turned = turn_of(state.map);
  turn(turned, turned == NORTH ? state.height : state.width, x, y, &to_x, &to_y);
  add_person(kind, to_x, to_y, DOWN);
}

// In front of the gate, or a step beside it.
static void add_guard(void) {
  u8 x = 0, y = 0;
  int aside = has(PASS_RECEIVED);
  find_exit(ROUTE, &x, &y);
  if (y == 0) add_person(GUARD, x + aside, 1, DOWN);
  else add_person(GUARD, x ? x - 1 : 1, y + aside, DOWN);
}

void place_people(void) {
  layout_seed(1);  // people stand where they stood, whatever has happened since
  u32 shuffle = layout_roll(6);
  for (int i = 0; i < MAX_PEOPLE; i++) state.people[i].kind = NOBODY;
  people = 0;
  switch (state.map) {
    case HOME:
      add_person(MOTHER, 2 + layout_roll(4), 4, layout_roll(2) ? DOWN : UP);
      break;
    case TOWN:
      add_guard();
      add_folk(FOLK, 7);
      add_folk(FOLK_2, 5);
      break;
    case LAB:
      add_person(PROFESSOR, 5, 2, DOWN);
      add_person(RIVAL, layout_roll(2) ? 2 : 8, 4 + layout_roll(2), DOWN);
      for (u32 i = 0; i < 3 && !has(STARTER_CHOSEN); i++) {
        u32 place = shuffle < 3 ? (i + shuffle) % 3 : (5 - i + shuffle) % 3;
        add_person(ORB_RED + i, 3 + 2 * place, 3, DOWN);
      }
      break;
    case COTTAGE: case COTTAGE_2:
      add_person(state.map == state.pass_house ? NEIGHBOUR : FOLK_2, 2 + layout_roll(5), 2 + layout_roll(2), DOWN);
      break;
    case ROUTE: {
      int aside = has(SCOUT_BEATEN);
      add_turned(SCOUT, state.bridge_x + aside, state.bridge_y + aside);
      add_turned(FOLK, 1 + layout_roll(2), 16);
      break;
    }
    case FOREST: {
      int cell = layout_roll(7), row = 4 + 2 * layout_roll(3);
      turn(state.forest_turn, 14, 2 * cell + 1, row, &state.charm_x, &state.charm_y);
      if (!has(CHARM_FOUND)) {
        u8 x = 0, y = 0;
        find_exit(HIGHMOOR, &x, &y);
        add_person(CHARM, state.charm_x, state.charm_y, DOWN);
        // one tile before the way out
        add_person(THORN, x == 0 ? 1 : x == state.width - 1 ? x - 1 : x, y == 0 ? 1 : y, DOWN);
      }
      break;
    }
    case HIGHMOOR:
      add_folk(FOLK, 8);
      add_folk(FOLK_2, 7);
      break;
    case GYM:
      add_person(LEADER, 2 + layout_roll(7), 2, DOWN);
      break;
  }
}

static void take_orb(int element) {
  say("YOU TAKE", orb_names[element - 1]);
  state.starter = element;
  reach(STARTER_CHOSEN);
  for (int i = 0; i < MAX_PEOPLE; i++)
    if (state.people[i].kind >= ORB_RED && state.people[i].kind <= ORB_GREEN) state.people[i].kind = NOBODY;
  update_objective();
}

static void speak_to_rival(void) {
  if (!has(STARTER_CHOSEN)) return say("REX: GO ON, CHOOSE FIRST.", "I CAN WAIT.");
  if (has(RIVAL_BEATEN)) return say("REX: ONYXA IN HIGHMOOR", "WILL STOP YOU.");
  say("REX: LET US SEE WHAT", "YOUR FRIEND CAN DO!");
  static const char *const names[3] = {"REX'S CINDLE", "REX'S PUDDLE", "REX'S SPROUT"};
  int element = state.rival_element - FIRE;
  fight_trainer(RIVAL_BEATEN, CREATURE_FOX + element, state.rival_element, 22, 5, names[element]);
}

static void speak_to_guard(void) {
  if (has(PASS_RECEIVED)) return say("GUARD: A VALID PASS.", "GOOD LUCK OUT THERE.");
  say("GUARD: NO PASS, NO ROUTE.", state.pass_house == COTTAGE ? "ODA'S ROOF IS GOLDEN." : "ODA'S ROOF IS GREEN.");
}

static void speak_to_neighbour(void) {
  if (!has(RIVAL_BEATEN)) return say("ODA: A PASS? SHOW ME FIRST", "THAT YOU CAN FIGHT.");
  say("ODA: HERE IS THE PASS.", "THE GUARD WILL STEP ASIDE.");
  reach(PASS_RECEIVED);
}

static void speak_to_scout(void) {
  if (has(SCOUT_BEATEN)) return say("SCOUT: FOLLOW THE", "TRAIL OF MUSHROOMS.");
  if (!has(WILD_BEATEN)) return say("SCOUT: COME BACK WHEN YOU", "HAVE BEATEN A WILD ONE.");
  say("SCOUT: THE BRIDGE IS MINE.", "WIN AND YOU MAY PASS.");
  static const char *const names[3] = {"SCOUT'S CINDLE", "SCOUT'S PUDDLE", "SCOUT'S SPROUT"};
  int element = state.scout_element - FIRE;
  fight_trainer(SCOUT_BEATEN, CREATURE_FOX + element, state.scout_element, 24, 5, names[element]);
}

static void speak_to_leader(void) {
  say("ONYXA: YOU CAME FAR.", "SHOW ME YOUR BEST.");
  fight_trainer(LEADER_BEATEN, CREATURE_GOLEM, state.leader_element, 54, 7, "ONYXA'S GOLEM");
}

void speak_to(Person *person) {
  if (person->kind < ORB_RED) person->facing = state.facing ^ 1;  // turns to whom it talks with
  switch (person->kind) {
    case MOTHER:
      say("MOTHER: PROFESSOR IVY ASKED", "FOR YOU. HER ROOF IS BLUE.");
      state.talked_to_mother = 1;
      update_objective();
      break;
    case PROFESSOR:
      say("IVY: LEADER ONYXA FIGHTS",
          state.leader_element == FIRE ? "WITH FIRE. WATER BEATS IT." : state.leader_element == WATER ?
              "WITH WATER. LEAF BEATS IT." : "WITH LEAF. FIRE BEATS IT.");
      break;
    case RIVAL: speak_to_rival(); break;
    case NEIGHBOUR: speak_to_neighbour(); break;
    case GUARD: speak_to_guard(); break;
    case SCOUT: speak_to_scout(); break;
    case LEADER: speak_to_leader(); break;
    case ORB_RED: case ORB_BLUE: case ORB_GREEN: take_orb(FIRE + person->kind - ORB_RED); break;
    case CHARM:
      say("YOU FOUND THE STAR CHARM!", "SOMEWHERE THORNS GIVE WAY.");
      person->kind = NOBODY;
      person_of(THORN)->kind = NOBODY;
      reach(CHARM_FOUND);
      draw_map();
      break;
    case THORN: say("THORNS. ONLY THE STAR CHARM", "OPENS THE WAY."); break;
    case FOLK: say("A SHADE IN THE GRASS?", "NOTHING HURTS IT. RUN!"); break;
    case FOLK_2:
      if (state.map == COTTAGE || state.map == COTTAGE_2) {
        say("A PASS? NOT HERE. ODA HAS", state.pass_house == COTTAGE ? "THE GOLDEN ROOF." : "THE GREEN ROOF.");
        break;
      }  // fall through
    default: say("FIRE BURNS LEAF, LEAF DRINKS", "WATER, WATER QUENCHES FIRE.");
  }
}

// The place of an objective, then whom to see there (0: being there is enough).
static void objective(u8 *goal, u8 *map, u8 *kind) {
  int orb = counter_of(state.leader_element);
  static const u8 table[NUM_MILESTONES][3] = {
      [LEFT_HOME] = {GOAL_OUT, TOWN, 0},          [LAB_ENTERED] = {GOAL_LAB, LAB, 0},
      [STARTER_CHOSEN] = {GOAL_RED, LAB, ORB_RED},
      [RIVAL_BEATEN] = {GOAL_RIVAL, LAB, RIVAL},  [PASS_RECEIVED] = {GOAL_PASS, COTTAGE, NEIGHBOUR},
      [ROUTE_ENTERED] = {GOAL_ROUTE, ROUTE, 0},
      [WILD_BEATEN] = {GOAL_GRASS, ROUTE, 0},     [SCOUT_BEATEN] = {GOAL_SCOUT, ROUTE, SCOUT},
      [FOREST_ENTERED] = {GOAL_FOREST, FOREST, 0},
      [CHARM_FOUND] = {GOAL_CHARM, FOREST, CHARM}, [HIGHMOOR_REACHED] = {GOAL_HIGHMOOR, HIGHMOOR, 0},
      [GYM_ENTERED] = {GOAL_GYM, GYM, 0},
      [LEADER_BEATEN] = {GOAL_LEADER, GYM, LEADER}};
  int next = 0;
  while (next < NUM_MILESTONES - 1 && has(next)) next++;
  *goal = table[next][0], *map = table[next][1], *kind = table[next][2];
  if (next == LEFT_HOME && !state.talked_to_mother) *goal = GOAL_MOTHER, *map = HOME, *kind = MOTHER;
  if (next == STARTER_CHOSEN) *goal += orb - FIRE, *kind += orb - FIRE;
  if (next == PASS_RECEIVED && state.pass_house == COTTAGE_2) *goal = GOAL_PASS_GREEN, *map = COTTAGE_2;
}

// The tall grass: the middle of the field, to the left or to the right of where one is.
static void aim_at_grass(void) {
  int turned = state.route_turn, along = turned == NORTH ? state.x : state.y;
  turn(turned, 18, along < 7 ? 10 : 4, state.grass_y, &state.target_x, &state.target_y);
}

void update_objective(void) {
  // the world is a row of places; the houses hang off the town
  static const u8 order[NUM_MAPS] = {0, 1, 0, 0, 2, 3, 4, 5, 0};
  static const u8 row[6] = {0, TOWN, ROUTE, FOREST, HIGHMOOR, GYM};
  u8 goal, map, kind;
  objective(&goal, &map, &kind);
  state.objective = goal;
  if (map != state.map) {
    int here = order[state.map], there = order[map], hop = here == 0 ? TOWN : here == 1 &&
        there == 0 ? map : row[here + (there > here ? 1 : -1)];
    find_exit(hop, &state.target_x, &state.target_y);
  } else if (kind) {
    Person *person = person_of(kind);
    if (person) state.target_x = person->x, state.target_y = person->y;
  } else {
    aim_at_grass();
  }
  measure_ways(state.target_x, state.target_y, goal != GOAL_GRASS);
  if (state.map == FOREST) grow_trail();
  show_way();
  text_panel(0, 2);
  int is_far = goal == GOAL_ROUTE || goal == GOAL_FOREST || goal == GOAL_HIGHMOOR;
  if (is_far) text_at(1, 0, turn_names[goal == GOAL_HIGHMOOR ? state.forest_turn : state.route_turn]);
  text_at(is_far ? 7 : 1, 0, goals[goal]);
  text_at(1, 1, map_names[state.map]);
  for (int i = 0; i < NUM_MILESTONES; i++) text_glyph(11 + i, 1, has(i) ? GLYPH_DONE : GLYPH_TODO);
  draw_corner_plan();
}
