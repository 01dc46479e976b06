/*
 * An init whose programs say by which calls they have come to where they are, for comparison with stacks read from outside.
 *
 * One program sleeps in a signal's handler on a stack of its own, under a signal that came in the midst of calls; another sleeps below
 * functions with frame pointers and without unwind rules; another never calls the kernel again. The init itself sleeps when it has printed `calls are made`. Each prints `calls PID ADDRESS...`: the addresses that
 * it returns to, the innermost first.
 */

#include "syscall.h"
#include "console.h"
#include "start.h"

enum {
	CALLS_MAX = 16,
	STACK_BYTES = 16384,
	SIGUSR1 = 10,
	SA_SIGINFO = 4,
	SA_ONSTACK = 0x08000000,
	SA_RESTORER = 0x04000000,
	SYS_rt_sigaction = 13,
	SYS_sigaltstack = 131,
	/* The place of rip in the handler's third argument. */
	CONTEXT_RIP = 168,
};

static unsigned long calls[CALLS_MAX];
static unsigned call_count;
static char signal_stack[STACK_BYTES];

#define NOTE_CALLER() (calls[call_count++] = (unsigned long)__builtin_return_address(0))

/*
 * The kernel returns from a handler to this. What is said of the frame is what the C library says of its own: all registers lie in
 * the context on the stack. A handler's return address is the first instruction, so the rules begin a byte before.
 */
__asm__(".text\n"
	"	.cfi_startproc\n"
	"	.cfi_signal_frame\n"
	"	.cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06\n" /* the caller's rsp: at rsp + 160 */
	"	.cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00\n" /* rbp: at rsp + 120 */
	"	.cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x01\n" /* rbx: at rsp + 128 */
	"	.cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x00\n" /* r12: at rsp + 72 */
	"	.cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x00\n" /* r13: at rsp + 80 */
	"	.cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x00\n" /* r14: at rsp + 88 */
	"	.cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x00\n" /* r15: at rsp + 96 */
	"	.cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01\n" /* rip: at rsp + 168 */
	"	nop\n"
	".type restorer, @function\n"
	"restorer:\n"
	"	mov $15, %eax\n"
	"	syscall\n"
	"	.cfi_endproc\n"
	".size restorer, . - restorer\n");

extern void restorer(void);

/*
 * Two functions without unwind rules, as those of a program that was compiled without: each notes to where it returns, and sleeps at last.
 */
__asm__(".text\n"
	".type framed, @function\n"
	"framed:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	mov 8(%rbp), %rdi\n"
	"	call note\n"
	"	call framed_below\n"
	"	pop %rbp\n"
	"	ret\n"
	".size framed, . - framed\n"
	".type framed_below, @function\n"
	"framed_below:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	mov 8(%rbp), %rdi\n"
	"	call note\n"
	"	call asleep\n"
	"	pop %rbp\n"
	"	ret\n"
	".size framed_below, . - framed_below\n");

extern void framed(void);

__attribute__((used)) static void note(unsigned long address)
{
	calls[call_count++] = address;
}

static void put_address(unsigned long value)
{
	char text[19] = "0x";

	for (unsigned i = 0; i < 16; i++)
		text[2 + i] = "0123456789abcdef"[value >> (15 - i) * 4 & 15];
	text[18] = 0;
	put(text);
}

/* A line is at most as long as the console's. */
static void put_calls(void)
{
	put_field("calls ", (unsigned long)syscall0(SYS_getpid));
	for (unsigned i = call_count; i-- > 0;) {
		put(" ");
		put_address(calls[i]);
	}
	end_line();
}

/* The compiler knows that this does not return: a call of it may be the last instruction of a function. */
__attribute__((noinline, used)) static void asleep(void)
{
	NOTE_CALLER();
	put_calls();
	for (;;)
		syscall0(SYS_pause);
}

__attribute__((noinline)) static void awake(void)
{
	NOTE_CALLER();
	put_calls();
	for (;;)
		__asm__ volatile("" ::: "memory");
}

/* A handler. */
static void interrupted(int number, void *info, char *context)
{
	(void)number, (void)info;
	calls[call_count++] = *(unsigned long *)(context + CONTEXT_RIP);
	NOTE_CALLER();
	asleep();
}

/* A frame of a size that only its base pointer tells. */
__attribute__((noinline)) static void with_array(unsigned long bytes, int is_asleep)
{
	volatile char *array = __builtin_alloca(bytes);

	NOTE_CALLER();
	array[bytes - 1] = 1;
	if (is_asleep)
		syscall2(SYS_kill, syscall0(SYS_getpid), SIGUSR1);
	else
		awake();
	array[0] = array[bytes - 1];
}

__attribute__((noinline)) static long deeper(unsigned levels, int is_asleep)
{
	long below = 0;

	NOTE_CALLER();
	if (levels)
		below = deeper(levels - 1, is_asleep);
	else
		with_array(100 + levels, is_asleep);
	/* Without this, the calls become a loop. */
	__asm__ volatile("");
	return below + levels;
}

/* What a program does. */
enum act { SLEEPS_IN_HANDLER, SLEEPS_BELOW_FRAMES, STAYS_AWAKE };

__attribute__((noinline)) static void start(enum act act)
{
	NOTE_CALLER();
	if (syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
		if (act == SLEEPS_BELOW_FRAMES)
			framed();
		else
			deeper(2, act == SLEEPS_IN_HANDLER);
		syscall1(SYS_exit_group, 1);
	}
	call_count--;
}

void init_main(long *stack)
{
	struct {
		void (*handler)(int, void *, char *);
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} action = { interrupted, SA_SIGINFO | SA_ONSTACK | SA_RESTORER, restorer, 0 };
	struct {
		char *start;
		int flags;
		unsigned long bytes;
	} own = { signal_stack, 0, STACK_BYTES };

	(void)stack;
	NOTE_CALLER();
	syscall2(SYS_sigaltstack, (long)&own, 0);
	syscall4(SYS_rt_sigaction, SIGUSR1, (long)&action, 0, 8);
	start(SLEEPS_IN_HANDLER);
	start(SLEEPS_BELOW_FRAMES);
	sleep_milliseconds(1000);
	start(STAYS_AWAKE);
	sleep_milliseconds(1000);
	put("calls are made");
	end_line();
	asleep();
	__builtin_unreachable();
}
