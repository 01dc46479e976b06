/*
 * A program that looks for traces of probes. Each line is `detected ROUND WHAT VALUE`: a value that differs from that of a round without probes
 * is a trace.
 *
 *   detector memory ROUND NAME FIRST END KEPT    NAME+OFFSET, for each MiB of the kernel's memory from FIRST to END: a sum of the words in
 *                                                /proc/kcore, of which the bits in KEPT count. The three are hexadecimal; END is rounded up to a word.
 *   detector program ROUND                       what a program without rights sees of its own system calls:
 *                                                  flags      the bits that a system call leaves in R11, but for those of arithmetic
 *                                                  registers  the registers that a system call has changed, one bit each
 *                                                  time       the cycles of the fastest of many system calls: of use beside other rounds only
 *
 * `detected ROUND WHAT failed ERROR` stands for a value that cannot be read.
 */

#include "syscall.h"
#include "console.h"
#include "start.h"

enum {
	SYS_pread64 = 17,
	SYS_setresuid = 117,
	NOBODY = 65534,
	BLOCK_BYTES = 1 << 20,
	CHUNK_BYTES = 1 << 16,
	CALLS = 1000,
	/* The flags of arithmetic, and the direction: CF, PF, AF, ZF, SF, DF, OF. */
	ARITHMETIC = 0xcd5,
	SEGMENT_LOADED = 1,
};

/* A segment of an ELF file: `Elf64_Phdr`. */
struct segment {
	unsigned type, flags;
	unsigned long offset, address, physical, file_bytes, bytes, alignment;
};

/* The part of `Elf64_Ehdr` behind the numbers of the file's kind. */
struct header {
	unsigned char kind[24];
	unsigned long entry, segments, sections;
	unsigned flags;
	unsigned short bytes, segment_bytes, segment_count;
};

static unsigned long chunk[CHUNK_BYTES / sizeof(unsigned long)];

static unsigned long hexadecimal(const char *digits)
{
	unsigned long value = 0;

	for (; *digits; digits++)
		value = value * 16 + (*digits <= '9' ? *digits - '0' : *digits - 'a' + 10);
	return value;
}

static void put_hexadecimal(unsigned long value)
{
	char digits[17];
	unsigned at = sizeof digits - 1;

	digits[at] = 0;
	do
		digits[--at] = "0123456789abcdef"[value % 16];
	while (value /= 16);
	put(digits + at);
}

static void begin(const char *round, const char *what)
{
	put("detected ");
	put(round);
	put(" ");
	put(what);
}

static void end(unsigned long value)
{
	put(" ");
	put_hexadecimal(value);
	end_line();
}

static void end_failed(long error)
{
	put_field(" failed ", (unsigned long)error);
	end_line();
}

/* The place in the file of the memory at `address`, whose segment has `*room` more bytes; negative without one. */
static long place(long file, unsigned long address, unsigned long *room)
{
	struct header header;
	long got = syscall4(SYS_pread64, file, (long)&header, sizeof header, 0);

	if (got != sizeof header)
		return got < 0 ? got : -EINVAL;
	for (unsigned i = 0; i < header.segment_count; i++) {
		struct segment segment;
		unsigned long at = header.segments + i * sizeof segment;

		got = syscall4(SYS_pread64, file, (long)&segment, sizeof segment, (long)at);
		if (got != sizeof segment)
			return got < 0 ? got : -EINVAL;
		if (segment.type == SEGMENT_LOADED && address - segment.address < segment.bytes) {
			*room = segment.bytes - (address - segment.address);
			return (long)(segment.offset + (address - segment.address));
		}
	}
	return -ENOENT;
}

static void sum_memory(char **arguments)
{
	unsigned long first = hexadecimal(arguments[2]), last = (hexadecimal(arguments[3]) + 7) & ~7UL;
	unsigned long kept = hexadecimal(arguments[4]);
	long file = syscall4(SYS_openat, AT_FDCWD, (long)"/proc/kcore", O_RDONLY, 0);

	for (unsigned long block = first; block < last; block += BLOCK_BYTES) {
		unsigned long sum = 0xcbf29ce484222325, room = 0;
		unsigned long to = last - block < BLOCK_BYTES ? last : block + BLOCK_BYTES;
		long from = file < 0 ? file : place(file, block, &room);

		if (from >= 0 && room < to - block)
			from = -ENOENT;
		for (unsigned long done = 0; from >= 0 && done < to - block;) {
			unsigned long wanted = to - block - done;
			long got;

			if (wanted > CHUNK_BYTES)
				wanted = CHUNK_BYTES;
			got = syscall4(SYS_pread64, file, (long)chunk, (long)wanted, from + (long)done);
			if (got <= 0 || got % (long)sizeof *chunk != 0) {
				from = got < 0 ? got : -EINVAL;
				break;
			}
			for (unsigned long i = 0; i < (unsigned long)got / sizeof *chunk; i++)
				sum = (sum ^ (chunk[i] & kept)) * 0x100000001b3;
			done += (unsigned long)got;
		}
		begin(arguments[0], arguments[1]);
		put("+0x");
		put_hexadecimal(block - first);
		if (from < 0)
			end_failed(from);
		else
			end(sum);
	}
}

/* The registers that a system call returns with. */
struct returned {
	unsigned long flags, changed;
};

static void call(struct returned *returned)
{
	unsigned long flags, changed;

	/* The registers that the kernel preserves; RCX and R11 are those of the instruction. */
	__asm__ volatile("push %%rbp\n\t"
			 "mov $0x1111, %%edi\n\t"
			 "mov $0x2222, %%esi\n\t"
			 "mov $0x3333, %%edx\n\t"
			 "mov $0x4444, %%r8d\n\t"
			 "mov $0x5555, %%r9d\n\t"
			 "mov $0x6666, %%r10d\n\t"
			 "mov $0x7777, %%r12d\n\t"
			 "mov $0x8888, %%r13d\n\t"
			 "mov $0x9999, %%r14d\n\t"
			 "mov $0xaaaa, %%r15d\n\t"
			 "mov $0xbbbb, %%ebp\n\t"
			 "mov %[number], %%eax\n\t"
			 "syscall\n\t"
			 "xor %%ecx, %%ecx\n\t"
			 "cmp $0x1111, %%rdi; setne %%cl; mov %%rcx, %%rax\n\t"
			 "cmp $0x2222, %%rsi; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x3333, %%rdx; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x4444, %%r8; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x5555, %%r9; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x6666, %%r10; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x7777, %%r12; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x8888, %%r13; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0x9999, %%r14; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0xaaaa, %%r15; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "cmp $0xbbbb, %%rbp; setne %%cl; lea (%%rcx, %%rax, 2), %%rax\n\t"
			 "pop %%rbp\n\t"
			 : "=&a"(changed)
			 : [number] "i"(SYS_getppid)
			 : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
			   "memory", "cc");
	returned->changed |= changed;
	/* Again, for R11 alone. */
	__asm__ volatile("syscall\n\t"
			 "mov %%r11, %[flags]"
			 : [flags] "=&r"(flags), "+a"((long){ SYS_getppid })
			 :
			 : "rcx", "r11", "memory");
	returned->flags |= flags & ~(unsigned long)ARITHMETIC;
}

static unsigned long cycles(void)
{
	unsigned low, high;

	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (unsigned long)high << 32 | low;
}

static void watch_calls(const char *round)
{
	struct returned returned = { 0, 0 };
	unsigned long fastest = ~0UL;
	long error = syscall3(SYS_setresuid, NOBODY, NOBODY, NOBODY);

	if (error) {
		begin(round, "flags");
		end_failed(error);
		return;
	}
	for (unsigned i = 0; i < CALLS; i++) {
		unsigned long began = cycles(), took;

		syscall0(SYS_getppid);
		took = cycles() - began;
		if (took < fastest)
			fastest = took;
		call(&returned);
	}
	begin(round, "flags");
	end(returned.flags);
	begin(round, "registers");
	end(returned.changed);
	begin(round, "time");
	end(fastest);
}

__attribute__((used, noreturn)) void init_main(long *stack)
{
	char **arguments = (char **)(stack + 1);
	long count = stack[0];
	int is_known = count == 7 && arguments[1][0] == 'm';

	if (is_known)
		sum_memory(arguments + 2);
	if (count == 3 && arguments[1][0] == 'p') {
		is_known = 1;
		watch_calls(arguments[2]);
	}
	syscall1(SYS_exit_group, is_known ? 0 : 2);
	for (;;)
		syscall0(SYS_pause);
}
