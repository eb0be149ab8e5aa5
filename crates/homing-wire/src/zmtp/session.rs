//! One connection, from its first byte to its last: greeting, READY, and what the socket is for. What comes
//! goes into [`Session::read`], what is to be sent comes out of [`Session::output`]; when to give up is the
//! host's to say, who has the clock.

use super::frame::{Decoder, Whole, write_command, write_message};
use super::greeting::{self, Greeting};
use super::{ZmtpError, command, shown};
use command::Command;

/// What our side is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A SUB socket, which hears everything that a PUB or XPUB publishes.
    Subscriber,
    /// A DEALER socket, which sends one message (its frames) as soon as it may, and hears what comes back.
    Asker(Vec<Vec<u8>>),
}

impl Role {
    const fn socket_type(&self) -> &'static str {
        match self {
            Self::Subscriber => "SUB",
            Self::Asker(_) => "DEALER",
        }
    }
}

/// Something that the peer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The handshake is done, and what the role sends is in [`Session::output`]. Once, before any message.
    Ready,
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
}

#[derive(Debug)]
enum Phase {
    Greeting(Greeting),
    /// The greeting is done; the minor version of 3 that both speak.
    Handshake(u8),
    Ready(u8),
    Over(ZmtpError),
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    role: Role,
    phase: Phase,
    decoder: Decoder,
    out: Vec<u8>,
}

impl Session {
    /// A connection that was just made, whoever made it.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            phase: Phase::Greeting(Greeting::default()),
            decoder: Decoder::default(),
            out: greeting::build().to_vec(),
        }
    }

    /// Takes in bytes, of any cut, up to the first thing that they say: `input` is what is left then. `None`: all of
    /// it was taken.
    ///
    /// # Errors
    /// When the connection can't go on; from then on always the same.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Heard>, ZmtpError> {
        let heard = self.step(input);
        if let Err(error) = &heard {
            self.phase = Phase::Over(error.clone());
            self.decoder = Decoder::default();
        }
        heard
    }

    /// Takes what is to be sent.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Whether the handshake is done, and the connection still good.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// What is held of a message or command that isn't whole, in bytes: [`super::MESSAGE_MAX`] and
    /// [`super::COMMAND_MAX`] at most, and no more than twice what has come of it.
    #[must_use]
    pub fn held(&self) -> usize {
        self.decoder.held()
    }

    /// Asks the peer whether it is there, if it surely answers that: who speaks 3.1 must. False: it was not asked.
    pub fn ping(&mut self) -> bool {
        let answers = matches!(self.phase, Phase::Ready(1));
        if answers {
            write_command(&command::ping(), &mut self.out);
        }
        answers
    }

    fn step(&mut self, input: &mut &[u8]) -> Result<Option<Heard>, ZmtpError> {
        loop {
            let minor = match &mut self.phase {
                Phase::Over(error) => return Err(error.clone()),
                Phase::Greeting(greeting) => {
                    let Some(minor) = greeting.read(input)? else { return Ok(None) };
                    write_command(&command::ready(self.role.socket_type()), &mut self.out);
                    self.phase = Phase::Handshake(minor);
                    continue;
                }
                Phase::Handshake(minor) | Phase::Ready(minor) => *minor,
            };
            let ready = self.is_ready();
            match self.decoder.read(input, ready)? {
                None => return Ok(None),
                Some(Whole::Message(frames)) => return Ok(Some(Heard::Message(frames))),
                Some(Whole::Command(body)) => match (command::parse(&body)?, ready) {
                    (Command::Error(why), _) => return Err(ZmtpError::Refused(shown(why))),
                    (Command::Ready(theirs), false) => {
                        command::check_type(self.role.socket_type(), theirs)?;
                        self.begin(minor);
                        return Ok(Some(Heard::Ready));
                    }
                    (_, false) => return Err(ZmtpError::NotReady),
                    (Command::Ping(context), true) => {
                        write_command(&command::pong(context), &mut self.out);
                    }
                    (Command::Ready(_) | Command::Other, true) => {}
                },
            }
        }
    }

    /// What the role is for.
    fn begin(&mut self, minor: u8) {
        self.phase = Phase::Ready(minor);
        match &self.role {
            Role::Asker(request) => write_message(request, &mut self.out),
            Role::Subscriber if minor == 0 => write_message(&[vec![1]], &mut self.out),
            Role::Subscriber => write_command(&command::subscribe(), &mut self.out),
        }
    }
}
