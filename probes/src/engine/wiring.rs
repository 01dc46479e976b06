//! Makes the parts of an engine, the lowest first. A part holds the parts that it uses. No part knows the engine, so calls go one way: to a
//! part that was made earlier.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Once, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use detour::Detour;
use events::EventSink;
use inspect::CgroupPaths;
use inspect::stacks::{KnownPrograms, NamedModules};
use text::{GuestMemory, Planter};

use crate::engine::Engine;
use crate::engine::abilities::Abilities;
use crate::engine::arm::Armer;
use crate::engine::arm::register_sites::RegisterHolders;
use crate::engine::crashes::Crashes;
use crate::engine::handover::{Handover, Successor};
use crate::engine::hits::Hits;
use crate::engine::hits::executor::Executor;
use crate::engine::hits::paused::PausedHits;
use crate::engine::hits::readers::Readers;
use crate::engine::interest::Counted;
use crate::engine::inventory::Inventory;
use crate::engine::kernel_events::{KernelEvents, placed};
use crate::engine::module_types::KeptTypes;
use crate::engine::modules::ModuleWatch;
use crate::engine::optimise::Optimiser;
use crate::engine::optimise::early::Early;
use crate::engine::optimise::int3::Int3Handler;
use crate::engine::optimise::parts::Parts;
use crate::engine::optimise::vcpu_set::VcpuSet;
use crate::engine::optimise::verdict::Verdicts;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::programs::Programs;
use crate::engine::protected_accesses::ProtectedAccesses;
use crate::engine::protections::Protections;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::Returns;
use crate::engine::returns::following::Following;
use crate::engine::returns::program_calls::ProgramCalls;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::returns::site_planter::SitePlanter;
use crate::engine::running::Running;
use crate::engine::running::loaded::LoadedModules;
use crate::engine::running::located::{Reached, Whereabouts};
use crate::engine::stacks::Stacks;
use crate::engine::task_watch::TaskWatch;
use crate::engine::tasks::Tasks;
use crate::engine::unprobed_exits::UnprobedExits;
use crate::engine::uprobes::Uprobes;
use crate::engine::uprobes::file_events::FileEvents;
use crate::engine::uprobes::guest_files::GuestFiles;
use crate::engine::uprobes::hidden_code::HiddenCode;
use crate::engine::uprobes::private_copies::PrivateCopies;
use crate::engine::watch::Watches;
use crate::engine::watch::hot_pages::HotPages;
use crate::engine::write::Writes;
use crate::engine::write::stand_in::StandIns;
use crate::kernel::Kernel;
use crate::returns::Calls;

impl Engine {
    pub(super) fn without_probes(
        kernel: Kernel,
        memory: Arc<dyn GuestMemory>,
        abilities: Abilities,
        sink: Arc<dyn EventSink>,
    ) -> Self {
        let kernel_event_probes = placed(&kernel);
        let detour: Arc<Detour> = Arc::default();
        let return_sites: Arc<ReturnSites> = Arc::default();
        let calls: Arc<Calls> = Arc::default();
        let reporter = Arc::new(Reporter {
            sink,
            started: OnceLock::default(),
            calls: Arc::clone(&calls),
        });
        let running = Arc::new(Running {
            kernel,
            planter: Planter::new(Arc::clone(&memory), abilities.plant),
            memory,
            abilities,
            located: Whereabouts::default(),
            boot_patched: Reached::default(),
            init_freed: Reached::default(),
            modules: LoadedModules::default(),
        });
        let tasks = Arc::new(Tasks {
            running: Arc::clone(&running),
            found: Reached::default(),
            user_found: Reached::default(),
            paths: CgroupPaths::default(),
        });
        let programs = Arc::new(Programs {
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
        });
        let stacks = Arc::new(Stacks {
            running: Arc::clone(&running),
            detour: Arc::clone(&detour),
            tasks: Arc::clone(&tasks),
            named: NamedModules::default(),
            programs: KnownPrograms::default(),
        });
        let plants = Arc::new(Plants {
            running: Arc::clone(&running),
            table: ArcSwap::default(),
            kernel_event_probes,
            unwatched: Mutex::default(),
        });
        let probes = Arc::new(ProbeList {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            return_sites: Arc::clone(&return_sites),
            list: ArcSwap::default(),
            counted: Counted::default(),
            next_id: AtomicU64::new(1),
            armed: AtomicBool::new(true),
            untyped: Once::new(),
        });
        let following = Arc::new(Following {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            return_sites: Arc::clone(&return_sites),
            calls,
        });
        let records = Arc::new(Records {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            stacks: Arc::clone(&stacks),
            following: Arc::clone(&following),
            detour: Arc::clone(&detour),
            owners: Mutex::default(),
            khz: AtomicU64::default(),
            set: OnceLock::default(),
            last_ns: AtomicU64::default(),
            foreign: AtomicU64::default(),
            drops: AtomicBool::default(),
        });
        let parts = Arc::new(Parts {
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            records: Arc::clone(&records),
            detour: Arc::clone(&detour),
            return_sites: Arc::clone(&return_sites),
        });
        let int3 = Arc::new(Int3Handler {
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            looked_at: VcpuSet::default(),
            users: VcpuSet::default(),
            found: OnceLock::default(),
            opened: Mutex::default(),
        });
        let early = Arc::new(Early {
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            int3: Arc::clone(&int3),
            space: ArcSwapOption::default(),
            keeps_gate: AtomicBool::default(),
        });
        let verdicts = Arc::new(Verdicts {
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            int3: Arc::clone(&int3),
            early: Arc::clone(&early),
        });
        let optimiser = Arc::new(Optimiser {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            probes: Arc::clone(&probes),
            records: Arc::clone(&records),
            parts: Arc::clone(&parts),
            int3: Arc::clone(&int3),
            early: Arc::clone(&early),
            verdicts: Arc::clone(&verdicts),
            detour: Arc::clone(&detour),
            wanted: AtomicBool::default(),
            jumps: Mutex::default(),
        });
        let stand_ins = Arc::new(StandIns {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            optimiser: Arc::clone(&optimiser),
        });
        let protections: Arc<Protections> = Arc::default();
        let hidden: Arc<HiddenCode> = Arc::default();
        let copies = Arc::new(PrivateCopies {
            reporter: Arc::clone(&reporter),
            stacks: Arc::clone(&stacks),
            noted: Mutex::default(),
        });
        let program_calls: Arc<ProgramCalls> = Arc::default();
        let uprobes = Arc::new(Uprobes {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            records: Arc::clone(&records),
            programs: Arc::clone(&programs),
            protections: Arc::clone(&protections),
            hidden: Arc::clone(&hidden),
            copies: Arc::clone(&copies),
            calls: Arc::clone(&program_calls),
            files: GuestFiles::default(),
            events: FileEvents::default(),
            targets: ArcSwap::default(),
            searches: Mutex::default(),
            lost_events: AtomicU64::default(),
        });
        let watches = Arc::new(Watches {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            programs: Arc::clone(&programs),
            records: Arc::clone(&records),
            detour: Arc::clone(&detour),
            protections: Arc::clone(&protections),
            hidden: Arc::clone(&hidden),
            copies: Arc::clone(&copies),
            hot_pages: HotPages::default(),
            table: ArcSwap::default(),
            order: Mutex::default(),
        });
        let executor = Arc::new(Executor {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            watches: Arc::clone(&watches),
        });
        let readers = Arc::new(Readers {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            watches: Arc::clone(&watches),
            readers_lost: AtomicBool::default(),
        });
        let crashes = Arc::new(Crashes {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            stacks: Arc::clone(&stacks),
            panicked: Mutex::default(),
        });
        let returns = Arc::new(Returns {
            reporter: Arc::clone(&reporter),
            plants: Arc::clone(&plants),
            programs: Arc::clone(&programs),
            records: Arc::clone(&records),
            following: Arc::clone(&following),
            return_sites: Arc::clone(&return_sites),
            program_calls,
            dying: Mutex::default(),
        });
        let armer = Arc::new(Armer {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            probes: Arc::clone(&probes),
            records: Arc::clone(&records),
            following: Arc::clone(&following),
            return_sites: Arc::clone(&return_sites),
            int3: Arc::clone(&int3),
            optimiser: Arc::clone(&optimiser),
            registers: RegisterHolders::default(),
            watches: Arc::clone(&watches),
            uprobes: Arc::clone(&uprobes),
        });
        let site_planter = Arc::new(SitePlanter {
            reporter: Arc::clone(&reporter),
            plants: Arc::clone(&plants),
            records: Arc::clone(&records),
            following: Arc::clone(&following),
            return_sites: Arc::clone(&return_sites),
            optimiser: Arc::clone(&optimiser),
            armer: Arc::clone(&armer),
        });
        let module_watch = Arc::new(ModuleWatch {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            probes: Arc::clone(&probes),
            following: Arc::clone(&following),
            records: Arc::clone(&records),
            return_sites: Arc::clone(&return_sites),
            armer: Arc::clone(&armer),
            types: KeptTypes::default(),
            is_full: AtomicBool::new(false),
        });
        let task_watch = Arc::new(TaskWatch {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            probes: Arc::clone(&probes),
            plants: Arc::clone(&plants),
            watches: Arc::clone(&watches),
            armer: Arc::clone(&armer),
            layout: OnceLock::default(),
            early: Mutex::default(),
        });
        let handover = Arc::new(Handover {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            plants: Arc::clone(&plants),
            probes: Arc::clone(&probes),
            records: Arc::clone(&records),
            following: Arc::clone(&following),
            return_sites: Arc::clone(&return_sites),
            optimiser: Arc::clone(&optimiser),
            returns: Arc::clone(&returns),
            armer: Arc::clone(&armer),
            crashes: Arc::clone(&crashes),
            successor: Successor::default(),
        });
        let kernel_events = Arc::new(KernelEvents {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            probes: Arc::clone(&probes),
            following: Arc::clone(&following),
            return_sites: Arc::clone(&return_sites),
            early: Arc::clone(&early),
            optimiser: Arc::clone(&optimiser),
            returns: Arc::clone(&returns),
            armer: Arc::clone(&armer),
            crashes: Arc::clone(&crashes),
            module_watch: Arc::clone(&module_watch),
            task_watch: Arc::clone(&task_watch),
            handover: Arc::clone(&handover),
            uprobes: Arc::clone(&uprobes),
        });
        let hits = Arc::new(Hits {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            tasks: Arc::clone(&tasks),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            programs: Arc::clone(&programs),
            records: Arc::clone(&records),
            optimiser: Arc::clone(&optimiser),
            executor: Arc::clone(&executor),
            readers: Arc::clone(&readers),
            returns: Arc::clone(&returns),
            uprobes: Arc::clone(&uprobes),
            task_watch: Arc::clone(&task_watch),
            resuming: Mutex::default(),
        });
        let paused_hits = PausedHits {
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            optimiser: Arc::clone(&optimiser),
            executor: Arc::clone(&executor),
            readers: Arc::clone(&readers),
            stand_ins: Arc::clone(&stand_ins),
            site_planter: Arc::clone(&site_planter),
            kernel_events: Arc::clone(&kernel_events),
            hits: Arc::clone(&hits),
        };
        let writes = Writes {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            detour: Arc::clone(&detour),
            return_sites: Arc::clone(&return_sites),
            early: Arc::clone(&early),
            optimiser: Arc::clone(&optimiser),
            stand_ins: Arc::clone(&stand_ins),
        };
        let protected_accesses = ProtectedAccesses {
            running: Arc::clone(&running),
            plants: Arc::clone(&plants),
            watches: Arc::clone(&watches),
            executor: Arc::clone(&executor),
            uprobes: Arc::clone(&uprobes),
            hits: Arc::clone(&hits),
            waiting: Mutex::default(),
        };
        let inventory = Inventory {
            reporter: Arc::clone(&reporter),
            running: Arc::clone(&running),
            probes: Arc::clone(&probes),
            records: Arc::clone(&records),
        };
        Self {
            reporter,
            running,
            probes,
            records,
            optimiser,
            detour,
            crashes,
            returns,
            armer,
            site_planter,
            module_watch,
            task_watch,
            handover,
            hits,
            paused_hits,
            writes,
            uprobes,
            watches,
            protected_accesses,
            inventory,
            unprobed_exits: UnprobedExits::default(),
        }
    }
}
