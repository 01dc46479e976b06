//! Accepts clients, limits their number, and ends their connections.

use std::io;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::app::App;
use super::pacing::{Paced, Patience};
use super::routes::routes;
use crate::api::{Problem, ProblemKind};
use crate::limits::{CONNECTIONS, FAREWELL, HEAD_BYTES, HEAD_TIME, STALL_TIME, TURNED_AWAY};

/// Delay after a failed accept, for example when this process has no file descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Source of client connections.
#[derive(Debug)]
pub enum Incoming {
    /// The listener of the socket's file. The server checks the user of each client.
    Socket(StdListener),
    /// Connections with checked users, such as those from the outer side of a nested run.
    Trusted(mpsc::Receiver<StdStream>),
}

/// [`Incoming`], registered with the runtime.
#[derive(Debug)]
pub(crate) enum Arrivals {
    Socket(UnixListener),
    Trusted(mpsc::Receiver<StdStream>),
}

impl Incoming {
    pub(crate) fn registered(self) -> io::Result<Arrivals> {
        match self {
            Self::Socket(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Arrivals::Socket(UnixListener::from_std(listener)?))
            }
            Self::Trusted(streams) => Ok(Arrivals::Trusted(streams)),
        }
    }
}

impl Arrivals {
    /// Waits for the next client. Returns the problem, too, if the client's user is refused.
    pub(crate) async fn next(&mut self) -> (UnixStream, Option<Problem>) {
        loop {
            match self {
                Self::Socket(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        let wrong = refusal_of_other_user(&stream);
                        return (stream, wrong);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a control connection");
                        tokio::time::sleep(EXHAUSTED).await;
                    }
                },
                Self::Trusted(streams) => match streams.recv().await {
                    Some(stream) => {
                        let stream = stream
                            .set_nonblocking(true)
                            .and_then(|()| UnixStream::from_std(stream));
                        match stream {
                            Ok(stream) => return (stream, None),
                            Err(error) => {
                                tracing::warn!(%error, "cannot take a control connection");
                            }
                        }
                    }
                    None => std::future::pending().await,
                },
            }
        }
    }
}

/// The problem of a client whose user is unknown, or is neither the same user nor root.
fn refusal_of_other_user(stream: &UnixStream) -> Option<Problem> {
    let ours = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == ours || peer.uid() == 0 => None,
        Ok(peer) => Some(ProblemKind::NotAllowed.with(format!(
            "this run belongs to the user {ours}, and you are the user {}",
            peer.uid()
        ))),
        Err(error) => {
            Some(ProblemKind::NotAllowed.with(format!("who you are is unknown: {error}")))
        }
    }
}

/// Serves clients until `finished`. Then the clients have [`FAREWELL`] to take the rest of their answers.
pub(super) async fn serve(
    mut incoming: Arrivals,
    app: Arc<App>,
    mut finished: oneshot::Receiver<()>,
) {
    let routes = routes(Arc::clone(&app));
    let served = Arc::clone(&app.served);
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let (leave, left) = watch::channel(());
    let mut clients = JoinSet::new();
    loop {
        let (stream, wrong) = tokio::select! {
            next = incoming.next() => next,
            _ = &mut finished => break,
            Some(_) = clients.join_next() => continue,
        };
        let (room, router) = match wrong {
            Some(problem) => (&turned_away, only(problem)),
            None if served.available_permits() == 0 => (
                &turned_away,
                only(
                    ProblemKind::Busy.with(format!("{CONNECTIONS} clients are connected already")),
                ),
            ),
            None => (&served, routes.clone()),
        };
        // If there is no room for a refusal, the connection is closed without an answer.
        if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
            clients.spawn(one(stream, router, Some(permit), left.clone()));
        }
    }
    drop((incoming, routes, app));
    drop(leave);
    let farewell = async { while clients.join_next().await.is_some() {} };
    // The remaining connections are dropped.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

/// Refuses a client with a problem, outside the server: on the outer side of a nested run.
#[derive(Debug)]
pub(crate) struct Refusal(Problem);

impl Refusal {
    pub(crate) const fn of(problem: Problem) -> Self {
        Self(problem)
    }

    /// Answers the client with the problem. Returns at the end of the connection, or after [`HEAD_TIME`].
    pub(crate) async fn answer(self, stream: UnixStream) {
        let (_leave, left) = watch::channel(());
        let told = one(stream, only(self.0), None, left);
        let _ = tokio::time::timeout(HEAD_TIME, told).await;
    }
}

/// A router that answers every request with the same problem.
fn only(problem: Problem) -> Router {
    Router::new().fallback(move || {
        let problem = problem.clone();
        async move { problem.into_response() }
    })
}

/// Serves one client to the end of the connection. When the sender of `left` is dropped, the present request is the last.
async fn one(
    stream: UnixStream,
    router: Router,
    permit: Option<OwnedSemaphorePermit>,
    mut left: watch::Receiver<()>,
) {
    let patience = Patience::default();
    let service = router.layer(axum::Extension(patience.clone()));
    let service = service.into_service::<hyper::body::Incoming>();
    let service = TowerToHyperService::new(service);
    let of_last_request = patience.clone();
    let service = service_fn(move |request| {
        of_last_request.revoke();
        service.call(request)
    });
    let stream = TokioIo::new(Paced::new(stream, STALL_TIME, patience));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .half_close(false)
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = left.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // A broken connection is the client's mistake: no warning.
        tracing::debug!(%error, "a control connection has broken");
    }
    drop(permit);
}
