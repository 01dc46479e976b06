/*
 * A program whose processes and threads count their own calls of functions, for comparison with the hits of probes there. The first argument
 * says what the program does:
 *
 * `all`       forks, executes the file anew, starts threads, copies the file to FILE.copy, and writes to the copy through a mapping. While they
 *             call, other parts read this file: with read(2), with sendfile(2), with write(2) of a mapping, and through a mapping. Then the
 *             program runs the functions of `uprobes-attacks.h`, `uprobes-returns.h` and `uprobes-marks.h`. The last lines are `sums SUM...`, of the file before all calls and as each
 *             reader found it, and `counted CALLS COPIES`: the calls of `counted` by programs that are this file, and by the copies: one that
 *             is removed, one of the same name, and the second with its contents written again.
 * `calls`     calls `counted` a hundred times.
 * `loop`      calls `counted` without end, each time with the number of the call.
 * `kept`      writes to its page with `copied`, prints `kept`, and calls `copied` without end.
 * `resident`  prints how many pages of the file, the second argument, are in memory: `resident PAGES`.
 */

#include "syscall.h"
#include "console.h"
#include "start.h"

enum {
	CALLS = 100,
	PROCESSES = 3,
	EXECS = 2,
	COPIES = 3,
	CHUNK = 16384,
	STACK_BYTES = 16384,
	PAGE_BYTES = 4096,
	MOST_PAGES = 256,
	PROT_EXEC = 4,
	SYS_mprotect = 10,
	SYS_rt_sigaction = 13,
	SYS_rt_sigreturn = 15,
	SYS_mincore = 27,
	SYS_setitimer = 38,
	SYS_sendfile = 40,
	SYS_fork = 57,
	SYS_execve = 59,
	SYS_exit = 60,
	SYS_unlink = 87,
	O_CREAT = 0x40,
	O_RDWR = 2,
	/* CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM. */
	THREAD = 0x50f00,
};

/* Shared by all processes. */
struct counts {
	long calls;
	long threads_done;
};

static struct counts *counts;
__attribute__((used)) long sink;
static char stacks[2][STACK_BYTES] __attribute__((aligned(16)));
static char buffer[CHUNK];
static char *no_environment[] = { 0 };

/* On a page of its own: the callers are elsewhere. `counted` has a name for its last instruction. */
long counted(long value);
__asm__(".section .text.counted, \"ax\"\n"
	".balign 4096\n"
	".globl counted\n"
	".type counted, @function\n"
	"counted:\n"
	"	push %rbx\n"
	"	mov %rdi, %rbx\n"
	"	lock add %rbx, sink(%rip)\n"
	"	mov %rbx, %rax\n"
	"	pop %rbx\n"
	".type counted_return, @function\n"
	"counted_return:\n"
	"	ret\n"
	".size counted_return, . - counted_return\n"
	".size counted, . - counted\n"
	".balign 4096\n"
	".text\n");

static void call(long times)
{
	for (long i = 0; i < times; i++) {
		__atomic_add_fetch(&counts->calls, 1, __ATOMIC_SEQ_CST);
		counted(i);
	}
}

#include "uprobes-attacks.h"

static void thread(void)
{
	call(CALLS);
	__atomic_add_fetch(&counts->threads_done, 1, __ATOMIC_SEQ_CST);
	syscall1(SYS_exit, 0);
}

/* Starts a thread that runs `run`, which does not return. */
__attribute__((noinline)) static void start_thread(char *stack_end, void (*run)(void))
{
	*(void (**)(void))(stack_end - 16) = run;
	__asm__ volatile("syscall\n"
			 "test %%eax, %%eax\n"
			 "jnz 1f\n"
			 "call *(%%rsp)\n"
			 "1:\n"
			 :
			 : "a"((long)SYS_clone), "D"((long)THREAD), "S"(stack_end - 16), "d"(0L)
			 : "rcx", "r11", "memory");
}

static unsigned long sum_of(unsigned long sum, const char *bytes, long len)
{
	for (long i = 0; i < len; i++)
		sum = sum * 31 + (unsigned char)bytes[i];
	return sum & 0xffffffff;
}

static long open_file(const char *path, long flags)
{
	return syscall4(SYS_openat, AT_FDCWD, (long)path, flags, 0755);
}

static unsigned long sum_by_read(const char *path)
{
	long file = open_file(path, O_RDONLY);
	unsigned long sum = 0;
	long len;

	while ((len = syscall3(SYS_read, file, (long)buffer, CHUNK)) > 0)
		sum = sum_of(sum, buffer, len);
	syscall1(SYS_close, file);
	return sum;
}

static char *map(const char *path, long *len)
{
	long file = open_file(path, O_RDONLY);
	char *bytes;

	*len = syscall3(SYS_lseek, file, 0, 2);
	bytes = (char *)syscall6(SYS_mmap, 0, *len, PROT_READ, MAP_PRIVATE, file, 0);
	syscall1(SYS_close, file);
	return bytes;
}

static unsigned long sum_by_mapping(const char *path)
{
	long len;
	char *bytes = map(path, &len);
	unsigned long sum = sum_of(0, bytes, len);

	syscall2(SYS_munmap, (long)bytes, len);
	return sum;
}

/* The kernel copies from the mapping. */
static void copy_by_mapping(const char *from, const char *to)
{
	long len;
	char *bytes = map(from, &len);
	long out = open_file(to, O_RDWR | O_CREAT | O_TRUNC);

	syscall3(SYS_write, out, (long)bytes, len);
	syscall1(SYS_close, out);
	syscall2(SYS_munmap, (long)bytes, len);
}

static void copy(const char *from, const char *to)
{
	long in = open_file(from, O_RDONLY);
	long out = open_file(to, O_RDWR | O_CREAT | O_TRUNC);

	while (syscall4(SYS_sendfile, out, in, 0, 1 << 20) > 0)
		;
	syscall1(SYS_close, in);
	syscall1(SYS_close, out);
}

/* Writes to each page of the file through a shared mapping, the bytes that are there. */
static void rewrite_by_mapping(const char *path)
{
	long file = open_file(path, O_RDWR);
	long len = syscall3(SYS_lseek, file, 0, 2);
	volatile char *bytes =
		(char *)syscall6(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	for (long at = 0; at < len; at += PAGE_BYTES)
		bytes[at] = bytes[at];
	syscall1(SYS_close, file);
	syscall2(SYS_munmap, (long)bytes, len);
}

static void run(const char *path, int descriptor)
{
	char number[2] = { (char)('0' + descriptor), 0 };
	char *arguments[] = { (char *)path, number, 0 };

	if (syscall1(SYS_fork, 0) == 0) {
		syscall3(SYS_execve, (long)path, (long)arguments, (long)no_environment);
		syscall1(SYS_exit_group, 1);
	}
}

static void wait_for(int processes)
{
	while (processes--)
		syscall4(SYS_wait4, -1, 0, 0, 0);
}

static struct counts *map_counts(long file)
{
	return (void *)syscall6(SYS_mmap, 0, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static long open_counts(const char *path)
{
	long file = open_file(path, O_RDWR | O_CREAT);
	static const struct counts none;

	syscall3(SYS_write, file, (long)&none, sizeof none);
	return file;
}

#include "uprobes-marks.h"
#include "uprobes-returns.h"

static void run_all(const char *path)
{
	static char beside[64];
	unsigned long sums[5];
	struct counts *copies;
	unsigned used = 0;
	long file;

	while (path[used] && used < sizeof beside - 6) {
		beside[used] = path[used];
		used++;
	}
	for (const char *end = ".copy"; *end; end++)
		beside[used++] = *end;
	file = open_counts("/counts");
	counts = map_counts(file);
	sums[0] = sum_by_read(path);
	call(CALLS);
	sums[1] = sum_by_read(path);
	sums[2] = sum_by_mapping(path);
	copy_by_mapping(path, "/written");
	sums[3] = sum_by_read("/written");
	for (int i = 0; i < PROCESSES; i++)
		if (syscall1(SYS_fork, 0) == 0) {
			call(CALLS);
			syscall1(SYS_exit_group, 0);
		}
	wait_for(PROCESSES);
	for (int i = 0; i < EXECS; i++)
		run(path, (int)file);
	wait_for(EXECS);
	start_thread(stacks[0] + STACK_BYTES, thread);
	start_thread(stacks[1] + STACK_BYTES, thread);
	while (__atomic_load_n(&counts->threads_done, __ATOMIC_SEQ_CST) < 2)
		syscall0(SYS_sched_yield);
	file = open_counts("/copies");
	copies = map_counts(file);
	/* A new file, another one of the same name, and the same one with new contents. */
	for (int i = 0; i < COPIES; i++) {
		copy(path, beside);
		rewrite_by_mapping(beside);
		sums[4] = sum_by_read(beside);
		run(beside, (int)file);
		wait_for(1);
		if (i == 0)
			syscall1(SYS_unlink, (long)beside);
	}
	attack();
	leave();
	pass_marks();
	put_field("sums ", sums[0]);
	for (int i = 1; i < 5; i++)
		put_field(" ", sums[i]);
	end_line();
	put_field("counted ", (unsigned long)counts->calls);
	put_field(" ", (unsigned long)copies->calls);
	end_line();
}

static void print_resident(const char *path)
{
	static unsigned char pages[MOST_PAGES];
	long len;
	char *bytes = map(path, &len);
	unsigned long resident = 0;

	if (len <= (long)MOST_PAGES * PAGE_BYTES)
		syscall3(SYS_mincore, (long)bytes, len, (long)pages);
	for (unsigned i = 0; i < MOST_PAGES; i++)
		resident += pages[i] & 1;
	put_field("resident ", resident);
	end_line();
}

void init_main(long *stack)
{
	char **arguments = (char **)(stack + 1);
	static struct counts own;
	char mode = stack[0] > 1 ? arguments[1][0] : 0;

	counts = &own;
	switch (mode) {
	case 'a':
		run_all(arguments[0]);
		break;
	case 'c':
		call(CALLS);
		break;
	case 'l':
		for (long i = 0;; i++) {
			counted(i);
			if (i % 16 == 0)
				sleep_milliseconds(1);
		}
	case 'k':
		keep_copy();
		break;
	case 'r':
		print_resident(arguments[2]);
		break;
	default:
		counts = map_counts(mode - '0');
		call(CALLS);
	}
	syscall1(SYS_exit_group, 0);
	for (;;)
		syscall0(SYS_pause);
}
