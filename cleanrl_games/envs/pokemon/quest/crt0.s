@ Start-up of the cartridge: the header, stacks, zeroed RAM, copied data, then main(). SPDX-License-Identifier: MIT
    .section .header, "ax"
    .arm
    .global _start
_start:
    b start
    .space 156                  @ the boot logo stays empty: emulators do not ask for it, and it is not ours
    .ascii "EMBERQUEST\0\0"
    .ascii "QEMB"
    .ascii "00"
    .byte 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    .byte 0                     @ the header's checksum is not checked either
    .hword 0
start:
    mov r0, #0x12               @ interrupt mode gets a stack of its own
    msr cpsr_c, r0
    ldr sp, =0x03007fa0
    mov r0, #0x1f
    msr cpsr_c, r0
    ldr sp, =0x03007f00
    ldr r0, =__bss_start
    ldr r1, =__bss_end
    mov r2, #0
1:  cmp r0, r1
    strlo r2, [r0], #4
    blo 1b
    ldr r0, =__data_start
    ldr r1, =__data_end
    ldr r2, =__data_load
2:  cmp r0, r1
    ldrlo r3, [r2], #4
    strlo r3, [r0], #4
    blo 2b
    ldr r0, =main
    bx r0
