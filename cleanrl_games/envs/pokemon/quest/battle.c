// A battle: a menu of four, one message a round. SPDX-License-Identifier: MIT
#include "quest.h"

static const char *const own_names[3] = {"CINDLE", "PUDDLE", "SPROUT"};
static const char *const own_moves[3] = {"EMBER", "SPLASH", "VINE"};
enum { ELEMENT, TACKLE, TONIC, RUN };

static int beats(int element) { return element == FIRE ? LEAF : element == LEAF ? WATER : element == WATER ?
    FIRE : NONE; }

// One's own move is strong against what its element beats, fair against plain creatures and hardly felt by the others.
// A tackle is a tackle. Nothing hurts a shade.
static int damage_to(int against, int is_tackle) {
  if (against == SHADE) return 1;
  if (is_tackle) return 6 + roll(2);
  if (against == beats(state.starter)) return 12 + roll(3);
  return against == PLAIN ? 8 + roll(2) : 2 + roll(2);
}

static void number(int column, int row, int value) {
  char text[3] = {value > 9 ? '0' + value / 10 : ' ', '0' + value % 10, 0};
  text_at(column, row, text);
}

static void bar(int column, int row, int hp, int max_hp, int glyph) {
  int full = (hp * 10 + max_hp - 1) / max_hp;
  for (int i = 0; i < 10; i++) text_glyph(column + i, row, i < full ? glyph : GLYPH_EMPTY_BAR);
}

static void show_health(const char *name) {
  text_at(1, 1, name);
  bar(1, 2, state.enemy_hp, state.enemy_max_hp, GLYPH_BAR);
  number(12, 2, state.enemy_hp);
  text_at(17, 11, own_names[state.starter - 1]);
  // red when the next blow could be the last
  bar(17, 12, state.hp, state.max_hp, state.hp <= state.enemy_blow ? GLYPH_LOW_BAR : GLYPH_BAR);
  number(28, 12, state.hp);
}

static void show_menu(void) {
  text_panel(14, 6);
  text_at(4, 15, own_moves[state.starter - 1]);
  text_at(18, 15, "TACKLE");
  text_at(4, 18, state.tonics ? "TONIC" : "NO TONIC");
  text_at(18, 18, "RUN");
  int column = state.cursor & 1 ? 16 : 2, row = state.cursor & 2 ? 18 : 15;
  text_at(column, row, ">");
  for (int i = 0; i < 10; i++) text_glyph(column + i, row + 1, GLYPH_DONE);  // underlined, which is hard to overlook
}

static int choose(void) {
  state.cursor = roll(4);  // the hand is never where it was: looking beats habit
  state.mode = MODE_MENU;
  do {
    show_menu();
    wait_frame();
    if (pressed & (KEY_LEFT | KEY_RIGHT)) state.cursor ^= 1;
    if (pressed & (KEY_UP | KEY_DOWN)) state.cursor ^= 2;
  } while (!(pressed & KEY_A));
  return state.cursor;
}

static int minus(int hp, int damage) { return damage > hp ? 0 : hp - damage; }

// -> 1 when the enemy is beaten; 0 when one lost (hp 0) or ran away
int battle(int creature, int element, int hp, int strength, int is_wild, const char *name) {
  int ran = 0;
  state.mode = MODE_MESSAGE;
  state.enemy = creature, state.enemy_element = element, state.enemy_hp = state.enemy_max_hp = hp;
  state.hp = state.max_hp, state.tonics = 1;
  // who has the better element hits a quarter harder
  int is_stronger = beats(element) == state.starter;
  state.enemy_blow = is_stronger ? (strength + 2) * 5 / 4 : strength + 2;
  draw_battlefield();
  set_sprite(0, 150, 12, PIC_CREATURE + 16 * creature, element == PLAIN ? 13 : element == SHADE ? 14 : 9 + element, 0,
      1);
  set_sprite(1, 30, 50, PIC_CREATURE + 16 * (state.starter - 1), 9 + state.starter, 0, 1);
  hide_sprites(2);
  show_health(name);
  say(name, "WANTS TO FIGHT!");
  while (state.hp && state.enemy_hp && !ran) {
    const char *deed = "YOU TRY TO RUN.", *what = "THE ENEMY STRIKES BACK.";
    switch (choose()) {
      case ELEMENT:
        deed = element == beats(state.starter) ? "A STRONG BLOW!" : element == PLAIN ?
            "A FAIR BLOW." : "IT HARDLY NOTICES.";
        state.enemy_hp = minus(state.enemy_hp, damage_to(element, 0));
        break;
      case TACKLE:
        deed = element == SHADE ? "THE TACKLE GOES RIGHT THROUGH." : "A TACKLE.";
        state.enemy_hp = minus(state.enemy_hp, damage_to(element, 1));
        break;
      case TONIC:
        deed = "YOU REACH FOR THE TONIC.";
        if (state.tonics) {
          state.tonics = 0;
          state.hp = state.hp + 15 > state.max_hp ? state.max_hp : state.hp + 15;
        } else {
          what = "THE BOTTLE IS EMPTY!";
        }
        break;
      default:
        ran = is_wild;
        what = ran ? "YOU GOT AWAY." : "NOBODY RUNS FROM A DUEL!";
    }
    if (!state.enemy_hp) what = "THE ENEMY IS BEATEN!";
    else if (!ran) state.hp = minus(state.hp, is_stronger ? (strength + roll(3)) * 5 / 4 : strength + roll(3));
    if (!state.hp) what = "YOUR FRIEND CAN FIGHT NO MORE.";
    show_health(name);
    say(deed, what);
  }
  state.enemy_hp = 0;
  text_clear(0, 20);
  state.mode = MODE_WALK;
  return state.hp && !ran;
}
