/*
 * Code on probed pages that an emulator or a hidden page may break. Each function checks its own result, and prints a line if the result is
 * wrong. The line `attacked ROUNDS ALARMS` has the calls of each function, and the calls of `counted` by a handler of signals.
 */

enum {
	ROUNDS = 8,
	COPIED_BYTES = 5000,
	SIGTRAP = 5,
	SIGALRM = 14,
	SA_SIGINFO = 4,
	SA_RESTORER = 0x04000000,
	TRAP_FLAG = 0x100,
	SIGNALLED_CALLS = 400,
};

/*
 * `with_bytes` begins with an instruction that only the hardware executes. An instruction of `straddling` begins on a page without probes, and
 * ends on the page with the probe `straddled`; another begins on that page and ends on the next. `copying` is a repeated string. `calling`
 * has a system call. `faulting` reads memory that is not mapped yet. `stepped` is executed with the trap flag. A child process writes to its page
 * with `copied`.
 */
void with_bytes(void *to, const void *from);
long straddling(void);
void copying(void *to, const void *from, long bytes);
long calling(void);
long faulting(const long *at);
long stepped(void);
long copied(void);

__asm__(".section .text.attacks, \"ax\"\n"
	".balign 4096\n"
	".globl with_bytes\n"
	".type with_bytes, @function\n"
	"with_bytes:\n"
	"	movups (%rsi), %xmm0\n"
	"	movups %xmm0, (%rdi)\n"
	"	ret\n"
	".size with_bytes, . - with_bytes\n"
	".balign 4096\n"
	"first_page:\n"
	"	.org first_page + 4096 - 7, 0xcc\n"
	".globl straddling\n"
	".type straddling, @function\n"
	"straddling:\n"
	"	xor %eax, %eax\n"
	"	movabs $0x1122334455667788, %rax\n"
	".type straddled, @function\n"
	"straddled:\n"
	"	bswap %rax\n"
	"	jmp 1f\n"
	"	.org first_page + 2 * 4096 - 5, 0xcc\n"
	"1:\n"
	".type straddles, @function\n"
	"straddles:\n"
	"	movabs $0x0102030405060708, %rcx\n"
	"	add %rcx, %rax\n"
	"	ret\n"
	".size straddles, . - straddles\n"
	".size straddled, . - straddled\n"
	".size straddling, . - straddling\n"
	".balign 4096\n"
	".globl copying\n"
	".type copying, @function\n"
	"copying:\n"
	"	mov %rdx, %rcx\n"
	".type copying_string, @function\n"
	"copying_string:\n"
	"	rep movsb\n"
	"	ret\n"
	".size copying_string, . - copying_string\n"
	".size copying, . - copying\n"
	".globl calling\n"
	".type calling, @function\n"
	"calling:\n"
	"	mov $39, %eax\n"
	".type calling_kernel, @function\n"
	"calling_kernel:\n"
	"	syscall\n"
	"	ret\n"
	".size calling_kernel, . - calling_kernel\n"
	".size calling, . - calling\n"
	".globl faulting\n"
	".type faulting, @function\n"
	"faulting:\n"
	"	mov (%rdi), %rax\n"
	"	ret\n"
	".size faulting, . - faulting\n"
	".globl stepped\n"
	".type stepped, @function\n"
	"stepped:\n"
	"	mov $1, %eax\n"
	"	add $2, %eax\n"
	"	imul $7, %eax, %eax\n"
	"	ret\n"
	".size stepped, . - stepped\n"
	".balign 4096\n"
	".globl copied\n"
	".type copied, @function\n"
	"copied:\n"
	"	mov $5, %eax\n"
	"	ret\n"
	".size copied, . - copied\n"
	".balign 4096\n"
	".text\n"
	".globl signal_return\n"
	"signal_return:\n"
	"	mov $15, %eax\n"
	"	syscall\n");

struct action {
	void (*handler)(int, void *, long *);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};

extern void signal_return(void);
static volatile long traps;
static volatile long alarms;

static void on_trap(int signal, void *info, long *context)
{
	(void)signal;
	(void)info;
	(void)context;
	traps++;
}

static void on_alarm(int signal, void *info, long *context)
{
	(void)signal;
	(void)info;
	(void)context;
	alarms++;
	/* On the same page as the interrupted instruction. */
	counted(0);
	__atomic_add_fetch(&counts->calls, 1, __ATOMIC_SEQ_CST);
}

static void handle(int signal, void (*handler)(int, void *, long *))
{
	struct action action = { handler, SA_SIGINFO | SA_RESTORER, signal_return, 0 };

	syscall4(SYS_rt_sigaction, signal, (long)&action, 0, 8);
}

static void require(int is_right, const char *what)
{
	if (is_right)
		return;
	put("wrong: ");
	put(what);
	end_line();
}

/* The number of traps of one call of `stepped` with the trap flag. */
static long traps_of_step(void)
{
	long before = traps;
	long result;

	__asm__ volatile("sub $128, %%rsp\n"
			 "pushf\n"
			 "orq %1, (%%rsp)\n"
			 "popf\n"
			 "call stepped\n"
			 "pushf\n"
			 "andq %2, (%%rsp)\n"
			 "popf\n"
			 "add $128, %%rsp\n"
			 : "=&a"(result)
			 : "i"(TRAP_FLAG), "i"(~TRAP_FLAG)
			 : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
	require(result == 21, "stepped");
	return traps - before;
}

/* Gives this process its own copy of the page with `copied`, whose constant becomes 6 there. */
static void own_page(void)
{
	long page = (long)copied & -4096;

	syscall3(SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	((volatile unsigned char *)copied)[1] = 6;
}

static void keep_copy(void)
{
	own_page();
	put("kept");
	end_line();
	for (;;) {
		require(copied() == 6, "kept");
		sleep_milliseconds(10);
	}
}

static void copy_page(void)
{
	require(copied() == 5, "copied");
	if (syscall1(SYS_fork, 0) == 0) {
		own_page();
		for (int round = 0; round < ROUNDS; round++)
			require(copied() == 6, "copy");
		syscall1(SYS_exit_group, 0);
	}
	syscall4(SYS_wait4, -1, 0, 0, 0);
	require(copied() == 5, "copied");
}

static void attack(void)
{
	static unsigned char from[COPIED_BYTES];
	static unsigned char to[COPIED_BYTES];
	const long interval[4] = { 0, 2000, 0, 2000 };
	const long never[4] = { 0, 0, 0, 0 };

	for (unsigned i = 0; i < sizeof from; i++)
		from[i] = (unsigned char)(i * 7);
	for (int round = 0; round < ROUNDS; round++) {
		int same = 1;
		long *fresh;

		with_bytes(to, from + round);
		for (int i = 0; i < 16; i++)
			same &= to[i] == from[i + round];
		require(same, "with_bytes");
		require(straddling() == (long)(0x8877665544332211 + 0x0102030405060708), "straddling");
		for (unsigned i = 0; i < sizeof to; i++)
			to[i] = 0;
		copying(to, from, sizeof to);
		for (unsigned i = 0; i < sizeof to; i++)
			same &= to[i] == from[i];
		require(same, "copying");
		require(calling() == syscall0(SYS_getpid), "calling");
		fresh = (void *)syscall6(SYS_mmap, 0, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		require(faulting(fresh) == 0, "faulting");
		syscall2(SYS_munmap, (long)fresh, PAGE_BYTES);
	}
	copy_page();
	handle(SIGTRAP, on_trap);
	for (int round = 0; round < ROUNDS; round++)
		/* Behind `popf`, `call`, the three instructions, `ret`, `pushf`, `andq` and `popf`. */
		require(traps_of_step() == 8, "traps");
	handle(SIGALRM, on_alarm);
	syscall3(SYS_setitimer, 0, (long)interval, 0);
	call(SIGNALLED_CALLS);
	while (alarms < 4)
		call(1);
	syscall3(SYS_setitimer, 0, (long)never, 0);
	put_field("attacked ", ROUNDS);
	put_field(" ", (unsigned long)alarms);
	end_line();
}
