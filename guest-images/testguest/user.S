/*
 * Code in ring 3, on pages of its own, and the way there and back. user_main(rounds) calls
 * user_nop, user_push, user_mov and user_int3 `rounds` times each and leaves with ud2 at
 * user_leave, rdi = rounds made: a fault reaches the kernel on every host, while not every one
 * delivers int $N from ring 3.
 */
#include "guest.h"

	.section .user.text, "ax"

	.macro	USER name, index
	.globl	\name
	.type	\name, @function
	.p2align 4
	.set	\name\()_count, user_counts + 8 * \index
\name:
	.endm

USER user_main, 0
	push	%rbx
	mov	%rdi, %rbx
	xor	%r12d, %r12d
	incq	user_main_count(%rip)
1:	cmp	%rbx, %r12
	je	2f
	call	user_nop
	call	user_push
	call	user_mov
	call	user_int3
	inc	%r12
	jmp	1b
2:	mov	%r12, %rdi
	.globl	user_leave
user_leave:
	ud2
	.size	user_main, . - user_main

USER user_nop, 1
	.byte	0x0f, 0x1f, 0x44, 0x00, 0x00
	incq	user_nop_count(%rip)
	ret
	.size	user_nop, . - user_nop

USER user_push, 2
	push	%rbp
	mov	%rsp, %rbp
	incq	user_push_count(%rip)
	pop	%rbp
	ret
	.size	user_push, . - user_push

USER user_mov, 3
	mov	%rdi, %rax
	incq	user_mov_count(%rip)
	ret
	.size	user_mov, . - user_mov

USER user_int3, 4
	int3
	.globl	user_int3_next
user_int3_next:
	incq	user_int3_count(%rip)
	ret
	.size	user_int3, . - user_int3

/* user_syscalls(rounds): that many system calls. */
USER user_syscalls, 5
	push	%rbx
	mov	%rdi, %rbx
	xor	%r12d, %r12d
	incq	user_syscalls_count(%rip)
1:	cmp	%rbx, %r12
	je	2f
	call	user_syscall
	inc	%r12
	jmp	1b
2:	mov	%r12, %rdi
	jmp	user_leave
	.size	user_syscalls, . - user_syscalls

USER user_syscall, 6
	syscall
	incq	user_syscall_count(%rip)
	ret
	.size	user_syscall, . - user_syscall

/* user_int1(rounds): the three of them that many times. */
USER user_int1, 7
	push	%rbx
	mov	%rdi, %rbx
	xor	%r12d, %r12d
	incq	user_int1_count(%rip)
1:	cmp	%rbx, %r12
	je	2f
	.byte	0xf1
	.globl	user_int1_first, user_int1_second, user_int1_prefixed
user_int1_first:
	.byte	0xf1
user_int1_second:
	.byte	0x66, 0xf1
user_int1_prefixed:
	inc	%r12
	jmp	1b
2:	mov	%r12, %rdi
	jmp	user_leave
	.size	user_int1, . - user_int1

/* user_jump(rounds): jumps to the kernel's fn_push, with the kernel's memory as the stack. The handler of the
 * fault leads to user_jumped. */
	.globl	user_jump, user_jumped
	.type	user_jump, @function
	.p2align 4
user_jump:
	mov	%rdi, %rbx
	mov	%rsp, %r13
	xor	%r12d, %r12d
1:	cmp	%rbx, %r12
	je	2f
	mov	$kernel_word + 8, %rsp
	mov	$0x5eed, %ebp
	jmp	fn_push
user_jumped:
	mov	%r13, %rsp
	inc	%r12
	jmp	1b
2:	mov	%r12, %rdi
	jmp	user_leave
	.size	user_jump, . - user_jump

	.section .user.data, "aw"
	.balign 8
	.globl	user_counts, user_stack_top
user_counts:
	.fill	USER_FUNCTIONS, 8, 0
	.balign 16
	.skip	0x800
user_stack_top:

	.section .rodata
	.globl	user_names
	.balign 8
user_names:
	.quad	1f, 2f, 3f, 4f, 5f, 6f, 7f, 8f, 0
1:	.asciz	"user_main"
2:	.asciz	"user_nop"
3:	.asciz	"user_push"
4:	.asciz	"user_mov"
5:	.asciz	"user_int3"
6:	.asciz	"user_syscalls"
7:	.asciz	"user_syscall"
8:	.asciz	"user_int1"

/* u64 enter_user(u64 argument, const u8 *entry): runs entry in ring 3; returns what it left
 * with in rdi. */
	.text
	.globl	enter_user
	.type	enter_user, @function
	.p2align 4
enter_user:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, %gs:PERCPU_USER_STACK
	pushq	$USER_DATA
	pushq	$user_stack_top
	pushq	$0x002
	pushq	$USER_CODE
	push	%rsi
	iretq
	.size	enter_user, . - enter_user

/* void leave_user(u64 result): makes enter_user return. */
	.globl	leave_user
	.type	leave_user, @function
leave_user:
	mov	%rdi, %rax
	mov	%gs:PERCPU_USER_STACK, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	leave_user, . - leave_user
