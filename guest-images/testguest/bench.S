/*
 * Functions to take the time of, each with a loop of its own that calls it: where a call returns to may be planted, and
 * must not be on the way of another function's calls. None of them counts itself. `bm_mark` is called before and after
 * each loop, for somebody outside who looks at the clock.
 */
#include "guest.h"

/* The serial line's register that means nothing: a device answers, and nothing comes of it. */
#define SCRATCH_PORT 0x3ff

/* Begins NAME, and before it NAME_loop, which calls it rdi times. */
	.macro	MEASURED name
	.globl	\name\()_loop
	.type	\name\()_loop, @function
	.p2align 6
\name\()_loop:
	push	%rbx
	mov	%rdi, %rbx
1:	call	\name
	dec	%rbx
	jnz	1b
	pop	%rbx
	ret
	.size	\name\()_loop, . - \name\()_loop

	.globl	\name
	.type	\name, @function
	.p2align 6
\name:
	.endm

	.macro	END name
	ret
	.size	\name, . - \name
	.endm

/* Shorter than a jump, as most instructions behind a function's entry are. */
	.macro	SHORT name
MEASURED \name
	nop
	END	\name
	.endm

/* What ftrace leaves at a function's entry: as long as a jump. */
	.macro	LONG name
MEASURED \name
	.byte	0x0f, 0x1f, 0x44, 0x00, 0x00
	END	\name
	.endm

/* For the processor alone to execute. */
	.macro	FOR_THE_PROCESSOR name
MEASURED \name
	rdtsc
	END	\name
	.endm

	.text

	.globl	bm_mark
	.type	bm_mark, @function
	.p2align 6
bm_mark:
	nop
	END	bm_mark

MEASURED bm_out
	outb	%al, %dx
	END	bm_out

SHORT bm_entry
SHORT bm_counted
LONG bm_jumped
SHORT bm_told
SHORT bm_handled
SHORT bm_after
SHORT bm_reads
SHORT bm_returns
SHORT bm_both
LONG bm_recorded
LONG bm_hist
LONG bm_filtered
LONG bm_returns_recorded
FOR_THE_PROCESSOR bm_processor
FOR_THE_PROCESSOR bm_copied
FOR_THE_PROCESSOR bm_in_place
FOR_THE_PROCESSOR bm_returns_copied

/* void bm_on_kernel_stack(loop *calls, u64 times): where a kernel has its stacks. It is the same stack, by another address. */
	.globl	bm_on_kernel_stack
	.type	bm_on_kernel_stack, @function
bm_on_kernel_stack:
	push	%rbx
	movabs	$KERNEL_HALF, %rbx
	add	%rbx, %rsp
	mov	%rdi, %rax
	mov	%rsi, %rdi
	call	*%rax
	sub	%rbx, %rsp
	pop	%rbx
	ret
	.size	bm_on_kernel_stack, . - bm_on_kernel_stack

/* void bm_out_to_device(u64 times): the loop of bm_out with the port in dx. */
	.globl	bm_out_to_device
	.type	bm_out_to_device, @function
bm_out_to_device:
	mov	$SCRATCH_PORT, %edx
	jmp	bm_out_loop
	.size	bm_out_to_device, . - bm_out_to_device
