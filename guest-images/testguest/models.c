/* What each function in functions.S does to the registers, said a second time in C. */

#include "guest.h"

extern u64 fn_memory, page_map[];
extern u8 call_checked_return[];

static u64 parity(u64 value)
{
	value ^= value >> 4;
	value ^= value >> 2;
	value ^= value >> 1;
	return value & 1 ? 0 : FLAG_PF;
}

static void set_flags(struct registers *r, u64 flags, u64 changed)
{
	r->rflags = (r->rflags & ~changed) | (flags & changed);
}

static u64 result_flags(u64 result)
{
	return (result ? 0 : FLAG_ZF) | (result >> 63 ? FLAG_SF : 0) | parity(result & 0xff);
}

static u64 add_flags(u64 a, u64 b)
{
	u64 sum = a + b;

	return result_flags(sum) | (sum < a ? FLAG_CF : 0) | ((a ^ b ^ sum) & FLAG_AF) |
	       (~(a ^ b) & (a ^ sum) & 1ul << 63 ? FLAG_OF : 0);
}

static u64 sub_flags(u64 a, u64 b)
{
	u64 difference = a - b;

	return result_flags(difference) | (a < b ? FLAG_CF : 0) |
	       ((a ^ b ^ difference) & FLAG_AF) |
	       ((a ^ b) & (a ^ difference) & 1ul << 63 ? FLAG_OF : 0);
}

#define MODEL(name) int model_##name(struct registers *r, u64 *undefined_flags)
#define UNUSED (void)undefined_flags

MODEL(fn_pop)
{
	UNUSED;
	r->rax = (u64)call_checked_return;
	return 1;
}

MODEL(fn_rdtsc)
{
	UNUSED;
	r->rax = 1;
	r->rdx = 2;
	return 1;
}

MODEL(fn_cpuid)
{
	UNUSED;
	r->rax = 1;
	r->rbx = 2;
	r->rcx = 3;
	r->rdx = 4;
	return 1;
}

MODEL(fn_cr3)
{
	UNUSED;
	r->rax = (u64)page_map;
	return 1;
}

MODEL(fn_sub)
{
	UNUSED;
	set_flags(r, sub_flags(r->rsp - 8, 24), FLAGS_STATUS);
	return 1;
}

MODEL(fn_add)
{
	UNUSED;
	set_flags(r, add_flags(r->rax, r->rdi), FLAGS_STATUS);
	r->rax += r->rdi;
	return 1;
}

MODEL(fn_mov)
{
	UNUSED;
	r->rax = r->rdi;
	return 1;
}

MODEL(fn_mov_imm)
{
	UNUSED;
	r->rax = 0x89abcdef;
	return 1;
}

MODEL(fn_mov_load)
{
	UNUSED;
	r->rax = fn_memory;
	return 1;
}

MODEL(fn_mov_store)
{
	UNUSED;
	return *(volatile u64 *)r->rsi == r->rax;
}

MODEL(fn_movzx)
{
	UNUSED;
	r->rax = ((volatile u8 *)r->rdi)[3];
	return 1;
}

MODEL(fn_lea)
{
	UNUSED;
	r->rax = r->rdi + r->rsi * 4 + 8;
	return 1;
}

MODEL(fn_lea_rip)
{
	UNUSED;
	r->rax = (u64)&fn_memory;
	return 1;
}

MODEL(fn_xor)
{
	*undefined_flags = FLAG_AF;
	r->rax = 0;
	set_flags(r, result_flags(0), FLAGS_STATUS);
	return 1;
}

MODEL(fn_test)
{
	*undefined_flags = FLAG_AF;
	set_flags(r, result_flags(r->rdi & r->rsi), FLAGS_STATUS);
	return 1;
}

MODEL(fn_cmp)
{
	UNUSED;
	set_flags(r, sub_flags(r->rdi, r->rsi), FLAGS_STATUS);
	return 1;
}

MODEL(fn_cmov)
{
	UNUSED;
	if (r->rflags & FLAG_ZF)
		r->rax = r->rdi;
	return 1;
}

MODEL(fn_xchg)
{
	u64 old = r->rdi;

	UNUSED;
	r->rdi = r->rsi;
	r->rsi = old;
	return 1;
}

MODEL(fn_bswap)
{
	UNUSED;
	r->rax = __builtin_bswap64(r->rax);
	return 1;
}

MODEL(fn_imul)
{
	*undefined_flags = FLAGS_STATUS;
	r->rax *= r->rdi;
	return 1;
}

/* Its flags depend on its own counter and on what the other CPU does. */
MODEL(fn_gs)
{
	(void)r;
	*undefined_flags = FLAGS_STATUS & ~FLAG_CF;
	return 1;
}

MODEL(fn_lock)
{
	(void)r;
	*undefined_flags = FLAGS_STATUS & ~FLAG_CF;
	return 1;
}

MODEL(fn_rep)
{
	u64 step = r->rflags & FLAG_DF ? -1ul : 1;

	UNUSED;
	for (; r->rcx; r->rcx--, r->rdi += step)
		if (*(volatile u8 *)r->rdi != (u8)r->rax)
			return 0;
	return 1;
}

MODEL(fn_pushf)
{
	UNUSED;
	r->rax = r->rflags;
	return 1;
}

MODEL(fn_jcc)
{
	UNUSED;
	r->rax = r->rflags & FLAG_ZF ? 1 : 2;
	return 1;
}

MODEL(fn_jcc_near)
{
	UNUSED;
	r->rax = r->rflags & FLAG_CF ? 1 : 2;
	return 1;
}

MODEL(fn_loop)
{
	UNUSED;
	r->rdx = 0;
	/* `dec` leaves the carry as it is. */
	set_flags(r, sub_flags(1, 1), FLAGS_STATUS & ~FLAG_CF);
	return 1;
}
