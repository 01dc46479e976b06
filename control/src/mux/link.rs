//! One side of the link: what it does with frames and with connections.
//!
//! Three kinds of tasks on one runtime: one reads frames and hands them out, one writes frames, and each channel has two
//! that copy, one for each direction. A channel's copying tasks own its connection; the table knows how to reach them.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::frame::{Channel, Frame, Message, PAYLOAD_BYTES, WINDOW_BYTES};

/// Frames that wait to be written. Whoever copies waits when they are so many.
const QUEUED_FRAMES: usize = 64;
/// One write is one notification of the host, which is dear under emulation.
const BATCH_BYTES: usize = 64 << 10;

/// One side.
#[derive(Clone, Debug)]
pub(super) struct Link {
    frames: mpsc::Sender<Frame>,
    table: Arc<Mutex<HashMap<Channel, Known>>>,
    /// A channel has gone.
    gone: Arc<Notify>,
}

/// How to reach a channel's tasks.
#[derive(Debug)]
struct Known {
    /// For the connection; no more than the window is ever in it.
    arrived: mpsc::UnboundedSender<Vec<u8>>,
    /// Of those, bytes that have not been passed on.
    waiting: usize,
    /// Bytes that the other side has room for.
    room: Arc<Semaphore>,
    /// The other side has said that no more comes.
    ended: bool,
}

/// Who opens channels.
pub(super) trait Opened {
    /// The other side has opened one; `None` if it cannot be.
    fn opened(&mut self) -> Option<UnixStream>;
}

impl Link {
    /// With the task that writes, which ends when all clones of the link are gone.
    pub(super) fn new<W: AsyncWrite + Unpin + Send + 'static>(
        to: W,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (frames, queued) = mpsc::channel(QUEUED_FRAMES);
        let link = Self {
            frames,
            table: Arc::default(),
            gone: Arc::default(),
        };
        (link, write(queued, to))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Channel, Known>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many channels there are.
    pub(super) fn channels(&self) -> usize {
        self.table().len()
    }

    /// A number that no channel has.
    pub(super) fn unused(&self, after: Channel) -> Channel {
        let table = self.table();
        let mut channel = after.wrapping_add(1);
        while table.contains_key(&channel) {
            channel = channel.wrapping_add(1);
        }
        channel
    }

    /// Waits until there is no channel any more.
    pub(super) async fn is_quiet(&self) {
        loop {
            let mut gone = std::pin::pin!(self.gone.notified());
            gone.as_mut().enable();
            if self.channels() == 0 {
                return;
            }
            gone.await;
        }
    }

    /// Nothing more comes from the other side.
    pub(super) fn hang_up(&self) {
        for (_, known) in self.table().drain() {
            known.room.close();
        }
        self.gone.notify_waiters();
    }

    /// Says something on behalf of whoever opens channels.
    pub(super) async fn announce(&self, frame: Frame) {
        self.say(frame.channel, frame.message).await;
    }

    /// Connects `stream` to `channel`.
    pub(super) fn connect(&self, channel: Channel, stream: UnixStream, tasks: &mut JoinSet<()>) {
        let (arrived, arriving) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(WINDOW_BYTES));
        let known = Known {
            arrived,
            waiting: 0,
            room: Arc::clone(&room),
            ended: false,
        };
        self.table().insert(channel, known);
        let (from, to) = stream.into_split();
        let link = self.clone();
        tasks.spawn(async move {
            let ((), ()) = tokio::join!(
                link.send(channel, from, &room),
                link.deliver(channel, to, arriving)
            );
            link.forget(channel);
        });
    }

    fn forget(&self, channel: Channel) {
        self.table().remove(&channel);
        self.gone.notify_waiters();
    }

    async fn say(&self, channel: Channel, message: Message) {
        // An error means that the link is over.
        let _ = self.frames.send(Frame { channel, message }).await;
    }

    /// From the connection to the other side.
    async fn send(&self, channel: Channel, mut from: OwnedReadHalf, room: &Semaphore) {
        let mut bytes = vec![0; PAYLOAD_BYTES];
        loop {
            // A closed semaphore is a channel that is over.
            let Ok(one) = room.acquire().await else {
                return;
            };
            one.forget();
            let more = room.forget_permits(PAYLOAD_BYTES - 1);
            let read = tokio::select! {
                read = from.read(&mut bytes[..=more]) => read,
                () = closed(room) => return,
            };
            match read {
                Ok(0) => return self.say(channel, Message::End).await,
                Ok(read) => {
                    room.add_permits(more + 1 - read);
                    let data = Message::Data(bytes[..read].to_vec());
                    self.say(channel, data).await;
                }
                Err(_) => return self.reset(channel).await,
            }
        }
    }

    /// From the other side to the connection.
    async fn deliver(
        &self,
        channel: Channel,
        mut to: OwnedWriteHalf,
        mut arriving: mpsc::UnboundedReceiver<Vec<u8>>,
    ) {
        while let Some(bytes) = arriving.recv().await {
            if bytes.is_empty() {
                break;
            }
            if to.write_all(&bytes).await.is_err() {
                return self.reset(channel).await;
            }
            if let Some(known) = self.table().get_mut(&channel) {
                known.waiting -= bytes.len();
            }
            let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.say(channel, Message::Passed(count)).await;
        }
        // An error means that the client has gone, which reading from it tells.
        let _ = to.shutdown().await;
    }

    /// The connection is broken: neither direction goes on.
    async fn reset(&self, channel: Channel) {
        self.close(channel);
        self.say(channel, Message::Reset).await;
    }

    fn close(&self, channel: Channel) {
        if let Some(known) = self.table().remove(&channel) {
            known.room.close();
        }
        self.gone.notify_waiters();
    }

    /// Hands out the frames that come, until the other side ends.
    ///
    /// # Errors
    ///
    /// When the other side breaks the rules.
    pub(super) async fn follow(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut opened: impl Opened,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<()> {
        while let Some(Frame { channel, message }) = Frame::read(&mut from).await? {
            // So that it does not grow with every connection.
            while tasks.try_join_next().is_some() {}
            match message {
                Message::Open => {
                    if self.table().contains_key(&channel) {
                        return Err(broken("a channel is opened twice"));
                    }
                    match opened.opened() {
                        Some(stream) => self.connect(channel, stream, tasks),
                        None => self.say(channel, Message::Reset).await,
                    }
                }
                Message::Data(bytes) => self.arrive(channel, bytes)?,
                Message::End => self.end(channel)?,
                Message::Passed(count) => self.make_room(channel, count)?,
                Message::Reset => self.close(channel),
            }
        }
        Ok(())
    }

    /// What is for a channel that has gone here was under way when it went.
    fn arrive(&self, channel: Channel, bytes: Vec<u8>) -> io::Result<()> {
        let mut table = self.table();
        let Some(known) = table.get_mut(&channel) else {
            return Ok(());
        };
        known.waiting += bytes.len();
        if known.waiting > WINDOW_BYTES || known.ended {
            return Err(broken("a channel has more bytes than it may"));
        }
        // An error means that nobody takes them any more; its reset is under way.
        let _ = known.arrived.send(bytes);
        Ok(())
    }

    fn end(&self, channel: Channel) -> io::Result<()> {
        let mut table = self.table();
        if let Some(known) = table.get_mut(&channel) {
            if known.ended {
                return Err(broken("a channel ends twice"));
            }
            known.ended = true;
            // Behind the bytes that wait: nobody sends none.
            let _ = known.arrived.send(Vec::new());
        }
        Ok(())
    }

    fn make_room(&self, channel: Channel, count: u32) -> io::Result<()> {
        let table = self.table();
        let Some(known) = table.get(&channel) else {
            return Ok(());
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > WINDOW_BYTES.saturating_sub(known.room.available_permits()) {
            return Err(broken("a channel has passed on more bytes than it got"));
        }
        known.room.add_permits(count);
        Ok(())
    }
}

/// Waits until the semaphore is closed.
async fn closed(room: &Semaphore) {
    // More than it ever has.
    let all = u32::try_from(WINDOW_BYTES).unwrap_or(u32::MAX);
    let _ = room.acquire_many(all.saturating_add(1)).await;
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes the frames that wait, all that there are at once.
async fn write(mut queued: mpsc::Receiver<Frame>, mut to: impl AsyncWrite + Unpin) {
    let mut bytes = Vec::with_capacity(BATCH_BYTES + PAYLOAD_BYTES);
    while let Some(frame) = queued.recv().await {
        bytes.clear();
        frame.write(&mut bytes);
        while bytes.len() < BATCH_BYTES
            && let Ok(frame) = queued.try_recv()
        {
            frame.write(&mut bytes);
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // An error means that the other side has ended.
    let _ = to.shutdown().await;
}
