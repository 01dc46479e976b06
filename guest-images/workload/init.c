/*
 * An init that makes system calls in known numbers, says how many, and powers off.
 *
 * The kernel hands parameters of its command line that it does not know on to init: words with
 * '=' in the environment, others as arguments. Understood here:
 *
 *   procs=N      children, each pinned to a CPU in turn (default: one per CPU)
 *   opens=N      openat(2) calls per child and round, alternating between a file that exists
 *                and one that does not
 *   reads=N      read(2) calls per child and round (costs one openat more if opens=0)
 *   getpids=N    getpid(2) calls per child and round
 *   repeat=N     rounds (default 1), `pause=MS` between them
 *   modload=A,B  modules to load first, modunload=A,B modules to remove at the end
 *   end=poweroff|restart|halt|exit   how to end; `exit` makes the kernel panic
 *
 * Every openat and read of every process here is counted, set-up included.
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"

enum { PROCS_MAX = 64, ROUND_BYTES = 16 };

struct counts {
	unsigned long openat, read, getpid, failed;
};

/* Shared between the parent and its children. */
struct shared {
	struct counts counts[PROCS_MAX];
	unsigned long ready;
};

static const char *const existing = "/dev/zero";
static const char *const missing = "/nonexistent";

static struct counts setup;

static void put_counts(const struct counts *counts)
{
	put_field(" openat=", counts->openat);
	put_field(" read=", counts->read);
	put_field(" getpid=", counts->getpid);
	put_field(" failed=", counts->failed);
	end_line();
}

/* The counted calls. Not inlined and with symbols, so that they can be probed too. */

__attribute__((noinline)) long workload_open(struct counts *counts, const char *path)
{
	counts->openat++;
	return syscall4(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
}

__attribute__((noinline)) long workload_read(struct counts *counts, long file)
{
	char bytes[ROUND_BYTES];

	counts->read++;
	return syscall3(SYS_read, file, (long)bytes, sizeof bytes);
}

static void work(struct counts *counts)
{
	unsigned long opens = number("opens", 0), reads = number("reads", 0);
	unsigned long getpids = number("getpids", 0);
	long file = -1;

	if (reads && !opens)
		opens = 1;
	for (unsigned long i = 0; i < opens; i++) {
		long got = workload_open(counts, i % 2 ? missing : existing);

		if (i % 2 ? got != -ENOENT : got < 0)
			counts->failed++;
		if (i == 0)
			file = got;
		else if (got >= 0)
			syscall1(SYS_close, got);
	}
	for (unsigned long i = 0; i < reads; i++)
		if (workload_read(counts, file) != ROUND_BYTES)
			counts->failed++;
	for (unsigned long i = 0; i < getpids; i++) {
		counts->getpid++;
		if (syscall0(SYS_getpid) <= 0)
			counts->failed++;
	}
	if (file >= 0)
		syscall1(SYS_close, file);
}

static void pin(unsigned cpu)
{
	unsigned long mask[16] = { 0 };

	mask[cpu / 64] = 1ul << cpu % 64;
	syscall3(SYS_sched_setaffinity, 0, sizeof mask, (long)mask);
}

static unsigned cpu_count(void)
{
	unsigned long mask[16] = { 0 };
	unsigned count = 0;

	if (syscall3(SYS_sched_getaffinity, 0, sizeof mask, (long)mask) <= 0)
		return 1;
	for (unsigned cpu = 0; cpu < 1024; cpu++)
		count += mask[cpu / 64] >> cpu % 64 & 1;
	return count;
}

/* One round: every child does its work at the same time as the others. */
static void round_of(struct shared *shared, unsigned procs, unsigned cpus)
{
	long started = 0;

	shared->ready = 0;
	for (unsigned child = 0; child < procs; child++) {
		long id = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (id == 0) {
			pin(child % cpus);
			__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
			while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < procs)
				syscall0(SYS_sched_yield);
			work(&shared->counts[child]);
			syscall1(SYS_exit_group, 0);
		}
		if (id > 0)
			started++;
		else
			__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST), setup.failed++;
	}
	while (started-- > 0)
		if (syscall4(SYS_wait4, -1, 0, 0, 0) < 0)
			setup.failed++;
}

static void say_module(const char *verb, const char *name, long result)
{
	put("workload: ");
	put(verb);
	put(name);
	put(" result=");
	put_number(result);
	end_line();
	if (result)
		setup.failed++;
}

static void load_modules(const char *list)
{
	char name[TEXT_MAX];

	while (list && (list = next_name(list, name))) {
		long file = workload_open(&setup, name);

		say_module("load ", name,
			   file < 0 ? file : syscall3(SYS_finit_module, file, (long)"", 0));
		if (file >= 0)
			syscall1(SYS_close, file);
	}
}

static void unload_modules(const char *list)
{
	char name[TEXT_MAX];

	while (list && (list = next_name(list, name)))
		say_module("unload ", name, syscall2(SYS_delete_module, (long)name, O_NONBLOCK));
}

static __attribute__((noreturn)) void end(void)
{
	const char *how = parameter("end");

	if (how && *how == 'e')
		syscall1(SYS_exit_group, 0);
	if (how && *how == 'h')
		syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_HALT, 0);
	if (!how || *how != 'r')
		syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_RESTART, 0);
	for (;;)
		syscall0(SYS_pause);
}

void init_main(long *stack)
{
	unsigned cpus = cpu_count(), procs;
	unsigned long rounds;
	struct counts total;
	struct shared *shared;

	words[0] = (char **)(stack + 1);
	words[1] = words[0] + stack[0] + 1;
	procs = number("procs", cpus);
	if (procs > PROCS_MAX)
		procs = PROCS_MAX;
	shared = (struct shared *)syscall6(SYS_mmap, 0, sizeof *shared, PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	put_field("workload: start cpus=", cpus);
	put_field(" procs=", procs);
	end_line();
	if ((unsigned long)shared >= -4095ul) {
		put("workload: no memory");
		end_line();
		end();
	}
	load_modules(parameter("modload"));

	rounds = number("repeat", 1);
	for (unsigned long round = 1; round <= rounds; round++) {
		if (round > 1)
			sleep_milliseconds(number("pause", 0));
		round_of(shared, procs, cpus);
		if (rounds > 1) {
			put_field("workload: round ", round);
			end_line();
		}
	}
	unload_modules(parameter("modunload"));

	total = setup;
	for (unsigned child = 0; child < procs; child++) {
		const struct counts *counts = &shared->counts[child];

		put_field("workload: cpu=", child % cpus);
		put_counts(counts);
		total.openat += counts->openat;
		total.read += counts->read;
		total.getpid += counts->getpid;
		total.failed += counts->failed;
	}
	put("workload: setup");
	put_counts(&setup);
	put("workload: done");
	put_counts(&total);
	end();
}
