/*
 * An init that lets the guest's own kprobes check themselves, through tracefs, and powers off.
 *
 *   functions=NAME:ADDRESS:SIZE,...   what is probed; hexadecimal, without 0x
 *   calls=N                           each round makes N read(2) and N openat(2) calls
 *
 * What is printed behind "kprobes: " depends on the kernel and the parameters alone: offsets at
 * which an event can be defined, how often each event was hit, the functions' bytes. How many
 * kprobes were optimised to jumps is printed behind "optimised: ". Each round is between two
 * getppid(2) calls, so that somebody who watches them knows when it took place.
 */

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"

enum {
	FUNCTIONS_MAX = 4,
	FUNCTION_BYTES_MAX = 2048,
	MAXACTIVE_MAX = 3,
	/* Of the second round's events, which leave room for jumps between them. */
	SPARSE = 5,
	OPTIMISER_TRIES = 40,
	FILE_BYTES = 1 << 16,
};

static const char events_path[] = "/t/kprobe_events";
static const char group_path[] = "/t/events/self/enable";
static const char profile_path[] = "/t/kprobe_profile";
static const char list_path[] = "/d/kprobes/list";
static const char knob_path[] = "/p/sys/debug/kprobes-optimization";

struct function {
	char name[TEXT_MAX];
	unsigned long address, size;
	/* What the definition of an event at each offset came to. */
	long defined[FUNCTION_BYTES_MAX];
	char before[FUNCTION_BYTES_MAX], after[FUNCTION_BYTES_MAX];
};

static struct function functions[FUNCTIONS_MAX];
static unsigned function_count;
static char contents[FILE_BYTES];
static long zero, group, list, profile;

static void put_hex(unsigned long value, unsigned digits)
{
	char text[17];

	for (unsigned i = 0; i < digits; i++)
		text[i] = "0123456789abcdef"[value >> (digits - 1 - i) * 4 & 15];
	text[digits] = 0;
	put(text);
}

static unsigned long length(const char *string)
{
	unsigned long length = 0;

	while (string[length])
		length++;
	return length;
}

static long open_file(const char *path, long flags)
{
	return syscall4(SYS_openat, AT_FDCWD, (long)path, flags, 0);
}

/* Writes `line` to a file at once; the error, if there is one. */
static long write_file(const char *path, long flags, const char *line)
{
	long file = open_file(path, O_WRONLY | flags), result;

	if (file < 0)
		return file;
	result = syscall3(SYS_write, file, (long)line, (long)length(line));
	syscall1(SYS_close, file);
	return result < 0 ? result : 0;
}

/* Reads a file from its beginning into `contents`; not by read(2), which is counted. */
static void read_file(long file)
{
	unsigned long used = 0;
	long got;

	syscall3(SYS_lseek, file, 0, 0);
	do {
		struct {
			char *start;
			unsigned long size;
		} rest = { contents + used, FILE_BYTES - 1 - used };

		got = syscall3(SYS_readv, file, (long)&rest, 1);
		if (got > 0)
			used += (unsigned long)got;
	} while (got > 0 && used < FILE_BYTES - 1);
	contents[used] = 0;
}

static unsigned long hex_field(const char **text)
{
	unsigned long value = 0;

	for (;; ++*text) {
		char digit = **text;

		if (digit >= '0' && digit <= '9')
			value = value * 16 + (unsigned long)(digit - '0');
		else if (digit >= 'a' && digit <= 'f')
			value = value * 16 + (unsigned long)(digit - 'a' + 10);
		else
			break;
	}
	if (**text == ':')
		++*text;
	return value;
}

static void read_parameters(void)
{
	const char *list = parameter("functions");
	char item[TEXT_MAX];

	while (list && (list = next_name(list, item)) && function_count < FUNCTIONS_MAX) {
		struct function *function = &functions[function_count++];
		const char *rest = item;
		unsigned used = 0;

		while (*rest && *rest != ':')
			function->name[used++] = *rest++;
		if (*rest)
			rest++;
		function->address = hex_field(&rest);
		function->size = hex_field(&rest);
		if (function->size > FUNCTION_BYTES_MAX)
			function->size = FUNCTION_BYTES_MAX;
	}
}

/* The kernel's memory by virtual address: a program header of its core file says where. */
static void read_text(const struct function *function, char *to)
{
	struct header {
		unsigned type, flags;
		unsigned long offset, virtual, physical, size, memory, align;
	} header;
	long file = open_file("/p/kcore", O_RDONLY), got = -1;

	syscall3(SYS_lseek, file, 64, 0);
	while (syscall3(SYS_read, file, (long)&header, sizeof header) == sizeof header) {
		unsigned long offset = function->address - header.virtual;

		if (header.type == 1 && function->address >= header.virtual && offset < header.size) {
			syscall3(SYS_lseek, file, (long)(header.offset + offset), 0);
			got = syscall3(SYS_read, file, (long)to, (long)function->size);
			break;
		}
	}
	syscall1(SYS_close, file);
	if (got != (long)function->size) {
		put("kprobes: no text of ");
		put(function->name);
		put_field(" ", (unsigned long)got);
		end_line();
	}
}

/* Defines an event called KIND and the offset: `word` begins the definition. */
static long define(const char *word, const struct function *function, unsigned long offset)
{
	char line[TEXT_MAX];

	put(word);
	put(":self/");
	put(function->name);
	put(word[0] == 'r' ? "_ret" : "_at");
	if (word[0] == 'r')
		put(word + 1);
	else
		put_hex(offset, 3);
	put(" ");
	put(function->name);
	if (word[0] != 'r') {
		put("+0x");
		put_hex(offset, 3);
	}
	for (unsigned long i = 0; i < text_used; i++)
		line[i] = text[i];
	line[text_used] = 0;
	text_used = 0;
	return write_file(events_path, O_APPEND, line);
}

static void undefine_all(void)
{
	long result = write_file(events_path, O_TRUNC, "\n");

	if (result) {
		put("kprobes: the events cannot be removed: ");
		put_number(result);
		end_line();
	}
}

/* Where an instruction begins an event can be defined: all of these stay defined. */
static void define_everywhere(void)
{
	for (unsigned i = 0; i < function_count; i++) {
		struct function *function = &functions[i];
		unsigned long refused = 0;

		for (unsigned long offset = 0; offset < function->size; offset++) {
			long result = define("p", function, offset);

			function->defined[offset] = result;
			if (result == 0 || result == -EILSEQ) {
				refused += result != 0;
				continue;
			}
			put("kprobes: refused ");
			put(function->name);
			put_field(" ", offset);
			put_field(" ", (unsigned long)result);
			end_line();
		}
		put("kprobes: inside instructions of ");
		put(function->name);
		put_field(" ", refused);
		end_line();
	}
}

static void define_sparsely(void)
{
	for (unsigned i = 0; i < function_count; i++) {
		struct function *function = &functions[i];
		unsigned seen = 0;

		for (unsigned long offset = 0; offset < function->size; offset++)
			if (!function->defined[offset] && seen++ % SPARSE == 0 &&
			    define("p", function, offset))
				put("kprobes: not again"), end_line();
	}
}

static void define_returns(void)
{
	for (unsigned i = 0; i < function_count; i++)
		for (char most = '1'; most <= '0' + MAXACTIVE_MAX; most++) {
			char word[] = { 'r', most, 0 };
			long result = define(word, &functions[i], 0);

			if (result) {
				put("kprobes: refused return of ");
				put(functions[i].name);
				put_field(" ", (unsigned long)result);
				end_line();
			}
		}
}

static void enable(long file, const char *value)
{
	long result = syscall3(SYS_write, file, (long)value, 1);

	if (result != 1) {
		put("kprobes: cannot be enabled: ");
		put_number(result);
		end_line();
	}
}

/* Nothing but these calls between the two getppid. */
static void calls(void)
{
	unsigned long count = number("calls", 10);
	char byte;

	syscall0(SYS_getppid);
	for (unsigned long i = 0; i < count; i++) {
		syscall3(SYS_read, zero, (long)&byte, 1);
		syscall4(SYS_openat, AT_FDCWD, (long)"/nonexistent", O_RDONLY, 0);
	}
	syscall0(SYS_getppid);
}

/* Lines of a file, with each stretch of blanks as one. */
static void print_profile(const char *round)
{
	read_file(profile);
	for (const char *at = contents; *at;) {
		put("kprobes: ");
		put(round);
		for (; *at && *at != '\n'; at++) {
			char letter[2] = { *at, 0 };

			if (*at != ' ' || at[1] != ' ')
				put(letter);
		}
		if (*at)
			at++;
		end_line();
	}
}

static unsigned long count_optimised(void)
{
	static const char mark[] = "[OPTIMIZED]";
	unsigned long found = 0;

	read_file(list);
	for (const char *at = contents; *at; at++) {
		unsigned matched = 0;

		while (mark[matched] && at[matched] == mark[matched])
			matched++;
		found += !mark[matched];
	}
	return found;
}

/*
 * The optimiser is a work item; a kprobe's mark in the list says only that the item is queued. The jump is written after
 * a grace period of RCU's tasks, which takes a second on a slow host.
 */
static void await_optimiser(void)
{
	unsigned long found = 0, before = ~0ul;

	for (unsigned i = 0; i < OPTIMISER_TRIES && found != before; i++) {
		before = found;
		sleep_milliseconds(50);
		found = count_optimised();
	}
	sleep_milliseconds(1500);
	put_field("optimised: ", count_optimised());
	end_line();
}

static void print_text(void)
{
	for (unsigned i = 0; i < function_count; i++) {
		struct function *function = &functions[i];
		unsigned long changed = 0;

		read_text(function, function->after);
		for (unsigned long at = 0; at < function->size; at++)
			changed += function->before[at] != function->after[at];
		for (unsigned long at = 0; at < function->size; at++) {
			if (at % 64 == 0) {
				put("kprobes: text ");
				put(function->name);
				put(" ");
			}
			put_hex((unsigned char)function->after[at], 2);
			if (at % 64 == 63 || at == function->size - 1)
				end_line();
		}
		put("kprobes: changed ");
		put(function->name);
		put_field(" ", changed);
		end_line();
	}
}

static void mount(const char *type, const char *at)
{
	long result;

	syscall2(SYS_mkdir, (long)at, 0755);
	result = syscall5(SYS_mount, (long)type, (long)at, (long)type, 0, 0);
	if (result) {
		put("kprobes: no ");
		put(type);
		put_field(" ", (unsigned long)result);
		end_line();
	}
}

void init_main(long *stack)
{
	words[0] = (char **)(stack + 1);
	words[1] = words[0] + stack[0] + 1;
	read_parameters();
	mount("proc", "/p");
	mount("debugfs", "/d");
	mount("tracefs", "/t");
	zero = open_file("/dev/zero", O_RDONLY);
	list = open_file(list_path, O_RDONLY);
	profile = open_file(profile_path, O_RDONLY);
	for (unsigned i = 0; i < function_count; i++)
		read_text(&functions[i], functions[i].before);

	define_everywhere();
	define_returns();
	group = open_file(group_path, O_WRONLY);
	enable(group, "1");
	/* An instruction of five bytes has room for a jump of its own. */
	await_optimiser();
	calls();
	enable(group, "0");
	print_profile("everywhere");
	syscall1(SYS_close, group);
	undefine_all();

	define_sparsely();
	group = open_file(group_path, O_WRONLY);
	enable(group, "1");
	await_optimiser();
	calls();
	write_file(knob_path, 0, "0");
	await_optimiser();
	calls();
	write_file(knob_path, 0, "1");
	await_optimiser();
	calls();
	enable(group, "0");
	print_profile("sparsely");
	syscall1(SYS_close, group);
	undefine_all();

	calls();
	print_text();
	put("kprobes: done");
	end_line();
	syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	for (;;)
		syscall0(SYS_pause);
}
