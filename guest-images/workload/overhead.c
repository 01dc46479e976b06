/*
 * An init with loops of calls in turns: without a probe, with an event of the guest's own, or with probes from outside. Then the machine
 * powers off.
 *
 *   calls=N    calls of one loop
 *   rounds=N   loops of each turn; another loop before them is not measured
 *   warm=N     calls before the turn "recorded", outside of the measured time
 *   boot=1     no loops: the machine powers off at once
 *
 * The calls are getppid(2), a function of this program, or a write to /proc/sys/kernel/panic. Each loop is between two getpgrp(2) calls, the
 * marks of the loop's time. Before a turn with probes from outside, the init prints the turn's name behind "overhead: wait ", and waits for a
 * line of input. Behind "overhead: own " are the guest's own events and their hits.
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"

enum { PROFILE_BYTES = 1024, PT_LOAD = 1, SYS_pwrite64 = 18 };

/* An ELF file's headers, as far as this program reads its own. */
struct file_header {
	unsigned char other[32];
	unsigned long headers_offset;
	unsigned char sections_flags_and_sizes[16];
	unsigned short headers;
};

struct program_header {
	unsigned type, flags;
	unsigned long offset, address, physical, file_bytes, memory_bytes, align;
};

extern const struct file_header __ehdr_start;

/* The files of a kind of events in tracefs. */
struct events {
	const char *definitions, *profile;
};

static const struct events kprobes = { "/t/kprobe_events", "/t/kprobe_profile" };
static const struct events uprobes = { "/t/uprobe_events", "/t/uprobe_profile" };

/* A loop of calls. */
typedef void loop(unsigned long calls);

static long failed;
static long sysctl;

/* Alone on a page, as the emulator executes the whole page of a probe. */
void probed_function(void);
__asm__(".section .text.probed_function, \"ax\"\n"
	".balign 4096\n"
	".globl probed_function\n"
	".type probed_function, @function\n"
	"probed_function:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	pop %rbp\n"
	"	ret\n"
	".size probed_function, . - probed_function\n"
	".balign 4096\n"
	".text\n");

static unsigned long length(const char *string)
{
	unsigned long length = 0;

	while (string[length])
		length++;
	return length;
}

static long open_file(const char *path, long flags)
{
	return syscall4(SYS_openat, AT_FDCWD, (long)path, flags, 0);
}

static void write_file(const char *path, long flags, const char *line)
{
	long file = open_file(path, O_WRONLY | flags);

	failed += syscall3(SYS_write, file, (long)line, (long)length(line)) < 0;
	syscall1(SYS_close, file);
}

static void mount(const char *type, const char *at)
{
	syscall2(SYS_mkdir, (long)at, 0755);
	failed += syscall5(SYS_mount, (long)type, (long)at, (long)type, 0, 0) != 0;
}

static void system_calls(unsigned long calls)
{
	while (calls--)
		syscall0(SYS_getppid);
}

static void function_calls(unsigned long calls)
{
	while (calls--)
		probed_function();
}

/* The command line of the rig has the same value. */
static void sysctl_writes(unsigned long calls)
{
	while (calls--)
		failed += syscall4(SYS_pwrite64, sysctl, (long)"-1", 2, 0) != 2;
}

/* The time between the two getpgrp is the loop's. */
static void turn(loop *loop)
{
	unsigned long calls = number("calls", 100), rounds = number("rounds", 5) + 1;

	for (unsigned long round = 0; round < rounds; round++) {
		syscall0(SYS_getpgrp);
		loop(calls);
		syscall0(SYS_getpgrp);
	}
}

static void print_profile(const struct events *events)
{
	char contents[PROFILE_BYTES];
	long file = open_file(events->profile, O_RDONLY);
	long got = syscall3(SYS_read, file, (long)contents, sizeof contents - 1);

	syscall1(SYS_close, file);
	contents[got < 0 ? 0 : got] = 0;
	put("overhead: own");
	for (const char *at = contents; *at && *at != '\n'; at++) {
		char letter[2] = { *at, 0 };

		if (*at != ' ' || at[1] != ' ')
			put(letter);
	}
	end_line();
}

static void own_turn(const struct events *events, const char *definition, const char *enable_path, loop *loop)
{
	write_file(events->definitions, O_APPEND, definition);
	write_file(enable_path, 0, "1");
	/* The kernel's optimiser of kprobes works later. */
	sleep_milliseconds(500);
	turn(loop);
	write_file(enable_path, 0, "0");
	print_profile(events);
	write_file(events->definitions, O_TRUNC, "\n");
}

/* The offset of `address` in this program's file. */
static unsigned long file_offset(unsigned long address)
{
	const struct file_header *file = &__ehdr_start;
	const struct program_header *header = (void *)((const char *)file + file->headers_offset);

	for (unsigned left = file->headers; left--; header++)
		if (header->type == PT_LOAD && address - header->address < header->file_bytes)
			return address - header->address + header->offset;
	failed++;
	return 0;
}

/* `start` is a definition's text in front of the offset. */
static void own_turn_in_function(const char *start, const char *enable_path)
{
	char definition[TEXT_MAX];

	put_field(start, file_offset((unsigned long)probed_function));
	for (unsigned long at = 0; at < text_used; at++)
		definition[at] = text[at];
	definition[text_used] = 0;
	text_used = 0;
	own_turn(&uprobes, definition, enable_path, function_calls);
}

static void await_input(const char *name)
{
	char byte;

	put("overhead: wait ");
	put(name);
	end_line();
	failed += syscall3(SYS_read, 0, (long)&byte, 1) != 1;
}

static void others_turn(const char *name, loop *loop)
{
	await_input(name);
	turn(loop);
}

static void turns(void)
{
	unsigned long first_cpu = 1;

	mount("proc", "/p");
	mount("tracefs", "/t");
	sysctl = open_file("/p/sys/kernel/panic", O_WRONLY);
	syscall3(SYS_sched_setaffinity, 0, sizeof first_cpu, (long)&first_cpu);
	turn(system_calls);
	own_turn(&kprobes, "p:self/own_kprobe __x64_sys_getppid", "/t/events/self/own_kprobe/enable", system_calls);
	own_turn(&kprobes, "r:self/own_kretprobe __x64_sys_getppid", "/t/events/self/own_kretprobe/enable", system_calls);
	others_turn("exits", system_calls);
	others_turn("kprobe", system_calls);
	others_turn("counted", system_calls);
	await_input("recorded");
	system_calls(number("warm", 0));
	turn(system_calls);
	others_turn("kretprobe", system_calls);
	others_turn("both-recorded", system_calls);
	others_turn("counted-int3", system_calls);
	others_turn("recorded-int3", system_calls);
	others_turn("shared", system_calls);
	others_turn("untyped", system_calls);
	others_turn("syscall", system_calls);
	others_turn("stack", system_calls);
	others_turn("none-again", system_calls);
	others_turn("function", function_calls);
	others_turn("uprobe-counted", function_calls);
	others_turn("uprobe-emitted", function_calls);
	others_turn("uretprobe-counted", function_calls);
	others_turn("uretprobe-emitted", function_calls);
	/* The kernel's own uprobe gives the program a copy of the page. */
	await_input("own-uprobe");
	own_turn_in_function("p:self/own_uprobe /init:", "/t/events/self/own_uprobe/enable");
	await_input("own-uretprobe");
	own_turn_in_function("r:self/own_uretprobe /init:", "/t/events/self/own_uretprobe/enable");
	others_turn("write", sysctl_writes);
	others_turn("watch-counted", sysctl_writes);
	others_turn("watch-emitted", sysctl_writes);
	await_input("end");
}

void init_main(long *stack)
{
	words[0] = (char **)(stack + 1);
	words[1] = words[0] + stack[0] + 1;
	if (!number("boot", 0))
		turns();
	put_field("workload: done failed=", (unsigned long)failed);
	end_line();
	syscall4(SYS_reboot, (long)REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	for (;;)
		syscall0(SYS_pause);
}
