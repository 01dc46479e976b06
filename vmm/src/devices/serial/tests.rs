use proptest::prelude::*;

use super::*;
use crate::devices::recording::Recorder;

const DATA: u16 = 0;
const INTERRUPT_ENABLE: u16 = 1;
const LINE_STATUS: u16 = 5;
const LOOPBACK: u8 = 0x10;

/// A writer with readable bytes.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that always fails.
struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn serial(output: impl Write + Send + 'static) -> (Serial, Arc<Recorder<()>>) {
    let irq = Arc::new(Recorder::new());
    (Serial::new(irq.clone(), Box::new(output)).unwrap(), irq)
}

#[test]
fn output_arrives_byte_by_byte() {
    let output = Output::default();
    let (serial, irq) = serial(output.clone());
    for byte in b"boot" {
        PortDevice::write(&serial, DATA, *byte);
    }
    assert_eq!(*output.0.lock().unwrap(), b"boot");
    assert!(irq.take().is_empty());
    PortDevice::write(&serial, INTERRUPT_ENABLE, 2);
    assert_eq!(irq.take().len(), 1);
}

#[test]
fn a_broken_output_does_not_stop_the_guest() {
    let (serial, irq) = serial(Broken);
    PortDevice::write(&serial, INTERRUPT_ENABLE, 2);
    irq.take();
    let _ = PortDevice::read(&serial, 2);
    PortDevice::write(&serial, DATA, b'x');
    assert_eq!(irq.take().len(), 1);
}

#[test]
fn input_interrupts_and_is_read() {
    let (serial, irq) = serial(io::sink());
    PortDevice::write(&serial, INTERRUPT_ENABLE, 1);
    assert_eq!(serial.enqueue(b"ls"), 2);
    assert_eq!(irq.take().len(), 1);
    assert_eq!(PortDevice::read(&serial, LINE_STATUS) & 1, 1);
    assert_eq!(PortDevice::read(&serial, DATA), b'l');
    assert!(serial.room_event().read().is_err());
    assert_eq!(PortDevice::read(&serial, DATA), b's');
    assert!(serial.room_event().read().is_ok());
    assert_eq!(PortDevice::read(&serial, LINE_STATUS) & 1, 0);
}

#[test]
fn a_full_fifo_takes_no_more() {
    let (serial, _) = serial(io::sink());
    assert_eq!(serial.enqueue(&[b'x'; 100]), 64);
    assert_eq!(serial.room(), 0);
    assert_eq!(serial.enqueue(b"y"), 0);
}

#[test]
fn end_of_loopback_signals_room() {
    let (serial, _) = serial(io::sink());
    PortDevice::write(&serial, MODEM_CONTROL_OFFSET, LOOPBACK);
    assert!(serial.room_event().read().is_ok());
    assert_eq!(serial.enqueue(b"x"), 0);
    PortDevice::write(&serial, MODEM_CONTROL_OFFSET, 0);
    assert!(serial.room_event().read().is_ok());
    assert_eq!(serial.enqueue(b"x"), 1);
}

proptest! {
    #[test]
    fn any_access_is_survived(accesses in prop::collection::vec(any::<(bool, u16, u8)>(), 0..64)) {
        let (serial, _) = serial(io::sink());
        for (write, offset, value) in accesses {
            match write {
                true => PortDevice::write(&serial, offset % 9, value),
                false => { let _ = PortDevice::read(&serial, offset); }
            }
        }
    }
}
