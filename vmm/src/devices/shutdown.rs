//! The guest's requests to end the machine.

/// A request of the guest to end the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// ACPI power-off.
    PowerOff,
    /// A reset, by the i8042 or by the ACPI reset register.
    Reset,
    /// A test guest ended with this code.
    Code(u8),
}

/// Receives shutdown requests. Closures are sinks.
///
/// Called on the thread of the requesting vCPU, from within the exit. A sink must only take note of
/// the request and return. The vCPU continues until the machine stops the vCPU, and may ask again.
pub trait ShutdownSink: Send + Sync {
    /// The guest asks for its end.
    fn shutdown(&self, request: Shutdown);
}

impl<F: Fn(Shutdown) + Send + Sync> ShutdownSink for F {
    fn shutdown(&self, request: Shutdown) {
        self(request);
    }
}
