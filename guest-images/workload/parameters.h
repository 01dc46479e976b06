/* Parameters of the kernel's command line that it hands on to init. */

static char **words[2]; /* argv, envp */

static const char *parameter(const char *name)
{
	const char *found = 0;

	for (int list = 0; list < 2; list++)
		for (char **word = words[list]; *word; word++) {
			const char *a = *word, *b = name;

			while (*b && *a == *b)
				a++, b++;
			if (!*b && *a == '=')
				found = a + 1;
		}
	return found;
}

static unsigned long number(const char *name, unsigned long otherwise)
{
	const char *digits = parameter(name);
	unsigned long value = 0;

	if (!digits || *digits < '0' || *digits > '9')
		return otherwise;
	while (*digits >= '0' && *digits <= '9')
		value = value * 10 + (*digits++ - '0');
	return value;
}

/* Copies the next name of a list separated by commas; 0 at its end. */
static inline const char *next_name(const char *list, char name[TEXT_MAX])
{
	unsigned long used = 0;

	while (*list && *list != ',') {
		if (used < TEXT_MAX - 1)
			name[used++] = *list;
		list++;
	}
	name[used] = 0;
	if (*list)
		list++;
	return used ? list : 0;
}
