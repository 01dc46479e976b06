/* Writes a byte to a port, and does nothing more. */
	.text

	.globl	pt_outs, pt_behind
	.type	pt_outs, @function
	.p2align 4
pt_outs:
	outsb
pt_behind:
	nop
	ret
	.size	pt_outs, . - pt_outs
