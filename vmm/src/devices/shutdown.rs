//! How the guest asks for its end.

/// What the guest asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// ACPI power-off.
    PowerOff,
    /// A reset, by the i8042 or by the ACPI reset register.
    Reset,
    /// A test guest ended with this code.
    Code(u8),
}

/// Who is told. Closures are sinks.
///
/// Called on the thread of the vCPU that asked, from within its exit; it must only take note and
/// return. The vCPU runs on until it is stopped, and may ask again.
pub trait ShutdownSink: Send + Sync {
    /// The guest asks for its end.
    fn shutdown(&self, request: Shutdown);
}

impl<F: Fn(Shutdown) + Send + Sync> ShutdownSink for F {
    fn shutdown(&self, request: Shutdown) {
        self(request);
    }
}
