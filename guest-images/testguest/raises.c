/* Instructions that raise exceptions: the handler finds the frame, and the text, that it would find
 * without anybody looking. */

#include "guest.h"

#define MSR_EFER 0xc0000080
#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_SYSCALL_MASK 0xc0000084
#define EFER_SCE 1ul
#define NO_MSR 0x4d5ul
#define NOT_CANONICAL 0x80000000ul /* in EDX, with 48 bits and with 57 */
#define UD2 0x0b0f
#define PRESENT 1ul
#define LODS_BYTES 16ul
#define LODS_DONE 6ul

extern u8 rs_div[], rs_rdmsr[], rs_lods[], rs_int[], rs_ud[], rs_wrmsr[], rs_syscall[], rs_entry[];
extern u8 rs_div_next[], rs_rdmsr_next[], rs_lods_next[], rs_int_next[], rs_ud_next[], rs_wrmsr_next[];
extern u64 rs_flags, rs_entered;

static u8 two_pages[0x2000] __attribute__((aligned(0x1000)));

static const struct raise {
	const char *name;
	u8 *entry, *next;
	u64 vector, rcx, rsi;
	u64 left; /* RCX at the exception */
	int completes; /* the frame leads behind the instruction */
	u64 rdx;
} raises[] = {
	{ "div", rs_div, rs_div_next, 0, 0, 0, 0, 0, 1 },
	{ "rdmsr", rs_rdmsr, rs_rdmsr_next, 13, NO_MSR, 0, NO_MSR, 0, 0 },
	{ "lods", rs_lods, rs_lods_next, 14, LODS_BYTES, (u64)two_pages + 0x1000 - LODS_DONE,
	  LODS_BYTES - LODS_DONE, 0, 0 },
}, ud = { "ud", rs_ud, rs_ud_next, 6, 0, 0, 0, 0, 0 },
  intn = { "intn", rs_int, rs_int_next, 31, 0, 0, 0, 1, 0 },
  lstar = { "lstar", rs_wrmsr, rs_wrmsr_next, 13, MSR_LSTAR, 0, MSR_LSTAR, 0, NOT_CANONICAL };

static const struct raise *volatile awaited;
static volatile u64 raised_count;

/* The exception that is awaited. Its handler goes on behind the instruction. */
int raised(struct frame *frame)
{
	const struct raise *r = awaited;

	if (!r || frame->vector != r->vector || frame->cs != KERNEL_CODE ||
	    frame->rip != (u64)(r->completes ? r->next : r->entry))
		return 0;
	awaited = 0;
	raised_count++;
	if (frame->rflags & FLAG_TF)
		fail(r->name, "the frame shows TF");
	else if (frame->rcx != r->left)
		fail_got(r->name, "rcx", frame->rcx, r->left);
	else if (r == &ud && *(volatile u16 *)frame->rip != UD2)
		fail_got(r->name, "text", *(volatile u16 *)frame->rip, UD2);
	else
		raised_count += 1ul << 32;
	frame->rip = (u64)r->next;
	return 1;
}

static int raise(const struct raise *r)
{
	u64 (*function)(u64, u64, u64, u64) = (u64(*)(u64, u64, u64, u64))r->entry;

	awaited = r;
	raised_count = 0;
	function(0, r->rsi, r->rdx, r->rcx);
	if (awaited)
		return fail(r->name, "nothing was raised");
	return raised_count != (1ul << 32 | 1);
}

int scenario_raise(u64 rounds)
{
	u64 second = (u64)two_pages + 0x1000;

	*page_entry(second) &= ~PRESENT;
	flush_page(second);
	for (u64 round = 0; round < rounds; round++)
		for (unsigned i = 0; i < sizeof raises / sizeof *raises; i++)
			if (raise(&raises[i]))
				return 1;
	*page_entry(second) |= PRESENT;
	flush_page(second);
	begin_ok("raise");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}

static int raise_rounds(const struct raise *r, u64 rounds)
{
	for (u64 round = 0; round < rounds; round++)
		if (raise(r))
			return 1;
	begin_ok(r->name);
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}

/* What Linux does for a warning: the handler looks at the instruction. */
int scenario_ud(u64 rounds)
{
	return raise_rounds(&ud, rounds);
}

int scenario_intn(u64 rounds)
{
	return raise_rounds(&intn, rounds);
}

/* The host sees each write of this register, and an address that is no address has to come back as #GP. */
int scenario_lstar(u64 rounds)
{
	u64 before = read_msr(MSR_LSTAR);

	if (raise_rounds(&lstar, rounds))
		return 1;
	if (read_msr(MSR_LSTAR) != before) {
		fail_got("lstar", "value", read_msr(MSR_LSTAR), before);
		return 1;
	}
	return 0;
}

int scenario_syscall0(u64 rounds)
{
	void (*function)(void) = (void (*)(void))rs_syscall;

	write_msr(MSR_STAR, (u64)KERNEL_CODE << 32);
	write_msr(MSR_LSTAR, (u64)rs_entry);
	write_msr(MSR_SYSCALL_MASK, FLAG_DF);
	write_msr(MSR_EFER, read_msr(MSR_EFER) | EFER_SCE);
	rs_flags = rs_entered = 0;
	for (u64 round = 0; round < rounds; round++)
		function();
	if (rs_entered != rounds) {
		fail_got("syscall0", "entered", rs_entered, rounds);
		return 1;
	}
	if (rs_flags & FLAG_TF)
		return fail("syscall0", "r11 shows TF");
	begin_ok("syscall0");
	put_field(" rounds=", rounds);
	end_line();
	return 0;
}
