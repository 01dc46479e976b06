/* Writes to a variable that the host watches, in every way and in known numbers. */

#include "guest.h"

#define PAGE_BYTES 4096
#define WORDS (PAGE_BYTES / 8)
#define PARTS 1000
#define CR4_OSFXSR 0x200ul

/* A page for nothing else: what the processor writes by itself is elsewhere. The neighbours of the word are written, too. */
u64 watch_page[WORDS] __attribute__((aligned(PAGE_BYTES)));
extern u64 watch_word;
__asm__(".globl watch_word\n"
	".set watch_word, watch_page + 8 * 8");

static u64 lost;

/* One store of a function that does nothing else: for probes at the store itself. */
__asm__(".text\n"
	".globl watch_store\n"
	".type watch_store, @function\n"
	"watch_store:\n\t"
	"mov %rdi, watch_word\n\t"
	"ret\n"
	".size watch_store, . - watch_store");
extern void watch_store(u64 value);

/* Each instruction once; tests/ know the values. Returns how many results were wrong. */
static __attribute__((noinline)) u64 watch_writes(void)
{
	static const u64 source = 0x7777;
	u64 *word = &watch_word, wrong = 0, value, rax, count;
	const void *from;
	void *to;

	__asm__ volatile("movq %1, (%0)" : : "r"(word), "r"(0x1122334455667788ul) : "memory");
	__asm__ volatile("movl $0, (%0)" : : "r"(word) : "memory");
	__asm__ volatile("movb $0xab, 7(%0)" : : "r"(word) : "memory");
	__asm__ volatile("incq (%0)" : : "r"(word) : "memory", "cc");
	value = 0x10;
	__asm__ volatile("lock xaddq %0, (%1)" : "+r"(value) : "r"(word) : "memory", "cc");
	wrong += value != 0xab22334400000001ul;
	value = 5;
	__asm__ volatile("xchgq %0, (%1)" : "+r"(value) : "r"(word) : "memory");
	wrong += value != 0xab22334400000011ul;
	rax = 5;
	__asm__ volatile("lock cmpxchgq %2, (%1)" : "+a"(rax) : "r"(word), "r"(6ul) : "memory", "cc");
	wrong += rax != 5;
	/* Finds another value, and stores it back. */
	rax = 99;
	__asm__ volatile("lock cmpxchgq %2, (%1)" : "+a"(rax) : "r"(word), "r"(7ul) : "memory", "cc");
	wrong += rax != 6;
	/* The same value again. */
	__asm__ volatile("movq $6, (%0)" : : "r"(word) : "memory");
	/* Half of it in front of the word. */
	__asm__ volatile("movl $0xdeadbeef, -2(%0)" : : "r"(word) : "memory");
	/* The neighbours. */
	__asm__ volatile("movq $1, -8(%0)\n\tmovq $2, 8(%0)" : : "r"(word) : "memory");
	from = &source;
	to = word;
	__asm__ volatile("movsq" : "+S"(from), "+D"(to) : : "memory");
	wrong += to != word + 1;
	__asm__ volatile("pushq $0x1234\n\tpopq (%0)" : : "r"(word) : "memory");
	__asm__ volatile("lock btsq $40, (%0)" : : "r"(word) : "memory", "cc");
	__asm__ volatile("shlq $1, (%0)" : : "r"(word) : "memory", "cc");
	to = word;
	count = 4;
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0x41) : "memory");
	wrong += count != 0 || to != (u8 *)word + 4;
	wrong += *word != 0x0000020041414141ul;
	wrong += watch_page[7] != 1 || watch_page[9] != 2;
	return wrong;
}

int scenario_watch(u64 stores)
{
	u64 wrong = watch_writes();

	for (u64 i = 1; i <= stores; i++)
		watch_store(i);
	if (wrong) {
		fail_got("watch", "results", wrong, 0);
		return 1;
	}
	begin_ok("watch");
	put_field(" word=", watch_word);
	end_line();
	return 0;
}

static void use_vector_registers(void)
{
	u64 cr4;

	__asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4 | CR4_OSFXSR));
}

/* Each instruction once; rigs/ know the values that it finds. Returns how many results were wrong. */
static __attribute__((noinline)) u64 watch_reads(void)
{
	static u64 copy;
	u64 *word = &watch_word, wrong = 0, value, count;
	const void *from;
	void *to;

	__asm__ volatile("movq %1, (%0)" : : "r"(word), "r"(0x1122334455667788ul) : "memory");
	__asm__ volatile("movq (%1), %0" : "=r"(value) : "r"(word) : "memory");
	wrong += value != 0x1122334455667788ul;
	__asm__ volatile("movl (%1), %k0" : "=r"(value) : "r"(word) : "memory");
	wrong += value != 0x55667788ul;
	__asm__ volatile("movzbl 7(%1), %k0" : "=r"(value) : "r"(word) : "memory");
	wrong += value != 0x11ul;
	__asm__ volatile("addq (%1), %0" : "+r"(value) : "r"(word) : "memory", "cc");
	wrong += value != 0x1122334455667799ul;
	__asm__ volatile("cmpq %0, (%1)" : : "r"(value), "r"(word) : "memory", "cc");
	__asm__ volatile("testb $1, (%0)" : : "r"(word) : "memory", "cc");
	__asm__ volatile("pushq (%1)\n\tpopq %0" : "=r"(value) : "r"(word) : "memory");
	wrong += value != 0x1122334455667788ul;
	from = word;
	__asm__ volatile("lodsq" : "+S"(from), "=a"(value) : : "memory");
	wrong += value != 0x1122334455667788ul || from != word + 1;
	/* Half of it in front of the word. */
	__asm__ volatile("movl -2(%1), %k0" : "=r"(value) : "r"(word) : "memory");
	/* The neighbours. */
	__asm__ volatile("movq -8(%1), %0\n\tmovq 8(%1), %0" : "=&r"(value) : "r"(word) : "memory");
	__asm__ volatile("incq (%0)" : : "r"(word) : "memory", "cc");
	value = 0x10;
	__asm__ volatile("lock xaddq %0, (%1)" : "+r"(value) : "r"(word) : "memory", "cc");
	wrong += value != 0x1122334455667789ul;
	value = 5;
	__asm__ volatile("xchgq %0, (%1)" : "+r"(value) : "r"(word) : "memory");
	wrong += value != 0x1122334455667799ul;
	__asm__ volatile("movq $6, (%0)" : : "r"(word) : "memory");
	from = word;
	to = &copy;
	count = 4;
	__asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
	wrong += count != 0 || copy != 6;
	return wrong;
}

int scenario_watchread(u64 loads)
{
	u64 wrong, sum = 0;

	wrong = watch_reads();
	for (u64 i = 0; i < loads; i++)
		sum += *(volatile u64 *)&watch_word;
	if (wrong || sum != 6 * loads) {
		fail_got("watchread", "results", wrong, 0);
		return 1;
	}
	begin_ok("watchread");
	put_field(" loads=", loads);
	end_line();
	return 0;
}

/* Loads to a vector register, which the host's emulator does not know; one begins in front of the word. */
int scenario_watchreadvector(u64 loads)
{
	u64 from[2], before[2], wrong = 0;

	use_vector_registers();
	for (u64 i = 1; i <= loads; i++) {
		__asm__ volatile("movq %1, (%0)" : : "r"(&watch_word), "r"(i) : "memory");
		__asm__ volatile("movups (%1), %%xmm0\n\tmovups %%xmm0, (%0)"
				 : : "r"(from), "r"(&watch_word) : "memory");
		__asm__ volatile("movups -8(%1), %%xmm0\n\tmovups %%xmm0, (%0)"
				 : : "r"(before), "r"(&watch_word) : "memory");
		wrong += from[0] != i || before[1] != i;
	}
	if (wrong) {
		fail_got("watchreadvector", "results", wrong, 0);
		return 1;
	}
	begin_ok("watchreadvector");
	put_field(" loads=", loads);
	end_line();
	return 0;
}

/* The table of interrupts is loaded from the word and the next two bytes, and locked instructions add to bytes 1 to 4 of the word. */
static __attribute__((noinline)) u64 watch_odd(void)
{
	struct {
		u64 first;
		u16 last;
	} __attribute__((packed)) before, after;
	u64 *word = &watch_word, wrong = 0, value;

	__asm__ volatile("sidt %0" : "=m"(before));
	__asm__ volatile("movq %1, (%0)\n\tmovw %2, 8(%0)"
			 : : "r"(word), "r"(before.first), "r"(before.last) : "memory");
	__asm__ volatile("lidt (%0)" : : "r"(word) : "memory");
	__asm__ volatile("sidt %0" : "=m"(after));
	wrong += after.first != before.first || after.last != before.last;
	__asm__ volatile("movq $0, (%0)" : : "r"(word) : "memory");
	__asm__ volatile("lock incl 1(%0)" : : "r"(word) : "memory", "cc");
	value = 2;
	__asm__ volatile("lock xaddl %k0, 1(%1)" : "+r"(value) : "r"(word) : "memory", "cc");
	wrong += value != 1;
	__asm__ volatile("movq (%1), %0" : "=r"(value) : "r"(word) : "memory");
	wrong += value != 0x300;
	return wrong;
}

int scenario_watchodd(u64 rounds)
{
	u64 wrong = 0;

	for (u64 i = 0; i < rounds; i++)
		wrong += watch_odd();
	if (wrong) {
		fail_got("watchodd", "results", wrong, 0);
		return 1;
	}
	begin_ok("watchodd");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}

/* The sum of the values that both vCPUs have read. */
static u64 read_sum;

/* Two vCPUs read what both add to: the values never fall. */
static int watch_read_round(struct percpu *cpu, u64 rounds)
{
	u64 value, seen = 0;

	for (u64 i = 0; i < rounds; i++) {
		__asm__ volatile("lock incq %0" : "+m"(watch_word) : : "cc");
		__asm__ volatile("movq %1, %0" : "=r"(value) : "m"(watch_word));
		if (value <= seen)
			__asm__ volatile("lock incq %0" : "+m"(lost) : : "cc");
		seen = value;
		__asm__ volatile("lock addq %1, %0" : "+m"(read_sum) : "r"(value) : "cc");
	}
	return cpu == 0;
}

int scenario_watchreadsmp(u64 rounds)
{
	u64 before = watch_word;

	if (run_on_both("watchreadsmp", watch_read_round, rounds))
		return 1;
	if (watch_word - before != 2 * rounds || lost) {
		fail_got("watchreadsmp", "word", watch_word - before, 2 * rounds);
		return 1;
	}
	begin_ok("watchreadsmp");
	put_field(" rounds=", rounds);
	put_field(" sum=", read_sum);
	end_line();
	return 0;
}

/* Three locked instructions a round. Each must find what another has left. */
static int watch_round(struct percpu *cpu, u64 rounds)
{
	u64 value, rax, seen = 0;
	u8 swapped;

	for (u64 i = 0; i < rounds; i++) {
		__asm__ volatile("lock incq %0" : "+m"(watch_word) : : "cc");
		value = 1;
		__asm__ volatile("lock xaddq %0, %1" : "+r"(value), "+m"(watch_word) : : "cc");
		if (value < seen)
			__asm__ volatile("lock incq %0" : "+m"(lost) : : "cc");
		seen = value;
		do {
			rax = watch_word;
			__asm__ volatile("lock cmpxchgq %3, %1\n\tsetz %2"
					 : "+a"(rax), "+m"(watch_word), "=q"(swapped)
					 : "r"(rax + 1)
					 : "cc");
		} while (!swapped);
	}
	return cpu == 0;
}

int scenario_watchsmp(u64 rounds)
{
	u64 before = watch_word;

	if (run_on_both("watchsmp", watch_round, rounds))
		return 1;
	if (watch_word - before != 6 * rounds || lost) {
		fail_got("watchsmp", "word", watch_word - before, 6 * rounds);
		return 1;
	}
	begin_ok("watchsmp");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}

/* Stores of 16 bytes from a vector register, which the host's emulator does not know. */
int scenario_watchvector(u64 stores)
{
	u64 pair[2] = { 0, 0 };

	use_vector_registers();
	for (u64 i = 1; i <= stores; i++) {
		pair[0] = i;
		__asm__ volatile("movups (%0), %%xmm0\n\tmovups %%xmm0, (%1)"
				 : : "r"(pair), "r"(&watch_word) : "memory");
	}
	if (watch_word != stores) {
		fail_got("watchvector", "word", watch_word, stores);
		return 1;
	}
	begin_ok("watchvector");
	put_field(" word=", watch_word);
	end_line();
	return 0;
}

/* Adds to each part of 4 bytes, from the word on, as often in a round as its number modulo 4 says. */
int scenario_watchmany(u64 rounds)
{
	volatile u32 *parts = (volatile u32 *)&watch_word;
	u64 wrong = 0;

	for (u64 round = 0; round < rounds; round++)
		for (u64 part = 0; part < PARTS; part++)
			for (u64 store = 0; store < part % 4; store++)
				parts[part]++;
	for (u64 part = 0; part < PARTS; part++)
		wrong += parts[part] != rounds * (part % 4);
	if (wrong) {
		fail_got("watchmany", "parts", wrong, 0);
		return 1;
	}
	begin_ok("watchmany");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
