// SPDX-License-Identifier: Apache-2.0
//
// iceoryx2 with functions for C: what iceoryx2.cpp calls, which says what is measured. A service of
// publish and subscribe takes messages one way. Who polls calls receive() without a pause; who
// sleeps waits at a service of events, which the sender notifies after each message.

use iceoryx2::port::listener::{Listener, ListenerWaitError};
use iceoryx2::port::{notifier::Notifier, publisher::Publisher, subscriber::Subscriber};
use iceoryx2::prelude::*;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Debug;
use std::time::{Duration, Instant};

type Ipc = ipc::Service;

/// As in iceoryx2.cpp.
#[repr(C)]
pub struct Plan {
    root: *const c_char,
    prefix: *const c_char,
    message_bytes: usize,
    depth: usize,
    readers: usize,
    blocks: bool,
    overwrites: bool,
}

struct Sender {
    publisher: Publisher<Ipc, [u8], ()>,
    notifier: Option<Notifier<Ipc>>,
}

struct Receiver {
    subscriber: Subscriber<Ipc, [u8], ()>,
    listener: Option<Listener<Ipc>>,
}

/// The ports go before their node.
pub struct End {
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    _node: Node<Ipc>,
}

// Null, or why it failed: of a process that says so and ends.
fn answer(result: Result<(), String>) -> *const c_char {
    match result {
        Ok(()) => std::ptr::null(),
        Err(reason) => CString::new(reason).unwrap_or_default().into_raw(),
    }
}

// Processes that make the same service at the same moment are in each other's way.
fn insist<T, E: Debug>(what: &str, mut make: impl FnMut() -> Result<T, E>) -> Result<T, String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match make() {
            Ok(made) => return Ok(made),
            Err(error) if Instant::now() >= until => return Err(format!("{what}: {error:?}")),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn once<T, E: Debug>(what: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error:?}"))
}

impl Plan {
    fn config(&self) -> Result<Config, String> {
        let (root, prefix) = unsafe {
            (CStr::from_ptr(self.root).to_bytes(), CStr::from_ptr(self.prefix).to_bytes())
        };
        let mut config = Config::default();
        config.global.set_root_path(&once("the folder", Path::new(root))?);
        config.global.prefix = once("the prefix", FileName::new(prefix))?;
        Ok(config)
    }

    fn sender(&self, node: &Node<Ipc>, name: &str) -> Result<Sender, String> {
        let service = self.messages(node, name)?;
        let publisher = service
            .publisher_builder()
            .initial_max_slice_len(self.message_bytes.max(1))
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create();
        let events = self.events(node, name)?;
        let notifier = events.map(|events| once("a notifier", events.notifier_builder().create()));
        Ok(Sender { publisher: once("a publisher", publisher)?, notifier: notifier.transpose()? })
    }

    fn receiver(&self, node: &Node<Ipc>, name: &str) -> Result<Receiver, String> {
        let service = self.messages(node, name)?;
        let subscriber = service.subscriber_builder().create();
        let events = self.events(node, name)?;
        let listener = events.map(|events| once("a listener", events.listener_builder().create()));
        Ok(Receiver {
            subscriber: once("a subscriber", subscriber)?,
            listener: listener.transpose()?,
        })
    }

    fn messages(
        &self,
        node: &Node<Ipc>,
        name: &str,
    ) -> Result<
        iceoryx2::service::port_factory::publish_subscribe::PortFactory<Ipc, [u8], ()>,
        String,
    > {
        let name = once("a name", ServiceName::new(name))?;
        insist("a service", || {
            node.service_builder(&name)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(self.readers)
                .max_nodes(self.readers + 1)
                .subscriber_max_buffer_size(self.depth)
                .subscriber_max_borrowed_samples(1)
                .enable_safe_overflow(self.overwrites)
                .open_or_create()
        })
    }

    fn events(
        &self,
        node: &Node<Ipc>,
        name: &str,
    ) -> Result<Option<iceoryx2::service::port_factory::event::PortFactory<Ipc>>, String> {
        if !self.blocks {
            return Ok(None);
        }
        let name = once("a name", ServiceName::new(name))?;
        insist("a service of events", || {
            node.service_builder(&name)
                .event()
                .max_notifiers(1)
                .max_listeners(self.readers)
                .max_nodes(self.readers + 1)
                .event_id_max_value(0)
                .open_or_create()
        })
        .map(Some)
    }

    fn open(&self, sends: Option<&str>, receives: Option<&str>) -> Result<End, String> {
        let config = self.config()?;
        let node = insist("a node", || {
            NodeBuilder::new()
                .signal_handling_mode(SignalHandlingMode::Disabled)
                .config(&config)
                .create::<Ipc>()
        })?;
        let sender = sends.map(|name| self.sender(&node, name)).transpose()?;
        let receiver = receives.map(|name| self.receiver(&node, name)).transpose()?;
        Ok(End { sender, receiver, _node: node })
    }
}

impl Sender {
    fn send(&self, message: &[u8]) -> Result<(), String> {
        let sample = once("loan", self.publisher.loan_slice_uninit(message.len()))?;
        once("send", sample.write_from_slice(message).send())?;
        if let Some(notifier) = &self.notifier {
            once("notify", notifier.notify())?;
        }
        Ok(())
    }
}

impl Receiver {
    fn receive(&self, message: &mut [u8]) -> Result<(), String> {
        loop {
            if let Some(sample) = once("receive", self.subscriber.receive())? {
                let payload = sample.payload();
                if payload.len() != message.len() {
                    return Err("a message of another size".to_string());
                }
                message.copy_from_slice(payload);
                return Ok(());
            }
            match &self.listener {
                Some(listener) => match listener.blocking_wait(|_| ()) {
                    Ok(_) | Err(ListenerWaitError::InterruptSignal) => (),
                    Err(error) => return Err(format!("wait: {error:?}")),
                },
                None => std::hint::spin_loop(),
            }
        }
    }
}

unsafe fn name_of<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// An end that sends to one service and receives from another, of which either may be null.
///
/// # Safety
/// All strings end with a zero; `end` can be written to. What is put there goes to
/// farcall_iceoryx2_close(), and is used by one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_iceoryx2_open(
    plan: &Plan,
    sends: *const c_char,
    receives: *const c_char,
    end: &mut *mut End,
) -> *const c_char {
    answer(unsafe { plan.open(name_of(sends), name_of(receives)) }.map(|made| {
        *end = Box::into_raw(Box::new(made));
    }))
}

/// # Safety
/// `message` is `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_iceoryx2_send(
    end: &End,
    message: *const u8,
    bytes: usize,
) -> *const c_char {
    answer(match &end.sender {
        Some(sender) => sender.send(unsafe { std::slice::from_raw_parts(message, bytes) }),
        None => Err("this end does not send".to_string()),
    })
}

/// # Safety
/// `message` is `bytes` bytes, which can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_iceoryx2_receive(
    end: &End,
    message: *mut u8,
    bytes: usize,
) -> *const c_char {
    answer(match &end.receiver {
        Some(receiver) => {
            receiver.receive(unsafe { std::slice::from_raw_parts_mut(message, bytes) })
        }
        None => Err("this end does not receive".to_string()),
    })
}

/// # Safety
/// `end` is of farcall_iceoryx2_open() and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_iceoryx2_close(end: *mut End) {
    drop(unsafe { Box::from_raw(end) });
}
