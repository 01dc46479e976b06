/* Slots for generated snippets, and the way in and out of them: the way may not touch a register or
 * a flag that is loaded already or not yet stored, so all goes through memory that is found from rip. */
#include "guest.h"
#include "generated.h"

	.section .generated, "ax", @progbits
	.balign 16
	.globl	generated_slots
generated_slots:
	.altmacro
	.set	slot, 0
	.macro	SLOT number
	.globl	generated_\number
	.type	generated_\number, @function
generated_\number:
	.skip	GENERATED_SLOT_BYTES, 0x90
	.size	generated_\number, GENERATED_SLOT_BYTES
	.endm
	.rept	GENERATED_SLOTS
	SLOT	%slot
	.set	slot, slot + 1
	.endr
	.noaltmacro

	.bss
	.balign 64
	.globl	generated_context, generated_left, generated_fpu
generated_context:
	.skip	CONTEXT_VECTORS + 4 * 32
generated_left:
	.skip	LEFT_DR6 + 8
	.balign 64
generated_fpu:
	.skip	512
own_stack:
	.skip	8
target:
	.skip	8
has_avx:
	.skip	8

	.text
	.globl	generated_enter
	.type	generated_enter, @function
generated_enter:	/* the slot, and whether there is AVX */
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, own_stack(%rip)
	mov	%rdi, target(%rip)
	mov	%rsi, has_avx(%rip)
	fxrstor64 generated_fpu(%rip)
	test	%rsi, %rsi
	jz	1f
	vmovups	generated_context + CONTEXT_VECTORS(%rip), %ymm0
	vmovups	generated_context + CONTEXT_VECTORS + 32(%rip), %ymm1
	vmovups	generated_context + CONTEXT_VECTORS + 64(%rip), %ymm2
	vmovups	generated_context + CONTEXT_VECTORS + 96(%rip), %ymm3
1:	push	generated_context + CONTEXT_RFLAGS(%rip)
	popfq
	mov	generated_context + CONTEXT_GPRS + 0(%rip), %rax
	mov	generated_context + CONTEXT_GPRS + 8(%rip), %rcx
	mov	generated_context + CONTEXT_GPRS + 16(%rip), %rdx
	mov	generated_context + CONTEXT_GPRS + 24(%rip), %rbx
	mov	generated_context + CONTEXT_GPRS + 32(%rip), %rsp
	mov	generated_context + CONTEXT_GPRS + 40(%rip), %rbp
	mov	generated_context + CONTEXT_GPRS + 48(%rip), %rsi
	mov	generated_context + CONTEXT_GPRS + 56(%rip), %rdi
	mov	generated_context + CONTEXT_GPRS + 64(%rip), %r8
	mov	generated_context + CONTEXT_GPRS + 72(%rip), %r9
	mov	generated_context + CONTEXT_GPRS + 80(%rip), %r10
	mov	generated_context + CONTEXT_GPRS + 88(%rip), %r11
	mov	generated_context + CONTEXT_GPRS + 96(%rip), %r12
	mov	generated_context + CONTEXT_GPRS + 104(%rip), %r13
	mov	generated_context + CONTEXT_GPRS + 112(%rip), %r14
	mov	generated_context + CONTEXT_GPRS + 120(%rip), %r15
	jmp	*target(%rip)
	.size	generated_enter, . - generated_enter

	.macro	STORE_GPRS_BUT_RSP
	mov	%rax, generated_context + CONTEXT_GPRS + 0(%rip)
	mov	%rcx, generated_context + CONTEXT_GPRS + 8(%rip)
	mov	%rdx, generated_context + CONTEXT_GPRS + 16(%rip)
	mov	%rbx, generated_context + CONTEXT_GPRS + 24(%rip)
	mov	%rbp, generated_context + CONTEXT_GPRS + 40(%rip)
	mov	%rsi, generated_context + CONTEXT_GPRS + 48(%rip)
	mov	%rdi, generated_context + CONTEXT_GPRS + 56(%rip)
	mov	%r8, generated_context + CONTEXT_GPRS + 64(%rip)
	mov	%r9, generated_context + CONTEXT_GPRS + 72(%rip)
	mov	%r10, generated_context + CONTEXT_GPRS + 80(%rip)
	mov	%r11, generated_context + CONTEXT_GPRS + 88(%rip)
	mov	%r12, generated_context + CONTEXT_GPRS + 96(%rip)
	mov	%r13, generated_context + CONTEXT_GPRS + 104(%rip)
	mov	%r14, generated_context + CONTEXT_GPRS + 112(%rip)
	mov	%r15, generated_context + CONTEXT_GPRS + 120(%rip)
	.endm

	.globl	generated_next, generated_taken
	.type	generated_next, @function
generated_next:
	movq	$LEFT_NEXT, generated_left + LEFT_HOW(%rip)
	jmp	leave_straight
	.size	generated_next, . - generated_next

	.type	generated_taken, @function
generated_taken:
	movq	$LEFT_TAKEN, generated_left + LEFT_HOW(%rip)
	.size	generated_taken, . - generated_taken

	.type	leave_straight, @function
leave_straight:
	STORE_GPRS_BUT_RSP
	mov	%rsp, generated_context + CONTEXT_GPRS + 32(%rip)
	mov	own_stack(%rip), %rsp
	pushfq
	pop	generated_context + CONTEXT_RFLAGS(%rip)
	jmp	leave
	.size	leave_straight, . - leave_straight

	/* On a stack of its own, so that a snippet's stack pointer may be anything. */
	.macro	GENERATED_STUB vector, pushes_error
	.pushsection .rodata
	.quad	generated_stub_\vector
	.popsection
	.type	generated_stub_\vector, @function
generated_stub_\vector:
	.if	!\pushes_error
	pushq	$0
	.endif
	pushq	$\vector
	jmp	leave_by_trap
	.size	generated_stub_\vector, . - generated_stub_\vector
	.endm

	.section .rodata
	.balign 8
	.globl	generated_stubs
generated_stubs:
	.text
	.altmacro
	.set	vector, 0
	.macro	GENERATED_STUBS vector
	.if	\vector == 8 || (\vector >= 10 && \vector <= 14) || \vector == 17 || \vector == 21
	GENERATED_STUB	\vector, 1
	.else
	GENERATED_STUB	\vector, 0
	.endif
	.endm
	.rept	32
	GENERATED_STUBS	%vector
	.set	vector, vector + 1
	.endr
	.noaltmacro

	.type	leave_by_trap, @function
leave_by_trap:
	STORE_GPRS_BUT_RSP
	movq	$LEFT_TRAP, generated_left + LEFT_HOW(%rip)
	pop	generated_left + LEFT_VECTOR(%rip)
	pop	generated_left + LEFT_ERROR(%rip)
	pop	generated_left + LEFT_RIP(%rip)
	pop	generated_left + LEFT_CS(%rip)
	pop	generated_context + CONTEXT_RFLAGS(%rip)
	pop	generated_context + CONTEXT_GPRS + 32(%rip)
	mov	%cr2, %rax
	mov	%rax, generated_left + LEFT_CR2(%rip)
	mov	own_stack(%rip), %rsp
	.size	leave_by_trap, . - leave_by_trap

	.type	leave, @function
leave:
	push	$2
	popfq
	xor	%eax, %eax
	mov	%ss, %eax
	mov	%rax, generated_context + CONTEXT_SELECTORS(%rip)
	mov	%ds, %eax
	mov	%rax, generated_context + CONTEXT_SELECTORS + 8(%rip)
	mov	%es, %eax
	mov	%rax, generated_context + CONTEXT_SELECTORS + 16(%rip)
	mov	%fs, %eax
	mov	%rax, generated_context + CONTEXT_SELECTORS + 24(%rip)
	mov	%gs, %eax
	mov	%rax, generated_context + CONTEXT_SELECTORS + 32(%rip)
	mov	$KERNEL_DATA, %eax
	mov	%eax, %ss
	mov	%eax, %ds
	mov	%eax, %es
	fxsave64 generated_fpu(%rip)
	cmpq	$0, has_avx(%rip)
	je	1f
	vmovups	%ymm0, generated_context + CONTEXT_VECTORS(%rip)
	vmovups	%ymm1, generated_context + CONTEXT_VECTORS + 32(%rip)
	vmovups	%ymm2, generated_context + CONTEXT_VECTORS + 64(%rip)
	vmovups	%ymm3, generated_context + CONTEXT_VECTORS + 96(%rip)
1:	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	leave, . - leave
