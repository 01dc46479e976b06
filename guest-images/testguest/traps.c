/* Interrupt table, the guest's own breakpoints, and page faults that it asked for. */

#include "guest.h"

#define EXCEPTIONS 32
#define VECTORS 0x21
#define GATE_KERNEL 0x8e
#define GATE_USER 0xee
#define VECTOR_DB 1
#define VECTOR_BP 3
#define VECTOR_UD 6
#define VECTOR_PF 14
#define PRESENT 1ul

extern const u64 trap_stubs[EXCEPTIONS];
extern u8 fn_int3[], fn_int3_next[], fn_fault[], user_leave[], asm_exc_int3[];

void trap(struct frame *frame);
void leave_user(u64 result);

static struct gate gates[VECTORS] __attribute__((aligned(16)));
/* int3 is handled as Linux does. */
static int linux_int3;

/* What the scenarios watch. */
static volatile u64 breakpoints, breakpoint_rip, breakpoint_flags;
static volatile u64 faults, fault_rip, fault_flags;
static u8 absent_page[0x1000] __attribute__((aligned(0x1000)));

struct gate gate(u64 handler, u8 kind)
{
	return (struct gate){
		.offset_low = (u16)handler,
		.selector = KERNEL_CODE,
		.kind = kind,
		.offset_middle = (u16)(handler >> 16),
		.offset_high = (u32)(handler >> 32),
	};
}

void load_table(void *base, u16 limit)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) pointer = { limit, (u64)base };

	__asm__ volatile("lidt %0" : : "m"(pointer));
}

void load_traps(void)
{
	for (unsigned vector = 0; vector < EXCEPTIONS; vector++)
		if (vector != VECTOR_BP)
			gates[vector] = gate(trap_stubs[vector], GATE_KERNEL);
	gates[VECTOR_BP] = gate(linux_int3 ? (u64)asm_exc_int3 : trap_stubs[VECTOR_BP], GATE_USER);
	load_table(gates, sizeof gates - 1);
}

void set_trap(unsigned vector, const u8 *handler)
{
	gates[vector] = gate((u64)handler, GATE_KERNEL);
}

static u64 fault_address(void)
{
	u64 address;

	__asm__ volatile("mov %%cr2, %0" : "=r"(address));
	return address;
}

static int kernel_breakpoint(const struct frame *frame)
{
	if (frame->rip != (u64)fn_int3_next)
		return 0;
	breakpoints++;
	breakpoint_rip = frame->rip;
	breakpoint_flags = frame->rflags;
	return 1;
}

static int wanted_fault(const struct frame *frame)
{
	u64 address = fault_address();

	if (address < (u64)absent_page || address >= (u64)absent_page + sizeof absent_page)
		return 0;
	faults++;
	fault_rip = frame->rip;
	fault_flags = frame->rflags;
	*page_entry(address) |= PRESENT;
	flush_page(address);
	return 1;
}

void trap(struct frame *frame)
{
	int from_user = frame->cs & 3;

	note_frame(frame);
	if (looked(frame))
		return;
	if (frame->vector == VECTOR_UD && from_user && frame->rip == (u64)user_leave)
		leave_user(frame->rdi);
	if (frame->vector == VECTOR_BP &&
	    (from_user ? user_breakpoint(frame) : kernel_breakpoint(frame)))
		return;
	if (frame->vector == VECTOR_DB && from_user && user_debug_exception(frame))
		return;
	if (frame->vector == VECTOR_PF && from_user && user_jump_fault(frame))
		return;
	if (frame->vector == VECTOR_PF && wanted_fault(frame))
		return;
	if (raised(frame))
		return;
	if (stepped(frame))
		return;
	put("testguest: trap FAIL");
	put_field(" vector=", frame->vector);
	put_hex_field(" rip=", frame->rip);
	put_hex_field(" error=", frame->error);
	put_hex_field(" cs=", frame->cs);
	put_hex_field(" rflags=", frame->rflags);
	put_hex_field(" rsp=", frame->rsp);
	put_hex_field(" cr2=", fault_address());
	end_line();
	end_run(0x7e);
}

/* From now on int3 is handled by code that is Linux's. */
int scenario_linuxint3(u64 argument)
{
	(void)argument;
	linux_int3 = 1;
	load_traps();
	begin_ok("linuxint3");
	end_line();
	return 0;
}

/* The kernel's int3_selftest in small: our own int3 comes to our own handler. */
int scenario_int3(u64 rounds)
{
	void (*function)(void) = (void (*)(void))fn_int3;

	breakpoints = 0;
	for (u64 round = 0; round < rounds; round++) {
		breakpoint_rip = 0;
		function();
		count_call(fn_int3, 1);
		if (breakpoint_rip != (u64)fn_int3_next) {
			fail_got("int3", "rip", breakpoint_rip, (u64)fn_int3_next);
			return 1;
		}
		if (breakpoint_flags & FLAG_TF)
			return fail("int3", "the frame shows TF");
	}
	if (breakpoints != rounds) {
		fail_got("int3", "breakpoints", breakpoints, rounds);
		return 1;
	}
	begin_ok("int3");
	put_field(" breakpoints=", rounds);
	end_line();
	return 0;
}

/* One fault for each time that the page is taken away, at the instruction that reads it. */
int scenario_fault(u64 rounds)
{
	u64 (*function)(const void *) = (u64 (*)(const void *))fn_fault;
	u64 *word = (u64 *)(absent_page + 0x7f8);

	faults = 0;
	for (u64 round = 0; round < rounds; round++) {
		u64 got;

		*word = 0xfeed0000 + round;
		*page_entry((u64)absent_page) &= ~PRESENT;
		flush_page((u64)absent_page);
		fault_rip = 0;
		got = function(word);
		if (fault_rip != (u64)fn_fault || got != 0xfeed0000 + round) {
			fail_got("fault", fault_rip == (u64)fn_fault ? "read" : "rip",
				 fault_rip == (u64)fn_fault ? got : fault_rip, (u64)fn_fault);
			return 1;
		}
		/* A fault's frame has RF, so that the instruction can be resumed at a breakpoint. */
		if (!(fault_flags & FLAG_RF) || fault_flags & FLAG_TF)
			return fail("fault", "the frame shows no RF, or TF");
	}
	if (faults != rounds) {
		fail_got("fault", "faults", faults, rounds);
		return 1;
	}
	begin_ok("fault");
	put_field(" faults=", rounds);
	put_field(" calls=", rounds);
	end_line();
	return 0;
}
