// The few registers of the machine that this game touches. SPDX-License-Identifier: MIT
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef signed char s8;

// Code in the fast RAM, 32 bits wide: what has to be done within a frame.
#define FAST __attribute__((section(".fast"), target("arm"), noinline))

#define REG16(offset) (*(volatile u16 *)(0x04000000 + (offset)))
#define DISPCNT REG16(0x000)
#define DISPSTAT REG16(0x004)
#define BGCNT(n) REG16(0x008 + 2 * (n))
#define BGX(n) REG16(0x010 + 4 * (n))
#define BGY(n) REG16(0x012 + 4 * (n))
#define KEYS REG16(0x130)
#define INT_ENABLE REG16(0x200)
#define INT_FLAGS REG16(0x202)
#define WAITCNT REG16(0x204)
#define INT_MASTER REG16(0x208)

#define BG_PALETTE ((volatile u16 *)0x05000000)
#define OBJ_PALETTE ((volatile u16 *)0x05000200)
#define TEXT_TILES ((volatile u16 *)0x06000000)   // character block 0
#define WORLD_TILES ((volatile u16 *)0x06004000)  // character block 1
#define TEXT_MAP ((volatile u16 *)0x0600c000)     // screen block 24
#define WORLD_MAP ((volatile u16 *)0x0600e000)    // screen blocks 28 to 31: 64 x 64 tiles
#define OBJ_TILES ((volatile u16 *)0x06010000)
#define OAM ((volatile u16 *)0x07000000)

enum { KEY_A = 1, KEY_B = 2, KEY_SELECT = 4, KEY_START = 8, KEY_RIGHT = 16, KEY_LEFT = 32, KEY_UP = 64, KEY_DOWN = 128,
    KEY_R = 256, KEY_L = 512 };
