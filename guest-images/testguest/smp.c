/* A second processor that does the same at the same time. */

#include "guest.h"

#define MSR_GS_BASE 0xc0000101
#define APIC 0xfee00000ul
#define APIC_SPURIOUS 0xf0
#define APIC_COMMAND 0x300
#define APIC_COMMAND_TARGET 0x310
#define APIC_ENABLED 0x1ff
#define APIC_INIT 0x4500
#define APIC_STARTUP 0x4600
#define APIC_PENDING 0x1000
#define SECOND_ID 1
#define PATIENCE 20000000000ul /* ticks of the time-stamp counter: some seconds */
#define SETTLE 1000000ul

extern u8 trampoline[], trampoline_end[];
extern u64 fn_shared;

enum { ABSENT, WAITING, RUNNING, PASSED, FAILED };

static volatile u64 second_state, second_rounds;
static int (*volatile second_job)(struct percpu *cpu, u64 rounds);

static void apic_write(u32 offset, u32 value)
{
	*(volatile u32 *)(APIC + offset) = value;
}

/* Without an exit, a processor that waits with IF clear keeps interrupts from a host whose SVM masks them with the guest's IF. */
static void wait_for_other(void)
{
	u32 leaf = 0, count = 0;

	if (waits_exit)
		__asm__ volatile("cpuid" : "+a"(leaf), "+c"(count) : : "ebx", "edx", "memory");
	relax();
}

/* Waits until the second processor is at least at `state`; 0 if that takes too long. */
static int await(u64 state)
{
	u64 begin = time();

	while (second_state < state) {
		if (time() - begin > PATIENCE)
			return 0;
		wait_for_other();
	}
	return 1;
}

static void command(u32 what)
{
	u64 begin = time();

	apic_write(APIC_COMMAND_TARGET, SECOND_ID << 24);
	apic_write(APIC_COMMAND, what);
	while (*(volatile u32 *)(APIC + APIC_COMMAND) & APIC_PENDING)
		relax();
	while (time() - begin < SETTLE)
		relax();
}

void second_main(void)
{
	write_msr(MSR_GS_BASE, (u64)&percpus[1]);
	load_traps();
	second_state = WAITING;
	while (second_state == WAITING)
		wait_for_other();
	second_state = second_job(&percpus[1], second_rounds) ? FAILED : PASSED;
}

int run_on_both(const char *scenario, int (*job)(struct percpu *cpu, u64 rounds), u64 rounds)
{
	u8 *to = (u8 *)TRAMPOLINE;

	for (u8 *from = trampoline; from < trampoline_end; from++)
		*(volatile u8 *)to++ = *from;
	second_state = ABSENT;
	second_rounds = rounds;
	second_job = job;
	apic_write(APIC_SPURIOUS, APIC_ENABLED);
	command(APIC_INIT);
	command(APIC_STARTUP | TRAMPOLINE >> 12);
	if (!await(WAITING))
		return fail(scenario, "the second processor did not start");
	second_state = RUNNING;
	if (job(&percpus[0], rounds))
		return 1;
	if (!await(PASSED))
		return fail(scenario, "the second processor did not finish");
	if (second_state == FAILED)
		return fail(scenario, "the second processor found something wrong");
	return 0;
}

int scenario_smp(u64 rounds)
{
	u64 shared = fn_shared;

	if (run_on_both("smp", call_round, rounds))
		return 1;
	if (fn_shared - shared != 2 * rounds) {
		fail_got("smp", "shared", fn_shared - shared, 2 * rounds);
		return 1;
	}
	begin_ok("smp");
	put_field(" cpus=", 2);
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
