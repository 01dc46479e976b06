//! The two sides of the link, each on a separate thread.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::thread::JoinHandle;

use confine::ThreadKind;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::frame::{Frame, Message};
use super::link::{Link, Opened};
use crate::limits::{CONNECTIONS, FAREWELL, TURNED_AWAY};
use crate::server::{Arrivals, Incoming, Refusal};

/// Maximum number of open connections: served clients, and clients that get only a refusal.
const CHANNELS: usize = CONNECTIONS + TURNED_AWAY;

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Registers `stream` with the entered runtime.
fn registered(stream: StdStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// The clients' side of the link.
#[derive(Debug)]
pub struct Outer(JoinHandle<()>);

impl Outer {
    /// Passes every client through `port`, until the other side ends.
    ///
    /// # Errors
    ///
    /// If this process has no threads or file descriptors left.
    pub fn start(incoming: Incoming, port: StdStream) -> io::Result<Self> {
        let runtime = runtime()?;
        let (port, arrivals) = {
            let _entered = runtime.enter();
            (registered(port)?, incoming.registered()?)
        };
        let thread = std::thread::Builder::new()
            .name("nested-clients".to_owned())
            .spawn(move || {
                confine::enter(ThreadKind::Ports);
                runtime.block_on(pass(arrivals, port));
                runtime.shutdown_background();
            })?;
        Ok(Self(thread))
    }

    /// Waits for the thread. After the other side has ended, the clients have two seconds to take their pending bytes.
    pub fn join(self) {
        // A panic has been printed by the panic hook.
        let _ = self.0.join();
    }
}

/// The inner side opens no channels.
struct Never;

impl Opened for Never {
    fn opened(&mut self) -> Option<UnixStream> {
        None
    }
}

async fn pass(mut arrivals: Arrivals, port: UnixStream) {
    let (from, to) = port.into_split();
    let (link, writing) = Link::new(to, FAREWELL);
    let mut tasks = JoinSet::new();
    let writing = tokio::spawn(writing);
    let mut turned_away = JoinSet::new();
    // A separate task: the link follows frames while the announcement of a new client waits for room.
    let mut following = tokio::spawn({
        let link = link.clone();
        async move {
            // Tasks of channels opened by the other side: none.
            let mut none = JoinSet::new();
            link.follow(from, Never, &mut none).await
        }
    });
    let mut channel = 0;
    loop {
        let (stream, wrong) = tokio::select! {
            arrived = arrivals.next() => arrived,
            result = &mut following => {
                if let Ok(Err(error)) = result {
                    tracing::warn!(%error, "the link to the nested run's control socket is broken");
                }
                break;
            }
            Some(_) = tasks.join_next() => continue,
            Some(_) = turned_away.join_next() => continue,
        };
        if let Some(wrong) = wrong {
            if turned_away.len() < TURNED_AWAY {
                turned_away.spawn(Refusal::of(wrong).answer(stream));
            }
        } else if link.connections() < CHANNELS {
            channel = link.unused(channel);
            let open = Frame {
                channel,
                message: Message::Open,
            };
            link.announce(open).await;
            link.connect(channel, stream, &mut tasks);
        }
    }
    drop(arrivals);
    link.hang_up();
    let farewell = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
    drop(link);
    writing.abort();
}

/// The server's side of the link.
#[derive(Debug)]
pub struct Inner {
    finish: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Inner {
    /// Starts to accept clients from `port`. The returned [`Incoming`] passes the clients to the server.
    ///
    /// # Errors
    ///
    /// If this process has no threads or file descriptors left.
    pub fn start(port: StdStream) -> io::Result<(Self, Incoming)> {
        let runtime = runtime()?;
        let port = {
            let _entered = runtime.enter();
            registered(port)?
        };
        let (server, clients) = mpsc::channel(CHANNELS);
        let (finish, finished) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control-link".to_owned())
            .spawn(move || {
                confine::enter(ThreadKind::Ports);
                runtime.block_on(take(server, port, finished));
                runtime.shutdown_background();
            })?;
        Ok((Self { finish, thread }, Incoming::Trusted(clients)))
    }

    /// Sends the last bytes of the server, which has ended, and closes the port. Waits at most two seconds for the channels to close, and
    /// then at most two seconds for the queued frames.
    pub fn finish(self) {
        // An error means that the thread has ended, because the other side has ended.
        let _ = self.finish.send(());
        let _ = self.thread.join();
    }
}

/// Passes new connections to the server.
struct ToServer {
    link: Link,
    server: mpsc::Sender<StdStream>,
}

impl Opened for ToServer {
    fn opened(&mut self) -> Option<UnixStream> {
        if self.link.connections() >= CHANNELS {
            return None;
        }
        let (ours, theirs) = StdStream::pair().ok()?;
        let ours = registered(ours).ok()?;
        self.server.try_send(theirs).ok()?;
        Some(ours)
    }
}

async fn take(server: mpsc::Sender<StdStream>, port: UnixStream, finished: oneshot::Receiver<()>) {
    let (from, to) = port.into_split();
    let (link, writing) = Link::new(to, FAREWELL);
    let writing = tokio::spawn(writing);
    let mut tasks = JoinSet::new();
    let opened = ToServer {
        link: link.clone(),
        server,
    };
    tokio::select! {
        result = link.follow(from, opened, &mut tasks) => {
            if let Err(error) = result {
                tracing::warn!(%error, "the link to the control socket's clients is broken");
            }
        }
        // Meanwhile the link still follows frames: the other side's frames make room for the last bytes.
        () = async {
            let _ = finished.await;
            let _ = tokio::time::timeout(FAREWELL, link.is_quiet()).await;
        } => (),
    }
    link.hang_up();
    tasks.shutdown().await;
    drop(link);
    // The writer sends the queued frames and then ends, because no handle of the link is left.
    let _ = tokio::time::timeout(FAREWELL, writing).await;
}
