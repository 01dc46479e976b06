/* The guest looks at its own text, and changes it. */

#include "guest.h"

extern u8 text_start[], text_end[], fn_patched[];

#define CR4_OSFXSR 0x200ul
#define TEXT_LIMIT 0x10000 /* also in link.ld */
#define PATCH_BYTES 8

static u8 copied[TEXT_LIMIT] __attribute__((aligned(16)));

u64 mix(u64 sum, u64 word)
{
	return (sum << 7 | sum >> 57) ^ word;
}

u64 sum_words(const volatile u64 *from, const volatile u64 *to)
{
	u64 sum = 0;

	while (from < to)
		sum = mix(sum, *from++);
	return sum;
}

static u64 text_bytes(void)
{
	return (u64)(text_end - text_start);
}

u64 sum_text_at(u64 half)
{
	return sum_words((u64 *)(half + (u64)text_start), (u64 *)(half + (u64)text_end));
}

static u64 sum_copied(void)
{
	return sum_words((u64 *)copied, (u64 *)(copied + text_bytes()));
}

u64 sum_text_copy(void)
{
	u8 *to = copied;
	const u8 *from = text_start;
	u64 count = text_bytes() / 8;

	__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
	return sum_copied();
}

u64 sum_text_vectors(void)
{
	u64 cr4;

	__asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4 | CR4_OSFXSR));
	/* All of the text: both ends are multiples of 8, and the last load may begin inside another. */
	for (u64 at = 0; at < text_bytes(); at += 16) {
		u64 from = at + 16 > text_bytes() ? text_bytes() - 16 : at;

		__asm__ volatile("movups (%0), %%xmm0\n\tmovups %%xmm0, (%1)"
				 :
				 : "r"(text_start + from), "r"(copied + from)
				 : "memory");
	}
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4));
	return sum_copied();
}

/* The second processor calls every function, while the first reads the text in each of its ways. */
static int read_or_call(struct percpu *cpu, u64 rounds)
{
	u64 sum;

	if (cpu != &percpus[0])
		return call_round(cpu, rounds);
	sum = sum_text_at(0);
	for (u64 round = 0; round < rounds; round++)
		if (sum_text_at(0) != sum || sum_text_at(KERNEL_HALF) != sum ||
		    sum_text_copy() != sum || sum_text_vectors() != sum)
			return fail("textsmp", "the text is not the same in every way");
	return 0;
}

int scenario_textsmp(u64 rounds)
{
	if (run_on_both("textsmp", read_or_call, rounds))
		return 1;
	begin_ok("textsmp");
	put_field(" rounds=", rounds);
	put_hex_field(" sum=", sum_text_at(0));
	end_line();
	return 0;
}

int scenario_checksum(u64 argument)
{
	static u64 first;
	static int known;
	u64 sum = sum_text_at(0);

	(void)argument;
	if (known && sum != first) {
		fail_got("checksum", "sum", sum, first);
		return 1;
	}
	known = 1;
	first = sum;
	begin_ok("checksum");
	put_hex_field(" sum=", sum);
	put_hex_field(" start=", (u64)text_start);
	put_hex_field(" end=", (u64)text_end);
	end_line();
	return 0;
}

/* Ways to write to the text: every width, an address inside an instruction, and a string. */

static void write_bytes(u8 *to, const u8 *from)
{
	for (unsigned i = 0; i < PATCH_BYTES; i++)
		((volatile u8 *)to)[i] = from[i];
}

static void write_words(u8 *to, const u8 *from)
{
	for (unsigned i = 0; i < PATCH_BYTES; i += 2)
		*(volatile u16 *)(to + i) = *(const u16 *)(from + i);
}

static void write_longs(u8 *to, const u8 *from)
{
	for (unsigned i = 0; i < PATCH_BYTES; i += 4)
		*(volatile u32 *)(to + i) = *(const u32 *)(from + i);
}

static void write_quad(u8 *to, const u8 *from)
{
	*(volatile u64 *)to = *(const u64 *)from;
}

static void write_string(u8 *to, const u8 *from)
{
	u64 count = PATCH_BYTES;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
}

static void exchange(u8 *to, const u8 *from)
{
	__atomic_exchange_n((u64 *)to, *(const u64 *)from, __ATOMIC_SEQ_CST);
}

/* mov $N, %eax with different N and what follows it; the last one is as it was assembled. */
static const struct {
	u8 bytes[PATCH_BYTES];
	u64 result;
} patches[] = {
	{ { 0xb8, 0x22, 0, 0, 0, 0x0f, 0x1f, 0x00 }, 0x22 },
	{ { 0x31, 0xc0, 0xb0, 0x33, 0x90, 0x90, 0x90, 0x90 }, 0x33 },
	{ { 0x0f, 0x1f, 0x44, 0, 0, 0x6a, 0x44, 0x58 }, 0x44 },
	{ { 0x55, 0xb8, 0x55, 0, 0, 0, 0x5d, 0x90 }, 0x55 },
	{ { 0xb8, 0x11, 0, 0, 0, 0x0f, 0x1f, 0x00 }, 0x11 },
};

int scenario_selfpatch(u64 rounds)
{
	static void (*const writers[])(u8 *to, const u8 *from) = {
		write_bytes, write_words, write_longs, write_quad, write_string, exchange,
	};
	u64 (*patched)(void) = (u64 (*)(void))fn_patched;
	u64 calls = 0;

	for (u64 round = 0; round < rounds; round++)
		for (unsigned w = 0; w < sizeof writers / sizeof *writers; w++)
			for (unsigned p = 0; p < sizeof patches / sizeof *patches; p++) {
				u64 wanted = *(const u64 *)patches[p].bytes, got;

				writers[w](fn_patched, patches[p].bytes);
				got = *(volatile u64 *)fn_patched;
				if (got != wanted) {
					fail_got("selfpatch", "bytes", got, wanted);
					return 1;
				}
				got = patched();
				calls++;
				count_call(fn_patched, 1);
				if (got != patches[p].result) {
					fail_got("selfpatch", "result", got, patches[p].result);
					return 1;
				}
			}
	begin_ok("selfpatch");
	put_field(" writes=", calls);
	put_field(" calls=", calls);
	end_line();
	return 0;
}
