use super::*;
use crate::devices::recording::Recorder;

#[test]
fn the_reset_command_resets() {
    let sink = Arc::new(Recorder::new());
    let port = I8042::command_port(sink.clone());
    assert_eq!(port.read(0), 0);
    for value in [0xd1, 0xff, 0xfd, 0xfe] {
        port.write(0, value);
    }
    assert_eq!(sink.take(), [Shutdown::Reset]);
}

#[test]
fn data_are_ignored() {
    let sink = Arc::new(Recorder::new());
    let port = I8042::data_port(sink.clone());
    port.write(0, 0xfe);
    assert_eq!(port.read(0), 0);
    assert_eq!(sink.take(), []);
}
