/* perf_event_open(2): programs that run at functions, and samples. */

enum {
	SYS_perf_event_open = 298,
	SYS_bpf = 321,
	PERF_TYPE_SOFTWARE = 1,
	PERF_COUNT_SW_CPU_CLOCK = 0,
	PERF_SAMPLE_IP = 1,
	PERF_SAMPLE_CALLCHAIN = 32,
	PERF_FLAG_FREQ = 1 << 10,
	PERF_EVENT_IOC_ENABLE = 0x2400,
	PERF_EVENT_IOC_DISABLE = 0x2401,
	PERF_EVENT_IOC_SET_BPF = 0x40042408,
	BPF_MAP_CREATE = 0,
	BPF_MAP_LOOKUP_ELEM = 1,
	BPF_PROG_LOAD = 5,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_PROG_TYPE_KPROBE = 2,
	RING_PAGES = 17,
	HERTZ = 997,
};

/* The first version of it, with what is used beyond in its words. */
struct perf_event {
	unsigned type, size;
	unsigned long config, frequency, sample_type, read_format, flags;
	unsigned wakeup, breakpoint;
	unsigned long config1, config2;
	unsigned long rest[6];
};

struct instruction {
	unsigned char code, registers;
	short offset;
	int immediate;
};

static long open_event(struct perf_event *event, long process, long cpu)
{
	event->size = sizeof *event;
	return syscall5(SYS_perf_event_open, (long)event, process, cpu, -1, 0);
}

static long bpf(long command, const void *attributes, unsigned long bytes)
{
	return syscall3(SYS_bpf, command, (long)attributes, (long)bytes);
}

/* A program that adds one to the only element of the map. */
static long counting_program(int map)
{
	const struct instruction code[] = {
		{ 0x7a, 0x0a, -8, 0 },    /* *(u64 *)(r10 - 8) = 0 */
		{ 0xbf, 0xa2, 0, 0 },     /* r2 = r10 */
		{ 0x07, 0x02, 0, -8 },    /* r2 += -8 */
		{ 0x18, 0x11, 0, map },   /* r1 = map */
		{ 0, 0, 0, 0 },
		{ 0x85, 0, 0, 1 },        /* call bpf_map_lookup_elem */
		{ 0x15, 0x00, 2, 0 },     /* if r0 == 0 goto +2 */
		{ 0xb7, 0x01, 0, 1 },     /* r1 = 1 */
		{ 0xdb, 0x10, 0, 0 },     /* lock *(u64 *)(r0 + 0) += r1 */
		{ 0xb7, 0x00, 0, 0 },     /* r0 = 0 */
		{ 0x95, 0, 0, 0 },        /* exit */
	};
	const struct {
		unsigned type, instructions;
		unsigned long code, license;
		unsigned long rest[12];
	} load = {
		BPF_PROG_TYPE_KPROBE, sizeof code / sizeof *code, (unsigned long)code,
		(unsigned long)"GPL", { 0 },
	};

	return bpf(BPF_PROG_LOAD, &load, sizeof load);
}

static unsigned long counted_in(int map)
{
	unsigned long value = ~0ul;
	unsigned key = 0;
	const struct {
		unsigned map, unused;
		unsigned long key, value, flags;
	} look = { (unsigned)map, 0, (unsigned long)&key, (unsigned long)&value, 0 };

	must("map look-up", bpf(BPF_MAP_LOOKUP_ELEM, &look, sizeof look));
	return value;
}

static void own_bpf(unsigned long rounds)
{
	const struct {
		unsigned type, key_bytes, value_bytes, entries;
		unsigned rest[12];
	} create = { BPF_MAP_TYPE_ARRAY, 4, 8, 1, { 0 } };
	char type[16];
	long map, program;

	stop_workers();
	map = bpf(BPF_MAP_CREATE, &create, sizeof create);
	program = counting_program((int)map);
	if (map < 0 || program < 0)
		report("program", program, 0);
	if (read_file("/sys/bus/event_source/devices/kprobe/type", type, sizeof type) <= 0)
		report("kprobe type", -1, 0);
	for (; rounds; rounds--) {
		struct perf_event at = { .config1 = (unsigned long)"__x64_sys_getpid" };
		unsigned long before, calls;
		long event;

		for (const char *digit = type; *digit >= '0' && *digit <= '9'; digit++)
			at.type = at.type * 10 + (unsigned)(*digit - '0');
		event = open_event(&at, -1, 0);
		if (event < 0)
			report("kprobe event", event, 0);
		must("attach", syscall3(SYS_ioctl, event, PERF_EVENT_IOC_SET_BPF, program));
		must("enable", syscall3(SYS_ioctl, event, PERF_EVENT_IOC_ENABLE, 0));
		before = counted_in((int)map);
		calls = setup.getpid;
		make_bursts(BURSTS);
		must("counted", (long)(counted_in((int)map) - before - (setup.getpid - calls)));
		syscall1(SYS_close, event);
	}
	report("bpf", 0, 0);
}

/* Samples with call chains on every processor, while the workers work. */
static void sample(unsigned long rounds)
{
	struct perf_event clock = {
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.frequency = HERTZ,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN,
		.flags = PERF_FLAG_FREQ,
	};
	unsigned long bytes = RING_PAGES * 4096;

	for (; rounds; rounds--)
		for (unsigned cpu = 0; cpu < cpus; cpu++) {
			long event = open_event(&clock, -1, cpu);
			long ring = syscall6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
					     MAP_SHARED, event, 0);

			if (event < 0 || (unsigned long)ring >= -4095ul) {
				report("samples", event < 0 ? event : ring, 0);
				continue;
			}
			wait_milliseconds(500);
			/* `data_head` of the ring's first page. */
			if (*(volatile unsigned long *)(ring + 1024) == 0)
				report("no samples", -1, 0);
			syscall2(SYS_munmap, ring, (long)bytes);
			syscall1(SYS_close, event);
		}
	report("perf", 0, 0);
}
