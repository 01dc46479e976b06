/* Calls in known numbers, with every register and flag checked afterwards. */

#include "guest.h"

extern u8 fn_recurse[], fn_pushf[];

#define RECURSE_MAX 200
#define FLAG_PATTERNS 8

struct percpu percpus[CPUS_MAX] = {
	{ .task = (u64)&percpus[0], .number = 0 },
	{ .task = (u64)&percpus[1], .number = 1 },
};

static u8 buffers[CPUS_MAX][4 * REP_BYTES] __attribute__((aligned(16)));

static u64 next_random(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static const u64 flag_patterns[FLAG_PATTERNS] = {
	0x002,
	0x002 | FLAGS_STATUS | FLAG_DF,
	0x002 | FLAG_CF,
	0x002 | FLAG_ZF | FLAG_DF,
	0x002 | FLAG_SF | FLAG_OF,
	0x002 | FLAG_PF | FLAG_AF | FLAG_CF,
	0x002 | FLAG_ZF | FLAG_PF,
	0x002 | FLAG_DF,
};

static void prepare(struct registers *r, const struct function *function, u8 *buffer, u64 seed)
{
	u64 state = seed * 0x9e3779b97f4a7c15ul | 1;
	u64 *word = &r->rax;

	while (word < &r->rsp)
		*word++ = next_random(&state);
	r->rdx = LOOP_ITERATIONS;
	r->rcx = REP_BYTES;
	if (function->how & POINTERS) {
		r->rdi = (u64)(buffer + 2 * REP_BYTES);
		r->rsi = (u64)(buffer + 8);
	}
	r->rflags = flag_patterns[seed % FLAG_PATTERNS];
}

static int check(const struct function *function, struct registers *before,
		 const struct registers *after)
{
	static const char *const names[] = {
		"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9",
		"r10", "r11", "r12", "r13", "r14", "r15", "rsp",
	};
	u64 undefined_flags = 0;

	if (function->model && !function->model(before, &undefined_flags))
		return fail(function->name, "memory is not what it must be");
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		u64 got = (&after->rax)[i], expected = (&before->rax)[i];

		if (got != expected) {
			fail_got(function->name, names[i], got, expected);
			return 1;
		}
	}
	if ((after->rflags ^ before->rflags) & ~undefined_flags) {
		fail_got(function->name, "rflags", after->rflags, before->rflags);
		return 1;
	}
	return 0;
}

/* `rounds` calls of every function by this CPU; checks the counters. */
int call_round(struct percpu *cpu, u64 rounds)
{
	u8 *buffer = buffers[cpu - percpus];
	u64 counted[FUNCTIONS_MAX];
	struct registers before, after;

	for (const struct function *f = functions; f < functions_end; f++)
		counted[f - functions] = cpu->counts[f - functions];
	for (u64 round = 0; round < rounds; round++)
		for (const struct function *f = functions; f < functions_end; f++) {
			if (!(f->how & BY_CALLS))
				continue;
			prepare(&before, f, buffer, round + 1);
			call_checked(f->entry, &before, &after);
			if (f->how & UNCOUNTED)
				cpu->counts[f - functions]++;
			if (check(f, &before, &after))
				return 1;
		}
	for (const struct function *f = functions; f < functions_end; f++) {
		u64 got = cpu->counts[f - functions] - counted[f - functions];

		if (got != rounds * f->per_round) {
			fail_got(f->name, "calls", got, rounds * f->per_round);
			return 1;
		}
	}
	return 0;
}

/* A call of every function. Returns a sum of all registers and flags, but for those that the processor leaves undefined. */
u64 sum_calls(void)
{
	struct registers before, after;
	u64 sum = 0;

	for (const struct function *f = functions; f < functions_end; f++) {
		u64 undefined_flags = 0;

		if (!(f->how & BY_CALLS))
			continue;
		prepare(&before, f, buffers[0], 1);
		call_checked(f->entry, &before, &after);
		if (f->how & UNCOUNTED)
			percpus[0].counts[f - functions]++;
		if (f->model)
			f->model(&before, &undefined_flags);
		after.rflags &= ~undefined_flags;
		for (u64 *word = &after.rax; word <= &after.rflags; word++)
			sum = (sum << 7 | sum >> 57) ^ *word;
	}
	return sum;
}

int scenario_calls(u64 rounds)
{
	u64 called = 0;

	for (const struct function *f = functions; f < functions_end; f++)
		called += f->how & BY_CALLS;
	if (call_round(percpus, rounds))
		return 1;
	begin_ok("calls");
	put_field(" rounds=", rounds);
	put_field(" functions=", called);
	end_line();
	return 0;
}

int scenario_recurse(u64 depth)
{
	u64 (*recurse)(u64) = (u64 (*)(u64))fn_recurse;
	u64 got;

	if (depth > RECURSE_MAX)
		depth = RECURSE_MAX;
	got = recurse(depth);
	if (got != depth) {
		fail_got("recurse", "depth", got, depth);
		return 1;
	}
	begin_ok("recurse");
	put_field(" depth=", depth);
	put_field(" calls=", depth + 1);
	end_line();
	return 0;
}

/* A function that shows the flags it was called with shows no trap flag. */
int scenario_flags(u64 rounds)
{
	struct registers before = { 0 }, after;

	for (u64 round = 0; round < rounds; round++) {
		u64 flags = flag_patterns[round % FLAG_PATTERNS];

		before.rflags = flags;
		call_checked(fn_pushf, &before, &after);
		if (after.rax != flags) {
			fail_got("flags", after.rax & FLAG_TF ? "TF pushed" : "pushed", after.rax,
				 flags);
			return 1;
		}
	}
	begin_ok("flags");
	put_field(" calls=", rounds);
	end_line();
	return 0;
}
