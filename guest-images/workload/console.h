/* Lines on the console: each is put together and written at once. */

enum { TEXT_MAX = 192 };

static char text[TEXT_MAX];
static unsigned long text_used;

static void put(const char *string)
{
	while (*string && text_used < TEXT_MAX - 1)
		text[text_used++] = *string++;
}

static void put_number(long value)
{
	char digits[21];
	unsigned at = sizeof digits - 1;
	unsigned long rest = value < 0 ? -(unsigned long)value : (unsigned long)value;

	digits[at] = 0;
	do
		digits[--at] = '0' + rest % 10;
	while (rest /= 10);
	if (value < 0)
		digits[--at] = '-';
	put(digits + at);
}

static void put_field(const char *name, unsigned long value)
{
	put(name);
	put_number((long)value);
}

static void end_line(void)
{
	text[text_used++] = '\n';
	syscall3(SYS_write, 1, (long)text, text_used);
	text_used = 0;
}
