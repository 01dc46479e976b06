/*
 * Functions to probe, one for each kind of first instruction. Each keeps every register and flag
 * that its first instruction does not change, counts itself in the CPU's own counter, and has a
 * model in models.c of what it does.
 */
#include "guest.h"

	.set	function_index, 0

/* Begins a function and gives it an entry in the table and a counter. */
	.macro	FUNCTION name, per_round=1, how=BY_CALLS
	.weak	model_\name
	.pushsection .rodata.str, "aMS", @progbits, 1
.Lname_\name:
	.asciz	"\name"
	.popsection
	.pushsection .functions, "a"
	.quad	.Lname_\name, \name, model_\name, \per_round, \how
	.popsection
	.set	\name\()_count, PERCPU_COUNTS + 8 * function_index
	.set	function_index, function_index + 1
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.endm

	.macro	COUNT name
	pushfq
	incq	%gs:\name\()_count
	popfq
	.endm

	.macro	RETURN name
	COUNT	\name
	ret
	.size	\name, . - \name
	.endm

	/* Where whoever probes this finds them. */
	.globl	current_task, cpu_number
	.set	current_task, PERCPU_TASK
	.set	cpu_number, PERCPU_NUMBER

	.section .text.functions, "ax"

FUNCTION fn_nop
	nop
	RETURN	fn_nop

/* What ftrace leaves at a function's entry. */
FUNCTION fn_nop5
	.byte	0x0f, 0x1f, 0x44, 0x00, 0x00
	RETURN	fn_nop5

FUNCTION fn_endbr
	endbr64
	RETURN	fn_endbr

FUNCTION fn_push
	push	%rbp
	mov	%rsp, %rbp
	COUNT	fn_push
	pop	%rbp
	ret
	.size	fn_push, . - fn_push

/* Shows its caller the return address that is on the stack. */
FUNCTION fn_pop
	pop	%rax
	push	%rax
	RETURN	fn_pop

FUNCTION fn_sub
	sub	$24, %rsp
	COUNT	fn_sub
	lea	24(%rsp), %rsp
	ret
	.size	fn_sub, . - fn_sub

FUNCTION fn_add
	add	%rdi, %rax
	RETURN	fn_add

FUNCTION fn_mov
	mov	%rdi, %rax
	RETURN	fn_mov

FUNCTION fn_mov_imm
	mov	$0x89abcdef, %eax
	RETURN	fn_mov_imm

FUNCTION fn_mov_load
	mov	fn_memory(%rip), %rax
	RETURN	fn_mov_load

FUNCTION fn_mov_store, 1, BY_CALLS | POINTERS
	mov	%rax, (%rsi)
	RETURN	fn_mov_store

FUNCTION fn_movzx, 1, BY_CALLS | POINTERS
	movzbl	3(%rdi), %eax
	RETURN	fn_movzx

FUNCTION fn_lea
	lea	8(%rdi, %rsi, 4), %rax
	RETURN	fn_lea

FUNCTION fn_lea_rip
	lea	fn_memory(%rip), %rax
	RETURN	fn_lea_rip

FUNCTION fn_xor
	xor	%eax, %eax
	RETURN	fn_xor

FUNCTION fn_test
	test	%rdi, %rsi
	RETURN	fn_test

FUNCTION fn_cmp
	cmp	%rsi, %rdi
	RETURN	fn_cmp

FUNCTION fn_cmov
	cmovz	%rdi, %rax
	RETURN	fn_cmov

FUNCTION fn_xchg
	xchg	%rdi, %rsi
	RETURN	fn_xchg

FUNCTION fn_bswap
	bswap	%rax
	RETURN	fn_bswap

FUNCTION fn_imul
	imul	%rdi, %rax
	RETURN	fn_imul

FUNCTION fn_gs
	incq	%gs:fn_gs_count
	ret
	.size	fn_gs, . - fn_gs

FUNCTION fn_lock
	lock incq fn_shared(%rip)
	RETURN	fn_lock

FUNCTION fn_rep, 1, BY_CALLS | POINTERS
	rep stosb
	RETURN	fn_rep

/* Exits of its own accord. */
FUNCTION fn_out
	outb	%al, $0x80
	RETURN	fn_out

FUNCTION fn_pushf
	pushfq
	pop	%rax
	RETURN	fn_pushf

FUNCTION fn_call
	call	fn_callee
	RETURN	fn_call

FUNCTION fn_call_mem
	call	*fn_target(%rip)
	RETURN	fn_call_mem

/* Two instructions for one jump, so that the one after it never runs. */
FUNCTION fn_jmp
	jmp	1f
	ud2
1:	RETURN	fn_jmp

FUNCTION fn_jmp_near
	.byte	0xe9
	.long	1f - (. + 4)
	ud2
1:	RETURN	fn_jmp_near

/* Ends in another function, which returns to the caller. */
FUNCTION fn_tail
	jmp	fn_tail_target
	.size	fn_tail, . - fn_tail

FUNCTION fn_tail_target, 1, 0
	COUNT	fn_tail
	COUNT	fn_tail_target
	ret
	.size	fn_tail_target, . - fn_tail_target

FUNCTION fn_jcc
	jz	1f
	mov	$2, %eax
	RETURN	fn_jcc
1:	mov	$1, %eax
	RETURN	fn_jcc

FUNCTION fn_jcc_near
	.byte	0x0f, 0x82
	.long	1f - (. + 4)
	mov	$2, %eax
	RETURN	fn_jcc_near
1:	mov	$1, %eax
	RETURN	fn_jcc_near

FUNCTION fn_ret, 1, BY_CALLS | UNCOUNTED
	ret
	.size	fn_ret, . - fn_ret

/* Its first instruction is also the target of its own jump: counts iterations. */
FUNCTION fn_loop, LOOP_ITERATIONS, BY_CALLS
	dec	%rdx
	COUNT	fn_loop
	jnz	fn_loop
	ret
	.size	fn_loop, . - fn_loop

/* Called by fn_call and fn_call_mem only. */
FUNCTION fn_callee, 2, 0
	push	%rbx
	COUNT	fn_callee
	pop	%rbx
	ret
	.size	fn_callee, . - fn_callee

/* fn_recurse(n): calls itself n times, one inside the other, and returns n. */
FUNCTION fn_recurse, 0, 0
	push	%rbp
	mov	%rsp, %rbp
	incq	%gs:fn_recurse_count
	xor	%eax, %eax
	test	%rdi, %rdi
	jz	1f
	dec	%rdi
	call	fn_recurse
	inc	%rax
1:	pop	%rbp
	ret
	.size	fn_recurse, . - fn_recurse

/* For the processor alone to execute, and what it says is not kept. */
FUNCTION fn_rdtsc
	rdtsc
	mov	$1, %eax
	mov	$2, %edx
	RETURN	fn_rdtsc

FUNCTION fn_cpuid
	cpuid
	mov	$1, %eax
	mov	$2, %ebx
	mov	$3, %ecx
	mov	$4, %edx
	RETURN	fn_cpuid

FUNCTION fn_cr3
	mov	%cr3, %rax
	RETURN	fn_cr3

/* Called by the scenario `vector`, which switches SSE on. */
FUNCTION fn_pxor, 0, 0
	pxor	%xmm1, %xmm0
	RETURN	fn_pxor

/* The guest's own breakpoint; its handler counts. */
FUNCTION fn_int3, 0, UNCOUNTED
	int3
	.globl	fn_int3_next
fn_int3_next:
	ret
	.size	fn_int3, . - fn_int3

/* Reads from a page that is not there; the handler maps it and this is tried again. */
FUNCTION fn_fault, 0, 0
	mov	(%rdi), %rax
	RETURN	fn_fault

/* Rewritten by the scenario selfpatch, which counts; at least 8 bytes that may be replaced. */
FUNCTION fn_patched, 0, UNCOUNTED
	mov	$0x11, %eax
	nopl	(%rax)
	ret
	.size	fn_patched, . - fn_patched

/* Where `syscall` enters: on the stack of ring 3 until its second instruction. Notes the flags
 * that the processor saved, and returns. */
FUNCTION fn_syscall, 0, 0
	mov	%rsp, %gs:PERCPU_RESULT
	mov	$syscall_stack_top, %esp
	COUNT	fn_syscall
	or	%r11, syscall_flags(%rip)
	pushq	$USER_DATA
	pushq	%gs:PERCPU_RESULT
	push	%r11
	pushq	$USER_CODE
	push	%rcx
	iretq
	.size	fn_syscall, . - fn_syscall

/* The same, back by `sysret`. */
FUNCTION fn_sysret, 0, 0
	mov	%rsp, %gs:PERCPU_RESULT
	mov	$syscall_stack_top, %esp
	COUNT	fn_sysret
	or	%r11, syscall_flags(%rip)
	swapgs
	swapgs
	mov	%gs:PERCPU_RESULT, %rsp
	sysretq
	.size	fn_sysret, . - fn_sysret

/* Waits for an interrupt. */
FUNCTION fn_wait, 0, 0
	COUNT	fn_wait
	sti
	hlt
	cli
	ret
	.size	fn_wait, . - fn_wait

/* Handlers of an interrupt and of the NMI. The frame leaves the stack 8 bytes short of a multiple
 * of 16. */
	.macro	HANDLER name, taken
FUNCTION \name, 0, 0
	COUNT	\name
	push	%rax
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%r8
	push	%r9
	push	%r10
	push	%r11
	cld
	call	\taken
	pop	%r11
	pop	%r10
	pop	%r9
	pop	%r8
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rax
	iretq
	.size	\name, . - \name
	.endm

HANDLER fn_wake, wake_taken
HANDLER fn_nmi, nmi_taken

/* Never returns: what it calls goes back to where its own caller wants to be. */
FUNCTION fn_left, 0, 0
	COUNT	fn_left
	call	fn_leave
	ud2
	.size	fn_left, . - fn_left

/* longjmp: goes to rsi with the stack pointer in rdi. */
FUNCTION fn_leave, 0, 0
	COUNT	fn_leave
	mov	%rdi, %rsp
	jmp	*%rsi
	.size	fn_leave, . - fn_leave

/* Runs on a stack of its own and never returns: its task ends inside. */
FUNCTION fn_task, 0, 0
	COUNT	fn_task
	call	do_task_dead
	ud2
	.size	fn_task, . - fn_task

/* void leave_frames(void): calls fn_left and leaves both frames behind, for a place that no call returns to. */
	.globl	leave_frames
	.type	leave_frames, @function
	.p2align 4
leave_frames:
	mov	%rsp, %rdi
	lea	1f(%rip), %rsi
	push	%rbp
	call	fn_left
	pop	%rbp
1:	ret
	.size	leave_frames, . - leave_frames

/* void run_task(void *stack_top): runs fn_task there until its task ends. */
	.globl	run_task
	.type	run_task, @function
	.p2align 4
run_task:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, task_parent(%rip)
	mov	%rdi, %rsp
	call	fn_task
	ud2
	.size	run_task, . - run_task

/* What Linux calls the place where a task ends, never to run again. */
	.globl	do_task_dead
	.type	do_task_dead, @function
	.p2align 4
do_task_dead:
	mov	task_parent(%rip), %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	do_task_dead, . - do_task_dead

/* Calls `target` with all registers from `before`, and puts what they are then into `after`. */
	.globl	call_checked, call_checked_return
	.type	call_checked, @function
	.p2align 4
call_checked:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rdi, %gs:PERCPU_TARGET
	mov	%rdx, %gs:PERCPU_RESULT
	mov	%rsp, %gs:PERCPU_STACK
	mov	%rsp, REGISTERS_RSP(%rsi)
	pushq	REGISTERS_RFLAGS(%rsi)
	mov	REGISTERS_RAX(%rsi), %rax
	mov	REGISTERS_RBX(%rsi), %rbx
	mov	REGISTERS_RCX(%rsi), %rcx
	mov	REGISTERS_RDX(%rsi), %rdx
	mov	REGISTERS_RDI(%rsi), %rdi
	mov	REGISTERS_RBP(%rsi), %rbp
	mov	REGISTERS_R8(%rsi), %r8
	mov	REGISTERS_R9(%rsi), %r9
	mov	REGISTERS_R10(%rsi), %r10
	mov	REGISTERS_R11(%rsi), %r11
	mov	REGISTERS_R12(%rsi), %r12
	mov	REGISTERS_R13(%rsi), %r13
	mov	REGISTERS_R14(%rsi), %r14
	mov	REGISTERS_R15(%rsi), %r15
	mov	REGISTERS_RSI(%rsi), %rsi
	popfq
	call	*%gs:PERCPU_TARGET
call_checked_return:
	pushfq
	push	%rax
	mov	%gs:PERCPU_RESULT, %rax
	mov	%rbx, REGISTERS_RBX(%rax)
	mov	%rcx, REGISTERS_RCX(%rax)
	mov	%rdx, REGISTERS_RDX(%rax)
	mov	%rsi, REGISTERS_RSI(%rax)
	mov	%rdi, REGISTERS_RDI(%rax)
	mov	%rbp, REGISTERS_RBP(%rax)
	mov	%r8, REGISTERS_R8(%rax)
	mov	%r9, REGISTERS_R9(%rax)
	mov	%r10, REGISTERS_R10(%rax)
	mov	%r11, REGISTERS_R11(%rax)
	mov	%r12, REGISTERS_R12(%rax)
	mov	%r13, REGISTERS_R13(%rax)
	mov	%r14, REGISTERS_R14(%rax)
	mov	%r15, REGISTERS_R15(%rax)
	pop	%rcx
	mov	%rcx, REGISTERS_RAX(%rax)
	pop	%rcx
	mov	%rcx, REGISTERS_RFLAGS(%rax)
	mov	%rsp, REGISTERS_RSP(%rax)
	mov	%gs:PERCPU_STACK, %rsp
	cld
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	call_checked, . - call_checked

	.data
	.balign 8
	.globl	fn_memory, fn_shared, fn_target, syscall_flags
fn_memory:
	.quad	0x0123456789abcdef
fn_shared:
	.quad	0
fn_target:
	.quad	fn_callee
syscall_flags:
	.quad	0
task_parent:
	.quad	0

	.bss
	.balign	16
	.skip	STACK_BYTES
syscall_stack_top:
