/* Modules that come and go, with a task asleep in one, and one that refuses to come. */

enum { TUNSETIFF = 0x400454ca, IFF_TUN = 1, IFF_NO_PI = 0x1000, NAME_BYTES = 16, WNOHANG = 1 };

struct interface {
	char name[NAME_BYTES];
	short flags;
	char rest[22];
};

static long load(const char *path, const char *parameters)
{
	long file = open_as(path, O_RDONLY), result;

	if (file < 0)
		return file;
	result = syscall3(SYS_finit_module, file, (long)parameters, 0);
	syscall1(SYS_close, file);
	return result;
}

static long unload(const char *name)
{
	return syscall2(SYS_delete_module, (long)name, O_NONBLOCK);
}

/* Waits in code of the module `tun` for a packet that never comes. */
static void read_from_tun(void)
{
	struct interface interface = { .flags = IFF_TUN | IFF_NO_PI };
	long file = syscall4(SYS_openat, AT_FDCWD, (long)"/dev/net/tun", 2, 0);
	char byte;

	if (syscall3(SYS_ioctl, file, TUNSETIFF, (long)&interface))
		syscall1(SYS_exit_group, 1);
	__atomic_store_n(&shared->is_reading, 1, __ATOMIC_SEQ_CST);
	syscall3(SYS_read, file, (long)&byte, 1);
	syscall1(SYS_exit_group, 1);
}

/* Waits until `child` sleeps in its read. A signal before that ends the child without the read that is counted. */
static void await_sleep(long child)
{
	while (!__atomic_load_n(&shared->is_reading, __ATOMIC_SEQ_CST) || !is_asleep(&setup, child)) {
		wait_milliseconds(5);
		if (syscall4(SYS_wait4, child, 0, WNOHANG, 0)) {
			report("sleep in tun", -1, 0);
			return;
		}
	}
}

/* A child that sleeps in code of the module `tun`. */
static long sleep_in_tun(void)
{
	long id;

	shared->is_reading = 0;
	id = syscall5(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (id == 0)
		read_from_tun();
	setup.children++;
	setup.openat++;
	setup.read++;
	await_sleep(id);
	return id;
}

/* Says where the guest is, and waits for a line if somebody types one. */
static void await_line(const char *where, unsigned long round)
{
	if (number("listen", 0)) {
		put_field(where, round);
		end_line();
		read_line();
	}
}

static void modules(unsigned long rounds)
{
	for (; rounds; rounds--) {
		long id;

		must("load tun", load("/tun.ko", ""));
		id = sleep_in_tun();
		await_line("workload: asleep=", rounds);
		must("kill", syscall2(SYS_kill, id, SIGKILL));
		if (syscall4(SYS_wait4, id, 0, 0, 0) != id)
			report("wait", -1, 0);
		must("unload tun", unload("tun"));
		await_line("workload: unloaded=", rounds);
		/* The kernel gives these the pages that it had. */
		must("load dummy", load("/dummy.ko", ""));
		if (load("/nbd.ko", "max_part=-1") != -EINVAL)
			report("load nbd", 0, -EINVAL);
		must("unload dummy", unload("dummy"));
	}
	report("modules", 0, 0);
}
