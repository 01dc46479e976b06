/*
 * Executed with the trap flag set, from st_0 to the popfq at st_12: after each of these instructions the handler is
 * told where the next one is.
 */
#define TRAP_FLAG 0x100

	.text

	.macro	STEP number, instruction:vararg
	.globl	st_\number
st_\number:
	\instruction
	.endm

	.globl	st_run
	.type	st_run, @function
	.p2align 4
st_run:
	pushfq
	orq	$TRAP_FLAG, (%rsp)
	popfq
STEP 0, nop
STEP 1, rdtsc
STEP 2, mov %rdi, %rax
STEP 3, push %rbx
STEP 4, lea 1(%rax), %rax
STEP 5, pop %rbx
STEP 6, call st_callee
STEP 7, add %rdi, %rax
STEP 8, sti
STEP 9, cli
STEP 10, pushfq
STEP 11, andq $~TRAP_FLAG, (%rsp)
STEP 12, popfq
	.globl	st_end
st_end:
	ret
	.size	st_run, . - st_run

	.globl	st_callee
	.type	st_callee, @function
	.p2align 4
st_callee:
	ret
	.size	st_callee, . - st_callee

/* Written to as it is before each run. */
	.globl	st_patched
	.type	st_patched, @function
	.p2align 4
st_patched:
	nop
	ret
	.size	st_patched, . - st_patched
