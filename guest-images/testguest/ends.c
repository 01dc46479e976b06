/* Ways to end, most of them bad, and the register that tells where a kernel's text is. */

#include "guest.h"

#define MSR_LSTAR 0xc0000082

extern u8 fn_syscall[];

int scenario_msr(u64 argument)
{
	(void)argument;
	write_msr(MSR_LSTAR, (u64)fn_syscall);
	if (read_msr(MSR_LSTAR) != (u64)fn_syscall) {
		fail_got("msr", "lstar", read_msr(MSR_LSTAR), (u64)fn_syscall);
		return 1;
	}
	begin_ok("msr");
	put_hex_field(" lstar=", (u64)fn_syscall);
	end_line();
	return 0;
}

int scenario_panic(u64 argument)
{
	(void)argument;
	put("Kernel panic - not syncing: testguest\r\n");
	return scenario_halt(0);
}

int scenario_triple(u64 argument)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) empty = { 0, 0 };

	(void)argument;
	__asm__ volatile("lidt %0\n\tud2" : : "m"(empty));
	return 1;
}

int scenario_hang(u64 argument)
{
	(void)argument;
	for (;;)
		relax();
}

int scenario_halt(u64 argument)
{
	(void)argument;
	for (;;)
		__asm__ volatile("cli\n\thlt");
}

int scenario_exit(u64 code)
{
	end_run((u8)code);
}
