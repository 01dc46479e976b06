/*
 * An init that makes getppid(2) calls while nothing, a kprobe or a kretprobe of the guest's own, or somebody from outside
 * looks at them, and powers off.
 *
 *   calls=N    calls of one loop
 *   rounds=N   loops of each turn, and one before that is not meant to count
 *   warm=N     calls before the turn called "recorded", of which nobody takes the time
 *   boot=1     nothing of all this: it powers off at once
 *
 * Each loop is between two getpgrp(2) calls, so that somebody who watches those knows when it took place. Before the
 * turns of somebody from outside, it says so behind "overhead: wait ", and waits for a line of input. Behind "overhead:
 * own " are the guest's own events with how often they were hit and missed.
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"

enum { PROFILE_BYTES = 1024 };

static const char events_path[] = "/t/kprobe_events";
static const char profile_path[] = "/t/kprobe_profile";

static long failed;

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

/* Nothing but these calls between the two getpgrp. */
static void turn(void)
{
	unsigned long calls = number("calls", 100), rounds = number("rounds", 5) + 1;

	for (unsigned long round = 0; round < rounds; round++) {
		syscall0(SYS_getpgrp);
		for (unsigned long call = 0; call < calls; call++)
			syscall0(SYS_getppid);
		syscall0(SYS_getpgrp);
	}
}

static void print_profile(void)
{
	char contents[PROFILE_BYTES];
	long file = open_file(profile_path, O_RDONLY);
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

static void own_turn(const char *definition, const char *enable_path)
{
	write_file(events_path, O_APPEND, definition);
	write_file(enable_path, 0, "1");
	/* Its optimiser works behind everybody's back. */
	sleep_milliseconds(500);
	turn();
	write_file(enable_path, 0, "0");
	print_profile();
	write_file(events_path, O_TRUNC, "\n");
}

static void others_turn(const char *what, unsigned long warm)
{
	char byte;

	put("overhead: wait ");
	put(what);
	end_line();
	failed += syscall3(SYS_read, 0, (long)&byte, 1) != 1;
	for (unsigned long call = 0; call < warm; call++)
		syscall0(SYS_getppid);
	turn();
}

static void turns(void)
{
	unsigned long first_cpu = 1;

	mount("proc", "/p");
	mount("tracefs", "/t");
	syscall3(SYS_sched_setaffinity, 0, sizeof first_cpu, (long)&first_cpu);
	turn();
	own_turn("p:self/own_kprobe __x64_sys_getppid", "/t/events/self/own_kprobe/enable");
	own_turn("r:self/own_kretprobe __x64_sys_getppid", "/t/events/self/own_kretprobe/enable");
	others_turn("exits", 0);
	others_turn("kprobe", 0);
	others_turn("counted", 0);
	others_turn("recorded", number("warm", 0));
	others_turn("kretprobe", 0);
	others_turn("both-recorded", 0);
	others_turn("counted-int3", 0);
	others_turn("recorded-int3", 0);
	others_turn("shared", 0);
	others_turn("untyped", 0);
	others_turn("syscall", 0);
	others_turn("stack", 0);
	others_turn("nothing", 0);
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
