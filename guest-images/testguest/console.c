/* Lines on COM1. */

#include "guest.h"

#define COM1 0x3f8
#define LINE_STATUS (COM1 + 5)
#define TRANSMITTER_EMPTY 0x20
#define POLLS_MAX 100000

static void put_char(char c)
{
	for (unsigned polls = 0; polls < POLLS_MAX; polls++)
		if (in8(LINE_STATUS) & TRANSMITTER_EMPTY)
			break;
	out8(COM1, (u8)c);
}

void put(const char *string)
{
	while (*string)
		put_char(*string++);
}

void put_number(u64 value)
{
	char digits[21];
	char *at = digits + sizeof digits - 1;

	*at = 0;
	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	put(at);
}

void put_hex(u64 value)
{
	char digits[17];
	char *at = digits + sizeof digits - 1;

	*at = 0;
	do
		*--at = "0123456789abcdef"[value & 15];
	while (value >>= 4);
	put("0x");
	put(at);
}

void put_field(const char *name, u64 value)
{
	put(name);
	put_number(value);
}

void put_hex_field(const char *name, u64 value)
{
	put(name);
	put_hex(value);
}

void begin_ok(const char *scenario)
{
	put("testguest: ");
	put(scenario);
	put(" ok");
}

static void begin_fail(const char *scenario)
{
	put("testguest: ");
	put(scenario);
	put(" FAIL ");
}

int fail(const char *scenario, const char *why)
{
	begin_fail(scenario);
	put(why);
	end_line();
	return 1;
}

void fail_got(const char *scenario, const char *what, u64 got, u64 expected)
{
	begin_fail(scenario);
	put(what);
	put_hex_field("=", got);
	put_hex_field(" expected=", expected);
	end_line();
}

void end_line(void)
{
	put("\r\n");
}
