//! The kinds of threads, each with a filter.

/// The kind of a thread that works for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadKind {
    /// Runs a vCPU, with device emulation and probes.
    Vcpu,
    /// Waits for input of the guest's serial line.
    Devices,
    /// Takes the records of detours out of the ring, surveys the kernel, changes probes for clients, waits for the end: memory and other
    /// threads only.
    Engine,
    /// Writes the output.
    Report,
    /// Serves the clients of the control socket.
    Clients,
    /// Copies between QEMU and the process.
    Ports,
}

impl ThreadKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Vcpu,
        Self::Devices,
        Self::Engine,
        Self::Report,
        Self::Clients,
        Self::Ports,
    ];

    /// The name in messages, and of the filter's file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Devices => "devices",
            Self::Engine => "engine",
            Self::Report => "report",
            Self::Clients => "clients",
            Self::Ports => "ports",
        }
    }

    /// The filter, in seccompiler's JSON.
    pub(crate) const fn filter(self) -> &'static str {
        match self {
            Self::Vcpu => include_str!("filters/vcpu.json"),
            Self::Devices => include_str!("filters/devices.json"),
            Self::Engine => include_str!("filters/engine.json"),
            Self::Report => include_str!("filters/report.json"),
            Self::Clients => include_str!("filters/clients.json"),
            Self::Ports => include_str!("filters/ports.json"),
        }
    }
}
