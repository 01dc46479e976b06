/* How a hostile guest ends. */

enum { END_TRIPLE, END_LOOP, END_BYTES, END_HANG, END_HALT, END_RESET, END_POWER_OFF, END_RESTART_OTHER, ENDS };

static const char *const end_names[] = {
	"triple", "loop", "bytes", "hang", "halt", "reset", "power-off", "restart-other",
};

static void triple_fault(void)
{
	struct table_pointer none = { 0, 0 };

	__asm__ volatile("lidt %0\n\tud2" : : "m"(none));
}

/* Whatever the processor makes of random bytes. */
static void run_bytes(struct hostile *self)
{
	for (unsigned i = 0; i < 64; i++)
		hostile_bytes[i] = (u8)next(self);
	((void (*)(void))hostile_bytes)();
}

/* Does not return, but for ends that fail. */
static void end_hostile(struct hostile *self, u64 how)
{
	begin_line(self);
	put_text(" ends by ");
	put_text(end_names[how]);
	finish_line(self);
	switch (how) {
	case END_LOOP:
		for (unsigned i = 0; i < 512; i++)
			loop_table[i] = physical(self, loop_table) | ENTRY;
		write_cr3(physical(self, loop_table));
		break;
	case END_BYTES:
		if (!self->is_wild)
			break;
		for (unsigned i = 0; i < 256; i++)
			try(self, run_bytes);
		break;
	case END_HANG:
		for (;;)
			__asm__ volatile("cli\n\tpause");
	case END_HALT:
		for (;;)
			__asm__ volatile("cli\n\thlt");
	case END_RESET:
		port_write(0x64, 0xfe);
		break;
	case END_POWER_OFF:
		port_write(0x600, 0x34);
		break;
	case END_RESTART_OTHER: /* in real mode, at any page */
		apic_set(self, APIC_COMMAND, (self->cpu ^ 1) << 32 | 0x4500);
		apic_set(self, APIC_COMMAND, (self->cpu ^ 1) << 32 | 0x4600 | below(self, 256));
		misbehave(self, 64, 1);
		break;
	}
	triple_fault();
}
