/*
 * What a hostile guest needs of its processor in ring 0, under any kernel: random numbers, ports, guest-physical memory
 * through a window, the local APIC, and an interrupt table of its own, so that an act that faults is given up.
 */

enum { HOSTILE_CPUS = 2, GATES = 256, WINDOWS = 16, WINDOW_SLOT = 320, PREY_BYTES = 64, BYTES = 4096 };

#define LARGE_BYTES 0x200000ul
#define PAGE_MASK 0xffffffffff000ul
#define ENTRY 0x63ul /* present, writable, accessed, dirty */
#define LARGE_ENTRY 0xe3ul
#define CR0_WP 0x10000ul
#define APIC_GPA 0xfee00000ul
#define APIC_BASE_MSR 0x1b
#define APIC_X2 0x400ul
#define APIC_TASK 0x80
#define APIC_END 0xb0
#define APIC_SPURIOUS 0xf0
#define APIC_COMMAND 0x300
#define APIC_TIMER 0x320
#define APIC_TIMER_BEGIN 0x380
#define APIC_TIMER_DIVISOR 0x3e0
#define APIC_ENABLED 0x1ff
#define WATCHDOG 0x31
#define WATCHDOG_TICKS 300000000ul
#define PRINTING_GPA 0x6000 /* a word that nobody uses */
#define GATE_INTERRUPT 0x8e

struct hostile {
	/* The assembler below knows these. */
	u64 stack, faults, cr3, cr0;
	u64 interrupts;
	u64 random, cpu;
	u64 direct; /* the virtual address of guest-physical 0 */
	u64 ram_bytes;
	u64 image[2]; /* gigabytes of virtual addresses that share a page directory with the kernel's text */
	const struct target *targets;
	u64 target_count;
	u8 exception_stack, nmi_stack; /* in the task state */
	u16 code; /* the selector of the kernel's code */
	u64 next_window;
	u64 timer; /* the local APIC's, as the kernel has set it */
	int is_wild; /* executes bytes that are no instructions */
	int avoids_int1; /* which a KVM that interprets ring 0 does not know */
	int is_idle; /* the act has found nothing to do */
	u64 counts[16];
};

struct hostile hostile_cpus[HOSTILE_CPUS];
struct hostile *const hostile_selves[HOSTILE_CPUS] = { &hostile_cpus[0], &hostile_cpus[1] };
static u64 window_pointers[HOSTILE_CPUS][512] __attribute__((aligned(4096)));
static u64 window_directory[HOSTILE_CPUS][512] __attribute__((aligned(4096)));
static u64 loop_table[512] __attribute__((aligned(4096)));
static struct {
	u64 low, high;
} hostile_gates[HOSTILE_CPUS][GATES] __attribute__((aligned(4096)));

/* Calls `act`. An exception on the way is as good as its return. */
void hostile_try(struct hostile *self, void (*act)(struct hostile *self));
void hostile_interrupt(struct hostile *self);
extern u8 hostile_exception0[], hostile_exception1[], hostile_interrupt0[], hostile_interrupt1[];
/* Text that is written to, with probes on it or without. */
extern u8 hostile_prey[], hostile_bytes[];

__asm__("	.text\n"
	"	.globl hostile_try\n"
	"	.type hostile_try, @function\n"
	"hostile_try:\n"
	"	push %rbx\n	push %rbp\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	call *%rsi\n"
	"hostile_out:\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbp\n	pop %rbx\n"
	"	ret\n"
	"hostile_recover:\n"
	"	cld\n"
	"	mov 16(%rdi), %rax\n	mov %rax, %cr3\n"
	"	mov 24(%rdi), %rax\n	mov %rax, %cr0\n"
	"	incq 8(%rdi)\n"
	"	mov (%rdi), %rsp\n"
	"	jmp hostile_out\n"
	"hostile_return:\n"
	"	push %rax\n	push %rcx\n	push %rdx\n	push %rsi\n	push %r8\n	push %r9\n	push %r10\n	push %r11\n"
	"	cld\n"
	"	call hostile_interrupt\n"
	"	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n	pop %rsi\n	pop %rdx\n	pop %rcx\n	pop %rax\n"
	"	pop %rdi\n"
	"	iretq\n"
	"	.size hostile_try, . - hostile_try\n"
	"hostile_exception0:\n	mov hostile_selves(%rip), %rdi\n	jmp hostile_recover\n"
	"hostile_exception1:\n	mov hostile_selves+8(%rip), %rdi\n	jmp hostile_recover\n"
	"hostile_interrupt0:\n	push %rdi\n	mov hostile_selves(%rip), %rdi\n	jmp hostile_return\n"
	"hostile_interrupt1:\n	push %rdi\n	mov hostile_selves+8(%rip), %rdi\n	jmp hostile_return\n"
	"	.balign 64\n"
	"	.globl hostile_prey\n"
	"	.type hostile_prey, @function\n"
	"hostile_prey:\n"
	"	push %rbp\n	mov %rsp, %rbp\n	mov $0x11, %eax\n	nopl 0(%rax,%rax)\n"
	"	lea 1(%rax), %eax\n	pop %rbp\n	ret\n"
	"	.size hostile_prey, . - hostile_prey\n"
	"	.balign 4096, 0xc3\n"
	"hostile_bytes:\n"
	"	.fill 4096, 1, 0xc3\n");

static inline u64 next(struct hostile *self)
{
	self->random ^= self->random << 13;
	self->random ^= self->random >> 7;
	self->random ^= self->random << 17;
	return self->random;
}

static inline u64 below(struct hostile *self, u64 limit)
{
	return (next(self) >> 11) % limit;
}

static inline u64 read_cr3(void)
{
	u64 value;

	__asm__ volatile("mov %%cr3, %0" : "=r"(value) : : "memory");
	return value;
}

static inline u64 read_cr0(void)
{
	u64 value;

	__asm__ volatile("mov %%cr0, %0" : "=r"(value) : : "memory");
	return value;
}

static inline void write_cr0(u64 value)
{
	__asm__ volatile("mov %0, %%cr0" : : "r"(value) : "memory");
}

static inline void write_cr3(u64 value)
{
	__asm__ volatile("mov %0, %%cr3" : : "r"(value) : "memory");
}

static inline void hostile_wrmsr(u32 msr, u64 value)
{
	__asm__ volatile("wrmsr" : : "c"(msr), "a"((u32)value), "d"((u32)(value >> 32)) : "memory");
}

static inline u64 hostile_rdmsr(u32 msr)
{
	u32 low, high;

	__asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
	return low | (u64)high << 32;
}

static inline void port_write(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline u8 port_read(u16 port)
{
	u8 value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline u64 *table(struct hostile *self, u64 entry)
{
	return (u64 *)(self->direct + (entry & PAGE_MASK));
}

/* The entry of the page directory for an address; 0 if there is no directory in RAM. */
static u64 *directory_entry(struct hostile *self, u64 address)
{
	u64 entry = table(self, read_cr3())[address >> 39 & 511];

	if (!(entry & 1) || (entry & PAGE_MASK) >= self->ram_bytes)
		return 0;
	entry = table(self, entry)[address >> 30 & 511];
	if (!(entry & 1) || entry & 0x80 || (entry & PAGE_MASK) >= self->ram_bytes)
		return 0;
	return &table(self, entry)[address >> 21 & 511];
}

/* Where our own memory is, guest-physical. */
static u64 physical(struct hostile *self, const void *at)
{
	u64 address = (u64)at, *entry = directory_entry(self, address), small;

	if (!entry)
		return 0;
	if (*entry & 0x80)
		return (*entry & PAGE_MASK & ~(LARGE_BYTES - 1)) | (address & (LARGE_BYTES - 1));
	small = table(self, *entry)[address >> 12 & 511];
	return (small & PAGE_MASK) | (address & 0xfff);
}

static inline u64 window_base(struct hostile *self)
{
	return 0xffff000000000000ul | (WINDOW_SLOT + self->cpu) << 39;
}

/* Maps the 2 MiB around a guest-physical address, and those behind. */
static u8 *window(struct hostile *self, u64 gpa)
{
	u64 slot = self->next_window++ % WINDOWS * 2, page = gpa & PAGE_MASK & ~(LARGE_BYTES - 1);
	u64 base = window_base(self) + slot * LARGE_BYTES;

	for (unsigned i = 0; i < 2; i++) {
		window_directory[self->cpu][slot + i] = ((page + i * LARGE_BYTES) & PAGE_MASK) | LARGE_ENTRY;
		__asm__ volatile("invlpg (%0)" : : "r"(base + i * LARGE_BYTES) : "memory");
	}
	return (u8 *)(base + (gpa & (LARGE_BYTES - 1)));
}

static void apic_set(struct hostile *self, u32 offset, u64 value)
{
	if (hostile_rdmsr(APIC_BASE_MSR) & APIC_X2) {
		hostile_wrmsr(0x800 + offset / 16, value);
		return;
	}
	volatile u8 *apic = window(self, APIC_GPA);

	if (offset == APIC_COMMAND)
		*(volatile u32 *)(apic + 0x310) = (u32)(value >> 32) << 24;
	*(volatile u32 *)(apic + offset) = (u32)value;
}

static u64 apic_get(struct hostile *self, u32 offset)
{
	if (hostile_rdmsr(APIC_BASE_MSR) & APIC_X2)
		return hostile_rdmsr(0x800 + offset / 16);
	return *(volatile u32 *)(window(self, APIC_GPA) + offset);
}

void hostile_interrupt(struct hostile *self)
{
	self->interrupts++;
	if (hostile_rdmsr(APIC_BASE_MSR) & APIC_X2)
		hostile_wrmsr(0x80b, 0);
	else /* the last window, which nothing else uses */
		*(volatile u32 *)(window_base(self) + 511 * LARGE_BYTES + 0xb0 + (APIC_GPA & (LARGE_BYTES - 1))) = 0;
}

static void set_gate(struct hostile *self, unsigned vector, u64 handler, u8 stack)
{
	hostile_gates[self->cpu][vector].low = (handler & 0xffff) | (u64)self->code << 16 | (u64)stack << 32 |
					       (u64)GATE_INTERRUPT << 40 | (handler >> 16 & 0xffff) << 48;
	hostile_gates[self->cpu][vector].high = handler >> 32;
}

struct table_pointer {
	u16 limit;
	u64 base;
} __attribute__((packed));

/* From here on exceptions and interrupts are ours. `old` is what to give back. */
static void take_over(struct hostile *self, struct table_pointer *old)
{
	struct table_pointer own = { sizeof hostile_gates[0] - 1, (u64)hostile_gates[self->cpu] };
	u64 exception = (u64)(self->cpu ? hostile_exception1 : hostile_exception0);
	u64 interrupt = (u64)(self->cpu ? hostile_interrupt1 : hostile_interrupt0);

	self->cr3 = read_cr3();
	self->cr0 = read_cr0() & ~CR0_WP;
	write_cr0(self->cr0);
	for (unsigned vector = 0; vector < GATES; vector++)
		if (vector == 2)
			set_gate(self, vector, interrupt, self->nmi_stack);
		else if (vector < 32 || vector == WATCHDOG)
			set_gate(self, vector, exception, self->exception_stack);
		else
			set_gate(self, vector, interrupt, 0);
	window_directory[self->cpu][511] = (APIC_GPA & ~(LARGE_BYTES - 1)) | LARGE_ENTRY | 0x18;
	window_pointers[self->cpu][0] = physical(self, window_directory[self->cpu]) | ENTRY;
	table(self, self->cr3)[WINDOW_SLOT + self->cpu] = physical(self, window_pointers[self->cpu]) | ENTRY;
	self->timer = apic_get(self, APIC_TIMER);
	__asm__ volatile("sidt %0" : "=m"(*old));
	__asm__ volatile("lidt %0" : : "m"(own));
}

static void put_byte(u8 byte)
{
	for (unsigned polls = 0; polls < 100 && !(port_read(0x3fd) & 0x20); polls++)
		;
	port_write(0x3f8, byte);
}

static void put_text(const char *text)
{
	while (*text)
		put_byte((u8)*text++);
}

static void put_decimal(u64 value)
{
	char digits[21], *at = digits + 20;

	*at = 0;
	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	put_text(at);
}
