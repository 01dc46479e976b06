/* A process of two threads, which sleep until the end. The second thread has a name of its own. */

#include "syscall.h"
#include "start.h"

enum {
	CLONE_VM = 0x100,
	CLONE_SIGHAND = 0x800,
	CLONE_THREAD = 0x10000,
	PR_SET_NAME = 15,
	SYS_prctl = 157,
};

static const char name[] = "second";
static const long duration[2] = { 100000, 0 };

/* The second thread has the stack of the first, and does not use it. */
static void start_thread(void)
{
	long number = SYS_clone;

	__asm__ volatile("	syscall\n"
			 "	test %%rax, %%rax\n"
			 "	jnz 1f\n"
			 "	mov %[prctl], %%eax\n"
			 "	mov %[set_name], %%edi\n"
			 "	mov %[name], %%rsi\n"
			 "	syscall\n"
			 "0:	mov %[sleep], %%eax\n"
			 "	mov %[duration], %%rdi\n"
			 "	xor %%esi, %%esi\n"
			 "	syscall\n"
			 "	jmp 0b\n"
			 "1:\n"
			 : "+a"(number)
			 : "D"((long)(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD)), "S"(0L), "d"(0L),
			   [prctl] "i"(SYS_prctl), [set_name] "i"(PR_SET_NAME), [name] "b"(name), [sleep] "i"(SYS_nanosleep),
			   [duration] "r"(duration)
			 : "rcx", "r11", "memory");
}

void init_main(long *stack)
{
	(void)stack;
	start_thread();
	for (;;)
		syscall2(SYS_nanosleep, (long)duration, 0);
}
