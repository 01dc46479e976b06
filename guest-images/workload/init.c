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
 *   pages=N      pages of new memory that each child touches per round: each is a page fault
 *   repeat=N     rounds (default 1), `pause=MS` between them
 *   nappers=N    children besides, that all make `naps=M` nanosleep(2) calls of `nap=MS`
 *   victims=N    then children that make one of an hour: when all are asleep in it, it is said, and they are killed;
 *                then the nappers once more
 *   listen=1     a line of input ends the rounds, and is waited for before the victims are killed
 *   begin=1      a line of input is waited for before the first round
 *   modload=A,B  modules to load first, modunload=A,B modules to remove at the end
 *   end=poweroff|restart|halt|exit   how to end; `exit` makes the kernel panic
 *
 * Every openat, read and nanosleep of every process here is counted, set-up included, and so is every process.
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"
#include "counted.h"

enum { PAGE_BYTES = 4096, PROCS_MAX = 64, HOUR_MS = 3600000 };

/* Shared between the parent and its children. */
struct shared {
	struct counts counts[PROCS_MAX];
	unsigned long ready;
};

static const char *const existing = "/dev/zero";
static const char *const missing = "/nonexistent";

static struct counts setup;

__attribute__((noinline)) void workload_nap(struct counts *counts, unsigned long milliseconds)
{
	long duration[2] = { (long)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000) };

	counts->nap++;
	syscall2(SYS_nanosleep, (long)duration, 0);
}

static void touch(struct counts *counts, unsigned long pages)
{
	unsigned long bytes = pages * PAGE_BYTES;
	long at = syscall6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if ((unsigned long)at >= -4095ul) {
		counts->failed++;
		return;
	}
	for (unsigned long byte = 0; byte < bytes; byte += PAGE_BYTES)
		((volatile char *)at)[byte] = 1;
	if (syscall2(SYS_munmap, at, (long)bytes))
		counts->failed++;
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
	if (number("pages", 0))
		touch(counts, number("pages", 0));
	if (file >= 0)
		syscall1(SYS_close, file);
}

/* What a child does. */
static void take_naps(struct counts *counts)
{
	for (unsigned long naps = number("naps", 1); naps; naps--)
		workload_nap(counts, number("nap", 1));
}

static void sleep_long(struct counts *counts)
{
	workload_nap(counts, HOUR_MS);
}

/* Starts children that do their work at the same time, pinned to a CPU in turn. */
static void start(struct shared *shared, unsigned procs, unsigned cpus, long ids[PROCS_MAX],
		  void (*what)(struct counts *))
{
	shared->ready = 0;
	for (unsigned child = 0; child < procs; child++) {
		long id = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (id == 0) {
			pin(child % cpus);
			__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
			while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < procs)
				syscall0(SYS_sched_yield);
			what(&shared->counts[child]);
			syscall1(SYS_exit_group, 0);
		}
		ids[child] = id;
		if (id > 0)
			setup.children++;
		else
			__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST), setup.failed++;
	}
}

static void await(unsigned procs, const long ids[PROCS_MAX])
{
	for (unsigned child = 0; child < procs; child++)
		if (ids[child] > 0 && syscall4(SYS_wait4, ids[child], 0, 0, 0) < 0)
			setup.failed++;
}

/* One round: every child does its work at the same time as the others. */
static void round_of(struct shared *shared, unsigned procs, unsigned cpus,
		     void (*what)(struct counts *))
{
	long ids[PROCS_MAX];

	start(shared, procs, cpus, ids, what);
	await(procs, ids);
}

static void wait_milliseconds(unsigned long milliseconds)
{
	/* Not a nap: those are counted, and may be probed. */
	syscall3(SYS_poll, 0, 0, (long)milliseconds);
}

static int has_line(void)
{
	struct {
		int file;
		short events, happened;
	} input = { 0, POLLIN, 0 };

	return syscall3(SYS_poll, (long)&input, 1, 0) == 1;
}

static void read_line(void)
{
	char line[TEXT_MAX];

	setup.read++;
	if (syscall3(SYS_read, 0, (long)line, sizeof line) <= 0)
		setup.failed++;
}

/* Children that are killed in their sleep. */
static void kill_sleepers(struct shared *shared, unsigned procs, unsigned cpus)
{
	long ids[PROCS_MAX];

	syscall2(SYS_mkdir, (long)"/proc", 0555);
	if (syscall5(SYS_mount, (long)"proc", (long)"/proc", (long)"proc", 0, 0))
		setup.failed++;
	start(shared, procs, cpus, ids, sleep_long);
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < procs)
		wait_milliseconds(1);
	/* Past that point they sleep nowhere else. */
	for (unsigned child = 0; child < procs; child++)
		while (ids[child] > 0 && !is_asleep(&setup, ids[child]))
			wait_milliseconds(1);
	put_field("workload: asleep=", procs);
	end_line();
	if (number("listen", 0))
		read_line();
	for (unsigned child = 0; child < procs; child++)
		if (syscall2(SYS_kill, ids[child], SIGKILL))
			setup.failed++;
	await(procs, ids);
	put_field("workload: killed=", procs);
	end_line();
}

static unsigned children(const char *name)
{
	unsigned long procs = number(name, 0);

	return procs > PROCS_MAX ? PROCS_MAX : procs;
}

static void naps(struct shared *shared, unsigned cpus)
{
	unsigned nappers = children("nappers"), victims = children("victims");

	round_of(shared, nappers, cpus, take_naps);
	if (!victims)
		return;
	kill_sleepers(shared, victims, cpus);
	round_of(shared, nappers, cpus, take_naps);
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
	if (number("begin", 0))
		read_line();
	load_modules(parameter("modload"));

	rounds = number("repeat", 1);
	for (unsigned long round = 1; round <= rounds; round++) {
		if (round > 1)
			workload_nap(&setup, number("pause", 0));
		round_of(shared, procs, cpus, work);
		if (rounds > 1) {
			put_field("workload: round ", round);
			end_line();
		}
		if (number("listen", 0) && rounds > 1 && has_line()) {
			read_line();
			break;
		}
	}
	naps(shared, cpus);
	unload_modules(parameter("modunload"));

	total = setup;
	for (unsigned child = 0; child < PROCS_MAX; child++) {
		const struct counts *counts = &shared->counts[child];

		if (child < procs) {
			put_field("workload: cpu=", child % cpus);
			put_counts(counts);
		}
		total.openat += counts->openat;
		total.read += counts->read;
		total.getpid += counts->getpid;
		total.nap += counts->nap;
		total.failed += counts->failed;
	}
	put("workload: setup");
	put_counts(&setup);
	put("workload: done");
	put_counts(&total);
	end();
}
