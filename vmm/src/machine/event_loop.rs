//! The thread that waits for device input.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use confine::ThreadKind;
use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ending::Ending;
use crate::devices::SerialInput;

/// Runs an event manager on a thread of its own, until the `EventLoop` is dropped.
#[derive(Debug)]
pub(crate) struct EventLoop {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

/// Ends the event loop: the event wakes the loop, and `process` sets `stopped`.
struct StopEvent {
    event: EventFd,
    stopped: Arc<Mutex<bool>>,
}

impl MutEventSubscriber for StopEvent {
    fn process(&mut self, _events: Events, _ops: &mut EventOps<'_>) {
        if let Ok(mut stopped) = self.stopped.lock() {
            *stopped = true;
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        // Fails only without memory; then the loop ends with the process.
        let _ = ops.add(Events::new(&self.event, EventSet::IN));
    }
}

impl EventLoop {
    /// Starts the thread. A panic on the thread ends the machine through `ending`.
    pub(crate) fn start(input: SerialInput, ending: Arc<Ending>) -> io::Result<Self> {
        let stop = EventFd::new(EFD_NONBLOCK)?;
        let stopped = Arc::new(Mutex::new(false));
        let mut manager: EventManager<Box<dyn MutEventSubscriber + Send>> =
            EventManager::new().map_err(|error| io::Error::other(error.to_string()))?;
        manager.add_subscriber(Box::new(StopEvent {
            event: stop.try_clone()?,
            stopped: Arc::clone(&stopped),
        }));
        manager.add_subscriber(Box::new(input));
        let thread = thread::Builder::new()
            .name("devices".into())
            .spawn(move || {
                ending.watch(|| {
                    confine::enter(ThreadKind::Devices);
                    while !stopped.lock().is_ok_and(|stopped| *stopped) {
                        if let Err(error) = manager.run() {
                            tracing::error!(%error, "console input ends");
                            return;
                        }
                    }
                });
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if self.stop.write(1).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
