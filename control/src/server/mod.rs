//! The server, on a separate thread.

mod add_probe;
mod additions;
mod app;
mod body;
mod changes;
mod connections;
mod description;
mod dump;
mod events;
mod look;
mod machine;
mod metrics;
mod names;
mod pacing;
mod per_cpu;
mod probe;
mod routes;
mod stacks;
mod types;
mod views;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use confine::ThreadKind;
use tokio::sync::oneshot;

use self::app::App;
pub use self::connections::Incoming;
pub(crate) use self::connections::{Arrivals, Refusal};
pub use self::description::openapi;
use crate::hub::EventHub;
use crate::operator::{Operator, Pauses};
use crate::target::Target;

/// Serves clients until [`finish`](Self::finish).
#[derive(Debug)]
pub struct Server {
    hub: Arc<EventHub>,
    finish: oneshot::Sender<()>,
    threads: [JoinHandle<()>; 2],
}

impl Server {
    /// Starts to serve the clients of `incoming`. [`Tee`](crate::Tee) writes the events to `hub`.
    ///
    /// # Errors
    ///
    /// If this process has no threads or file descriptors left.
    pub fn start(
        incoming: Incoming,
        target: Arc<dyn Target>,
        hub: Arc<EventHub>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let incoming = {
            // A socket registers with the entered runtime.
            let _entered = runtime.enter();
            incoming.registered()?
        };
        let pauses = Arc::new(Pauses::default());
        let (operator, operating) = Operator::start(Arc::clone(&target), Arc::clone(&pauses))?;
        let app = Arc::new(App::new(target, operator, pauses, Arc::clone(&hub)));
        let (finish, finished) = oneshot::channel();
        let serving = std::thread::Builder::new()
            .name("control-http".to_owned())
            .spawn(move || {
                confine::enter(ThreadKind::Clients);
                runtime.block_on(connections::serve(incoming, app, finished));
                // Remaining tasks would keep their resources.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            hub,
            finish,
            threads: [serving, operating],
        })
    }

    /// Ends the server at the end of the run. Event streams end, and the server accepts no more clients. Connected clients have two seconds
    /// to take the rest of their answers. A held pause ends.
    pub fn finish(self) {
        self.hub.end();
        // An error means that the thread has ended; the join follows.
        let _ = self.finish.send(());
        for thread in self.threads {
            // A panic has been printed by the panic hook.
            let _ = thread.join();
        }
    }
}
