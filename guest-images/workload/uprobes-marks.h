/*
 * Marks, as `sys/sdt.h` makes them. The program passes each mark without a counter PASSES times, and prints `marked PASSES GUARDED`.
 *
 * `counted:enter` has the operands NUMBER, -NUMBER of 4 bytes in memory, and 7. `counted:leave` has NUMBER of 1 byte. `counted:guarded` is passed only
 * while its counter is not 0: GUARDED times.
 */

enum { PASSES = 12 };

extern unsigned short counter;

void marked(long number, const int *negated);

/* A note for the instruction at `1`; the counter is a symbol or 0. */
#define NOTE(counter, name, operands)                                                                                  \
	".pushsection .note.stapsdt, \"\", \"note\"\n"                                                                 \
	".balign 4\n"                                                                                                  \
	".4byte 3f - 2f, 5f - 4f, 3\n"                                                                                 \
	"2:	.asciz \"stapsdt\"\n"                                                                                   \
	"3:	.balign 4\n"                                                                                            \
	"4:	.8byte 1b, _.stapsdt.base, " counter "\n"                                                               \
	"	.asciz \"counted\"\n"                                                                                   \
	"	.asciz \"" name "\"\n"                                                                                  \
	"	.asciz \"" operands "\"\n"                                                                              \
	"5:	.balign 4\n"                                                                                            \
	".popsection\n"

__asm__(".section .stapsdt.base, \"a\", \"progbits\"\n"
	"_.stapsdt.base:\n"
	"	.space 1\n"
	".section .probes, \"aw\", \"progbits\"\n"
	"counter:\n"
	"	.2byte 0\n"
	".section .text.marks, \"ax\"\n"
	".balign 4096\n"
	".globl marked\n"
	".type marked, @function\n"
	"marked:\n"
	"1:	nop\n"
	NOTE("0", "enter", "8@%rdi -4@(%rsi) 4@$7")
	"	cmpw $0, counter(%rip)\n"
	"	je 6f\n"
	"1:	nop\n"
	NOTE("counter", "guarded", "")
	"6:	mov %edi, %eax\n"
	"1:	nop\n"
	NOTE("0", "leave", "1@%al 8@counter(%rip)")
	"	ret\n"
	".size marked, . - marked\n"
	".balign 4096\n"
	".text\n");

static void pass_marks(void)
{
	unsigned long guarded = 0;

	for (int number = 0; number < PASSES; number++) {
		const int negated = -number;

		counter = number % 3 == 0;
		guarded += counter;
		marked(number, &negated);
	}
	put_field("marked ", PASSES);
	put_field(" ", guarded);
	end_line();
}
