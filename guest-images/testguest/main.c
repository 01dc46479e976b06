/*
 * The command line says what to do: run=NAME[=N][,NAME[=N]…] in this order, and exit=reset or
 * exit=halt to end otherwise than through the debug-exit port.
 */

#include "guest.h"

#define MSR_GS_BASE 0xc0000101
#define DEBUG_EXIT 0xf4
#define KEYBOARD_COMMAND 0x64
#define KEYBOARD_RESET 0xfe
#define COMMAND_LINE_MAX 1024

extern u64 fn_shared, user_counts[];
extern const char *const user_names[];

struct scenario {
	const char *name;
	int (*run)(u64 argument);
	u64 argument; /* where none is given */
};

static const struct scenario scenarios[] = {
	{ "calls", scenario_calls, 10 },
	{ "recurse", scenario_recurse, 10 },
	{ "flags", scenario_flags, 8 },
	{ "checksum", scenario_checksum, 0 },
	{ "textsmp", scenario_textsmp, 2 },
	{ "selfpatch", scenario_selfpatch, 1 },
	{ "int3", scenario_int3, 3 },
	{ "linuxint3", scenario_linuxint3, 0 },
	{ "fault", scenario_fault, 3 },
	{ "ring3", scenario_ring3, 10 },
	{ "syscall", scenario_syscall, 10 },
	{ "int1", scenario_int1, 10 },
	{ "sysret", scenario_sysret, 10 },
	{ "userjump", scenario_userjump, 3 },
	{ "wait", scenario_wait, 10 },
	{ "nmi", scenario_nmi, 4 },
	{ "raise", scenario_raise, 3 },
	{ "ud", scenario_ud, 3 },
	{ "intn", scenario_intn, 3 },
	{ "lstar", scenario_lstar, 3 },
	{ "syscall0", scenario_syscall0, 3 },
	{ "outs", scenario_outs, 4 },
	{ "steps", scenario_steps, 3 },
	{ "smp", scenario_smp, 10 },
	{ "vector", scenario_vector, 10 },
	{ "detour", scenario_detour, 1 },
	{ "leave", scenario_leave, 3 },
	{ "task", scenario_task, 3 },
	{ "msr", scenario_msr, 0 },
	{ "watch", scenario_watch, 3 },
	{ "watchsmp", scenario_watchsmp, 10 },
	{ "watchvector", scenario_watchvector, 10 },
	{ "watchmany", scenario_watchmany, 1 },
	{ "watchread", scenario_watchread, 3 },
	{ "watchodd", scenario_watchodd, 10 },
	{ "watchreadsmp", scenario_watchreadsmp, 10 },
	{ "watchreadvector", scenario_watchreadvector, 10 },
	{ "bench", scenario_bench, 100 },
	{ "bench1", scenario_bench1, 100 },
	{ "bench2", scenario_bench2, 100 },
	{ "record1", scenario_record1, 100 },
	{ "record2", scenario_record2, 100 },
	{ "ownkprobe", scenario_ownkprobe, 0 },
	{ "look", scenario_look, 0 },
	{ "generated", scenario_generated, 0 },
	{ "hostile", scenario_hostile, 1 },
	{ "panic", scenario_panic, 0 },
	{ "triple", scenario_triple, 0 },
	{ "smi", scenario_smi, 0 },
	{ "init", scenario_init, 0 },
	{ "hang", scenario_hang, 0 },
	{ "halt", scenario_halt, 0 },
	{ "exit", scenario_exit, 0 },
};

static char command_line[COMMAND_LINE_MAX];
static const char *end_how = "";
int waits_exit;

/* If the word at `text` begins with `prefix`, what follows it. */
static const char *after(const char *text, const char *prefix)
{
	while (*prefix && *text == *prefix)
		text++, prefix++;
	return *prefix ? 0 : text;
}

static const char *parameter(const char *prefix)
{
	const char *word = command_line;

	while (*word) {
		const char *value = after(word, prefix);

		if (value)
			return value;
		while (*word && *word != ' ')
			word++;
		while (*word == ' ')
			word++;
	}
	return 0;
}

static int is_end(char c)
{
	return c == 0 || c == ' ' || c == ',';
}

/* Runs the scenario at `text` and moves behind it. */
static int run_one(const char **text)
{
	const struct scenario *found = 0;
	const char *at = *text;
	u64 argument = 0;

	for (unsigned i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		const char *rest = after(at, scenarios[i].name);

		if (rest && (is_end(*rest) || *rest == '='))
			found = &scenarios[i];
	}
	while (!is_end(*at) && *at != '=')
		at++;
	if (*at == '=')
		while (*++at >= '0' && *at <= '9')
			argument = argument * 10 + (u64)(*at - '0');
	else if (found)
		argument = found->argument;
	if (!is_end(*at))
		found = 0;
	while (!is_end(*at))
		at++;
	*text = *at == ',' ? at + 1 : at;
	return found ? found->run(argument) : fail("run", "there is no such scenario");
}

/* How often the first instruction of each function ran, on all CPUs. */
static void put_counts(void)
{
	for (const struct function *f = functions; f < functions_end; f++) {
		u64 total = 0;

		for (unsigned cpu = 0; cpu < CPUS_MAX; cpu++)
			total += percpus[cpu].counts[f - functions];
		if (total) {
			put("testguest: count ");
			put(f->name);
			put_field("=", total);
			end_line();
		}
	}
	for (unsigned i = 0; user_names[i]; i++)
		if (user_counts[i]) {
			put("testguest: count ");
			put(user_names[i]);
			put_field("=", user_counts[i]);
			end_line();
		}
}

void count_call(const u8 *entry, u64 times)
{
	for (const struct function *f = functions; f < functions_end; f++)
		if (f->entry == entry)
			percpus[0].counts[f - functions] += times;
}

void end_run(u8 code)
{
	if (after(end_how, "reset"))
		out8(KEYBOARD_COMMAND, KEYBOARD_RESET);
	else if (!after(end_how, "halt"))
		out8(DEBUG_EXIT, code);
	for (;;)
		__asm__ volatile("cli\n\thlt");
}

void main(const char *text)
{
	const char *how, *run;
	u64 failed = 0;

	for (unsigned i = 0; text && text[i] && i < COMMAND_LINE_MAX - 1; i++)
		command_line[i] = text[i];
	write_msr(MSR_GS_BASE, (u64)percpus);
	load_traps();
	load_task_state();
	put("testguest: up ");
	put(command_line);
	end_line();
	waits_exit = parameter("wait=exit") != 0;
	how = parameter("exit=");
	if (how)
		end_how = how;
	run = parameter("run=");
	while (run && *run && *run != ' ')
		failed += (u64)run_one(&run);
	put_counts();
	put_field("testguest: end failed=", failed);
	end_line();
	end_run(failed > 0x7f ? 0x7f : (u8)failed);
}
