/* Calls that never return. */

#include "guest.h"

void leave_frames(void);
void run_task(void *stack_top);

/* A kernel stack is aligned to its size. */
static u8 task_stack[STACK_BYTES] __attribute__((aligned(STACK_BYTES)));

int scenario_leave(u64 rounds)
{
	for (u64 round = 0; round < rounds; round++)
		leave_frames();
	begin_ok("leave");
	put_field(" calls=", rounds);
	end_line();
	return 0;
}

int scenario_task(u64 rounds)
{
	for (u64 round = 0; round < rounds; round++)
		run_task(task_stack + sizeof task_stack);
	begin_ok("task");
	put_field(" tasks=", rounds);
	end_line();
	return 0;
}
