/* Calls by the thousand, between marks. */

#include "guest.h"

typedef void loop(u64 times);

loop bm_entry_loop, bm_out_to_device, bm_jumped_loop, bm_counted_loop, bm_told_loop, bm_handled_loop, bm_after_loop,
	bm_reads_loop, bm_returns_loop, bm_both_loop, bm_recorded_loop, bm_hist_loop, bm_filtered_loop,
	bm_returns_recorded_loop, bm_processor_loop, bm_copied_loop, bm_in_place_loop, bm_returns_copied_loop;

/* `which` loop begins or ends. */
void bm_mark(u64 which, u64 ends);

void bm_on_kernel_stack(loop *calls, u64 times);

/* In the order of rigs/src/overhead/ways.rs. */
static loop *const loops[] = {
	bm_entry_loop,	 bm_out_to_device, bm_jumped_loop, bm_counted_loop, bm_told_loop,
	bm_handled_loop, bm_after_loop,	   bm_reads_loop,  bm_returns_loop, bm_both_loop,
	bm_recorded_loop, bm_hist_loop, bm_filtered_loop, bm_returns_recorded_loop,
	bm_processor_loop, bm_copied_loop, bm_in_place_loop, bm_returns_copied_loop,
};

int scenario_bench(u64 times)
{
	for (u64 which = 0; times && which < sizeof loops / sizeof *loops; which++) {
		bm_mark(which, 0);
		bm_on_kernel_stack(loops[which], times);
		bm_mark(which, 1);
	}
	begin_ok("bench");
	put_field(" calls=", times);
	end_line();
	return 0;
}

/* None of the loops above. */
enum { OTHERS = 1000 };

static int marked(struct percpu *cpu, loop *calls, u64 times)
{
	u64 which = OTHERS + (u64)(cpu - percpus);

	bm_mark(which, 0);
	bm_on_kernel_stack(calls, times);
	bm_mark(which, 1);
	return 0;
}

static int counted(struct percpu *cpu, u64 times)
{
	return marked(cpu, bm_counted_loop, times);
}

static int recorded(struct percpu *cpu, u64 times)
{
	return marked(cpu, bm_recorded_loop, times);
}

int scenario_bench1(u64 times)
{
	counted(&percpus[0], times);
	begin_ok("bench1");
	end_line();
	return 0;
}

int scenario_bench2(u64 times)
{
	if (run_on_both("bench2", counted, times))
		return 1;
	begin_ok("bench2");
	end_line();
	return 0;
}

int scenario_record1(u64 times)
{
	recorded(&percpus[0], times);
	begin_ok("record1");
	end_line();
	return 0;
}

int scenario_record2(u64 times)
{
	if (run_on_both("record2", recorded, times))
		return 1;
	begin_ok("record2");
	end_line();
	return 0;
}
