// The frame loop, the title, the text box. SPDX-License-Identifier: MIT
#include "quest.h"

State state __attribute__((section(".state")));
u16 pressed;  // keys that went down in this frame
static u16 held;

u32 roll(u32 below) {
  state.rng = state.rng * 1664525u + 1013904223u;
  return (state.rng >> 16) % below;
}

void wait_frame(void) {
  INT_FLAGS = 1;
  __asm__ volatile("swi 0x02" ::: "r0", "r1", "r2", "r3", "memory");  // sleeps until the vertical blank
  INT_FLAGS = 1;
  draw_frame();
  u16 now = ~KEYS & 0x3ff;
  pressed = now & ~held;
  held = now;
  state.frames++;
}

static void wait_for(u16 keys) {
  do wait_frame();
  while (!(pressed & keys));
}

int has(int milestone) { return state.milestones >> milestone & 1; }

void reach(int milestone) {
  state.milestones |= 1 << milestone;
  update_objective();
}

// Two lines and an arrow; A or B goes on.
void say(const char *first, const char *second) {
  u8 before = state.mode;
  state.mode = before == MODE_WALK ? MODE_TALK : MODE_MESSAGE;
  text_panel(14, 6);
  text_at(2, 15, first);
  text_at(2, 17, second);
  text_at(25, 18, "A >");
  wait_for(KEY_A | KEY_B);
  text_clear(14, 6);
  state.mode = before;
}

static void show_seed(void) {
  char line[] = "WORLD 00000";
  for (int i = 10, rest = state.seed; rest; i--, rest /= 10) line[i] += rest % 10;
  static const char *const needles[3] = {"COMPASS: NONE   ", "COMPASS: BEARING", "COMPASS: PATH   "};
  text_at(9, 12, line);
  text_at(7, 18, needles[state.compass]);
}

static void title(void) {
  state.mode = MODE_TITLE;
  draw_battlefield();
  text_at(9, 4, "EMBER  QUEST");
  text_at(5, 6, "THE ROAD TO HIGHMOOR");
  text_at(9, 16, "PRESS START");
  for (int i = 0; i < 3; i++) set_sprite(i, 24 + 64 * i, 64, PIC_CREATURE + 16 * i, 10 + i, 0, 1);
  hide_sprites(3);
  do {
    show_seed();
    wait_frame();
    if (pressed & KEY_L) state.seed--;
    if (pressed & KEY_R) state.seed++;
    if (pressed & KEY_DOWN) state.seed -= 100;
    if (pressed & KEY_UP) state.seed += 100;
    if (pressed & KEY_SELECT) state.compass = (state.compass + 1) % 3;
  } while (!(pressed & KEY_START));
  text_clear(0, 20);
}

int main(void) {
  WAITCNT = 0x4317;
  DISPSTAT = 8;
  INT_ENABLE = 1;
  INT_MASTER = 0;  // halting wakes up without a handler
  for (u32 i = 0; i < sizeof(State) / 4; i++) ((u32 *)&state)[i] = 0;
  state.magic = 0x31545351, state.version = 5;
  video_start();
  title();
  state.rng = state.seed * 2654435761u + 12345;
  state.max_hp = state.hp = 30;
  state.leader_element = FIRE + (state.seed * 7 + 3) / 5 % 3;
  // what distinguishes this world from others, beside what the maps roll themselves
  layout_seed(2);
  state.route_turn = layout_roll(3), state.forest_turn = layout_roll(3);
  state.pass_house = layout_roll(2) ? COTTAGE : COTTAGE_2;
  state.rival_element = FIRE + layout_roll(3), state.scout_element = FIRE + layout_roll(3);
  state.mode = MODE_WALK;
  enter_map(HOME, HOME);
  while (!has(LEADER_BEATEN)) {
    wait_frame();
    walk(held);
  }
  state.mode = MODE_FINISHED;
  draw_battlefield();
  text_at(7, 5, "YOU ARE CHAMPION");
  text_at(8, 7, "OF HIGHMOOR !");
  set_sprite(0, 88, 80, PIC_CREATURE + 16 * (state.starter - 1), 9 + state.starter, 0, 1);
  hide_sprites(1);
  for (;;) wait_frame();
}
