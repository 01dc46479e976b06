/* Into ring 3 and back. */

#include "guest.h"

#define USER_PAGE 4ul
#define TASK_AVAILABLE 0x89ul
#define MSR_EFER 0xc0000080
#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_SYSCALL_MASK 0xc0000084
#define EFER_SCE 1ul
#define SYSRET_BASE (USER_DATA - 8) /* USER_DATA is one entry on, USER_CODE two */
#define FLAG_IF 0x200ul
#define DR6_CAUSES 0xe00ful

extern u64 gdt[], user_counts[], syscall_flags;
extern u8 user_start[], user_end[], user_int3_next[];
extern u8 user_main[], user_syscalls[], user_int1[], fn_syscall[], fn_sysret[];
extern u8 user_jump[], user_jumped[], fn_push[];
extern u8 user_int1_first[], user_int1_second[], user_int1_prefixed[];

u64 enter_user(u64 argument, const u8 *entry);

struct task_state {
	u32 reserved;
	u64 stacks[3];
	u64 interrupt_stacks[8]; /* by number, from 1 on */
	u64 more;
	u16 unused, io_map;
} __attribute__((packed));

static struct task_state task_state;
static u8 trap_stack[STACK_BYTES] __attribute__((aligned(16)));
static volatile u64 breakpoints;
static volatile int saw_trap_flag;
static volatile u64 debug_exceptions, debug_causes;
static volatile u64 jumps;
/* For user_jump. */
volatile u64 kernel_word;

void load_task_state(void)
{
	u64 base = (u64)&task_state;

	task_state.stacks[0] = (u64)(trap_stack + sizeof trap_stack);
	task_state.io_map = sizeof task_state;
	gdt[TASK_STATE / 8] = (sizeof task_state - 1) | (base & 0xffffff) << 16 |
			      TASK_AVAILABLE << 40 | (base >> 24 & 0xff) << 56;
	gdt[TASK_STATE / 8 + 1] = base >> 32;
	__asm__ volatile("ltr %w0" : : "r"(TASK_STATE) : "memory");
}

/* A stack for gates that name it, 1 to 7. */
void set_interrupt_stack(unsigned number, u8 *top)
{
	task_state.interrupt_stacks[number] = (u64)top;
}

int user_breakpoint(const struct frame *frame)
{
	if (frame->rip != (u64)user_int3_next)
		return 0;
	breakpoints++;
	if (frame->rflags & FLAG_TF)
		saw_trap_flag = 1;
	return 1;
}

/* That of an int1: the frame leads behind it, and DR6 tells no cause. */
int user_debug_exception(const struct frame *frame)
{
	const u8 *behind[] = { user_int1_first, user_int1_second, user_int1_prefixed };

	if (frame->rip != (u64)behind[debug_exceptions % 3])
		return 0;
	debug_exceptions++;
	debug_causes |= take_causes() & DR6_CAUSES;
	return 1;
}

/* A fault of the program in front of fn_push: the program goes on behind its jump. */
int user_jump_fault(struct frame *frame)
{
	if (frame->rip != (u64)fn_push)
		return 0;
	jumps++;
	frame->rip = (u64)user_jumped;
	return 1;
}

static void open_user_pages(void)
{
	for (u64 page = (u64)user_start; page < (u64)user_end; page += 0x1000) {
		*page_entry(page) |= USER_PAGE;
		flush_page(page);
	}
}

int scenario_ring3(u64 rounds)
{
	u64 counted[5], got;

	open_user_pages();
	for (unsigned i = 0; i < 5; i++)
		counted[i] = user_counts[i];
	breakpoints = 0;
	got = enter_user(rounds, user_main);
	if (got != rounds) {
		fail_got("ring3", "rounds", got, rounds);
		return 1;
	}
	if (breakpoints != rounds) {
		fail_got("ring3", "breakpoints", breakpoints, rounds);
		return 1;
	}
	if (saw_trap_flag)
		return fail("ring3", "a breakpoint's frame shows TF");
	for (unsigned i = 1; i < 5; i++)
		if (user_counts[i] - counted[i] != rounds) {
			fail_got("ring3", "calls", user_counts[i] - counted[i], rounds);
			return 1;
		}
	begin_ok("ring3");
	put_field(" rounds=", rounds);
	put_field(" breakpoints=", rounds);
	end_line();
	return 0;
}

/* The program must execute nothing of the kernel's, whoever watches the instruction it jumps to. */
int scenario_userjump(u64 rounds)
{
	u64 got;

	open_user_pages();
	jumps = 0;
	kernel_word = 0;
	got = enter_user(rounds, user_jump);
	if (got != rounds || jumps != rounds) {
		fail_got("userjump", "jumps", jumps, rounds);
		return 1;
	}
	if (kernel_word) {
		fail_got("userjump", "word", kernel_word, 0);
		return 1;
	}
	begin_ok("userjump");
	put_field(" jumps=", jumps);
	end_line();
	return 0;
}

/* `rounds` system calls that enter at `entry`. */
static int make_calls(const char *scenario, const u8 *entry, u64 rounds)
{
	u64 got;

	open_user_pages();
	write_msr(MSR_STAR, (u64)SYSRET_BASE << 48 | (u64)KERNEL_CODE << 32);
	write_msr(MSR_LSTAR, (u64)entry);
	write_msr(MSR_SYSCALL_MASK, FLAG_TF | FLAG_DF | FLAG_IF);
	write_msr(MSR_EFER, read_msr(MSR_EFER) | EFER_SCE);
	syscall_flags = 0;
	got = enter_user(rounds, user_syscalls);
	if (got != rounds) {
		fail_got(scenario, "rounds", got, rounds);
		return 1;
	}
	if (syscall_flags & FLAG_TF)
		return fail(scenario, "r11 shows TF");
	begin_ok(scenario);
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}

int scenario_syscall(u64 rounds)
{
	return make_calls("syscall", fn_syscall, rounds);
}

int scenario_sysret(u64 rounds)
{
	return make_calls("sysret", fn_sysret, rounds);
}

/* While the host uses a debug register for itself, it sees each debug exception, and these are the program's. */
int scenario_int1(u64 rounds)
{
	u64 got;

	open_user_pages();
	take_causes();
	debug_exceptions = debug_causes = 0;
	rewrite_unexecuted();
	got = enter_user(rounds, user_int1);
	call_rewritten();
	if (got != rounds) {
		fail_got("int1", "rounds", got, rounds);
		return 1;
	}
	if (debug_exceptions != 3 * rounds) {
		fail_got("int1", "exceptions", debug_exceptions, 3 * rounds);
		return 1;
	}
	if (debug_causes) {
		fail_got("int1", "dr6", debug_causes, 0);
		return 1;
	}
	begin_ok("int1");
	put_field(" exceptions=", debug_exceptions);
	end_line();
	return 0;
}
