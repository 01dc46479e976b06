/* Snippets that the host has put into the slots: each is run from a state that a record of the initrd gives, and what
 * it leaves behind is written into the record, where the host reads it after the end. */

#include "guest.h"
#include "generated.h"

#define MSR_FS_BASE 0xc0000100
#define MSR_GS_BASE 0xc0000101
#define MSR_KERNEL_GS_BASE 0xc0000102
#define CR0_MP 0x2ul
#define CR0_EM_TS 0xcul
#define CR0_WP 0x10000ul
#define CR4_SSE 0x600ul
#define CR4_FSGSBASE 0x10000ul
#define CR4_OSXSAVE 0x40000ul
#define LEAF1_ECX_XSAVE_AVX 0x14000000u
#define LEAF7_EBX_FSGSBASE 1u
#define XCR0_AVX 7u
#define GATE_KERNEL 0x8e
#define INTERRUPT_STACK 1
#define VECTOR_DB 1
#define DR6_CLEAR 0xffff0ff0ul
#define PRESENT 1ul
#define WRITABLE 2ul
#define PAGE 0x1000
#define X87_CONTROL 0x37f
#define X87_TOP_SIX 0x3000
#define X87_TWO_ON_STACK 0xc0 /* as fxsave has it: a bit for each of the physical registers */
#define RUNNING 0xff

/* What fxsave stores and fxrstor loads. */
struct fpu {
	u16 control, status;
	u8 tags, reserved;
	u16 opcode;
	u64 instruction, operand;
	u32 mxcsr, mxcsr_mask;
	u8 registers[8][16], vectors[16][16], more[96];
};

extern const u64 generated_stubs[32];
extern u8 generated_slots[GENERATED_SLOTS][GENERATED_SLOT_BYTES];
extern struct context generated_context;
extern struct left generated_left;
extern struct fpu generated_fpu;
extern u32 initrd_address, initrd_bytes;

_Static_assert(sizeof(struct record) == RECORD_BYTES, "as in rigs/src/generated/record.rs");

/* Data lies across the border of the first two; the third is absent, the fourth read-only, the fifth a stack. */
u8 generated_pages[6][PAGE] __attribute__((aligned(PAGE)));

void generated_enter(const u8 *slot, u64 has_avx);

static struct gate gates[32] __attribute__((aligned(16)));

static void cpuid(u32 leaf, u32 *ebx, u32 *ecx)
{
	u32 eax = leaf, edx;

	*ecx = 0;
	__asm__ volatile("cpuid" : "+a"(eax), "=b"(*ebx), "+c"(*ecx), "=d"(edx));
}

/* Returns whether there is AVX, if it is wanted. */
static u64 enable(u64 wants_avx)
{
	u32 leaf1_ebx, leaf1_ecx, leaf7_ebx, leaf7_ecx;
	u64 cr0, cr4, has_avx;

	cpuid(1, &leaf1_ebx, &leaf1_ecx);
	cpuid(7, &leaf7_ebx, &leaf7_ecx);
	has_avx = wants_avx && (leaf1_ecx & LEAF1_ECX_XSAVE_AVX) == LEAF1_ECX_XSAVE_AVX;
	__asm__ volatile("mov %%cr0, %0" : "=r"(cr0));
	__asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
	cr0 = (cr0 & ~CR0_EM_TS) | CR0_MP | CR0_WP;
	cr4 |= CR4_SSE | (has_avx ? CR4_OSXSAVE : 0) |
	       (leaf7_ebx & LEAF7_EBX_FSGSBASE ? CR4_FSGSBASE : 0);
	__asm__ volatile("mov %0, %%cr0" : : "r"(cr0));
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4));
	if (has_avx)
		__asm__ volatile("xsetbv" : : "a"(XCR0_AVX), "d"(0), "c"(0));
	return has_avx;
}

static void map(void)
{
	*page_entry((u64)generated_pages[2]) &= ~PRESENT;
	*page_entry((u64)generated_pages[3]) &= ~WRITABLE;
	flush_page((u64)generated_pages[2]);
	flush_page((u64)generated_pages[3]);
}

static u64 clear_debug_status(void)
{
	u64 status;

	__asm__ volatile("mov %%dr6, %0" : "=r"(status));
	__asm__ volatile("mov %0, %%dr6" : : "r"(DR6_CLEAR));
	return status;
}

static void copy(void *to, const void *from, u64 bytes)
{
	u64 words = bytes / 8;

	__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
}

/* One and pi on the x87 stack, and what the record says in the vector registers. */
static void load_fpu(const struct context *context)
{
	static const u16 one[] = { 0, 0, 0, 0x8000, 0x3fff };
	static const u16 pi[] = { 0xc235, 0x2168, 0xdaa2, 0xc90f, 0x4000 };
	static const struct fpu clear;

	copy(&generated_fpu, &clear, sizeof clear);
	generated_fpu.control = X87_CONTROL;
	generated_fpu.tags = X87_TWO_ON_STACK;
	generated_fpu.status = X87_TOP_SIX;
	generated_fpu.mxcsr = (u32)context->mxcsr;
	for (unsigned i = 0; i < sizeof one / sizeof *one; i++) {
		((u16 *)generated_fpu.registers[0])[i] = one[i];
		((u16 *)generated_fpu.registers[1])[i] = pi[i];
	}
	for (unsigned i = 0; i < 4; i++)
		copy(generated_fpu.vectors[i], context->vectors[i], 16);
}

static void store_fpu(struct context *context, u64 has_avx)
{
	context->mxcsr = generated_fpu.mxcsr;
	for (unsigned i = 0; i < 4 && !has_avx; i++)
		copy(context->vectors[i], generated_fpu.vectors[i], 16);
}

static void run(struct record *record, const u8 *slot, u64 has_avx)
{
	u8 *data = generated_pages[1] - sizeof record->memory.data / 2;
	u8 *edge = generated_pages[2] - sizeof record->memory.edge;
	u8 *stack = generated_pages[4] + PAGE / 2;

	copy(data, record->memory.data, sizeof record->memory.data);
	copy(edge, record->memory.edge, sizeof record->memory.edge);
	copy(stack, record->memory.stack, sizeof record->memory.stack);
	copy(&generated_context, &record->context, sizeof record->context);
	load_fpu(&record->context);
	write_msr(MSR_FS_BASE, record->machine.fs_base);
	write_msr(MSR_GS_BASE, record->machine.gs_base);
	write_msr(MSR_KERNEL_GS_BASE, record->machine.kernel_gs_base);
	generated_left = (struct left){ 0 };
	record->left.how = RUNNING;
	generated_enter(slot, has_avx);
	record->machine_after.fs_base = read_msr(MSR_FS_BASE);
	record->machine_after.gs_base = read_msr(MSR_GS_BASE);
	record->machine_after.kernel_gs_base = read_msr(MSR_KERNEL_GS_BASE);
	if (generated_left.how == LEFT_TRAP && generated_left.vector == VECTOR_DB)
		generated_left.dr6 = clear_debug_status();
	store_fpu(&generated_context, has_avx);
	copy(&record->after, &generated_context, sizeof record->after);
	copy(record->memory_after.data, data, sizeof record->memory.data);
	copy(record->memory_after.edge, edge, sizeof record->memory.edge);
	copy(record->memory_after.stack, stack, sizeof record->memory.stack);
	copy(record->fpu, &generated_fpu, sizeof record->fpu);
	copy(&record->left, &generated_left, sizeof record->left);
}

int scenario_generated(u64 argument)
{
	struct record *records = (struct record *)(u64)initrd_address;
	u64 count = initrd_bytes / sizeof *records, skipped = 0, has_avx;

	if (count == 0 || count > GENERATED_SLOTS)
		return fail("generated", "the initrd is not one of records");
	has_avx = enable(argument);
	map();
	set_interrupt_stack(INTERRUPT_STACK, generated_pages[6]);
	for (unsigned vector = 0; vector < 32; vector++) {
		gates[vector] = gate(generated_stubs[vector], GATE_KERNEL);
		gates[vector].stack = INTERRUPT_STACK;
	}
	load_table(gates, sizeof gates - 1);
	for (u64 i = 0; i < count; i++) {
		if (records[i].skip)
			skipped++;
		else
			run(&records[i], generated_slots[i], has_avx);
	}
	load_traps();
	write_msr(MSR_GS_BASE, (u64)percpus);
	begin_ok("generated");
	put_field(" snippets=", count - skipped);
	put_field(" skipped=", skipped);
	end_line();
	return 0;
}
