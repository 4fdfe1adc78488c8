//! Redis as the store sees it: a stream, a claim, and the number of restored records.

use super::Random;

/// One try to send a webhook. Its sender repeats it under another id.
pub(super) type SendId = usize;

/// Command on its way to Redis, or at Redis and not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Append(SendId),
    /// Append of another receiver.
    Foreign,
    /// Records of the log after this number.
    Restore {
        after: usize,
        records: Vec<SendId>,
    },
}

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Refused,
}

/// A connection with one command.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub number: u64,
    pub command: Command,
}

#[derive(Debug, Default)]
pub(super) struct Redis {
    pub is_hung: bool,
    pub is_full: bool,
    pub stream: Vec<SendId>,
    /// Records of the log that are in the stream.
    pub restored: usize,
    /// Set while another receiver has the claim.
    pub is_claimed: bool,
    /// Set if another receiver had the claim since it was last confirmed.
    pub was_claimed: bool,
    /// Commands that were not run yet.
    pub calls: Vec<Call>,
    /// Outcomes of the commands that were run.
    pub replies: Vec<(u64, Reply)>,
    calls_made: u64,
}

impl Redis {
    pub(super) fn call(&mut self, command: Command) -> u64 {
        self.calls_made += 1;
        self.calls.push(Call { number: self.calls_made, command });
        self.calls_made
    }

    /// Runs one of the commands, unless Redis hangs. Returns it.
    pub(super) fn run_one(&mut self, random: &mut Random) -> Option<Call> {
        if self.is_hung || self.calls.is_empty() {
            return None;
        }
        let call = self.calls.swap_remove(random.below(self.calls.len()));
        let reply = self.run(&call.command);
        self.replies.push((call.number, reply));
        Some(call)
    }

    fn run(&mut self, command: &Command) -> Reply {
        if self.is_full {
            return Reply::Refused;
        }
        match command {
            Command::Append(id) => self.stream.push(*id),
            Command::Foreign => {}
            Command::Restore { after, .. } if *after != self.restored || self.was_claimed => {
                return Reply::Refused;
            }
            Command::Restore { after, records } => {
                self.stream.extend(records);
                self.restored = after + records.len();
            }
        }
        Reply::Done
    }

    /// Closes a connection from Redis' side. Its command does not take effect any more.
    pub(super) fn close(&mut self, number: u64) {
        self.calls.retain(|call| call.number != number);
    }

    /// Closes the appenders' connections of all processes.
    pub(super) fn fence(&mut self) {
        self.calls.retain(|call| matches!(call.command, Command::Restore { .. }));
    }

    pub(super) fn reply(&mut self, number: u64) -> Option<Reply> {
        let at = self.replies.iter().position(|(one, _)| *one == number)?;
        Some(self.replies.swap_remove(at).1)
    }
}
