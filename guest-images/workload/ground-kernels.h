/* The machine is handed over to another kernel, or reset. */

enum { SYS_kexec_file_load = 320, KEXEC_FILE_ON_CRASH = 2 };

#define REBOOT_KEXEC 0x45584543L

static const char next_line[] =
	"console=ttyS0 panic=-1 loglevel=4 cryptomgr.notests=1 random.trust_cpu=on event=none";
static const char crash_line[] =
	"console=ttyS0 panic=-1 loglevel=4 cryptomgr.notests=1 random.trust_cpu=on event=none nr_cpus=1 reset_devices";

static long load_kernel(const char *line, long flags)
{
	long kernel = open_as("/vmlinuz", O_RDONLY), initrd = open_as("/next", O_RDONLY);
	long result = syscall5(SYS_kexec_file_load, kernel, initrd, (long)length(line) + 1,
			       (long)line, flags);

	syscall1(SYS_close, kernel);
	syscall1(SYS_close, initrd);
	return result;
}

static void start_next_kernel(void)
{
	must("kexec_file_load", load_kernel(next_line, 0));
	wait_milliseconds(100);
	stop_workers();
	put_total("first");
	must("kexec", syscall4(SYS_reboot, REBOOT_MAGIC1, REBOOT_MAGIC2, REBOOT_KEXEC, 0));
}

static void crash(void)
{
	long trigger = open_as("/proc/sysrq-trigger", O_WRONLY);

	must("kexec_file_load", load_kernel(crash_line, KEXEC_FILE_ON_CRASH));
	wait_milliseconds(100);
	stop_workers();
	put_total("first");
	syscall3(SYS_write, trigger, (long)"c", 1);
}

/* With `panic=1` on its command line the kernel resets the machine. */
static void panic(void)
{
	report("panic", 0, 0);
	write_file("/proc/sysrq-trigger", 0, "c");
}
