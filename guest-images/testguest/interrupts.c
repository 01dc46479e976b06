/* Interrupts that end a halt, and NMIs that follow each other. */

#include "guest.h"

#define APIC 0xfee00000ul
#define APIC_END 0xb0
#define APIC_SPURIOUS 0xf0
#define APIC_COMMAND 0x300
#define APIC_TIMER 0x320
#define APIC_TIMER_BEGIN 0x380
#define APIC_TIMER_DIVISOR 0x3e0
#define APIC_ENABLED 0x1ff
#define TO_ITSELF 0x40000
#define AS_NMI 0x400
#define AS_SMI 0x200
#define AS_INIT 0x500
#define EACH_TICK 0xb
#define TICKS 2000
#define VECTOR_NMI 2
#define VECTOR_WAKE 0x20
#define PATIENCE 3000000ul /* looks, since time passes at many speeds: some seconds where ring 0 is interpreted */
#define SETTLE 10000ul

extern u8 fn_wait[], fn_wake[], fn_nmi[];

void wake_taken(void);
void nmi_taken(void);

static volatile u64 wakes;
static volatile u64 nmis, nmi_depth, nmis_nested;

static void apic_write(u32 offset, u32 value)
{
	*(volatile u32 *)(APIC + offset) = value;
}

void wake_taken(void)
{
	wakes++;
	apic_write(APIC_END, 0);
}

/* Every second interrupt is there before interrupts are let in: unless `sti` holds it back until
 * `hlt` waits, nothing ends the wait. The others come from the timer, mostly later. */
int scenario_wait(u64 rounds)
{
	void (*wait)(void) = (void (*)(void))fn_wait;

	set_trap(VECTOR_WAKE, fn_wake);
	apic_write(APIC_SPURIOUS, APIC_ENABLED);
	apic_write(APIC_TIMER_DIVISOR, EACH_TICK);
	apic_write(APIC_TIMER, VECTOR_WAKE);
	wakes = 0;
	for (u64 round = 0; round < rounds; round++) {
		if (round & 1)
			apic_write(APIC_TIMER_BEGIN, TICKS);
		else
			apic_write(APIC_COMMAND, TO_ITSELF | VECTOR_WAKE);
		wait();
		if (wakes != round + 1) {
			fail_got("wait", "wakes", wakes, round + 1);
			return 1;
		}
	}
	begin_ok("wait");
	put_field(" wakes=", rounds);
	end_line();
	return 0;
}

static void pass_time(u64 ticks)
{
	u64 begin = time();

	while (time() - begin < ticks)
		relax();
}

/* The first NMI of a round sends the second, which must not come before the first has returned. */
void nmi_taken(void)
{
	if (nmi_depth++)
		nmis_nested++;
	if (nmis++ % 2 == 0) {
		apic_write(APIC_COMMAND, TO_ITSELF | AS_NMI);
		pass_time(SETTLE);
	}
	nmi_depth--;
}

/* While the host uses a debug register for itself, it sees the steps that a KVM makes to find out when it may inject. */
int scenario_nmi(u64 rounds)
{
	rewrite_unexecuted();
	set_trap(VECTOR_NMI, fn_nmi);
	apic_write(APIC_SPURIOUS, APIC_ENABLED);
	nmis = nmis_nested = 0;
	for (u64 round = 0; round < rounds; round++) {
		apic_write(APIC_COMMAND, TO_ITSELF | AS_NMI);
		for (u64 look = 0; look < PATIENCE && nmis != 2 * (round + 1); look++)
			relax();
		if (nmis != 2 * (round + 1)) {
			fail_got("nmi", "taken", nmis, 2 * (round + 1));
			return 1;
		}
	}
	if (nmis_nested) {
		fail_got("nmi", "nested", nmis_nested, 0);
		return 1;
	}
	call_rewritten();
	begin_ok("nmi");
	put_field(" nmis=", nmis);
	end_line();
	return 0;
}

static void give_up(u32 how)
{
	apic_write(APIC_SPURIOUS, APIC_ENABLED);
	apic_write(APIC_COMMAND, how);
	for (;;)
		relax();
}

/* Into a mode whose memory this machine does not have. */
int scenario_smi(u64 argument)
{
	(void)argument;
	give_up(TO_ITSELF | AS_SMI);
	return 1;
}

/* The first processor of a PC begins again at its firmware. */
int scenario_init(u64 argument)
{
	(void)argument;
	give_up(AS_INIT); /* to the processor with the number 0 */
	return 1;
}
