/* The hostile guest on bare metal: see ../hostile. */

#include "guest.h"
#include "orders.h"
#include "machine.h"
#include "acts.h"
#include "ends.h"

#define TASK_LIMIT 0x67
#define TASK_AVAILABLE 0x89ul
#define GDT_ENTRIES 16
#define MEMORY_BYTES 0x4000000ul
#define MAPPED_PAGES 256
#define ACTS_A_ROUND 32

extern u8 text_start[], text_end[];
extern u64 gdt[], page_map[512], page_directory[512], page_table[512];

/* One for each processor, with stacks of their own for exceptions and NMIs. */
static u64 tables[HOSTILE_CPUS][GDT_ENTRIES];
static u8 task_states[HOSTILE_CPUS][TASK_LIMIT + 1] __attribute__((aligned(16)));
static u8 stacks[HOSTILE_CPUS][2][STACK_BYTES] __attribute__((aligned(16)));
static struct target targets[] = {
	{ 0, 0 },
	{ (u64)page_directory + 256 * 8, 256 * 8 },
	{ (u64)percpus, sizeof percpus },
	{ (u64)gdt, 64 },
	{ (u64)hostile_gates, sizeof hostile_gates },
	{ (u64)window_directory, sizeof window_directory },
	{ (u64)page_map, 4096 },
	{ (u64)page_table, 4096 },
};

static void load_own_task_state(u64 cpu)
{
	u64 base = (u64)task_states[cpu];

	for (unsigned i = 0; i < 9; i++)
		tables[cpu][i] = gdt[i];
	for (unsigned i = 0; i < 2; i++)
		*(u64 *)(task_states[cpu] + 0x24 + 8 * i) = (u64)stacks[cpu][i] + STACK_BYTES;
	tables[cpu][TASK_STATE / 8] =
		TASK_LIMIT | (base & 0xffffff) << 16 | TASK_AVAILABLE << 40 | (base >> 24 & 0xff) << 56;
	tables[cpu][TASK_STATE / 8 + 1] = base >> 32;
	struct table_pointer own = { sizeof tables[0] - 1, (u64)tables[cpu] };

	__asm__ volatile("lgdt %0" : : "m"(own));
	__asm__ volatile("ltr %w0" : : "r"(TASK_STATE) : "memory");
}

static void call_functions(struct hostile *self)
{
	call_round(&percpus[self->cpu], 1);
}

static int job(struct percpu *cpu, u64 seed)
{
	struct hostile *self = &hostile_cpus[cpu - percpus];
	struct table_pointer old;
	u64 rounds, how;

	self->cpu = (u64)(cpu - percpus);
	self->random = (seed * 2 + self->cpu + 1) * 0x9e3779b97f4a7c15ul | 1;
	for (unsigned i = 0; i < 8; i++)
		next(self);
	self->is_wild = seed % 16 == 0;
	self->avoids_int1 = 1;
	self->ram_bytes = MEMORY_BYTES;
	self->targets = targets;
	self->target_count = sizeof targets / sizeof *targets;
	self->exception_stack = 1;
	self->nmi_stack = 2;
	self->code = KERNEL_CODE;
	load_own_task_state(self->cpu);
	take_over(self, &old);
	rounds = 1 + below(self, 8);
	for (u64 round = 0; round < rounds; round++) {
		misbehave(self, 1 + below(self, ACTS_A_ROUND), round + 1 == rounds || round * 4 > rounds * 3);
		try(self, call_functions);
	}
	report(self);
	how = below(self, ENDS);
	/* The second processor goes on for some rounds, until the first one ends at the latest. */
	while (self->cpu && below(self, 2))
		misbehave(self, ACTS_A_ROUND, 1);
	end_hostile(self, how);
	return 1;
}

int scenario_hostile(u64 seed)
{
	/* A return to nowhere faults. */
	for (u64 page = 0; page < PRINTING_GPA; page += 0x1000) {
		*page_entry(page) = 0;
		flush_page(page);
	}
	for (u64 page = MEMORY_BYTES / LARGE_BYTES; page < MAPPED_PAGES; page++)
		page_directory[page] = 0;
	write_cr3(read_cr3());
	targets[0] = (struct target){ (u64)text_start, (u64)(text_end - text_start) };
	return run_on_both("hostile", job, seed);
}
