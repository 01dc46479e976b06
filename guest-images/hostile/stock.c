/*
 * The init of a hostile stock guest: on each of two processors a child that uses ports from ring 3, makes system calls, and
 * loads the module that misbehaves in ring 0 (module.c), again and again; the last load does not come back.
 *
 *   seed=N     what is done, and in which order
 *   rounds=N   loads of the module on each processor
 *   ram=N      RAM in bytes
 *
 * targets.h has addresses of the kernel, from its symbol table.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#include "syscall.h"
#include "console.h"
#include "parameters.h"
#include "start.h"
#include "orders.h"
#include "targets.h"

enum { SYS_iopl = 172, SYS_init_module = 175, MODULE_MAX = 1 << 20, PORTS_A_ROUND = 200, ENDS = 8, GOES_ON = 99 };

static const char module_path[] = "/hostile.ko";
static u8 module_image[MODULE_MAX] __attribute__((aligned(16)));
static u64 module_bytes;
static u8 image[MODULE_MAX] __attribute__((aligned(16)));
static u64 random;

static u64 next(void)
{
	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	return random;
}

static u64 below(u64 limit)
{
	return (next() >> 11) % limit;
}

static void use_ports(void)
{
	static u8 bytes[2 * 4096];

	for (unsigned i = 0; i < PORTS_A_ROUND; i++) {
		u16 port = (u16)next();
		u8 *at = bytes + 4096 - below(16);
		u64 count = below(64);

		/* Those that end the machine come last. */
		if ((port >= 0x5fd && port <= 0x602) || (port >= 0x61 && port <= 0x64) || port == 0xf4)
			continue;
		switch (below(4)) {
		case 0: __asm__ volatile("outb %%al, %%dx" : : "d"(port), "a"(port)); break;
		case 1: __asm__ volatile("inl %%dx, %%eax" : : "d"(port) : "rax"); break;
		case 2: __asm__ volatile("rep outsw" : "+S"(at), "+c"(count) : "d"(port) : "memory"); break;
		default: __asm__ volatile("rep insb" : "+D"(at), "+c"(count) : "d"(port) : "memory");
		}
	}
}

static void pin(unsigned cpu)
{
	unsigned long mask[16] = { 1ul << cpu };

	syscall3(SYS_sched_setaffinity, 0, sizeof mask, (long)mask);
}

static void call_kernel(void)
{
	char bytes[16];

	for (unsigned i = 0; i < 8; i++) {
		long file = syscall4(SYS_openat, AT_FDCWD, (long)(i & 1 ? "/dev/console" : "/missing"), O_RDONLY, 0);

		if (file >= 0)
			syscall1(SYS_close, file);
		syscall3(SYS_read, -1, (long)bytes, sizeof bytes);
		syscall0(SYS_getpid);
	}
}

static void order(struct orders *orders, u64 cpu, u64 round, u64 rounds)
{
	static const struct target targets[] = { TARGETS };

	orders->seed = next();
	orders->cpu = cpu;
	orders->acts = 1 + below(16);
	orders->is_last = round + 2 >= rounds;
	/* The last but one leaves the kernel to what has become of it. */
	orders->how = round + 1 == rounds ? below(ENDS) : GOES_ON;
	orders->ram_bytes = number("ram", 0);
	orders->page_offset_base = PAGE_OFFSET_BASE;
	for (unsigned i = 0; i < sizeof targets / sizeof *targets; i++)
		orders->targets[i] = targets[i];
}

static long load(u64 cpu, u64 round, u64 rounds)
{
	u64 bytes = module_bytes;
	static const char name[] = "hostile#";

	for (u64 i = 0; i < bytes; i++)
		image[i] = module_image[i];
	for (u64 i = 0; i + sizeof(struct orders) < bytes; i += 8)
		if (((u64 *)(image + i))[0] == ORDERS_MARK_LOW && ((u64 *)(image + i))[1] == ORDERS_MARK_HIGH)
			order((struct orders *)(image + i), cpu, round, rounds);
	for (u64 i = 0; i + sizeof name < bytes; i++) {
		unsigned same = 0;

		while (same < sizeof name && image[i + same] == (u8)name[same])
			same++;
		if (same == sizeof name)
			image[i + sizeof name - 2] = (u8)('0' + cpu);
	}
	return syscall3(SYS_init_module, (long)image, (long)bytes, (long)"");
}

static void misbehave_from(u64 cpu, u64 rounds)
{
	long result = 0;

	pin((unsigned)cpu);
	random = (number("seed", 1) * 2 + cpu + 1) * 0x9e3779b97f4a7c15ul | 1;
	syscall1(SYS_iopl, 3);
	for (u64 round = 0; round < rounds; round++) {
		use_ports();
		call_kernel();
		result = load(cpu, round, rounds);
		if (result != -EAGAIN) {
			put_field("hostile: init_module=", (unsigned long)result);
			end_line();
		}
	}
	for (unsigned i = 0; i < 100; i++)
		call_kernel();
	syscall1(SYS_exit_group, 0);
}

static void read_module(void)
{
	long file = syscall4(SYS_openat, AT_FDCWD, (long)module_path, O_RDONLY, 0), got;

	while ((got = syscall3(SYS_read, file, (long)(module_image + module_bytes), (long)(MODULE_MAX - module_bytes))) > 0)
		module_bytes += (u64)got;
}

void init_main(long *stack)
{
	long ids[2];

	words[0] = (char **)(stack + 1);
	words[1] = words[0] + stack[0] + 1;
	put_field("hostile: up seed=", number("seed", 1));
	end_line();
	read_module();
	for (u64 cpu = 0; cpu < 2; cpu++) {
		ids[cpu] = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (ids[cpu] == 0)
			misbehave_from(cpu, number("rounds", 8));
	}
	for (u64 cpu = 0; cpu < 2; cpu++)
		syscall4(SYS_wait4, ids[cpu], 0, 0, 0);
	put("hostile: survived");
	end_line();
	syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_POWER_OFF, 0);
	for (;;)
		syscall0(SYS_pause);
}
