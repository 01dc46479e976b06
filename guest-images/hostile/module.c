/*
 * The hostile guest's hands in a stock kernel: a module whose init function misbehaves and then fails, so that it can be
 * loaded again. What template.h says is that of one of the kernel's own modules. The init (stock.c) fills the orders in.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#include "template.h"
#include "orders.h"
#include "machine.h"
#include "acts.h"
#include "ends.h"

#define TEXT(number) #number
#define NUMBER(number) TEXT(number)
#define EAGAIN 11
#define GS_BASE 0xc0000101
#define PERCPU_BYTES 0x30000
#define KERNEL_CODE 0x10
#define DOUBLE_FAULT_STACK 1
#define NMI_STACK 2

int init_module(void);

struct orders hostile_orders = { .mark = { ORDERS_MARK_LOW, ORDERS_MARK_HIGH } };

__asm__("	.section .gnu.linkonce.this_module, \"aw\"\n"
	"	.skip " NUMBER(NAME_OFFSET) "\n"
	"	.asciz \"hostile#\"\n"
	"	.org " NUMBER(INIT_OFFSET) "\n"
	"	.quad init_module\n"
	"	.org " NUMBER(TEMPLATE_BYTES) "\n"
	"	.section __versions, \"a\"\n"
	VERSIONS
	"	.section .modinfo, \"a\"\n"
	"	.asciz \"license=GPL\"\n"
	"	.asciz \"retpoline=Y\"\n"
	"	.asciz \"name=hostile\"\n"
	"	.asciz \"vermagic=" VERMAGIC "\"\n"
	"	.text\n");

static u64 flags_off(void)
{
	u64 flags;

	__asm__ volatile("pushfq\n\tpop %0\n\tcli" : "=r"(flags) : : "memory");
	return flags;
}

/* What the kernel's processor has missed while interrupts were ours: its timer, calls by the other one, its turn. */
static void wake_kernel(struct hostile *self)
{
	static const u8 vectors[] = { 0xec, 0xfb, 0xfc, 0xfd };

	apic_set(self, APIC_SPURIOUS, APIC_ENABLED);
	apic_set(self, APIC_TASK, 0);
	apic_set(self, APIC_TIMER, self->timer);
	for (unsigned i = 0; i < sizeof vectors; i++)
		apic_set(self, APIC_COMMAND, 0x40000 | vectors[i]);
}

int init_module(void)
{
	struct hostile *self = &hostile_cpus[hostile_orders.cpu & 1];
	struct table_pointer old;
	u64 flags = flags_off(), cr0 = read_cr0();

	for (unsigned i = 0; i < ORDERS_TARGETS && hostile_orders.targets[i].bytes; i++)
		self->target_count++;
	hostile_orders.targets[OWN_DATA_TARGET] = (struct target){ hostile_rdmsr(GS_BASE), PERCPU_BYTES };
	self->cpu = hostile_orders.cpu & 1;
	self->random = hostile_orders.seed | 1;
	for (unsigned i = 0; i < 8; i++)
		next(self);
	self->is_wild = hostile_orders.is_last != 0;
	self->direct = *(u64 *)hostile_orders.page_offset_base;
	self->ram_bytes = hostile_orders.ram_bytes;
	self->image[0] = 0xffffffff80000000;
	self->image[1] = 0xffffffffc0000000;
	self->targets = hostile_orders.targets;
	self->exception_stack = DOUBLE_FAULT_STACK;
	self->nmi_stack = NMI_STACK;
	self->code = KERNEL_CODE;
	take_over(self, &old);
	misbehave(self, hostile_orders.acts, (int)hostile_orders.is_last);
	report(self);
	if (hostile_orders.is_last && hostile_orders.how < ENDS)
		end_hostile(self, hostile_orders.how);
	table(self, self->cr3)[WINDOW_SLOT + HOSTILE_CPUS + self->cpu] = 0;
	apic_set(self, APIC_TIMER, 0x10000);
	let_in(1000);
	__asm__ volatile("lidt %0" : : "m"(old));
	wake_kernel(self);
	table(self, self->cr3)[WINDOW_SLOT + self->cpu] = 0;
	write_cr3(self->cr3);
	write_cr0(cr0);
	__asm__ volatile("push %0\n\tpopfq" : : "r"(flags) : "memory", "cc");
	return -EAGAIN;
}
