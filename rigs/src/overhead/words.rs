//! The text of the overhead page around the numbers.

pub(super) const INTRODUCTION: &str = "# What a probe costs

`rig overhead --write` wrote this page from the last runs of `make bench`. Do not edit the page; the text around the numbers
is in `rigs/src/overhead/words.rs`.

";

pub(super) const HITS: &str = "
## A hit

The table shows the time that a probe adds to a call of the probed function, in the test guest: a loop of calls with the probe, less
the same loop without. The unit is nanoseconds, or in Bochs instructions of the outer Linux and the guest together. Each cell has the
median of the loops, the quartiles in brackets, and the ratio to the floor of the same run. The rows of
functions without a probe have the whole loop, with the two marks around it, divided by the calls.

";

pub(super) const STOCK: &str = "
## Beside the guest's own

The table shows calls in a stock guest with one vCPU, in one boot: without a probe, with an event of the guest's own (tracefs), and with a
probe of hyprobe, added while the guest runs. The unit is nanoseconds, in Bochs instructions. The guest's
own events write a record into the guest's ring buffer. hyprobe's events go to a sink that drops them. hyprobe takes recorded hits out
of the ring behind each loop, outside of the measured time. What the probe adds is the difference to the same calls without a probe.

* The first rows are a getppid(2), probed at `__x64_sys_getppid`. Events have the task, and at an entry the types. At the entry of a function
  the guest's own kprobes are calls of ftrace, without a trap.
* Rows called u and ur are a call of a function of the guest's init program, probed at the function's entry, or at its returns. The function has
  four instructions and is alone on its page. The guest's own uprobe is an int3, and the kernel emulates the instruction. The guest's own
  uretprobe is an int3 more, at the end of a changed return address.
* Rows called w are a pwrite(2) to `/proc/sys/kernel/panic`, which writes the kernel's variable `panic_timeout` once. The guest's own tracefs events have
  no counterpart.

";

pub(super) const RATES: &str = "
## Hits a second

The table shows the hits of a counted kprobe in a loop of calls, by the clock, the calls included. In Bochs, the unit is hits in a thousand
million instructions of each processor. Each cell has the median of the loops, and the best loop. If the vCPUs share the host's processors
with other work, the median falls with their share.

";

pub(super) const GDBSTUB: &str = "
For scale: a breakpoint at the same function of the same guest by QEMU's gdbstub, with QEMU's TCG on the machine itself and
without KVM. The client does the minimum of a debugger that continues each time: breakpoint away, one step,
breakpoint back, continue. The time is by the clock, from stop to stop.

";

pub(super) const RECORDS: &str = "
## Records

The table shows hits a second of a kprobe whose hits become events by a jump; in Bochs, hits in a thousand million instructions of each
processor. The vCPUs do no other work. The time ends when all records are taken out of the ring. The events go to a sink that drops them. A hit
that finds the ring full exits. The last row is the VMM's work for a record, on any thread: nanoseconds, in Bochs instructions.

";

pub(super) const BOOTS: &str = "
## Booting

The table shows the boot of a stock guest with one vCPU whose init powers off at once: with an engine without probes, and with a machine
without a trap handler. The two take turns, by the clock; the cells have medians, and the quartiles in brackets. Set-up reads and loads the
kernel, and with an engine the kernel's symbols. An engine always plants in functions that the kernel calls when the kernel patches itself,
panics or loads modules. With a counted probe at every function (`kprobe:*`), a single boot is measured. Before
`jump_label_init` each hit exits there. Later the hits of functions that refuse a jump and an int3 exit.

";

pub(super) const ARMING: &str = "
## Arming

The table shows a number of kprobes, spread over a stock kernel that is loaded and has not run yet. The engine looks the probes up while a
guest runs, and plants or removes them during a pause. The cells are medians in milliseconds. The time depends on ranges of planted pages more
than on probes: each range is a slot of KVM, as long as the kernel has not patched itself. A thousand probes far apart
make a thousand slots; with forty thousand, most pages have a probe, and the ranges are long. Memory is the growth of the
VMM's resident memory by the planting; memory that the VMM already has is not counted. A jump
also takes room in the region of detours, 2 MiB: 32 bytes to count, 64 for a histogram, 272 for a record, 320 for
calls that are recorded (a test counts the bytes, too). The ring takes 1.6 MiB of another 2 MiB.

";

pub(super) const READING: &str = "
## How to read it

* **The floor** is the least cost of an exit: a byte written to a port whose device (the serial line's
  scratch register) does nothing, and the next entry, through the same loop of the VMM. The engine checks once
  whether the exit is a plant.
* **local** is a KVM that interprets the guest's ring 0 if this page says that a call without a probe takes microseconds:
  each instruction of the guest costs some hundred nanoseconds there. **nested** is a Linux in QEMU's TCG: everything is
  slower, each part of it by a factor of its own. **intel** and **amd** are Bochs, where time is a count of instructions.
  None is a time on VT-x or SVM. What carries over are exits and instructions a hit. Ratios do as far as an exit's cost
  dominates: in Bochs entering and leaving the guest costs nothing but the code around it, so that its ratios are the
  largest.
* With one vCPU, time is the time of the vCPU's thread, in the guest, in KVM and in the VMM. Other work of the host is not included,
  except under QEMU, where the outer Linux does not see the host. Times of exits there have been three times as long on a
  host with other work, and the quartiles lie apart then. A nested column needs a host without other work, and
  the column's sections may have been measured under different loads: compare within a section.
* **Exits** are counted by the engine, at each plant and stop; the exits of the floor and of calls without probes follow from
  the code.
* **Guest instructions** are the instructions that the guest's processor begins because of the hit, including the probed instruction and the
  exiting instructions. For o, a test that executes the detours counts them
  (`detour/src/code/tests.rs`), from the jump to the instruction behind the probed one, in a ring that has room. The
  others are counted in the code. k: the plant. b: the plant, the copy, the copy's jump. s: the plant, the instruction, the
  stop. r: the plants at entry and return. ro: the detour, the plant at the return. rb: as b, the plant at the return. The
  rest of the path is outside the guest. In Bochs, where time is instructions, the times of o are the same numbers less the
  probed instruction, which is in the loop without a probe too.
* **o** with events is the guest's part of the work. Another thread takes the records out, outside of the measured time; the section
  Records has that thread's speed. The ring has been around once before: the first use of each of its pages, which
  21 records share, is a fault of the guest's memory that KVM answers, an exit that no probe counts. In **ro** of the test guest the vCPU itself takes the records
  out, at the return's exit: the test guest's handler of int3 is not Linux's, so the returns exit.
* **i**, in the stock guest only: an instruction behind the function's entry that is too short for a jump. The int3, the kernel's
  handler up to the redirect, and the switch are some 30 instructions and an exception more than a jump. In **ro** of the
  stock guest the return is an int3, too, and neither side exits.
  On amd no int3 replaces a plant: Bochs's SVM would now and then give the guest a wrong frame (`docs/optimised.md`). There
  each hit of i is an exit, and each return of ro.
* Rows called k and r have functions without room for a jump, in the stock guest optimisation is off for them; a run
  fails if a jump replaces a plant of these rows, or if no jump replaces a plant of the other rows.
* **k** is the floor and the engine's work: the engine looks up and counts the hit, emulates the instruction, and passes the
  registers back to KVM.
* **r** is two k, a look at the stack for the return address, and the list of calls. The look is the difference between
  the handler that reads the stack and the one that does not: a walk of the kernel's own page tables (`docs/traps.md`), and
  in the test guest, whose functions are in the lower half, a second one. Its stack in these loops is in the kernel's half, as a
  kernel's is. **b** asks KVM for the system registers (`KVM_GET_SREGS`), to see that the copy is mapped and may be executed.
* **k** with events passes each event to a sink that drops the event: the cost of writing is not included.
* **u** is one exit for all instructions of the function, as the page has no right to execute: the emulator executes the four instructions one
  after the other (`docs/uprobes.md`). **ur** is the same exit: hyprobe enters the call at the first instruction into the calls in flight, and takes it
  out at the `ret`. **w** is one exit and one emulated instruction for the write (`docs/watchpoints.md`). The exits of w include those
  of other writes to the variable's page. A run fails if the hits of u, ur or w differ from the calls.
  A KVM that interprets the guest's kernel does not run this guest, and refuses probes in programs.
";
