/* Entries of the interrupt table: each brings the stack to struct frame and calls trap(). */
#include "guest.h"

	.macro	STUB vector, pushes_error=0
	.pushsection .rodata
	.quad	stub_\vector
	.popsection
	.globl	stub_\vector
	.type	stub_\vector, @function
stub_\vector:
	.if	!\pushes_error
	pushq	$0
	.endif
	pushq	$\vector
	jmp	trap_entry
	.size	stub_\vector, . - stub_\vector
	.endm

	.section .rodata
	.balign 8
	.globl	trap_stubs
trap_stubs:

	.text
	.altmacro
	.set	vector, 0
	.macro	STUBS vector
	.if	\vector == 8 || (\vector >= 10 && \vector <= 14) || \vector == 17 || \vector == 21
	STUB	\vector, 1
	.else
	STUB	\vector, 0
	.endif
	.endm
	.rept	32
	STUBS	%vector
	.set	vector, vector + 1
	.endr
	.noaltmacro

	.type	trap_entry, @function
trap_entry:
	push	%rax
	push	%rbx
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%rbp
	push	%r8
	push	%r9
	push	%r10
	push	%r11
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, %rdi
	mov	%rsp, %rbp
	and	$-16, %rsp
	cld
	call	trap
	mov	%rbp, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%r11
	pop	%r10
	pop	%r9
	pop	%r8
	pop	%rbp
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rbx
	pop	%rax
	add	$16, %rsp
	iretq
	.size	trap_entry, . - trap_entry

/* As Linux handles int3 (idtentry of #BP): with a gap of six words for one from ring 0, which are the frame once more. */
	.globl	asm_exc_int3
	.type	asm_exc_int3, @function
asm_exc_int3:
	nop
	cld
	pushq	$-1
	testb	$3, 16(%rsp)
	jne	1f
	.rept	6
	pushq	40(%rsp)
	.endr
1:
	pushq	$3
	jmp	trap_entry
	.size	asm_exc_int3, . - asm_exc_int3
