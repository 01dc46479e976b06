/* What the init of a stock guest tells its module: it is found in the module's file by its mark. */

#define ORDERS_MARK_LOW 0x6f6e206f7473656cul
#define ORDERS_MARK_HIGH 0x73726564726f2065ul
#define ORDERS_TARGETS 16
#define OWN_DATA_TARGET 1

struct target {
	u64 at, bytes;
};

struct orders {
	u64 mark[2];
	u64 seed, cpu, acts, is_last, how, ram_bytes, page_offset_base;
	struct target targets[ORDERS_TARGETS]; /* the first is the kernel's text, the second the processor's own data */
};
