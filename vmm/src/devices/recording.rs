//! Hooks for tests that record their calls.

use std::sync::{Mutex, PoisonError};

use super::irq::IrqLine;
use super::msi::{MsiMessage, MsiSink};
use super::shutdown::{Shutdown, ShutdownSink};

/// Remembers every call in order.
#[derive(Debug)]
pub(super) struct Recorder<T>(Mutex<Vec<T>>);

impl<T> Recorder<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns the calls recorded since the last `take`.
    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, call: T) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call);
    }
}

impl ShutdownSink for Recorder<Shutdown> {
    fn shutdown(&self, request: Shutdown) {
        self.record(request);
    }
}

impl IrqLine for Recorder<()> {
    fn pulse(&self) {
        self.record(());
    }
}

/// A call of an [`Ioapic`](super::Ioapic) to the sink.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MsiCall {
    Signal(MsiMessage),
    Route(u8, Option<MsiMessage>),
}

impl MsiSink for Recorder<MsiCall> {
    fn signal(&self, address: u64, data: u32) {
        self.record(MsiCall::Signal(MsiMessage { address, data }));
    }

    fn level_route_changed(&self, pin: u8, route: Option<MsiMessage>) {
        self.record(MsiCall::Route(pin, route));
    }
}
