/* The kernel's own tracing of functions, and its own kprobes. */

enum { PROFILE_BYTES = 1024, BURSTS = 40 };

static const char tracing[] = "/sys/kernel/tracing";
static const char tracer_path[] = "/sys/kernel/tracing/current_tracer";
static const char events_path[] = "/sys/kernel/tracing/kprobe_events";
static const char enable_path[] = "/sys/kernel/tracing/events/ground/enable";
static const char profile_path[] = "/sys/kernel/tracing/kprobe_profile";

static void trace_functions(unsigned long rounds)
{
	mount("tracefs", tracing);
	for (; rounds; rounds--) {
		must("function", write_file(tracer_path, 0, "function"));
		wait_milliseconds(50);
		must("nop", write_file(tracer_path, 0, "nop"));
	}
	report("ftrace", 0, 0);
}

/* The number behind the first name in `text`. */
static long number_behind(const char *text, const char *name)
{
	long value = 0;

	for (; *text; text++) {
		const char *a = text, *b = name;

		while (*b && *a == *b)
			a++, b++;
		if (*b || *a != ' ')
			continue;
		while (*a == ' ')
			a++;
		while (*a >= '0' && *a <= '9')
			value = value * 10 + (*a++ - '0');
		return value;
	}
	return -1;
}

static void make_bursts(unsigned bursts)
{
	for (unsigned made = 0; made < bursts; made++)
		burst(&setup);
}

/* Events of the kernel's own on functions whose calls are counted here. */
static void own_kprobes(unsigned long rounds)
{
	static const char *const defined[] = {
		"p:ground/entered __x64_sys_getpid",
		"r:ground/returned __x64_sys_getpid",
		"p:ground/opened __x64_sys_openat",
	};
	static char profile[PROFILE_BYTES];

	mount("tracefs", tracing);
	/* The counts are compared, so nobody else makes such calls. */
	stop_workers();
	for (; rounds; rounds--) {
		unsigned long getpids;

		for (unsigned event = 0; event < sizeof defined / sizeof *defined; event++)
			must(defined[event], write_file(events_path, O_APPEND, defined[event]));
		must("enable", write_file(enable_path, 0, "1"));
		getpids = setup.getpid;
		make_bursts(BURSTS);
		getpids = setup.getpid - getpids;
		must("disable", write_file(enable_path, 0, "0"));
		if (read_file(profile_path, profile, sizeof profile) <= 0)
			report("profile", -1, 0);
		must("entered", number_behind(profile, "entered") - (long)getpids);
		must("returned", number_behind(profile, "returned") - (long)getpids);
		must("undefine", write_file(events_path, O_TRUNC, "\n"));
	}
	report("kprobes", 0, 0);
}
