/*
 * An init whose processes and threads count their own calls of a function, for comparison with the hits of a probe there.
 *
 * The processes: init itself, forked ones, ones that execute this file anew, a copy of this file, and two threads at once. While they call,
 * other parts read this file: with read(2), with sendfile(2), and through a mapping. The last lines are `sums SUM SUM SUM SUM`, of the file
 * before all calls and as each reader found it, and `counted CALLS BYTES COPIES`: the calls of `counted` and of `with_bytes` by programs
 * that are this file, and those of `counted` in copies of the file: one that is removed, one of the same name, and that one
 * with its contents written again.
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
	SYS_fork = 57,
	SYS_execve = 59,
	SYS_exit = 60,
	SYS_sendfile = 40,
	SYS_unlink = 87,
	O_CREAT = 0x40,
	O_RDWR = 2,
	/* CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM. */
	THREAD = 0x50f00,
};

/* Shared by all processes. */
struct counts {
	long calls;
	long with_bytes;
	long threads_done;
};

static struct counts *counts;
__attribute__((used)) long sink;
static char stacks[2][STACK_BYTES] __attribute__((aligned(16)));
static char buffer[CHUNK];
static unsigned char source[16] __attribute__((aligned(16)));
static unsigned char target[16] __attribute__((aligned(16)));
static char *no_environment[] = { 0 };

/*
 * On pages of their own: the callers are elsewhere. `counted` has a name for its last instruction. The first instruction of `with_bytes` is
 * one that only the hardware executes.
 */
long counted(long value);
void with_bytes(void *to, const void *from);
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
	".globl with_bytes\n"
	".type with_bytes, @function\n"
	"with_bytes:\n"
	"	movups (%rsi), %xmm0\n"
	"	movups %xmm0, (%rdi)\n"
	"	ret\n"
	".size with_bytes, . - with_bytes\n"
	".text\n");

static void call(long times)
{
	for (long i = 0; i < times; i++) {
		__atomic_add_fetch(&counts->calls, 1, __ATOMIC_SEQ_CST);
		counted(i);
	}
	for (unsigned i = 0; i < sizeof source; i++)
		source[i] = (unsigned char)(i * 7 + times);
	__atomic_add_fetch(&counts->with_bytes, 1, __ATOMIC_SEQ_CST);
	with_bytes(target, source);
	for (unsigned i = 0; i < sizeof source; i++)
		if (target[i] != source[i]) {
			put("with_bytes has copied wrong bytes");
			end_line();
		}
}

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

static unsigned long sum_by_read(const char *path)
{
	long file = syscall4(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
	unsigned long sum = 0;
	long len;

	while ((len = syscall3(SYS_read, file, (long)buffer, CHUNK)) > 0)
		sum = sum_of(sum, buffer, len);
	syscall1(SYS_close, file);
	return sum;
}

static unsigned long sum_by_mapping(const char *path)
{
	long file = syscall4(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
	long len = syscall3(SYS_lseek, file, 0, 2);
	char *bytes = (char *)syscall6(SYS_mmap, 0, len, PROT_READ, MAP_PRIVATE, file, 0);
	unsigned long sum = sum_of(0, bytes, len);

	syscall2(SYS_munmap, (long)bytes, len);
	syscall1(SYS_close, file);
	return sum;
}

static void copy(const char *from, const char *to)
{
	long in = syscall4(SYS_openat, AT_FDCWD, (long)from, O_RDONLY, 0);
	long out = syscall4(SYS_openat, AT_FDCWD, (long)to, O_RDWR | O_CREAT | O_TRUNC, 0755);

	while (syscall4(SYS_sendfile, out, in, 0, 1 << 20) > 0)
		;
	syscall1(SYS_close, in);
	syscall1(SYS_close, out);
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
	return (void *)syscall6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static long open_counts(const char *path)
{
	long file = syscall4(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT, 0644);
	static const struct counts none;

	syscall3(SYS_write, file, (long)&none, sizeof none);
	return file;
}

void init_main(long *stack)
{
	char **arguments = (char **)(stack + 1);
	unsigned long sums[4];
	struct counts *copies;
	long file;

	if (stack[0] > 1 && arguments[1][0] >= '3' && arguments[1][0] <= '9') {
		counts = map_counts(arguments[1][0] - '0');
		call(CALLS);
		syscall1(SYS_exit_group, 0);
	}
	file = open_counts("/counts");
	counts = map_counts(file);
	sums[0] = sum_by_read("/init");
	call(CALLS);
	sums[1] = sum_by_read("/init");
	sums[2] = sum_by_mapping("/init");
	for (int i = 0; i < PROCESSES; i++)
		if (syscall1(SYS_fork, 0) == 0) {
			call(CALLS);
			syscall1(SYS_exit_group, 0);
		}
	wait_for(PROCESSES);
	for (int i = 0; i < EXECS; i++)
		run("/init", (int)file);
	wait_for(EXECS);
	start_thread(stacks[0] + STACK_BYTES, thread);
	start_thread(stacks[1] + STACK_BYTES, thread);
	while (__atomic_load_n(&counts->threads_done, __ATOMIC_SEQ_CST) < 2)
		syscall0(SYS_sched_yield);
	file = open_counts("/copies");
	copies = map_counts(file);
	/* A new file, another one of the same name, and the same one with new contents. */
	for (int i = 0; i < COPIES; i++) {
		copy("/init", "/copy");
		sums[3] = sum_by_read("/copy");
		run("/copy", (int)file);
		wait_for(1);
		if (i == 0)
			syscall1(SYS_unlink, (long)"/copy");
	}
	put_field("sums ", sums[0]);
	for (int i = 1; i < 4; i++)
		put_field(" ", sums[i]);
	end_line();
	put_field("counted ", (unsigned long)counts->calls);
	put_field(" ", (unsigned long)counts->with_bytes);
	put_field(" ", (unsigned long)copies->calls);
	end_line();
	syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	for (;;)
		syscall0(SYS_pause);
}
