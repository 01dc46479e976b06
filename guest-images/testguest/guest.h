/* What the parts of the test guest know of each other; read by C and by the assembler. */

/* Selectors. The first two are what the boot protocol promises. */
#define KERNEL_CODE 0x10
#define KERNEL_DATA 0x18
#define USER_DATA 0x23
#define USER_CODE 0x2b
#define TASK_STATE 0x30

/* Offsets in struct percpu, which the gs segment points to. */
#define PERCPU_TARGET 0
#define PERCPU_RESULT 8
#define PERCPU_STACK 16
#define PERCPU_USER_STACK 24
#define PERCPU_TASK 32
#define PERCPU_NUMBER 40
#define PERCPU_COUNTS 48

/* Offsets in struct registers. */
#define REGISTERS_RAX 0
#define REGISTERS_RBX 8
#define REGISTERS_RCX 16
#define REGISTERS_RDX 24
#define REGISTERS_RSI 32
#define REGISTERS_RDI 40
#define REGISTERS_RBP 48
#define REGISTERS_R8 56
#define REGISTERS_R9 64
#define REGISTERS_R10 72
#define REGISTERS_R11 80
#define REGISTERS_R12 88
#define REGISTERS_R13 96
#define REGISTERS_R14 104
#define REGISTERS_R15 112
#define REGISTERS_RSP 120
#define REGISTERS_RFLAGS 128

/* How the functions in functions.S are called. */
#define BY_CALLS 1   /* by the scenario `calls`, directly */
#define POINTERS 2   /* with rdi and rsi pointing into a buffer */
#define UNCOUNTED 4  /* too short to count itself: the caller does it */

#define CPUS_MAX 2
#define FUNCTIONS_MAX 64
#define LOOP_ITERATIONS 3
#define USER_FUNCTIONS 8
#define REP_BYTES 16
#define STACK_BYTES 0x4000
#define TRAMPOLINE 0x8000
/* Where the kernel's half begins: what is at 0 is there, too. */
#define KERNEL_HALF 0xffff800000000000
#define KERNEL_HALF_SLOT 256

#ifndef __ASSEMBLER__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

struct registers {
	u64 rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
	u64 rsp; /* before the call pushes its return address */
	u64 rflags;
};

struct percpu {
	u64 target, result, stack, user_stack;
	u64 task; /* as Linux keeps it: current_task, */
	u64 number; /* and cpu_number */
	u64 counts[FUNCTIONS_MAX];
};

/* An entry that the FUNCTION macro makes. `model` turns the registers before a call into what
 * they must be after it, and returns 0 if memory is not what it must be. */
struct function {
	const char *name;
	u8 *entry;
	int (*model)(struct registers *registers, u64 *undefined_flags);
	u64 per_round; /* how often a round of `calls` executes its first instruction */
	u64 how;
};

/* What the stubs in traps.S push. */
struct frame {
	u64 r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
	u64 vector, error, rip, cs, rflags, rsp, ss;
};

struct gate {
	u16 offset_low, selector;
	u8 stack, kind;
	u16 offset_middle;
	u32 offset_high, reserved;
};

#define FLAG_CF 0x001ul
#define FLAG_PF 0x004ul
#define FLAG_AF 0x010ul
#define FLAG_ZF 0x040ul
#define FLAG_SF 0x080ul
#define FLAG_TF 0x100ul
#define FLAG_DF 0x400ul
#define FLAG_OF 0x800ul
#define FLAG_RF 0x10000ul
#define FLAGS_STATUS (FLAG_CF | FLAG_PF | FLAG_AF | FLAG_ZF | FLAG_SF | FLAG_OF)

extern const struct function functions[], functions_end[];
extern struct percpu percpus[CPUS_MAX];

static inline void out8(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline u8 in8(u16 port)
{
	u8 value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline void write_msr(u32 msr, u64 value)
{
	__asm__ volatile("wrmsr" : : "c"(msr), "a"((u32)value), "d"((u32)(value >> 32)) : "memory");
}

static inline u64 read_msr(u32 msr)
{
	u32 low, high;

	__asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
	return low | (u64)high << 32;
}

static inline u64 time(void)
{
	u32 low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return low | (u64)high << 32;
}

static inline void relax(void)
{
	__asm__ volatile("pause" : : : "memory");
}

/* Whether processors that wait for each other exit: `wait=exit` on the command line. */
extern int waits_exit;

/* console.c */
void put(const char *string);
void put_hex(u64 value);
void put_number(u64 value);
void put_field(const char *name, u64 value);
void put_hex_field(const char *name, u64 value);
void begin_ok(const char *scenario);
int fail(const char *scenario, const char *why);
void fail_got(const char *scenario, const char *what, u64 got, u64 expected);
void end_line(void);

/* main.c */
void end_run(u8 code) __attribute__((noreturn));
void count_call(const u8 *entry, u64 times);

/* paging.c */
u64 *page_entry(u64 address);
void flush_page(u64 address);

/* calls.c: all scenarios return 0 when everything was as it must be */
int call_round(struct percpu *cpu, u64 rounds);
int scenario_calls(u64 rounds);
int scenario_recurse(u64 depth);
int scenario_flags(u64 rounds);
u64 sum_calls(void);
void call_checked(const u8 *entry, struct registers *before, struct registers *after);

/* text.c */
u64 mix(u64 sum, u64 word);
u64 sum_words(const volatile u64 *from, const volatile u64 *to);
u64 sum_text_at(u64 half);
u64 sum_text_copy(void);
u64 sum_text_vectors(void);
int scenario_textsmp(u64 rounds);
int scenario_checksum(u64 argument);
int scenario_selfpatch(u64 rounds);

/* looks.c */
void note_frame(const struct frame *frame);
int looked(struct frame *frame);
int scenario_ownkprobe(u64 argument);
int scenario_look(u64 argument);

/* traps.c */
void load_traps(void);
void set_trap(unsigned vector, const u8 *handler);
void load_table(void *base, u16 limit);
struct gate gate(u64 handler, u8 kind);
int scenario_int3(u64 rounds);
int scenario_linuxint3(u64 argument);
int scenario_fault(u64 rounds);

/* ring3.c */
void load_task_state(void);
void set_interrupt_stack(unsigned number, u8 *top);
int scenario_ring3(u64 rounds);
int scenario_syscall(u64 rounds);
int scenario_sysret(u64 rounds);
int scenario_userjump(u64 rounds);
int scenario_int1(u64 rounds);
int user_jump_fault(struct frame *frame);
int user_breakpoint(const struct frame *frame);
int user_debug_exception(const struct frame *frame);

/* interrupts.c */
int scenario_wait(u64 rounds);
int scenario_nmi(u64 rounds);
int scenario_smi(u64 argument);
int scenario_init(u64 argument);

/* ports.c */
int scenario_outs(u64 rounds);

/* raises.c */
int raised(struct frame *frame);
int scenario_raise(u64 rounds);
int scenario_ud(u64 rounds);
int scenario_intn(u64 rounds);
int scenario_lstar(u64 rounds);
int scenario_syscall0(u64 rounds);

/* steps.c */
int stepped(const struct frame *frame);
u64 take_causes(void);
void call_rewritten(void);
void rewrite_unexecuted(void);
int scenario_steps(u64 rounds);

/* smp.c */
int scenario_smp(u64 rounds);
int scenario_watch(u64 stores);
int scenario_watchsmp(u64 rounds);
int scenario_watchvector(u64 stores);
int scenario_watchmany(u64 rounds);
int scenario_watchread(u64 loads);
int scenario_watchodd(u64 rounds);
int scenario_watchreadsmp(u64 rounds);
int scenario_watchreadvector(u64 loads);
int run_on_both(const char *scenario, int (*job)(struct percpu *cpu, u64 rounds), u64 rounds);

/* bench.c */
int scenario_bench(u64 times);
int scenario_bench1(u64 times);
int scenario_bench2(u64 times);
int scenario_record1(u64 times);
int scenario_record2(u64 times);

/* detour.c */
int scenario_detour(u64 writes);
int scenario_vector(u64 rounds);

/* leave.c */
int scenario_leave(u64 rounds);
int scenario_task(u64 rounds);

/* generated.c */
int scenario_generated(u64 argument);

/* hostile.c */
int scenario_hostile(u64 seed);

/* ends.c */
int scenario_msr(u64 argument);
int scenario_panic(u64 argument);
int scenario_triple(u64 argument);
int scenario_hang(u64 argument);
int scenario_halt(u64 argument);
int scenario_exit(u64 code);

#endif
