/* A guest that looks for traces of probes, in every way that code in ring 0 has. The host compares what a run with probes has found with what a
 * run without them has found. */

#include "guest.h"

#define VECTOR_DB 1
#define VECTOR_BP 3
#define INT3 0xcc
#define NOP 0x90
#define PRESENT 1ul
#define TABLE_WORDS 512
/* Bits that the processor sets: accessed, dirty. */
#define PROCESSOR_BITS 0x60ul
#define PAGE_BYTES 0x1000ul
/* An entry of the page directory that maps nothing, and physical pages behind all memory. */
#define SPARE_ENTRY 300
#define LARGE_PAGE 0x200000ul
#define LARGE_UNCACHED 0x93
#define GIBIBYTE (1ul << 30)
#define LOOKED_GIBIBYTES 128
#define DR7_EXECUTION 0x22ul /* of DR0 and DR2, on all processors */
#define DR7_DATA 0x900008ul /* writes of 8 bytes, by DR1 */
#define PATCH_BYTES 8
#define CALLS 3

extern u8 fn_nop[], fn_pop[], fn_mov_store[], fn_patched[];
extern u64 page_map[], page_pointers[], page_directory[], page_table[], apic_directory[];
extern u64 watch_word;

static u64 frames;
static volatile u64 breakpoints, own_int3s;
static u8 *own_int3;
static volatile int breaks;
static int keeps_own_int3;

/* The guest patches a function, reads the new bytes through two mappings, and executes them. */
static u64 sum_patched(void)
{
	static const u8 other[PATCH_BYTES] = { 0xb8, 0x22, 0, 0, 0, 0x0f, 0x1f, 0x00 };
	static const u8 original[PATCH_BYTES] = { 0xb8, 0x11, 0, 0, 0, 0x0f, 0x1f, 0x00 };
	volatile u64 *text = (u64 *)fn_patched, *alias = (u64 *)(KERNEL_HALF + (u64)fn_patched);
	u64 (*function)(void) = (u64 (*)(void))fn_patched;
	u64 sum;

	*text = *(const u64 *)other;
	sum = mix(*text, *alias);
	sum = mix(sum, function());
	*alias = *(const u64 *)original;
	sum = mix(sum, *text);
	sum = mix(sum, *alias);
	sum = mix(sum, function());
	count_call(fn_patched, 2);
	return sum;
}

static u64 sum_table(const volatile u64 *table)
{
	u64 sum = 0;

	for (unsigned i = 0; i < TABLE_WORDS; i++)
		sum = mix(sum, table[i] & ~PROCESSOR_BITS);
	return sum;
}

static u64 sum_tables(void)
{
	static u64 *const tables[] = {
		page_map, page_pointers, page_directory, page_table, apic_directory,
	};
	u64 sum = 0;

	for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++)
		sum = mix(sum, sum_table(tables[i]));
	return sum;
}

/* The first word of each gibibyte behind all memory. */
static u64 sum_physical(void)
{
	u64 window = SPARE_ENTRY * LARGE_PAGE, before = page_directory[SPARE_ENTRY], sum = 0;

	for (u64 at = 1; at < LOOKED_GIBIBYTES; at++) {
		/* The local APIC and the I/O APIC are in the fourth. */
		if (at == 3)
			continue;
		page_directory[SPARE_ENTRY] = at * GIBIBYTE | LARGE_UNCACHED;
		flush_page(window);
		sum = mix(sum, *(volatile u64 *)window);
	}
	page_directory[SPARE_ENTRY] = before;
	flush_page(window);
	return sum;
}

/* The return address that a called function finds. */
static u64 sum_return_address(void)
{
	struct registers before = { .rflags = 2 }, after;

	call_checked(fn_pop, &before, &after);
	return after.rax;
}

/* The frame of each exception that a handler has taken. */
void note_frame(const struct frame *frame)
{
	frames = mix(frames, frame->rip);
	frames = mix(frames, frame->rflags);
	frames = mix(frames, frame->rsp);
}

static u64 sum_debug_registers(void)
{
	u64 values[6], sum = 0;

	__asm__ volatile("mov %%dr0, %0\n\tmov %%dr1, %1\n\tmov %%dr2, %2\n\t"
			 "mov %%dr3, %3\n\tmov %%dr6, %4\n\tmov %%dr7, %5"
			 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3]),
			   "=r"(values[4]), "=r"(values[5]));
	for (unsigned i = 0; i < 6; i++)
		sum = mix(sum, values[i]);
	return sum;
}

/* A debug exception or a breakpoint that this file has asked for. */
int looked(struct frame *frame)
{
	if (frame->vector == VECTOR_BP && own_int3 && frame->rip == (u64)own_int3 + 1) {
		/* As a kprobe does: a nop is over when its int3 is. */
		own_int3s++;
		return 1;
	}
	if (frame->vector != VECTOR_DB || !breaks)
		return 0;
	breakpoints = mix(breakpoints, frame->rip);
	/* One SVM, that of Bochs, shows no cause. */
	take_causes();
	frame->rflags |= FLAG_RF;
	return 1;
}

static void call_nop(void)
{
	struct registers before = { .rflags = 2 }, after;

	call_checked(fn_nop, &before, &after);
}

/* The guest's own breakpoints of the processor at a function's first two instructions. */
static u64 sum_own_breakpoints(void)
{
	breakpoints = 0;
	breaks = 1;
	__asm__ volatile("mov %0, %%dr0" : : "r"(fn_nop));
	__asm__ volatile("mov %0, %%dr2" : : "r"(fn_nop + 1));
	__asm__ volatile("mov %0, %%dr7" : : "r"(DR7_EXECUTION));
	for (unsigned i = 0; i < CALLS; i++)
		call_nop();
	__asm__ volatile("mov %0, %%dr7" : : "r"(0ul));
	breaks = 0;
	return breakpoints;
}

/* A function whose first instruction stores to the watched word. */
static u64 sum_own_watchpoints(void)
{
	struct registers before = { .rsi = (u64)&watch_word, .rflags = 2 }, after;

	breakpoints = 0;
	breaks = 1;
	__asm__ volatile("mov %0, %%dr1" : : "r"(&watch_word));
	__asm__ volatile("mov %0, %%dr7" : : "r"(DR7_DATA));
	for (u64 i = 0; i < CALLS; i++)
		call_checked(fn_mov_store, &before, &after);
	__asm__ volatile("mov %0, %%dr7" : : "r"(0ul));
	breaks = 0;
	return breakpoints;
}

/* A kprobe of the guest's own, at a function whose first byte is a nop. */
static void place_own_int3(void)
{
	own_int3 = fn_nop;
	*(volatile u8 *)own_int3 = INT3;
}

int scenario_ownkprobe(u64 argument)
{
	(void)argument;
	place_own_int3();
	keeps_own_int3 = 1;
	begin_ok("ownkprobe");
	end_line();
	return 0;
}

static u64 sum_own_int3(void)
{
	u64 sum;

	place_own_int3();
	own_int3s = 0;
	sum = *(volatile u8 *)own_int3;
	for (unsigned i = 0; i < CALLS; i++)
		call_nop();
	sum = mix(sum, own_int3s);
	if (!keeps_own_int3) {
		*(volatile u8 *)own_int3 = NOP;
		own_int3 = 0;
	}
	return sum;
}

static u64 sum_gates(void)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) pointer;

	__asm__ volatile("sidt %0" : "=m"(pointer));
	return mix(pointer.limit,
		   sum_words((u64 *)pointer.base, (u64 *)(pointer.base + pointer.limit + 1u)));
}

static u64 sum_leaves(u64 sum, u32 first)
{
	u32 last = first;

	for (u32 leaf = first; leaf <= last && leaf < first + 32; leaf++) {
		u32 a = leaf, b, c = 0, d;

		__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
		if (leaf == first)
			last = a;
		sum = mix(sum, (u64)a << 32 | b);
		sum = mix(sum, (u64)c << 32 | d);
	}
	return sum;
}

static u64 sum_cpuid(void)
{
	u64 sum = sum_leaves(0, 0);

	sum = sum_leaves(sum, 0x40000000);
	return sum_leaves(sum, 0x80000000);
}

static u64 sum_msrs(void)
{
	static const u32 msrs[] = {
		0x1b,  /* APIC_BASE */
		0x174, 0x175, 0x176, /* SYSENTER */
		0x1d9, /* DEBUGCTL */
		0x277, /* PAT */
		0xc0000080, 0xc0000081, 0xc0000082, 0xc0000084, /* EFER, STAR, LSTAR, FMASK */
	};
	u64 sum = 0;

	for (unsigned i = 0; i < sizeof msrs / sizeof *msrs; i++)
		sum = mix(sum, read_msr(msrs[i]));
	return sum;
}

int scenario_look(u64 argument)
{
	static const struct look {
		const char *name;
		u64 (*value)(void);
	} looks[] = {
		{ " copy=", sum_text_copy },
		{ " vectors=", sum_text_vectors },
		{ " patched=", sum_patched },
		{ " tables=", sum_tables },
		{ " physical=", sum_physical },
		{ " registers=", sum_calls },
		{ " return-address=", sum_return_address },
		{ " debug-registers=", sum_debug_registers },
		{ " own-breakpoints=", sum_own_breakpoints },
		{ " own-watchpoints=", sum_own_watchpoints },
		{ " own-int3=", sum_own_int3 },
		{ " gates=", sum_gates },
		{ " cpuid=", sum_cpuid },
		{ " msrs=", sum_msrs },
	};

	(void)argument;
	begin_ok("look");
	put_hex_field(" frames=", frames);
	put_hex_field(" text=", sum_text_at(0));
	put_hex_field(" alias=", sum_text_at(KERNEL_HALF));
	for (unsigned i = 0; i < sizeof looks / sizeof *looks; i++)
		put_hex_field(looks[i].name, looks[i].value());
	end_line();
	return 0;
}
