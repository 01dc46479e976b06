/* The guest steps itself, as a debugger in it does. */

#include "guest.h"

#define VECTOR_DB 1
#define DR6_STEPPED (1ul << 14)
#define NOP 0x90
#define STEPS_MAX 16

extern u8 st_0[], st_1[], st_2[], st_3[], st_4[], st_5[], st_6[], st_7[], st_8[], st_9[], st_10[], st_11[];
extern u8 st_12[], st_end[];
extern u8 st_callee[], st_patched[];
extern u64 st_run(u64 number);

/* Where the vCPU is after each step. */
static const u8 *const places[] = {
	st_1, st_2, st_3, st_4, st_5, st_6, st_callee, st_7, st_8, st_9, st_10, st_11, st_12, st_end,
};

#define PLACES (sizeof places / sizeof *places)

static volatile int stepping;
static u64 seen[STEPS_MAX], causes[STEPS_MAX], steps;

/* DR6, which is cleared for the next debug exception. */
u64 take_causes(void)
{
	u64 dr6;

	__asm__ volatile("mov %%dr6, %0" : "=r"(dr6));
	__asm__ volatile("mov %0, %%dr6" : : "r"(0xffff0ff0ul));
	return dr6;
}

int stepped(const struct frame *frame)
{
	if (frame->vector != VECTOR_DB || !stepping || steps == STEPS_MAX)
		return 0;
	seen[steps] = frame->rip;
	causes[steps++] = take_causes();
	return 1;
}

static int step_once(u64 number)
{
	u64 got;

	steps = 0;
	stepping = 1;
	got = st_run(number);
	stepping = 0;
	for (u64 i = 0; i < PLACES && i < steps; i++) {
		if (seen[i] != (u64)places[i]) {
			fail_got("steps", "rip", seen[i], (u64)places[i]);
			return 1;
		}
		if (!(causes[i] & DR6_STEPPED)) {
			fail_got("steps", "dr6", causes[i], DR6_STEPPED);
			return 1;
		}
	}
	if (steps != PLACES) {
		fail_got("steps", "steps", steps, PLACES);
		return 1;
	}
	if (got != 2 * number + 1) {
		fail_got("steps", "result", got, 2 * number + 1);
		return 1;
	}
	return 0;
}

/* Who watches this place has to do it otherwise until it is executed. */
void rewrite_unexecuted(void)
{
	*(volatile u8 *)st_patched = NOP;
}

void call_rewritten(void)
{
	((void (*)(void))st_patched)();
}

int scenario_steps(u64 rounds)
{
	for (u64 round = 0; round < rounds; round++) {
		rewrite_unexecuted();
		if (step_once(round))
			return 1;
		call_rewritten();
		if (step_once(round + 1))
			return 1;
	}
	begin_ok("steps");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
