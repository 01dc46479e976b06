/*
 * The acts of a hostile guest in ring 0. Each may fault: `hostile_try` goes on behind it. The numbers of acts are
 * printed from time to time, since nobody knows which one is the last.
 */

enum { REPORT_EVERY = 4, BURST = 32, EDGES = 16 };

static const char *const act_names[] = {
	"ports", "strings", "mmio", "interrupts", "rep", "tables", "scribble", "detour", "text", "msrs", "debug", "jump",
};

enum { PORTS, STRINGS, MMIO, INTERRUPTS, REP, TABLES, SCRIBBLE, DETOUR, TEXT, MSRS, DEBUG, JUMP, ACTS };

/* Whether `value` in `bytes` bytes at `port` could reset the machine or switch it off; few of those are written. */
static int could_end(struct hostile *self, u16 port, unsigned bytes, u64 value)
{
	for (unsigned i = 0; i < bytes; i++, value >>= 8) {
		u8 byte = (u8)value;
		int ends = port + i == 0x64 ? byte == 0xfe : port + i >= 0x600 && port + i <= 0x602 && byte & 0x20;

		if (ends)
			return below(self, 512) != 0;
	}
	return 0;
}

static u16 any_port(struct hostile *self)
{
	static const u16 known[] = {
		0x3f8, 0x3f9, 0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x3ff, 0x60,  0x61,  0x63,  0x70,  0x71,  0x72,  0x5fe,
		0x600, 0x601, 0x602, 0x603, 0x20,  0x21,  0xa0,	 0xa1,	0x40,  0x43,  0x4d0, 0xcf8, 0xcfc, 0x402, 0xffff,
	};

	return below(self, 2) ? known[below(self, sizeof known / sizeof *known)] : (u16)next(self);
}

static void act_ports(struct hostile *self)
{
	for (unsigned i = 0; i < BURST; i++) {
		u16 port = any_port(self);
		u64 kind = below(self, 6), value = next(self);

		if (kind >= 3 && could_end(self, port, 1u << (kind - 3), value))
			continue;
		switch (kind) {
		case 0:
			__asm__ volatile("inb %%dx, %%al" : : "d"(port) : "rax");
			break;
		case 1:
			__asm__ volatile("inw %%dx, %%ax" : : "d"(port) : "rax");
			break;
		case 2:
			__asm__ volatile("inl %%dx, %%eax" : : "d"(port) : "rax");
			break;
		case 3:
			__asm__ volatile("outb %%al, %%dx" : : "d"(port), "a"(value));
			break;
		case 4:
			__asm__ volatile("outw %%ax, %%dx" : : "d"(port), "a"(value));
			break;
		default:
			__asm__ volatile("outl %%eax, %%dx" : : "d"(port), "a"(value));
		}
	}
}

/* Guest-physical addresses at which one kind of memory ends and another begins, or nothing does. */
static u64 edge(struct hostile *self)
{
	u64 edges[EDGES] = {
		0,
		0xa0000,
		self->is_wild ? 0x100000 : 0x200000,
		self->ram_bytes,
		0xc0000000,
		0xfec00000,
		0xfed00000,
		APIC_GPA,
		APIC_GPA + 0x1000,
		0x100000000,
		0x1000000000,		       /* hyprobe's own memory: code, */
		0x1000000000 + 32 * LARGE_BYTES, /* data, */
		0x1000000000 + 64 * LARGE_BYTES, /* its end */
		0xffc0000000,		       /* the same, on a small processor */
		1ul << 39,
		next(self) & 0xfffffff000,
	};

	return edges[below(self, EDGES)];
}

static u8 *at_edge(struct hostile *self, u64 before)
{
	u64 gpa = edge(self);

	return window(self, gpa < before ? gpa : gpa - below(self, before));
}

#define STRING(instruction) \
	__asm__ volatile(instruction : "+D"(to), "+S"(from), "+c"(count), "+a"(value) : "d"(port) : "memory", "cc")

/* Any string instruction, from and to any edge of memory. */
static void string(struct hostile *self, u64 which)
{
	u8 *to = at_edge(self, 64), *from = at_edge(self, 64);
	u64 count = below(self, 8) ? below(self, 64) : below(self, 2048), value = next(self);
	u16 port = any_port(self);

	/* What lies in memory is not known: as if it were the worst. */
	if (which >= 18 && (could_end(self, port, 4, ~0ul) || could_end(self, port, 4, 0xfefefefe)))
		return;
	if (below(self, 4) == 0)
		__asm__ volatile("std");
	switch (which) {
	case 0: STRING("rep movsb"); break;
	case 1: STRING("rep movsw"); break;
	case 2: STRING("rep movsl"); break;
	case 3: STRING("rep movsq"); break;
	case 4: STRING("rep stosb"); break;
	case 5: STRING("rep stosw"); break;
	case 6: STRING("rep stosl"); break;
	case 7: STRING("rep stosq"); break;
	case 8: STRING("rep lodsb"); break;
	case 9: STRING("rep lodsq"); break;
	case 10: STRING("repne scasb"); break;
	case 11: STRING("repe scasq"); break;
	case 12: STRING("repe cmpsb"); break;
	case 13: STRING("repne cmpsl"); break;
	case 14: STRING("movsb"); break;
	case 15: STRING("rep insb"); break;
	case 16: STRING("rep insw"); break;
	case 17: STRING("rep insl"); break;
	case 18: STRING("rep outsb"); break;
	case 19: STRING("rep outsw"); break;
	default: STRING("rep outsl");
	}
	__asm__ volatile("cld");
}

static void act_strings(struct hostile *self)
{
	string(self, 15 + below(self, 6));
}

static void act_rep(struct hostile *self)
{
	string(self, below(self, 15));
}

static void act_mmio(struct hostile *self)
{
	for (unsigned i = 0; i < BURST; i++) {
		u64 gpa = edge(self);
		volatile u8 *at = window(self, gpa + (below(self, 2) ? below(self, 0x400) & ~15ul : below(self, 0x2000)));
		u64 value = next(self);

		switch (below(self, 9)) {
		case 0: (void)*at; break;
		case 1: (void)*(volatile u16 *)at; break;
		case 2: (void)*(volatile u32 *)at; break;
		case 3: (void)*(volatile u64 *)at; break;
		case 4: *at = (u8)value; break;
		case 5: *(volatile u16 *)at = (u16)value; break;
		case 6: *(volatile u32 *)at = (u32)value; break;
		case 7: *(volatile u64 *)at = value; break;
		default: __asm__ volatile("lock xaddq %0, (%1)" : "+r"(value) : "r"(at) : "memory");
		}
		if (gpa == 0xfec00000) {
			at = window(self, gpa);
			*(volatile u32 *)at = (u32)below(self, 0x48);
			*(volatile u32 *)(at + 0x10) = (u32)next(self) & ~0x10000u;
		}
	}
}

static void let_in(unsigned long times)
{
	__asm__ volatile("sti");
	for (; times; times--)
		__asm__ volatile("pause");
	__asm__ volatile("cli");
}

/* To itself and, in the end, to the other processor, whose kernel dies of vectors that it has not given out; by the APIC, its timer, and the serial port's line. */
static void act_interrupts(struct hostile *self)
{
	switch (below(self, 5)) {
	case 0:
		for (unsigned i = 0; i < BURST; i++)
			apic_set(self, APIC_COMMAND, 0x40000 | (32 + below(self, 224)));
		break;
	case 1: /* NMIs, and vectors that there are not */
		for (unsigned i = 0; i < BURST; i++)
			apic_set(self, APIC_COMMAND, below(self, 2) << 32 | (below(self, 2) || !self->is_wild ? 0x400 : below(self, 256)));
		break;
	case 2:
		for (unsigned i = 0; i < BURST; i++)
			apic_set(self, APIC_COMMAND, (1 + (self->is_wild ? below(self, 3) : 0)) << 18 | (32 + below(self, 224)));
		break;
	case 3:
		apic_set(self, APIC_TIMER_DIVISOR, 0xb);
		apic_set(self, APIC_TIMER, 0x20000 | (32 + below(self, 224)));
		apic_set(self, APIC_TIMER_BEGIN, 1 + below(self, 2000));
		let_in(200 + below(self, 2000));
		apic_set(self, APIC_TIMER, 0x10000);
		break;
	default: {
		volatile u8 *ioapic = window(self, 0xfec00000);

		*(volatile u32 *)ioapic = 0x11 + 8;
		*(volatile u32 *)(ioapic + 0x10) = (u32)next(self);
		*(volatile u32 *)ioapic = 0x10 + 8;
		*(volatile u32 *)(ioapic + 0x10) = (u32)(next(self) & 0xafff);
		for (unsigned i = 0; i < BURST; i++) {
			port_write(0x3f9, (u8)(i & 15));
			port_write(0x3f8, ' ');
		}
		port_write(0x3f9, 0);
		*(volatile u32 *)(ioapic + 0x10) = 0x10000;
	}
	}
	let_in(100);
}

/* The kernel's own entries stay; this processor's pointers lead to themselves and to where nothing is. */
static void act_tables(struct hostile *self)
{
	u64 *top = table(self, self->cr3), slot = WINDOW_SLOT + HOSTILE_CPUS + self->cpu, bits = next(self);
	u64 kept = window_pointers[self->cpu][1];
	volatile u8 *at;

	switch (below(self, 4)) {
	case 0: /* every level is the top one */
		top[slot] = (self->cr3 & PAGE_MASK) | ENTRY;
		break;
	case 1: /* every entry of a table leads to the table */
		for (unsigned i = 0; i < 512; i++)
			loop_table[i] = physical(self, loop_table) | ENTRY | (below(self, 16) ? 0 : next(self) & 0xfff);
		top[slot] = physical(self, loop_table) | ENTRY;
		break;
	case 2: /* a table that is no RAM, or hyprobe's */
		top[slot] = (edge(self) & PAGE_MASK) | ENTRY;
		break;
	default: /* reserved bits */
		top[slot] = bits | 1;
	}
	at = (u8 *)(0xffff000000000000ul | slot << 39 | (next(self) & 0x7fffffffff));
	self->random |= 1;
	(void)*at;
	window_pointers[self->cpu][1] = kept;
	*at = (u8)next(self);
}

/* 2 MiB pages behind the RAM, beside the kernel's text, are nobody's but hyprobe's. */
static u64 *find_detour(struct hostile *self, u64 *base, u64 skip)
{
	for (unsigned i = 0; i < 2; i++)
		for (u64 page = 0; page < 512; page++) {
			u64 at = self->image[i] + page * LARGE_BYTES, *entry = directory_entry(self, at);

			if (entry && (*entry & 0x81) == 0x81 && (*entry & PAGE_MASK) >= self->ram_bytes &&
			    (*entry & PAGE_MASK) >= 0x100000000 && !skip--) {
				*base = at;
				return entry;
			}
		}
	return 0;
}

static void act_detour(struct hostile *self)
{
	u64 at, kept, *entry = find_detour(self, &at, below(self, 4));
	volatile u64 *words;

	if (!entry)
		entry = find_detour(self, &at, 0);
	self->is_idle = !entry;
	if (!entry)
		return;
	words = (u64 *)at;
	switch (below(self, self->is_wild || below(self, 16) == 0 ? 6 : 5)) {
	case 0: /* the first words, the ring's among them */
		for (unsigned i = 0; i < BURST; i++)
			words[below(self, 64)] = below(self, 2) ? next(self) : below(self, 4096);
		break;
	case 1:
		for (unsigned i = 0; i < 512; i++)
			words[below(self, LARGE_BYTES / 8)] = next(self);
		break;
	case 2: {
		u8 *to = (u8 *)at;
		u64 count = LARGE_BYTES / 8, value = below(self, 2) ? ~0ul : next(self);

		if (below(self, 32))
			count = below(self, 4096);
		__asm__ volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(value) : "memory");
		break;
	}
	case 5: /* the entry itself */
		kept = *entry;
		*entry = below(self, 2) ? 0 : next(self);
		__asm__ volatile("invlpg (%0)" : : "r"(at) : "memory");
		let_in(below(self, 500));
		if (below(self, 8))
			*entry = kept;
		__asm__ volatile("invlpg (%0)" : : "r"(at) : "memory");
		break;
	default: /* counters and positions are moved on, as if by a detour */
		for (unsigned i = 0; i < BURST; i++)
			__atomic_fetch_add(&words[below(self, 2) ? below(self, 8) : below(self, 8192)],
					   below(self, 2) ? 1 : next(self), __ATOMIC_SEQ_CST);
	}
}

/* Into hyprobe's code: at what may be an entry, or in the middle of an instruction. */
static void act_jump(struct hostile *self)
{
	u64 at;

	u64 *entry = find_detour(self, &at, below(self, 3));

	/* What can be written is no code, and not what every KVM can execute. */
	if (!entry || (*entry & 2 && !self->is_wild))
		entry = find_detour(self, &at, 0);
	self->is_idle = !entry;
	if (!entry)
		return;
	at += below(self, 0x1000) & (below(self, 2) || !self->is_wild ? ~15ul : ~0ul);
	__asm__ volatile("call *%0" : "+r"(at) : : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
			 "r13", "r14", "r15", "memory", "cc");
}

static void write_prey(struct hostile *self, u8 *to)
{
	static const u8 pieces[][8] = {
		{ 0x55, 0x48, 0x89, 0xe5, 0x5d, 0x90, 0x90, 0xc3 }, { 0xb8, 0x22, 0, 0, 0, 0x0f, 0xa2, 0xc3 },
		{ 0xee, 0x90, 0xee, 0xc3, 0xc3, 0xee, 0xee, 0xc3 }, { 0xeb, 0x05, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3 },
		{ 0xe9, 0, 0, 0, 0, 0x90, 0x90, 0xc3 },		    { 0x0f, 0x31, 0x90, 0xf3, 0x90, 0x31, 0xc0, 0xc3 },
		{ 0xcc, 0xc3, 0xcc, 0xc3, 0xcc, 0xc3, 0xcc, 0xc3 }, { 0x0f, 0x0b, 0x0f, 0x0b, 0xf4, 0xf4, 0xf1, 0xc3 },
	};
	/* A KVM that interprets ring 0 gives up at what it does not know. */
	u64 value = *(const u64 *)pieces[below(self, self->is_wild ? 8 : 5)], count = 8;
	const u8 *from = (const u8 *)&value;

	if (self->is_wild && below(self, 8) == 0)
		value = next(self);
	switch (below(self, 4)) {
	case 0:
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
		break;
	case 1:
		for (unsigned i = 0; i < 8; i++)
			((volatile u8 *)to)[i] = (u8)(value >> 8 * i);
		break;
	case 2:
		__atomic_exchange_n((u64 *)to, value, __ATOMIC_SEQ_CST);
		break;
	default:
		*(volatile u64 *)to = value;
	}
}

/* Text under probes: ours is rewritten and called by both processors, the kernel's is written to with what was read. */
static void act_text(struct hostile *self)
{
	const struct target *text = &self->targets[0];

	for (unsigned i = 0; i < 4; i++)
		write_prey(self, hostile_prey + below(self, PREY_BYTES / 8) * 8);
	hostile_prey[PREY_BYTES - 1] = 0xc3;
	for (unsigned i = 0; i < BURST; i++) {
		volatile u8 *at = (u8 *)(text->at + below(self, text->bytes - 16));

		switch (below(self, 4)) {
		case 0: *at = *at; break;
		case 1: *(volatile u64 *)at = *(volatile u64 *)at; break;
		case 2: __atomic_fetch_or((u64 *)at, 0, __ATOMIC_SEQ_CST); break;
		default: {
			volatile u8 *to = at, *from = at;
			u64 count = 16;

			__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
		}
		}
	}
	((void (*)(void))hostile_prey)();
}

static void act_msrs(struct hostile *self)
{
	static const u32 msrs[] = {
		0x10, 0x1b, 0x3a, 0x48, 0x8b, 0xfe, 0x174, 0x175, 0x176, 0x179, 0x17a, 0x186, 0x1a0, 0x1d9, 0x200, 0x250, 0x277,
		0x2ff, 0x38f, 0x400, 0x6e0, 0x800, 0x80b, 0x830, 0x83f, 0x11, 0x12, 0x4b564d00, 0x4b564d01, 0x4b564d02,
		0x4b564d03, 0x4b564d04, 0x4b564d05, 0x4b564d06, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084,
		0xc0000102, 0xc0000103, 0xc0010015, 0xc001001f, 0xc0010117, 0x40000000, 0x40000001,
	};
	u32 msr = below(self, 8) ? msrs[below(self, sizeof msrs / sizeof *msrs)] : (u32)next(self);
	u64 value = below(self, 2) ? next(self) : edge(self) | below(self, 4), kept = hostile_rdmsr(msr);

	/* Without its APIC the guest does not say any more how it ends. */
	if (msr == APIC_BASE_MSR && below(self, 16))
		return;
	if ((msr & ~0xffu) == 0x800)
		value = next(self) & 0x3000f00ff & ~0x600ul;
	hostile_wrmsr(msr, value);
	let_in(below(self, 50));
	hostile_wrmsr(msr, kept);
}

static void act_debug(struct hostile *self)
{
	const struct target *text = &self->targets[0];
	u64 at = text->at + below(self, text->bytes), control = next(self) & 0xffff07ff;

	__asm__ volatile("mov %0, %%dr0" : : "r"(at));
	__asm__ volatile("mov %0, %%dr1" : : "r"((u64)hostile_prey + below(self, 16)));
	__asm__ volatile("mov %0, %%dr2" : : "r"((u64)self));
	__asm__ volatile("mov %0, %%dr7" : : "r"(control));
	if (self->is_wild && !self->avoids_int1)
		__asm__ volatile("int1");
	((void (*)(void))hostile_prey)();
}

/* Words of a target; seldom all of it. */
static void act_scribble(struct hostile *self)
{
	const struct target *target = &self->targets[1 + below(self, self->target_count - 1)];
	volatile u8 *at = (u8 *)target->at;

	if (below(self, 128) == 0)
		for (u64 i = 0; i < target->bytes && i < 65536; i++)
			at[i] = (u8)next(self);
	for (unsigned i = 0; i < 8; i++) {
		u64 word = below(self, target->bytes / 8), value = next(self);

		switch (below(self, 4)) {
		case 0: value = 0; break;
		case 1: value = *(volatile u64 *)(at + 8 * below(self, target->bytes / 8)); break;
		case 2: value = target->at + below(self, target->bytes); break;
		}
		*(volatile u64 *)(at + 8 * word) = value;
	}
}

static void (*const acts[ACTS])(struct hostile *self) = {
	act_ports, act_strings, act_mmio, act_interrupts, act_rep, act_tables, act_scribble, act_detour,
	act_text, act_msrs, act_debug, act_jump,
};

/* A line on COM1, whatever has been done to that, and to the word that keeps the processors' lines apart. */
static void begin_line(struct hostile *self)
{
	u64 *printing = (u64 *)(self->direct + PRINTING_GPA);

	for (unsigned wait = 0; __atomic_exchange_n(printing, 1, __ATOMIC_SEQ_CST) == 1 && wait < 100000; wait++)
		__asm__ volatile("pause");
	port_write(0x3fb, 3);
	port_write(0x3f9, 0);
	port_write(0x3fc, 0x0b);
	put_text("\nhostile: cpu=");
	put_decimal(self->cpu);
}

static void finish_line(struct hostile *self)
{
	put_text("\n");
	__atomic_store_n((u64 *)(self->direct + PRINTING_GPA), 0, __ATOMIC_SEQ_CST);
}

/* What this processor has done since the last time. */
static void report(struct hostile *self)
{
	begin_line(self);
	for (unsigned i = 0; i < ACTS; i++) {
		put_text(" ");
		put_text(act_names[i]);
		put_text("=");
		put_decimal(self->counts[i]);
		self->counts[i] = 0;
	}
	put_text(" faults=");
	put_decimal(self->faults);
	put_text(" taken=");
	put_decimal(self->interrupts);
	put_text(" end");
	self->faults = self->interrupts = 0;
	finish_line(self);
}

/* An act, which is given up when it faults or takes too long. */
static void try(struct hostile *self, void (*act)(struct hostile *self))
{
	apic_set(self, APIC_SPURIOUS, APIC_ENABLED);
	apic_set(self, APIC_TIMER_DIVISOR, 0xb);
	apic_set(self, APIC_TIMER, WATCHDOG);
	apic_set(self, APIC_TIMER_BEGIN, WATCHDOG_TICKS);
	__asm__ volatile("sti");
	hostile_try(self, act);
	__asm__ volatile("cli\n\tmov %0, %%dr7" : : "r"(0x400ul));
	apic_set(self, APIC_TIMER_BEGIN, 0);
	apic_set(self, APIC_END, 0);
}

/* `times` acts. Those that the kernel may not survive come only if `is_last`. */
static void misbehave(struct hostile *self, u64 times, int is_last)
{
	for (u64 i = 1; i <= times; i++) {
		unsigned act = (unsigned)below(self, ACTS);

		if (!is_last && (act == SCRIBBLE || act == MSRS || act == DEBUG))
			act = below(self, 2) ? DETOUR : TEXT;
		self->is_idle = 0;
		try(self, acts[act]);
		self->counts[act] += !self->is_idle;
		if (i % REPORT_EVERY == 0)
			report(self);
	}
}
