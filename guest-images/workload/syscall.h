/* System calls of x86-64 Linux without a C library. */

enum {
	SYS_read = 0,
	SYS_write = 1,
	SYS_close = 3,
	SYS_poll = 7,
	SYS_lseek = 8,
	SYS_mmap = 9,
	SYS_munmap = 11,
	SYS_ioctl = 16,
	SYS_readv = 19,
	SYS_sched_yield = 24,
	SYS_pause = 34,
	SYS_nanosleep = 35,
	SYS_getpid = 39,
	SYS_clone = 56,
	SYS_wait4 = 61,
	SYS_kill = 62,
	SYS_mkdir = 83,
	SYS_getppid = 110,
	SYS_getpgrp = 111,
	SYS_mount = 165,
	SYS_reboot = 169,
	SYS_delete_module = 176,
	SYS_sched_setaffinity = 203,
	SYS_sched_getaffinity = 204,
	SYS_exit_group = 231,
	SYS_openat = 257,
	SYS_finit_module = 313,
};

enum {
	AT_FDCWD = -100,
	EAGAIN = 11,
	EILSEQ = 84,
	EINVAL = 22,
	ENOENT = 2,
	MAP_ANONYMOUS = 0x20,
	MAP_PRIVATE = 2,
	MAP_SHARED = 1,
	O_NONBLOCK = 0x800,
	O_APPEND = 0x400,
	O_RDONLY = 0,
	O_TRUNC = 0x200,
	O_WRONLY = 1,
	POLLIN = 1,
	PROT_READ = 1,
	PROT_WRITE = 2,
	SIGCHLD = 17,
	SIGKILL = 9,
};

#define REBOOT_MAGIC1 0xfee1deadL
#define REBOOT_MAGIC2 672274793L
#define REBOOT_RESTART 0x01234567L
#define REBOOT_HALT 0xcdef0123L
#define REBOOT_POWER_OFF 0x4321fedcL

static inline long syscall6(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define syscall5(n, a, b, c, d, e) syscall6(n, a, b, c, d, e, 0)
#define syscall4(n, a, b, c, d) syscall6(n, a, b, c, d, 0, 0)
#define syscall3(n, a, b, c) syscall6(n, a, b, c, 0, 0, 0)
#define syscall2(n, a, b) syscall6(n, a, b, 0, 0, 0, 0)
#define syscall1(n, a) syscall6(n, a, 0, 0, 0, 0, 0)
#define syscall0(n) syscall6(n, 0, 0, 0, 0, 0, 0)

static inline void sleep_milliseconds(unsigned long milliseconds)
{
	long duration[2] = { (long)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000) };

	syscall2(SYS_nanosleep, (long)duration, 0);
}
