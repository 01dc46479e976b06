//! The text of the overhead page around the numbers.

pub(super) const INTRODUCTION: &str = "# What a probe costs

`rig overhead --write` wrote this page from the last runs of `make bench`. Do not edit it; what it says besides numbers
is in `rigs/src/overhead/words.rs`.

";

pub(super) const HITS: &str = "
## A hit

Time that the probe adds to a call of the function that it is at, in the test guest: what the same loop of calls takes
with it, less what it takes without. Nanoseconds, or in Bochs instructions of the outer Linux and the guest together;
median of the loops, and in brackets the quartiles. Behind it: how often the floor of the same run fits in. The rows of
functions without a probe have the whole loop, with the two marks around it, divided by the calls.

";

pub(super) const STOCK: &str = "
## Beside the guest's own

A getppid(2) of a stock guest with one vCPU, in one boot: with nothing at `__x64_sys_getppid`, with an event of the guest's
own there (tracefs), with ours, added while the guest runs. Times as above. The guest's own write a record into its ring
buffer; ours go to a sink that drops them, those that are recorded in the guest behind each loop: that is not in the time of
it. In nanoseconds, in Bochs in instructions. At the entry of a function the guest's own kprobes are calls of ftrace's, without
a trap.

";

pub(super) const RATES: &str = "
## Hits a second

Of a counted kprobe in a loop of calls, by the clock; the calls themselves are in it. In Bochs, hits in a thousand million
instructions of each processor. Median of the loops, and the best one: where the vCPUs have to share the host's processors
with others, the median says how much they had of them.

";

pub(super) const GDBSTUB: &str = "
For scale: a breakpoint at the same function of the same guest by QEMU's gdbstub, with QEMU's TCG on the machine itself and
without KVM. The client does what a debugger does that continues each time, and no more: breakpoint away, one step,
breakpoint back, continue. By the clock, from stop to stop.

";

pub(super) const RECORDS: &str = "
## Records

Hits a second, or in a thousand million instructions of each processor, of a kprobe whose hits become events by a
jump, on vCPUs that do nothing else, until all records are taken out of the ring. They go to a sink that drops them. A hit
that finds the ring full exits. To take one out is what the VMM does for a record, on whichever thread does it:
nanoseconds, in Bochs instructions.

";

pub(super) const BOOTS: &str = "
## Booting

A stock guest with one vCPU whose init powers off at once: with an engine that has no probe, and with a machine without a
trap handler. In turns, by the clock: medians, and in brackets the quartiles. To set up is to read and load the kernel,
and with an engine its symbols. An engine plants in functions that the kernel calls when it patches itself, panics or loads
modules, with and without probes. With a counted probe at every function (`kprobe:*`) one boot is measured. Before
`jump_label_init` each hit exits there. Later the hits of functions that refuse a jump and an int3 exit.

";

pub(super) const ARMING: &str = "
## Arming

A number of kprobes, spread over a stock kernel that is loaded and has not run yet. They are looked up while a guest runs on,
and planted or removed while it is paused. Milliseconds, medians. What it takes goes by stretches of planted pages more
than by probes: each is a slot of KVM's own as long as the kernel has not patched itself. A thousand probes that lie apart
make a thousand slots; with forty thousand, most pages have one, and the stretches are long. Memory is by how much the
VMM's resident memory is larger when they are planted; what fits into memory that it has already is not seen in it. A jump
takes room in the region of detours besides, 2 MiB: 32 bytes to count, 64 for a histogram, 224 for a record, 272 where
calls are recorded (a test counts that, too), and the ring is 1.6 MiB of another 2 MiB.

";

pub(super) const READING: &str = "
## How to read it

* **The floor** is what no probe that exits can be below: a byte written to a port whose device (the serial line's
  scratch register) does nothing, and the entry behind it, through the same loop of the VMM. The engine looks once
  whether it is a plant.
* **local** is a KVM that interprets the guest's ring 0 if this page says that a call without a probe takes microseconds:
  each instruction of the guest costs some hundred nanoseconds there. **nested** is a Linux in QEMU's TCG: everything is
  slower, each part of it by a factor of its own. **intel** and **amd** are Bochs, where time is a count of instructions.
  None is a time on VT-x or SVM. What carries over are exits and instructions a hit. Ratios do as far as an exit's cost
  dominates: in Bochs entering and leaving the guest costs nothing but the code around it, so that its ratios are the
  largest.
* With one vCPU, time is what its thread had, in the guest, in KVM and in the VMM. What else the host does is not in it,
  unless the Linux around does not see it: under QEMU that is so. Times of exits there have been three times as long on a
  host that had other work, and the quartiles lie apart then. A nested column says something only of a host left alone, and
  its sections may have been measured under different loads: compare within one.
* **Exits** are counted by the engine, at each plant and stop; those of the floor and of calls without probes are what
  the code says.
* **Guest instructions** are what the guest's processor begins because of the hit, the probed instruction and those that
  leave the guest included. For o they are counted by a test that executes the detours
  (`probes/src/detour/code/tests.rs`), from the jump to the instruction behind the probed one, in a ring that has room. The
  others are counted in the code. k: the plant. b: the plant, the copy, the copy's jump. s: the plant, the instruction, the
  stop. r: the plants at entry and return. ro: the detour, the plant at the return. rb: as b, the plant at the return. The
  rest of the path is outside the guest. In Bochs, where time is instructions, the times of o are the same numbers less the
  probed instruction, which is in the loop without a probe too.
* **o** told as an event is what the guest does for it. Taking records out is the work of another thread, and not in the
  time; how fast that is, is under Records. The ring has been around once before: the first use of each of its pages, which
  21 records share, is a fault of the guest's memory that KVM answers, an exit that no probe counts. In **ro** of the test guest the vCPU itself takes them
  out, at the return's exit: its handler of int3 is not Linux's, so that its returns exit.
* **i**, in the stock guest only: an instruction behind the function's entry that is too short for a jump. The int3, the kernel's
  handler up to where it is led away, and the switch are some 30 instructions and an exception more than a jump; in **ro** of the
  stock guest the return is such a one, too, and neither side exits.
  On amd no int3 stands for a plant: Bochs's SVM would show the guest a wrong frame now and then (`docs/optimised.md`). There
  each hit of i is an exit, and each return of ro.
* Rows called k and r have functions without room for a jump, in the stock guest optimisation is off for them; a run in which
  a jump stands for one of them, or none for one of the others, fails.
* **k** is the floor and what the engine does: the hit is looked up and counted, the instruction emulated, and the
  registers are handed back to KVM.
* **r** is two k, a look at the stack for the return address, and the list of calls. The look is the difference between
  the handler that reads the stack and the one that does not: a walk of the kernel's own page tables (`docs/traps.md`), and
  in the test guest, whose functions are in the lower half, a second one. Its stack in these loops is in the kernel's half, as a
  kernel's is. **b** asks KVM for the system registers (`KVM_GET_SREGS`), to see that the copy is mapped and may be executed.
* k told as an event hands it to a sink that drops it: what writing it costs is not in it.
";
