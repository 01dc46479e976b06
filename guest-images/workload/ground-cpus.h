/* A processor that goes offline and comes back. */

enum { SYS_getcpu = 309, LAST_CPU = 1, CALLS_THERE = 8 };

static const char online_path[] = "/sys/devices/system/cpu/cpu1/online";

/* A child on that processor makes counted calls there; its exit status is the number of failures. */
static long works(void)
{
	static struct counts counts;
	int status = 0;
	long id = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (id == 0) {
		unsigned cpu = ~0u;

		pin(LAST_CPU);
		for (unsigned call = 0; call < CALLS_THERE; call++)
			burst(&counts);
		if (syscall3(SYS_getcpu, (long)&cpu, 0, 0) || cpu != LAST_CPU)
			counts.failed++;
		syscall1(SYS_exit_group, (long)counts.failed);
	}
	setup.children++;
	setup.openat += 2 * CALLS_THERE;
	setup.read += CALLS_THERE;
	setup.getpid += CALLS_THERE;
	if (syscall4(SYS_wait4, id, (long)&status, 0, 0) != id)
		return -1;
	return status;
}

static void hotplug(unsigned long rounds)
{
	if (cpus < 2)
		report("hotplug: one processor only", 0, 0);
	for (; rounds && cpus > 1; rounds--) {
		must("offline", write_file(online_path, 0, "0"));
		wait_milliseconds(10);
		must("online", write_file(online_path, 0, "1"));
		must("works", works());
	}
	report("hotplug", 0, 0);
}
