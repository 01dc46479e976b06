/*
 * Two ways in. start64 is the 64-bit Linux boot protocol: long mode, rsi = boot_params.
 * start32 is PVH: 32-bit protected mode without paging, ebx = hvm_start_info; QEMU's -kernel
 * takes it. Both end in main(command line) on a stack and page tables of our own.
 */
#include "guest.h"

#define BOOT_PARAMS_RAMDISK_IMAGE 0x218
#define BOOT_PARAMS_RAMDISK_SIZE 0x21c
#define BOOT_PARAMS_CMD_LINE_PTR 0x228
#define START_INFO_CMD_LINE 24
#define CR0_PE_ET 0x11
#define CR0_PE_ET_PG 0x80000011
#define CR4_PAE 0x20
#define MSR_EFER 0xc0000080
#define EFER_LME 0x100
#define PHYS32_ENTRY 18
#define PROTECTED_CODE 0x08
#define FIRST_TASK_STATE 0x40
#define AVAILABLE 0x89 /* a 32-bit task state, not busy */

	.text
	.code64
	.globl start64
	.type start64, @function
start64:
	movl	BOOT_PARAMS_CMD_LINE_PTR(%rsi), %edi
	movl	BOOT_PARAMS_RAMDISK_IMAGE(%rsi), %eax
	movl	%eax, initrd_address(%rip)
	movl	BOOT_PARAMS_RAMDISK_SIZE(%rsi), %eax
	movl	%eax, initrd_bytes(%rip)
start64_common:
	lgdt	gdt_pointer(%rip)
	mov	$page_map, %eax
	mov	%rax, %cr3
	mov	$KERNEL_DATA, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	xor	%eax, %eax
	mov	%eax, %fs
	mov	%eax, %gs
	mov	$boot_stack_top, %esp
	xor	%ebp, %ebp
	call	main
1:	cli
	hlt
	jmp	1b
	.size start64, . - start64

	.code32
	.globl start32
	.type start32, @function
start32:
	movl	START_INFO_CMD_LINE(%ebx), %edi
	lgdtl	gdt_pointer
	mov	$CR4_PAE, %eax
	mov	%eax, %cr4
	mov	$page_map, %eax
	mov	%eax, %cr3
	mov	$MSR_EFER, %ecx
	rdmsr
	or	$EFER_LME, %eax
	wrmsr
	mov	$CR0_PE_ET_PG, %eax
	mov	%eax, %cr0
	ljmp	$KERNEL_CODE, $start64_common
	.size start32, . - start32

/* Where a second processor begins, in real mode; smp.c copies it to TRAMPOLINE. */
	.code16
	.globl trampoline, trampoline_end
trampoline:
	cli
	xor	%ax, %ax
	mov	%ax, %ds
	lgdtl	trampoline_gdt_pointer - trampoline + TRAMPOLINE
	mov	$CR0_PE_ET, %eax
	mov	%eax, %cr0
	ljmpl	$PROTECTED_CODE, $second_start32
	.balign 4
trampoline_gdt_pointer:
	.word	gdt_end - gdt - 1
	.long	gdt
trampoline_end:

	.code32
	.globl second_start32
	.type second_start32, @function
second_start32:
	/* Under SVM, KVM starts a processor with a 16-bit task state in TR, and Bochs lets nobody enter long mode with
	 * that. The one here is only looked at for its type, which loading it changes: it is made available again for
	 * when the processor is next started. */
	mov	$KERNEL_DATA, %eax
	mov	%eax, %ds
	movb	$AVAILABLE, gdt + FIRST_TASK_STATE + 5
	mov	$FIRST_TASK_STATE, %eax
	ltr	%ax
	mov	$CR4_PAE, %eax
	mov	%eax, %cr4
	mov	$page_map, %eax
	mov	%eax, %cr3
	mov	$MSR_EFER, %ecx
	rdmsr
	or	$EFER_LME, %eax
	wrmsr
	mov	$CR0_PE_ET_PG, %eax
	mov	%eax, %cr0
	ljmp	$KERNEL_CODE, $second_start64
	.size second_start32, . - second_start32

	.code64
	.globl second_start64
	.type second_start64, @function
second_start64:
	mov	$KERNEL_DATA, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	xor	%eax, %eax
	mov	%eax, %fs
	mov	%eax, %gs
	mov	$second_stack_top, %esp
	xor	%ebp, %ebp
	call	second_main
1:	cli
	hlt
	jmp	1b
	.size second_start64, . - second_start64

	.section .note.pvh, "a", @note
	.balign 4
	.long	4, 8, PHYS32_ENTRY
	.asciz	"Xen"
	.quad	start32

/* The first half gigabyte one to one, the first 2 MiB of it in small pages, and the local APIC.
 * Made by the assembler, so that booting takes no time. */
#define TABLE 0x07
#define MAPPED_ENTRIES 256
#define SMALL 0x63 /* present, writable, and as a kernel makes its own: accessed and dirty */
#define LARGE 0x83
#define LARGE_UNCACHED 0x9b
#define APIC_GIB_SLOT 3
#define APIC_LARGE_PAGE 0xfee00000

	.data
	.balign 0x1000
	.globl page_map, page_pointers, page_directory, page_table, apic_directory
page_map:
	.quad	page_pointers + TABLE
	.fill	KERNEL_HALF_SLOT - 1, 8, 0
	.quad	page_pointers + TABLE		/* KERNEL_HALF */
	.fill	511 - KERNEL_HALF_SLOT, 8, 0
page_pointers:
	.quad	page_directory + TABLE
	.fill	APIC_GIB_SLOT - 1, 8, 0
	.quad	apic_directory + TABLE
	.fill	511 - APIC_GIB_SLOT, 8, 0
page_directory:
	.quad	page_table + TABLE
	.set	address, 0x200000
	.rept	MAPPED_ENTRIES - 1
	.quad	address + LARGE
	.set	address, address + 0x200000
	.endr
	.fill	512 - MAPPED_ENTRIES, 8, 0
page_table:
	.set	address, 0
	.rept	512
	.quad	address + SMALL
	.set	address, address + 0x1000
	.endr
apic_directory:
	.fill	(APIC_LARGE_PAGE >> 21) & 511, 8, 0
	.quad	(APIC_LARGE_PAGE & ~0x1fffff) + LARGE_UNCACHED
	.fill	511 - ((APIC_LARGE_PAGE >> 21) & 511), 8, 0

	.balign 16
	.globl gdt
gdt:
	.quad	0
	.quad	0x00cf9b000000ffff	/* PROTECTED_CODE */
	.quad	0x00af9b000000ffff	/* KERNEL_CODE */
	.quad	0x00cf93000000ffff	/* KERNEL_DATA */
	.quad	0x00cff3000000ffff	/* USER_DATA */
	.quad	0x00affb000000ffff	/* USER_CODE */
	.quad	0, 0			/* TASK_STATE, by load_task_state */
	.quad	0x0000890000000067	/* FIRST_TASK_STATE: 32-bit, available */
gdt_end:
gdt_pointer:
	.word	gdt_end - gdt - 1
	.quad	gdt

	.bss
	.globl	initrd_address, initrd_bytes
initrd_address:
	.skip	4
initrd_bytes:
	.skip	4
	.balign 16
	.skip	STACK_BYTES
boot_stack_top:
	.skip	STACK_BYTES
second_stack_top:
