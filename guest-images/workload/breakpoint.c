/*
 * A program that counts writes to a variable of the kernel with the processor's own debug registers, as perf does:
 *
 *   breakpoint ADDRESS ROUND WRITES
 *
 * ADDRESS, in hexadecimal, is the variable behind /proc/sys/kernel/panic. The program writes the numbers from ROUND * WRITES on to the file. The
 * last line is `own ROUND COUNT`: the writes that the kernel's hardware breakpoint has counted, or an error's negative number.
 */

#include "syscall.h"
#include "console.h"
#include "start.h"

enum {
	SYS_pwrite64 = 18,
	SYS_perf_event_open = 298,
	PERF_TYPE_BREAKPOINT = 5,
	HW_BREAKPOINT_W = 2,
	VARIABLE_BYTES = 4,
};

/* The first members of `struct perf_event_attr`: nothing is excluded. */
struct event {
	unsigned type, bytes;
	unsigned long config, period, sample_type, read_format, flags;
	unsigned wakeup, breakpoint_type;
	unsigned long address, length;
};

static unsigned long number(const char *digits, unsigned base)
{
	unsigned long value = 0;

	for (; *digits; digits++)
		value = value * base + (*digits <= '9' ? *digits - '0' : *digits - 'a' + 10);
	return value;
}

/* Whether the file accepts the number. */
static int write_number(long file, unsigned long value)
{
	long wrote;

	put_number((long)value);
	wrote = syscall4(SYS_pwrite64, file, (long)text, (long)text_used, 0);
	wrote -= (long)text_used;
	text_used = 0;
	return wrote == 0;
}

/* The events of this task, on any processor. */
static long open_event(unsigned long address)
{
	struct event event = {
		.type = PERF_TYPE_BREAKPOINT,
		.bytes = sizeof event,
		.breakpoint_type = HW_BREAKPOINT_W,
		.address = address,
		.length = VARIABLE_BYTES,
	};

	return syscall5(SYS_perf_event_open, (long)&event, 0, -1, -1, 0);
}

__attribute__((used, noreturn)) void init_main(long *stack)
{
	char **arguments = (char **)(stack + 1);
	unsigned long round, writes, accepted = 0;
	long event, file, count = 0;

	if (stack[0] != 4)
		syscall1(SYS_exit_group, 2);
	round = number(arguments[2], 10);
	writes = number(arguments[3], 10);
	file = syscall4(SYS_openat, AT_FDCWD, (long)"/proc/sys/kernel/panic", O_WRONLY, 0);
	event = open_event(number(arguments[1], 16));
	for (unsigned long i = 0; i < writes; i++)
		accepted += write_number(file, round * writes + i);
	if (event < 0)
		count = event;
	else
		syscall3(SYS_read, event, (long)&count, sizeof count);
	put_field("own ", round);
	put(" ");
	put_number(count);
	end_line();
	syscall1(SYS_exit_group, accepted != writes);
	for (;;)
		syscall0(SYS_pause);
}
