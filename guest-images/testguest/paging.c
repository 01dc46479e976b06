/* Changes to the small pages of the first 2 MiB. */

#include "guest.h"

extern u64 page_table[512];

u64 *page_entry(u64 address)
{
	return &page_table[address >> 12 & 511];
}

void flush_page(u64 address)
{
	__asm__ volatile("invlpg (%0)" : : "r"(address) : "memory");
}
