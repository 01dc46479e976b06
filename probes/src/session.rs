//! A guest with its probes, from before its first instruction to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use confine::ThreadKind;
use errors::chain;
use events::{EventSink, GuestSummary, Summary};
use introspect::insn::{CpuidWords, Features, Vendor};
use manifest::{Action, GuestEnd, Injection, ProbeConfig, ProbeSpec, Stealth, WhenFull};
use text::{KvmMemory, PlantByte};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{
    Console, Control, End, Host, HostFacts, HostObstacle, Int3Exits, Machine, MachineConfig,
    TrapHandler,
};

use crate::ResolveError;
use crate::engine::engine_action::{injecting, with_engine_actions};
use crate::engine::{Abilities, ArmError, Engine, EngineAction};
use crate::kernel::Kernel;

/// The configuration of a session: the guest to boot, and the probes.
#[derive(Debug)]
pub struct SessionConfig<'a, A = Action> {
    /// The kernel's file.
    pub file: &'a KernelFile,
    /// The result of [`KernelFile::vmlinux`].
    pub vmlinux: &'a [u8],
    /// The kernel's symbols and code, read from the file.
    pub kernel: Kernel,
    /// The way to start the kernel.
    pub method: BootMethod,
    /// The initrd or initramfs archive.
    pub initrd: Option<&'a [u8]>,
    /// The kernel's command line.
    pub cmdline: &'a str,
    /// RAM, bytes.
    pub memory_bytes: u64,
    /// Number of vCPUs.
    pub cpus: u8,
    /// The probes, in the order of the summary.
    pub probes: &'a [ProbeConfig<A>],
    /// The faults. Their probes follow the other probes, so those also see the calls that do not run.
    pub injections: &'a [Injection],
    /// The byte to plant; `None` chooses a byte that the self-test found to work.
    pub plant: Option<PlantByte>,
    /// Whether jumps may replace plants, so that hits do not exit.
    pub optimise: bool,
    /// The effect of a hit without room for its record.
    pub when_full: WhenFull,
    /// The guest's accesses to probed kernel code that find the guest's own bytes.
    pub stealth: Stealth,
    /// The serial console.
    pub console: Console,
    /// Whether a test guest may end the run through port 0xf4.
    pub debug_exit: bool,
}

/// A session could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A probe specification cannot be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The machine could not be built.
    #[error(transparent)]
    Create(#[from] vmm::CreateError),
    /// The probes could not be planted.
    #[error(transparent)]
    Arm(#[from] ArmError),
    /// This KVM would harm the guest.
    #[error("{0}; or run with --accel nested")]
    Host(HostObstacle),
    /// This KVM delivers neither of the traps for plants.
    #[error(
        "this KVM delivers neither port writes nor int3 of the guest's kernel, so that nothing can be planted: run with --accel nested"
    )]
    NoTrap,
    /// This KVM does not deliver the requested trap.
    #[error(
        "this KVM does not deliver the trap `{asked:?}` that was asked for: leave the choice to hyprobe"
    )]
    TrapNotDelivered {
        /// The requested byte.
        asked: PlantByte,
    },
    /// This KVM does not report MSR writes, so a kernel that moves itself cannot be located.
    #[error(
        "this KVM does not report MSR writes, so that a kernel that unpacks itself cannot be found: boot it directly"
    )]
    CannotLocate,
    /// An address in a kernel that may move.
    #[error(
        "`{spec}` is an address, and a kernel that unpacks itself may move: name a symbol and an offset, or boot it directly"
    )]
    AddressMoves {
        /// The probe.
        spec: ProbeSpec,
    },
    /// A thread could not be started.
    #[error("cannot start a vCPU's thread")]
    Thread(#[source] std::io::Error),
}

/// The period of checks on a running guest.
const TICK: Duration = Duration::from_secs(1);
/// The time for a guest to print after a panic, if the guest neither resets, powers off nor starts another kernel.
const PANIC_GRACE: Duration = Duration::from_secs(5);

/// A guest that is ready to run.
#[derive(Debug)]
pub struct Session {
    machine: Machine,
    engine: Arc<Engine>,
}

impl Session {
    /// Builds the machine, resolves the probes, and places the plants possible before the first instruction.
    ///
    /// # Errors
    ///
    /// The errors of [`SessionError`]; each error is a sentence for the user.
    pub fn new<A: Clone + Into<EngineAction>>(
        host: &Host,
        facts: HostFacts,
        config: SessionConfig<'_, A>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Self, SessionError> {
        if let Some(obstacle) = facts.obstacle() {
            return Err(SessionError::Host(obstacle));
        }
        let plant = choose(&facts, config.plant)?;
        let abilities = Abilities {
            plant,
            stealth: config.stealth,
            debug_execute: facts.debug_execute,
            debug_writes: facts.debug_data,
            breakpoint_before_fetch: facts.breakpoint_before_fetch,
            interprets: facts.port == vmm::PortDelivery::AfterInstruction,
            int3_exits: facts.int3.is_usable(),
            int3_to_guest: facts.int3_reaches_guest(),
            holds_interrupts: facts.holds_interrupts,
            features: features(host),
            cpuid: cpuid(host),
        };
        if config.method == BootMethod::BzImage && !facts.msr_exits {
            return Err(SessionError::CannotLocate);
        }
        let mut probes = with_engine_actions(config.probes);
        probes.extend(config.injections.iter().map(injecting));
        check_addresses(config.method, probes.iter().map(|probe| &probe.at))?;
        // Measuring the clock takes about as long as building the machine.
        let clock = thread::spawn(vmm::tsc_khz);
        let (machine, _) = Machine::new(
            host,
            facts,
            MachineConfig {
                kernel: config.file,
                vmlinux: config.vmlinux,
                method: config.method,
                initrd: config.initrd,
                cmdline: config.cmdline,
                memory_bytes: config.memory_bytes,
                cpus: config.cpus,
                console: config.console,
                debug_exit: config.debug_exit,
                int3: match plant {
                    PlantByte::Port => Int3Exits::Alone,
                    PlantByte::Int3 => Int3Exits::All,
                },
            },
        )?;
        let memory = Arc::new(KvmMemory(machine.memory().clone()));
        let engine = Arc::new(Engine::new(
            config.kernel,
            &probes,
            memory,
            abilities,
            sink,
        )?);
        if let Ok(khz) = clock.join() {
            engine.records.set_clock(khz);
        }
        engine.set_when_full(config.when_full);
        engine.set_optimising(&machine.control().pause_all(), config.optimise)?;
        match config.method {
            BootMethod::Direct => engine.arm_loaded(&machine.control().pause_all())?,
            BootMethod::BzImage => engine.await_kernel(),
        }
        Ok(Self { machine, engine })
    }

    /// The engine, which holds the probes.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The control to pause or end the guest from another thread.
    #[must_use]
    pub fn control(&self) -> Control {
        self.machine.control()
    }

    /// Runs the guest to its end, or for at most `timeout`. `accel` is for the summary.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Later errors are in the summary.
    pub fn run(mut self, timeout: Option<Duration>, accel: &str) -> Result<Summary, SessionError> {
        let handler: Arc<dyn TrapHandler> = self.engine.clone();
        self.engine.start_clock();
        let started = Instant::now();
        self.machine.start(&handler).map_err(SessionError::Thread)?;
        let (engine, control) = (Arc::clone(&self.engine), self.control());
        thread::Builder::new()
            .name("survey".to_owned())
            .spawn(move || {
                control.watch(|| {
                    confine::enter(ThreadKind::Engine);
                    engine.survey();
                });
            })
            .map_err(SessionError::Thread)?;
        let records = Tending::start(&self.engine, self.control()).map_err(SessionError::Thread)?;
        let end = self.wait(started, timeout);
        let ran = started.elapsed();
        self.machine.stop();
        drop(records);
        // After a panic of a hyprobe thread, the counts are not reliable, for any end of the guest.
        let end = match self.machine.panicked() {
            Some(panicked) => Some(End::Failed(panicked.into())),
            None => end,
        };
        let mut guest = self.guest_summary(end);
        if matches!(
            guest.end,
            GuestEnd::Panic | GuestEnd::Timeout | GuestEnd::Halted
        ) {
            let control = self.control();
            let paused = control.pause_all();
            guest.vcpus = self.engine.inventory().vcpu_stacks(&paused);
        }
        self.engine.uprobes.miss_unseen();
        self.engine.task_watch.miss_unseen();
        Ok(Summary {
            accel: accel.to_owned(),
            guest,
            ran_ns: u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX),
            probes: self.engine.inventory().summaries(),
            dropped: 0,
            restarts: Vec::new(),
        })
    }

    /// Waits for the end of the guest; `None` is a timeout.
    fn wait(&self, started: Instant, timeout: Option<Duration>) -> Option<End> {
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            if let Some(end) = self.machine.wait(Some(left.unwrap_or(TICK).min(TICK))) {
                return Some(end);
            }
            if self.machine.is_halted() {
                return Some(End::Halted);
            }
            if self
                .engine
                .crashes
                .panicked()
                .and_then(|panicked| panicked.at)
                .is_some_and(|at| at.elapsed() > PANIC_GRACE)
            {
                return Some(End::Halted);
            }
        }
    }

    fn guest_summary(&self, end: Option<End>) -> GuestSummary {
        if let Some(panicked) = self.engine.crashes.panicked()
            && !matches!(end, Some(End::Failed(_)))
        {
            return GuestSummary {
                end: GuestEnd::Panic,
                detail: Some(panicked.message),
                crash: Some(Box::new(panicked.crash)),
                vcpus: Vec::new(),
                log: None,
            };
        }
        let (end, detail) = match end {
            None => (GuestEnd::Timeout, None),
            Some(End::PowerOff) => (GuestEnd::Poweroff, None),
            Some(End::Reset) => (GuestEnd::Reset, None),
            Some(End::TripleFault) => (GuestEnd::TripleFault, None),
            Some(End::Halted) => (GuestEnd::Halted, None),
            Some(End::Code(code)) => (GuestEnd::Exit, Some(code.to_string())),
            Some(End::Stopped) => (GuestEnd::Stopped, None),
            Some(End::Failed(error)) => (GuestEnd::Failed, Some(chain(&error))),
        };
        GuestSummary {
            end,
            detail,
            crash: None,
            vcpus: Vec::new(),
            log: None,
        }
    }
}

/// The period of taking records out of the ring.
const RECORDS_TICK: Duration = Duration::from_millis(10);
/// The period after a round with `MANY_RECORDS` records or more, a good part of the ring's capacity.
const BUSY_TICK: Duration = Duration::from_millis(1);
const MANY_RECORDS: usize = 1000;

/// The thread that takes records out of the ring, checks the detour region, and searches for the files of probes in programs. Dropping the value ends the thread.
struct Tending {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tending {
    fn start(engine: &Arc<Engine>, control: Control) -> std::io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let (engine, told) = (Arc::clone(engine), Arc::clone(&ended));
        let tend = move || {
            control.watch(|| {
                confine::enter(ThreadKind::Engine);
                while !told.load(Ordering::Acquire) {
                    let has_room = engine.has_room();
                    if !has_room {
                        // A vCPU in detours may not leave the guest by itself before the ring is full.
                        control.kick();
                    }
                    let many = has_room && engine.take_out_records() >= MANY_RECORDS;
                    // The thread waits for no other pause: records may arrive meanwhile. After the guest has ended, the guest's
                    // memory is released.
                    if engine.optimiser.region_needs_pause()
                        && !control.is_paused()
                        && !control.is_ending()
                    {
                        engine.optimiser.tend_region(&control.pause_all());
                    }
                    if engine.uprobes.is_searching() && !control.is_paused() && !control.is_ending()
                    {
                        engine.uprobes.search_again(&control.pause_all());
                    }
                    let pace = if many { BUSY_TICK } else { RECORDS_TICK };
                    thread::park_timeout(pace);
                }
            });
        };
        let builder = thread::Builder::new().name("records".to_owned());
        Ok(Self {
            ended,
            thread: Some(builder.spawn(tend)?),
        })
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread's panic is caught there.
            let _ = thread.join();
        }
    }
}

/// Checks whether the sites of the probes can be known before the kernel is started by `method`.
///
/// # Errors
///
/// If a probe is an address, and the kernel may move.
pub fn check_addresses<'s>(
    method: BootMethod,
    probes: impl IntoIterator<Item = &'s ProbeSpec>,
) -> Result<(), SessionError> {
    let address = |spec: &&ProbeSpec| spec.location.is_address();
    match probes.into_iter().find(address) {
        Some(spec) if method == BootMethod::BzImage => {
            Err(SessionError::AddressMoves { spec: spec.clone() })
        }
        _ => Ok(()),
    }
}

/// The processor features that the emulator may use.
fn features(host: &Host) -> Features {
    let [_, _, leaf1_ecx, _] = host.guest_cpuid(1);
    let [_, leaf7_ebx, ..] = host.guest_cpuid(7);
    let [_, _, extended_ecx, _] = host.guest_cpuid(0x8000_0001);
    let has = |register: u32, bit: u32| register & (1 << bit) != 0;
    Features {
        popcnt: has(leaf1_ecx, 23),
        lzcnt: has(extended_ecx, 5),
        bmi1: has(leaf7_ebx, 3),
        movbe: has(leaf1_ecx, 22),
        smap: has(leaf7_ebx, 20),
        vendor: vendor(host.guest_cpuid(0)),
    }
}

/// The vendor of the guest's processor, by leaf 0.
fn vendor([_, ebx, ecx, edx]: [u32; 4]) -> Vendor {
    match [ebx, edx, ecx].map(u32::to_le_bytes).as_flattened() {
        b"GenuineIntel" => Vendor::Intel,
        b"AuthenticAMD" => Vendor::Amd,
        _ => Vendor::Other,
    }
}

fn cpuid(host: &Host) -> CpuidWords {
    let [_, _, leaf1_ecx, leaf1_edx] = host.guest_cpuid(1);
    let [_, leaf7_ebx, leaf7_ecx, leaf7_edx] = host.guest_cpuid(7);
    let [_, _, extended_ecx, extended_edx] = host.guest_cpuid(0x8000_0001);
    CpuidWords {
        leaf1_ecx,
        leaf1_edx,
        leaf7_ebx,
        leaf7_ecx,
        leaf7_edx,
        extended_ecx,
        extended_edx,
    }
}

/// The byte to plant on this host. If both work, the port write is the better choice: the guest's own breakpoints do not
/// exit in general ([`UnprobedExits::int3s`](crate::UnprobedExits::int3s)), and cannot be confused with plants.
fn choose(facts: &HostFacts, asked: Option<PlantByte>) -> Result<PlantByte, SessionError> {
    let works = |byte| match byte {
        PlantByte::Port => facts.port.is_usable(),
        PlantByte::Int3 => facts.int3.is_usable(),
    };
    match asked {
        Some(asked) if works(asked) => Ok(asked),
        Some(asked) => Err(SessionError::TrapNotDelivered { asked }),
        None => [PlantByte::Port, PlantByte::Int3]
            .into_iter()
            .find(|byte| works(*byte))
            .ok_or(SessionError::NoTrap),
    }
}
