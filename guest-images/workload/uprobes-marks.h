/*
 * Marks, as `sys/sdt.h` makes them. The program passes each mark without a counter PASSES times, the last time in a child, and prints
 * `marked PASSES RAISED PASSED HELD QUIET`.
 *
 * `counted:enter` has the operands NUMBER, -NUMBER of 4 bytes in memory, and 7. `counted:leave` has NUMBER of 1 byte. `counted:guarded`,
 * `counted:held` and `quiet:quiet` are passed only while their counters are not 0: PASSED, HELD and QUIET times. The program raises the counter of
 * `guarded` itself, RAISED times. Through a pointer, it finds the counters as it has written them, or prints `wrong counter`.
 */

/* Without the child's. */
enum { PASSES = 12 };

extern unsigned short counter, held_counter;
/* The passes of the marks with counters, which only the assembly writes. */
__attribute__((used)) unsigned long guarded_passes, held_passes, quiet_passes;

void marked(long number, const int *negated);

/* A note for the instruction at `1`; the counter is a symbol or 0. */
#define MARK(provider, name) ".asciz \"" provider "\", \"" name "\""
#define NOTE(counter, mark, operands)                                                                                  \
	".pushsection .note.stapsdt, \"\", \"note\"\n"                                                                 \
	".balign 4\n"                                                                                                  \
	".4byte 3f - 2f, 5f - 4f, 3\n"                                                                                 \
	"2:	.asciz \"stapsdt\"\n"                                                                                   \
	"3:	.balign 4\n"                                                                                            \
	"4:	.8byte 1b, _.stapsdt.base, " counter "\n"                                                               \
	"	" mark "\n"                                                                                             \
	"	.asciz \"" operands "\"\n"                                                                              \
	"5:	.balign 4\n"                                                                                            \
	".popsection\n"

__asm__(".section .stapsdt.base, \"a\", \"progbits\"\n"
	"_.stapsdt.base:\n"
	"	.space 1\n"
	".section .probes, \"aw\", \"progbits\"\n"
	"counter:\n"
	"	.2byte 0\n"
	"held_counter:\n"
	"	.2byte 0\n"
	"quiet_counter:\n"
	"	.2byte 0\n"
	".section .text.marks, \"ax\"\n"
	".balign 4096\n"
	".globl marked\n"
	".type marked, @function\n"
	"marked:\n"
	"1:	nop\n"
	NOTE("0", MARK("counted", "enter"), "8@%rdi -4@(%rsi) 4@$7")
	"	cmpw $0, counter(%rip)\n"
	"	jne guarded_mark\n"
	"6:	movzwl held_counter(%rip), %eax\n"
	"	test %eax, %eax\n"
	"	je 7f\n"
	"1:	nop\n"
	NOTE("held_counter", MARK("counted", "held"), "4@%eax")
	"	incq held_passes(%rip)\n"
	"7:	cmpw $0, quiet_counter(%rip)\n"
	"	je 8f\n"
	"1:	nop\n"
	NOTE("quiet_counter", MARK("quiet", "quiet"), "")
	"	incq quiet_passes(%rip)\n"
	"8:	mov %edi, %eax\n"
	"1:	nop\n"
	NOTE("0", MARK("counted", "leave"), "1@%al 8@counter(%rip)")
	"	ret\n"
	".size marked, . - marked\n"
	".balign 4096\n"
	/* On another page than the instruction that reads the counter. */
	"guarded_mark:\n"
	"1:	nop\n"
	NOTE("counter", MARK("counted", "guarded"), "")
	"	incq guarded_passes(%rip)\n"
	"	jmp 6b\n"
	".balign 4096\n"
	".text\n");

/* The value of a counter, read by an instruction that does not name the counter. */
static unsigned short value_of(const unsigned short *counter)
{
	__asm__("" : "+r"(counter));
	return *(const volatile unsigned short *)counter;
}

static void pass_marks(void)
{
	unsigned long raised = 0;
	int status = 0;

	for (int number = 0; number < PASSES; number++) {
		const int negated = -number;
		const unsigned short set = number % 3 == 0 ? 0x100 : 0;

		counter = set;
		raised += set != 0;
		marked(number, &negated);
		if (value_of(&counter) != set || value_of(&held_counter) != 0) {
			put_field("wrong counter ", number);
			end_line();
		}
	}
	/* The kernel gives the child page table entries that no access has used. */
	if (syscall1(SYS_fork, 0) == 0) {
		const int negated = -PASSES;

		marked(PASSES, &negated);
		syscall1(SYS_exit_group, guarded_passes != PASSES + 1 || held_passes != PASSES + 1);
	}
	syscall4(SYS_wait4, -1, (long)&status, 0, 0);
	if (status == 0) {
		guarded_passes++;
		held_passes++;
	}
	put_field("marked ", PASSES + 1);
	put_field(" ", raised);
	put_field(" ", *(volatile unsigned long *)&guarded_passes);
	put_field(" ", *(volatile unsigned long *)&held_passes);
	put_field(" ", *(volatile unsigned long *)&quiet_passes);
	end_line();
}
