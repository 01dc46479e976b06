/*
 * Functions that are left in difficult ways. The program prints how often it has called each: `left SUMMED FORKING TAILING JUMPING ENDING VFORKING`.
 */

enum {
	DEPTH = 20,
	LEFT = 6,
};

/*
 * `summed` calls itself, and returns the sum of the numbers up to its argument. `forking` and `vforking` return twice, in
 * the parent and in the child. `tailing`
 * jumps to another function, which returns to the caller of `tailing`. `jumping` goes back to `land`, with another stack pointer. `ending` ends the
 * process.
 */
long summed(long number);
long forking(void);
long tailing(long number);
void jumping(void);
long land(void);
void ending(void);
long vforking(void);

__asm__(".section .text.returns, \"ax\"\n"
	".balign 4096\n"
	".globl summed\n"
	".type summed, @function\n"
	"summed:\n"
	"	test %rdi, %rdi\n"
	"	jnz 1f\n"
	"	xor %eax, %eax\n"
	"	ret\n"
	"1:\n"
	"	push %rdi\n"
	"	dec %rdi\n"
	"	call summed\n"
	"	pop %rdi\n"
	"	add %rdi, %rax\n"
	"	ret\n"
	".size summed, . - summed\n"
	".globl forking\n"
	".type forking, @function\n"
	"forking:\n"
	"	mov $57, %eax\n"
	"	syscall\n"
	"	ret\n"
	".size forking, . - forking\n"
	".globl tailing\n"
	".type tailing, @function\n"
	"tailing:\n"
	"	inc %rdi\n"
	"	jmp tailed\n"
	".size tailing, . - tailing\n"
	".globl jumping\n"
	".type jumping, @function\n"
	"jumping:\n"
	"	push %rbp\n"
	"	mov landing(%rip), %rsp\n"
	"	mov $1, %eax\n"
	"	ret\n"
	".size jumping, . - jumping\n"
	".globl ending\n"
	".type ending, @function\n"
	"ending:\n"
	"	mov $231, %eax\n"
	"	xor %edi, %edi\n"
	"	syscall\n"
	"	ud2\n"
	".size ending, . - ending\n"
	".globl vforking\n"
	".type vforking, @function\n"
	/* The child runs on the parent's stack first: the return address is in a register meanwhile. */
	"vforking:\n"
	"	pop %rdx\n"
	"	mov $58, %eax\n"
	"	syscall\n"
	"	push %rdx\n"
	"	ret\n"
	".size vforking, . - vforking\n"
	".balign 4096\n"
	".text\n"
	".local landing\n"
	".comm landing, 8, 8\n"
	"tailed:\n"
	"	lea (%rdi,%rdi), %rax\n"
	"	ret\n"
	/* Returns 1, from `jumping`. */
	".globl land\n"
	"land:\n"
	"	mov %rsp, landing(%rip)\n"
	"	sub $40, %rsp\n"
	"	call jumping\n"
	"	ud2\n");

static void leave(void)
{
	/* Before any call of `jumping`, which stays in flight further up the stack. */
	for (int round = 0; round < LEFT; round++)
		require(summed(DEPTH) == DEPTH * (DEPTH + 1) / 2, "summed");
	for (int round = 0; round < LEFT; round++) {
		long child = forking();

		if (child == 0) {
			ending();
			require(0, "ending");
		}
		wait_for(1);
		child = vforking();
		if (child == 0)
			syscall1(SYS_exit_group, 0);
		require(child > 0, "vforking");
		wait_for(1);
		require(tailing(4) == 10, "tailing");
		require(land() == 1, "jumping");
	}
	put_field("left ", (DEPTH + 1) * LEFT);
	for (int i = 0; i < 5; i++)
		put_field(" ", LEFT);
	end_line();
}
