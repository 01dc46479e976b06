//! One side of the link: frames and connections.
//!
//! Three kinds of tasks on one runtime: one reads and dispatches frames, one writes frames, and each channel has two
//! copying tasks, one for each direction. A channel's copying tasks own its connection. The table has the channel's handles.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::frame::{Channel, Frame, Message, PAYLOAD_BYTES, WINDOW_BYTES};

/// The maximum number of pending frames. With more, the copying tasks wait.
const QUEUED_FRAMES: usize = 64;
/// The bytes of a write. Each write is a notification of the host, which is expensive under emulation.
const BATCH_BYTES: usize = 64 << 10;

/// One side.
#[derive(Clone, Debug)]
pub(super) struct Link {
    frames: mpsc::Sender<Frame>,
    table: Arc<Mutex<HashMap<Channel, Known>>>,
    /// A channel has gone.
    gone: Arc<Notify>,
    /// The number of connections with tasks. A connection whose channel has ended counts until its tasks end.
    connections: Arc<AtomicUsize>,
    /// The time for a connection to take its last bytes after the end of its channel.
    farewell: Duration,
}

/// A connection that counts.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state that the table and a connection's tasks share. After a reset, the other side may open the channel again while tasks of
/// the former connection still run.
#[derive(Debug)]
struct Connection {
    channel: Channel,
    /// Bytes that have arrived and wait for the copying task.
    waiting: AtomicUsize,
    /// The other side's room in bytes.
    room: Semaphore,
    /// Has no permits, and is closed at the end of the channel.
    over: Semaphore,
}

impl Connection {
    fn close(&self) {
        self.room.close();
        self.over.close();
    }
}

/// The handles of a channel's tasks.
#[derive(Debug)]
struct Known {
    /// Bytes for the connection, at most a window.
    arrived: mpsc::UnboundedSender<Vec<u8>>,
    connection: Arc<Connection>,
    /// The other side has sent its last byte.
    ended: bool,
}

/// How much of the other side's bytes the connection has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivered {
    /// All bytes.
    Whole,
    /// The connection is broken.
    InPart,
}

/// Connects the channels that the other side opens.
pub(super) trait Opened {
    /// The connection for a new channel; `None` if no connection can be made.
    fn opened(&mut self) -> Option<UnixStream>;
}

impl Link {
    /// Creates the link and its writing task, which ends when all clones of the link are dropped.
    pub(super) fn new<W: AsyncWrite + Unpin + Send + 'static>(
        to: W,
        farewell: Duration,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (frames, queued) = mpsc::channel(QUEUED_FRAMES);
        let link = Self {
            frames,
            table: Arc::default(),
            gone: Arc::default(),
            connections: Arc::default(),
            farewell,
        };
        (link, write(queued, to))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Channel, Known>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections: of channels, and of ended channels whose connection has yet to take its last bytes.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The numbers of all channels.
    #[cfg(feature = "fuzzing")]
    pub(super) fn numbers(&self) -> Vec<Channel> {
        self.table().keys().copied().collect()
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

    /// Waits until the table has no channel.
    pub(super) async fn is_quiet(&self) {
        loop {
            let mut gone = std::pin::pin!(self.gone.notified());
            gone.as_mut().enable();
            if self.table().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// Removes all channels: the other side has ended.
    pub(super) fn hang_up(&self) {
        for (_, known) in self.table().drain() {
            known.connection.close();
        }
        self.gone.notify_waiters();
    }

    /// Sends a frame about a channel without a connection.
    pub(super) async fn announce(&self, frame: Frame) {
        // An error means that the link is over.
        let _ = self.frames.send(frame).await;
    }

    /// Connects `stream` to `channel`.
    pub(super) fn connect(&self, channel: Channel, stream: UnixStream, tasks: &mut JoinSet<()>) {
        let (arrived, arriving) = mpsc::unbounded_channel();
        let connection = Arc::new(Connection {
            channel,
            waiting: AtomicUsize::new(0),
            room: Semaphore::new(WINDOW_BYTES),
            over: Semaphore::new(0),
        });
        let known = Known {
            arrived,
            connection: Arc::clone(&connection),
            ended: false,
        };
        self.table().insert(channel, known);
        let (from, to) = stream.into_split();
        let link = self.clone();
        let counted = Counted::new(&self.connections);
        tasks.spawn(async move {
            let _counted = counted;
            let ((), ()) = tokio::join!(
                link.send(&connection, from),
                link.deliver_in_time(&connection, to, arriving)
            );
            link.forget(&connection);
        });
    }

    /// Whether the channel still belongs to this connection. A reset channel may belong to a later connection.
    fn is_current(&self, connection: &Arc<Connection>) -> bool {
        let table = self.table();
        let known = table.get(&connection.channel);
        known.is_some_and(|known| Arc::ptr_eq(&known.connection, connection))
    }

    /// Removes the connection from the table, if the table has it.
    fn forget(&self, connection: &Arc<Connection>) {
        // One lock for look-up and removal: between two locks, a later connection could take the channel.
        if let Entry::Occupied(known) = self.table().entry(connection.channel)
            && Arc::ptr_eq(&known.get().connection, connection)
        {
            known.remove();
        }
        self.gone.notify_waiters();
    }

    /// Sends a frame about the connection, unless the channel belongs to a later connection.
    async fn say(&self, connection: &Arc<Connection>, message: Message) {
        let place = tokio::select! {
            place = self.frames.reserve() => place,
            // Nothing but a reset matters to an ended channel.
            _ = connection.over.acquire(), if message != Message::Reset => return,
        };
        // An error means that the link is over.
        let Ok(place) = place else {
            return;
        };
        if self.is_current(connection) {
            let channel = connection.channel;
            place.send(Frame { channel, message });
        }
    }

    /// Copies from the connection to the other side.
    async fn send(&self, connection: &Arc<Connection>, mut from: OwnedReadHalf) {
        let room = &connection.room;
        let mut bytes = vec![0; PAYLOAD_BYTES];
        loop {
            // A closed semaphore means that the channel is reset.
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
                Ok(0) => return self.say(connection, Message::End).await,
                Ok(read) => {
                    room.add_permits(more + 1 - read);
                    let data = Message::Data(bytes[..read].to_vec());
                    self.say(connection, data).await;
                }
                Err(_) => return self.reset(connection).await,
            }
        }
    }

    /// Copies from the other side to the connection. After the end of the channel, a connection that takes none of its last bytes for the
    /// time of the farewell is dropped: its client may wait for this side to read, which no task does any more.
    async fn deliver_in_time(
        &self,
        connection: &Arc<Connection>,
        to: OwnedWriteHalf,
        arriving: mpsc::UnboundedReceiver<Vec<u8>>,
    ) {
        let too_late = async {
            // An error means that the channel has ended.
            let _ = connection.over.acquire().await;
            let waiting = || connection.waiting.load(Ordering::Relaxed);
            let mut before = waiting();
            loop {
                tokio::time::sleep(self.farewell).await;
                if waiting() == before {
                    return;
                }
                before = waiting();
            }
        };
        let delivered = tokio::select! {
            delivered = self.deliver(connection, to, arriving) => delivered,
            () = too_late => return,
        };
        // Not in time, but for certain: the other side keeps the channel until it knows.
        if delivered == Delivered::InPart {
            self.reset(connection).await;
        }
    }

    async fn deliver(
        &self,
        connection: &Arc<Connection>,
        mut to: OwnedWriteHalf,
        mut arriving: mpsc::UnboundedReceiver<Vec<u8>>,
    ) -> Delivered {
        while let Some(bytes) = arriving.recv().await {
            if bytes.is_empty() {
                break;
            }
            if to.write_all(&bytes).await.is_err() {
                return Delivered::InPart;
            }
            connection.waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.say(connection, Message::Passed(count)).await;
        }
        // An error means that the client has gone. The reading task finds the same.
        let _ = to.shutdown().await;
        Delivered::Whole
    }

    /// Ends both directions of a broken connection.
    async fn reset(&self, connection: &Arc<Connection>) {
        connection.close();
        self.say(connection, Message::Reset).await;
        self.forget(connection);
    }

    /// Ends a channel that the other side has reset.
    fn close(&self, channel: Channel) {
        if let Some(known) = self.table().remove(&channel) {
            known.connection.close();
        }
        self.gone.notify_waiters();
    }

    /// Dispatches the other side's frames, until the other side ends.
    ///
    /// # Errors
    ///
    /// If the other side violates the protocol.
    pub(super) async fn follow(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut opened: impl Opened,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<()> {
        while let Some(Frame { channel, message }) = Frame::read(&mut from).await? {
            // Finished tasks are removed, so the set does not grow with every connection.
            while tasks.try_join_next().is_some() {}
            match message {
                Message::Open => {
                    if self.table().contains_key(&channel) {
                        return Err(broken("a channel is opened twice"));
                    }
                    match opened.opened() {
                        Some(stream) => self.connect(channel, stream, tasks),
                        None => {
                            let message = Message::Reset;
                            self.announce(Frame { channel, message }).await;
                        }
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

    /// Drops frames for removed channels: the other side sent them before it learnt of the removal.
    fn arrive(&self, channel: Channel, bytes: Vec<u8>) -> io::Result<()> {
        let table = self.table();
        let Some(known) = table.get(&channel) else {
            return Ok(());
        };
        let waiting = &known.connection.waiting;
        let before = waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if before + bytes.len() > WINDOW_BYTES || known.ended {
            return Err(broken("a channel has more bytes than it may"));
        }
        // An error means that the copying task has ended. The channel's reset follows.
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
            // The empty message marks the end, behind the waiting bytes.
            let _ = known.arrived.send(Vec::new());
        }
        Ok(())
    }

    fn make_room(&self, channel: Channel, count: u32) -> io::Result<()> {
        let table = self.table();
        let Some(known) = table.get(&channel) else {
            return Ok(());
        };
        let room = &known.connection.room;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > WINDOW_BYTES.saturating_sub(room.available_permits()) {
            return Err(broken("a channel has passed on more bytes than it got"));
        }
        room.add_permits(count);
        Ok(())
    }
}

/// Waits until the semaphore is closed.
async fn closed(room: &Semaphore) {
    // More permits than the semaphore ever has.
    let all = u32::try_from(WINDOW_BYTES).unwrap_or(u32::MAX);
    let _ = room.acquire_many(all.saturating_add(1)).await;
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes all pending frames at once.
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

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    const CHANNEL: Channel = 7;
    const FAREWELL: Duration = Duration::from_millis(20);

    /// Opens connections by pairs of sockets, and keeps the clients' ends.
    #[derive(Default)]
    struct Sockets(Vec<UnixStream>);

    impl Opened for &mut Sockets {
        fn opened(&mut self) -> Option<UnixStream> {
            let (ours, theirs) = UnixStream::pair().ok()?;
            self.0.push(theirs);
            Some(ours)
        }
    }

    /// Follows frames that have all arrived before a channel's task runs, and then lets the tasks run. Returns the link, the
    /// clients, the tasks and the answer.
    async fn follow_at_once(messages: Vec<Message>) -> (Link, Sockets, JoinSet<()>, DuplexStream) {
        let (to, answer) = tokio::io::duplex(BATCH_BYTES);
        let (link, writing) = Link::new(to, FAREWELL);
        tokio::spawn(writing);
        let mut bytes = Vec::new();
        for message in messages {
            let channel = CHANNEL;
            Frame { channel, message }.write(&mut bytes);
        }
        let (mut sockets, mut tasks) = (Sockets::default(), JoinSet::new());
        let followed = link.follow(&bytes[..], &mut sockets, &mut tasks).await;
        followed.expect("the frames keep to the rules");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        (link, sockets, tasks, answer)
    }

    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().event_interval(1).build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn reopened_channel_belongs_to_its_new_connection() {
        run(async {
            let (link, mut sockets, mut tasks, _answer) = follow_at_once(vec![
                Message::Open,
                Message::Data(vec![1; 10]),
                Message::Reset,
                Message::Open,
                Message::Data(vec![2; 20]),
            ])
            .await;
            let first = tasks.join_next().await.expect("the first connection's");
            first.expect("the first connection's task does not panic");
            assert_eq!(link.connections(), 1, "the new connection is forgotten");
            let mut bytes = [0; 20];
            let read = sockets.0[1].read_exact(&mut bytes).await;
            assert_eq!((read.expect("bytes"), bytes), (20, [2; 20]));
            // The window has the size of each connection's window.
            for _ in 0..WINDOW_BYTES / PAYLOAD_BYTES {
                let arrived = link.arrive(CHANNEL, vec![3; PAYLOAD_BYTES]);
                arrived.expect("there is room");
            }
            let more = link.arrive(CHANNEL, vec![3]);
            more.expect_err("the window is full");
        });
    }

    #[test]
    fn reset_connection_says_nothing_about_reopened_channel() {
        run(async {
            let (link, sockets, mut tasks, mut answer) = follow_at_once(vec![
                Message::Open,
                Message::Data(vec![1; 10]),
                Message::Reset,
                Message::Open,
            ])
            .await;
            let first = tasks.join_next().await.expect("the first connection's");
            first.expect("the first connection's task does not panic");
            tasks.shutdown().await;
            drop((link, sockets));
            let mut frames = Vec::new();
            answer.read_to_end(&mut frames).await.expect("the answer");
            assert_eq!(frames, b"", "the first connection's frames");
        });
    }

    #[test]
    fn connection_that_takes_no_bytes_ends_after_reset() {
        run(async {
            // The client neither reads nor ends, as a client does that waits for its own bytes to be read.
            let (link, _sockets, mut tasks, _answer) = follow_at_once(vec![Message::Open]).await;
            // More bytes than a socket holds.
            while link.arrive(CHANNEL, vec![1; PAYLOAD_BYTES]).is_ok() {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
            link.close(CHANNEL);
            assert_eq!(
                link.connections(),
                1,
                "the connection counts while its task runs"
            );
            let limit = Duration::from_secs(20);
            let ended = tokio::time::timeout(limit, tasks.join_next()).await;
            let ended = ended.expect("the task ends").expect("there is a task");
            ended.expect("the task does not panic");
            assert_eq!(link.connections(), 0);
        });
    }

    #[test]
    fn broken_connection_is_reset_however_long_the_queue_is_full() {
        run(async {
            let (to, mut answer) = tokio::io::duplex(1);
            let (link, writing) = Link::new(to, FAREWELL);
            tokio::spawn(writing);
            let other = |message| Frame {
                channel: CHANNEL + 1,
                message,
            };
            let queued = async || {
                let queued = link.announce(other(Message::Passed(1)));
                tokio::time::timeout(FAREWELL, queued).await
            };
            while queued().await.is_ok() {}
            let (ours, mut client) = UnixStream::pair().expect("sockets");
            let mut tasks = JoinSet::new();
            link.connect(CHANNEL, ours, &mut tasks);
            // The sending task waits for room in the queue, and cannot find out that the connection is broken.
            client.write_all(&[1]).await.expect("written");
            tokio::time::sleep(FAREWELL).await;
            rustix::net::shutdown(&client, rustix::net::Shutdown::Read).expect("shut down");
            link.arrive(CHANNEL, vec![1]).expect("there is room");
            tokio::time::sleep(10 * FAREWELL).await;
            tokio::spawn(async move {
                while tasks.join_next().await.is_some() {}
                drop(link);
            });
            let mut bytes = Vec::new();
            answer.read_to_end(&mut bytes).await.expect("the answer");
            let (mut left, mut resets) = (&bytes[..], 0);
            while let Some(frame) = Frame::read(&mut left).await.expect("frames") {
                resets += usize::from(frame.channel == CHANNEL && frame.message == Message::Reset);
            }
            assert_eq!(resets, 1);
        });
    }
}
