/* Port writes from memory. */

#include "guest.h"

/* A register of COM1 that does nothing but keep what is written. */
#define SCRATCH 0x3ff

extern void pt_outs(void);

/* AL holds the same byte in every other round, as for an out. */
int scenario_outs(u64 rounds)
{
	for (u64 round = 0; round < rounds; round++) {
		u8 written = (u8)(round + 0x41);
		const u8 *from = &written;
		u64 al = round % 2 ? written : (u8)~written;

		out8(SCRATCH, 0);
		__asm__ volatile("call pt_outs" : "+S"(from) : "a"(al), "d"(SCRATCH) : "memory", "cc");
		if (from != &written + 1) {
			fail_got("outs", "rsi", (u64)from, (u64)(&written + 1));
			return 1;
		}
		if (in8(SCRATCH) != written) {
			fail_got("outs", "written", in8(SCRATCH), written);
			return 1;
		}
	}
	begin_ok("outs");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
