/* System calls in known numbers: what an init counts, and says at its end. */

enum { ROUND_BYTES = 16 };

struct counts {
	unsigned long openat, read, getpid, nap, children, failed;
};

/* What has been written leaves the machine before this returns. */
static void drain(void)
{
	enum { TCSBRK = 0x5409 };

	syscall3(SYS_ioctl, 1, TCSBRK, 1);
}

static void put_counts(const struct counts *counts)
{
	put_field(" openat=", counts->openat);
	put_field(" read=", counts->read);
	put_field(" getpid=", counts->getpid);
	put_field(" nap=", counts->nap);
	put_field(" children=", counts->children);
	put_field(" failed=", counts->failed);
	end_line();
	/* What ends the kernel next must not find the line on its way. */
	drain();
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

/* Whether a process sleeps; needs /proc. What it opens and reads is counted. */
static int is_asleep(struct counts *counts, long id)
{
	char path[32] = "/proc/", status[TEXT_MAX];
	unsigned long used = 0;
	long file, got;

	put_number(id);
	for (; used < text_used; used++)
		path[6 + used] = text[used];
	text_used = 0;
	for (const char *from = "/stat"; *from; from++)
		path[6 + used++] = *from;
	path[6 + used] = 0;
	file = workload_open(counts, path);
	if (file < 0)
		return counts->failed++, 1;
	counts->read++;
	got = syscall3(SYS_read, file, (long)status, sizeof status);
	syscall1(SYS_close, file);
	/* The state follows the name: "12 (init) S 1 ..." */
	for (long at = 2; at < got; at++)
		if (status[at - 2] == ')')
			return status[at] == 'S';
	return counts->failed++, 1;
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
