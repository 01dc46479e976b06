/*
 * An init that does to its kernel what moves the ground under probes, while children make system calls in known
 * numbers, reports both, and powers off.
 *
 *   event=NAME   hotplug, modules, kexec, crash, ftrace, kprobes, bpf, keys, perf, sysrq, panic; or none: the children
 *                alone for `milliseconds=N`, as in the kernel that `kexec` and `crash` start
 *   rounds=N     how often the event takes place
 *   listen=1     `modules` waits for a line of input each time a task sleeps in the module
 *
 * What is printed behind "ground: " is the same in every run of a kernel with the same parameters. Every openat, read
 * and getpid of every process here is counted, and the counts are printed behind "workload: done"; by a kernel that is
 * about to start another one, behind "workload: first".
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"
#include "counted.h"

enum { WORKERS_MAX = 16 };

/* Shared between the parent and its children. */
struct shared {
	struct counts counts[WORKERS_MAX];
	unsigned long stop;
	/* A child that is to sleep in module code has come to its read. */
	unsigned long is_reading;
};

static struct counts setup;
static struct shared *shared;
static long workers[WORKERS_MAX];
static unsigned worker_count, cpus;

static unsigned long length(const char *string)
{
	unsigned long length = 0;

	while (string[length])
		length++;
	return length;
}

static int is(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

static void wait_milliseconds(unsigned long milliseconds)
{
	syscall3(SYS_poll, 0, 0, (long)milliseconds);
}

/* Opens a file, and counts that. */
static long open_as(const char *path, long flags)
{
	setup.openat++;
	return syscall4(SYS_openat, AT_FDCWD, (long)path, flags, 0);
}

/* Writes `line` to a file at once; the error, if there is one. */
static long write_file(const char *path, long flags, const char *line)
{
	long file = open_as(path, O_WRONLY | flags), result;

	if (file < 0)
		return file;
	result = syscall3(SYS_write, file, (long)line, (long)length(line));
	syscall1(SYS_close, file);
	return result < 0 ? result : 0;
}

/* Reads the beginning of a file. */
static long read_file(const char *path, char *to, unsigned long bytes)
{
	long file = open_as(path, O_RDONLY), got;

	if (file < 0)
		return file;
	setup.read++;
	got = syscall3(SYS_read, file, (long)to, (long)(bytes - 1));
	syscall1(SYS_close, file);
	to[got < 0 ? 0 : got] = 0;
	return got;
}

/* What is reported is a failure unless the result is what it should be. */
static void report(const char *what, long result, long expected)
{
	put("ground: ");
	put(what);
	put(" ");
	put_number(result);
	end_line();
	if (result != expected)
		setup.failed++;
}

static void must(const char *what, long result)
{
	if (result)
		report(what, result, 0);
}

static void mount(const char *type, const char *at)
{
	syscall2(SYS_mkdir, (long)at, 0755);
	must(type, syscall5(SYS_mount, (long)type, (long)at, (long)type, 0, 0));
}

static void read_line(void)
{
	char line[TEXT_MAX];

	setup.read++;
	if (syscall3(SYS_read, 0, (long)line, sizeof line) <= 0)
		setup.failed++;
}

/* A burst of counted calls. */
static void burst(struct counts *counts)
{
	long file = workload_open(counts, "/dev/zero");

	if (file < 0 || workload_read(counts, file) != ROUND_BYTES)
		counts->failed++;
	if (file >= 0)
		syscall1(SYS_close, file);
	if (workload_open(counts, "/nonexistent") != -ENOENT)
		counts->failed++;
	counts->getpid++;
	if (syscall0(SYS_getpid) <= 0)
		counts->failed++;
}

static void start_workers(void)
{
	worker_count = 2 * cpus < WORKERS_MAX ? 2 * cpus : WORKERS_MAX;
	for (unsigned worker = 0; worker < worker_count; worker++) {
		long id = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (id == 0) {
			pin(worker % cpus);
			while (!__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST)) {
				burst(&shared->counts[worker]);
				wait_milliseconds(2);
			}
			syscall1(SYS_exit_group, 0);
		}
		workers[worker] = id;
		setup.children++;
	}
}

static void stop_workers(void)
{
	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	for (unsigned worker = 0; worker < worker_count; worker++) {
		if (workers[worker] > 0 && syscall4(SYS_wait4, workers[worker], 0, 0, 0) < 0)
			setup.failed++;
		workers[worker] = 0;
	}
}

/* All counts until now; the workers have stopped. */
static void put_total(const char *what)
{
	struct counts total = setup;

	for (unsigned worker = 0; worker < worker_count; worker++) {
		const struct counts *counts = &shared->counts[worker];

		total.openat += counts->openat;
		total.read += counts->read;
		total.getpid += counts->getpid;
		total.failed += counts->failed;
	}
	put("workload: ");
	put(what);
	put_counts(&total);
}

#include "ground-cpus.h"
#include "ground-modules.h"
#include "ground-kernels.h"
#include "ground-tracing.h"
#include "ground-events.h"

static void sysrq(unsigned long rounds)
{
	static const char *const keys[] = { "h", "t", "m", "l", "w" };

	for (; rounds; rounds--)
		for (unsigned key = 0; key < sizeof keys / sizeof *keys; key++)
			must("sysrq", write_file("/proc/sysrq-trigger", 0, keys[key]));
	report("sysrq", 0, 0);
}

static void toggle_keys(unsigned long rounds)
{
	static const char path[] = "/proc/sys/kernel/sched_schedstats";

	for (; rounds; rounds--) {
		must("key on", write_file(path, 0, "1"));
		wait_milliseconds(5);
		must("key off", write_file(path, 0, "0"));
		wait_milliseconds(5);
	}
	report("keys", 0, 0);
}

static void happen(const char *event, unsigned long rounds)
{
	if (is(event, "hotplug"))
		hotplug(rounds);
	else if (is(event, "modules"))
		modules(rounds);
	else if (is(event, "kexec"))
		start_next_kernel();
	else if (is(event, "crash"))
		crash();
	else if (is(event, "panic"))
		panic();
	else if (is(event, "ftrace"))
		trace_functions(rounds);
	else if (is(event, "kprobes"))
		own_kprobes(rounds);
	else if (is(event, "bpf"))
		own_bpf(rounds);
	else if (is(event, "perf"))
		sample(rounds);
	else if (is(event, "keys"))
		toggle_keys(rounds);
	else if (is(event, "sysrq"))
		sysrq(rounds);
	else
		wait_milliseconds(number("milliseconds", 300));
}

void init_main(long *stack)
{
	words[0] = (char **)(stack + 1);
	words[1] = words[0] + stack[0] + 1;
	cpus = cpu_count();
	shared = (struct shared *)syscall6(SYS_mmap, 0, sizeof *shared, PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	put("workload: start");
	end_line();
	mount("proc", "/proc");
	mount("sysfs", "/sys");
	start_workers();
	happen(parameter("event") ? parameter("event") : "none", number("rounds", 1));
	stop_workers();
	put_total("done");
	syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	for (;;)
		syscall0(SYS_pause);
}
