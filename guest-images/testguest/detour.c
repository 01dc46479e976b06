/* What somebody else has put into the guest's page tables: code that can be read and executed, and
 * not written. And functions that use registers of the processor's extensions. */

#include "guest.h"

#define ENTRY_BYTES 0x200000ul
#define OWN_ENTRIES 256
#define CR4_OSFXSR 0x200ul
#define PAGE_WORDS 512

extern u64 page_directory[512];

static volatile u64 *find_detour(void)
{
	for (u64 i = OWN_ENTRIES; i < 512; i++)
		if (page_directory[i] & 1)
			return (u64 *)(i * ENTRY_BYTES);
	return 0;
}

/* Writes to the first page `writes` times; CR0.WP is off, so that no page table forbids it. */
int scenario_detour(u64 writes)
{
	volatile u64 *code = find_detour();
	u64 sum;

	if (!code) {
		begin_ok("detour");
		put_field(" found=", 0);
		end_line();
		return 0;
	}
	sum = sum_words(code, code + PAGE_WORDS);
	for (u64 i = 0; i < writes; i++)
		code[i % PAGE_WORDS] = ~code[i % PAGE_WORDS];
	if (sum_words(code, code + PAGE_WORDS) != sum)
		return fail("detour", "its code can be written");
	begin_ok("detour");
	put_field(" found=", 1);
	put_field(" writes=", writes);
	end_line();
	return 0;
}

static u64 exclusive_or(u64 a, u64 b)
{
	u64 result;

	__asm__ volatile("movq %1, %%xmm0\n\t"
			 "movq %2, %%xmm1\n\t"
			 "call fn_pxor\n\t"
			 "movq %%xmm0, %0"
			 : "=r"(result) : "r"(a), "r"(b) : "memory");
	return result;
}

int scenario_vector(u64 rounds)
{
	u64 cr4;

	__asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4 | CR4_OSFXSR));
	for (u64 round = 0; round < rounds; round++) {
		u64 a = round * 0x9e3779b97f4a7c15ul, b = ~(round << 32);
		u64 got = exclusive_or(a, b);

		if (got != (a ^ b)) {
			fail_got("vector", "xmm0", got, a ^ b);
			return 1;
		}
	}
	begin_ok("vector");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
