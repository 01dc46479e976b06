/*
 * Functions whose first instruction raises an exception or leads elsewhere, and is not emulated by
 * who probes it. rs_NAME_next is where the next instruction is.
 */
#include "guest.h"

	.macro	RAISE name, instruction:vararg
	.globl	rs_\name, rs_\name\()_next
	.type	rs_\name, @function
	.p2align 4
rs_\name:
	\instruction
rs_\name\()_next:
	ret
	.size	rs_\name, . - rs_\name
	.endm

	.text

RAISE div, div %rcx
RAISE rdmsr, rdmsr
RAISE lods, rep lodsb
RAISE int, int $31
RAISE ud, ud2
/* Only where the register is written with an address that is not canonical. */
RAISE wrmsr, wrmsr

/* Into ring 0 from ring 0, and back. */
RAISE syscall, syscall

	.globl	rs_entry
	.type	rs_entry, @function
	.p2align 4
rs_entry:
	or	%r11, rs_flags(%rip)
	incq	rs_entered(%rip)
	jmp	*%rcx
	.size	rs_entry, . - rs_entry

	.bss
	.balign 8
	.globl	rs_flags, rs_entered
rs_flags:
	.skip	8
rs_entered:
	.skip	8
