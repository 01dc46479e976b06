/* What generated.c and generated.S know of each other. rigs/src/generated/ has the same in Rust. */

#define GENERATED_SLOTS 2048
/* Room for the instructions, a jump behind them, and the jump that is their branch target. */
#define GENERATED_SLOT_BYTES 48
#define GENERATED_TAKEN_OFFSET 43

#define RECORD_BYTES 2480

/* How a snippet was left. */
#define LEFT_NEXT 1
#define LEFT_TAKEN 2
#define LEFT_TRAP 3

/* Offsets in struct context. */
#define CONTEXT_GPRS 0
#define CONTEXT_RFLAGS 128
#define CONTEXT_SELECTORS 144
#define CONTEXT_VECTORS 192

/* Offsets in struct left. */
#define LEFT_HOW 0
#define LEFT_VECTOR 8
#define LEFT_ERROR 16
#define LEFT_RIP 24
#define LEFT_CS 32
#define LEFT_CR2 40
#define LEFT_DR6 48

#ifndef __ASSEMBLER__

/* What a snippet works on, and what it makes of it. */
struct context {
	u64 gprs[16]; /* in the order of their encoding */
	u64 rflags;
	u64 mxcsr;
	u64 selectors[6]; /* ss, ds, es, fs, gs; only on the way out */
	u8 vectors[4][32];
};

struct left {
	u64 how;
	u64 vector, error, rip, cs, cr2; /* where it was left by a trap */
	u64 dr6; /* the same, if that was #DB */
};

struct memory {
	u64 data[64], edge[8], stack[32];
};

struct machine {
	u64 fs_base, gs_base, kernel_gs_base;
};

/* A record of the initrd. The first half is given, the second is filled in. */
struct record {
	u64 skip;
	struct machine machine;
	struct context context;
	struct memory memory;

	struct left left;
	struct machine machine_after;
	struct context after;
	struct memory memory_after;
	u8 fpu[64]; /* the first bytes of what fxsave stores */
};

#endif
