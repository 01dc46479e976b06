/* Where the kernel enters the program. */

__attribute__((used, noreturn)) void init_main(long *stack);

__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	"	.cfi_startproc\n"
	"	.cfi_undefined rip\n" /* The end of the stack. */
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call init_main\n"
	"	hlt\n"
	"	.cfi_endproc\n"
	".size _start, . - _start\n");
